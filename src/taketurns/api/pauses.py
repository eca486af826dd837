"""The routes of pauses: tasks of a queue or a type that are given no turn, of one company or of all."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter
from fastapi import Query as QueryParameters
from starlette.requests import Request
from starlette.responses import Response

from taketurns.api import answers, bodies, guard, lists, paths, problems
from taketurns.api.guard import GuardedRoute, needs
from taketurns.api.openapi import body_of, operation_id
from taketurns.api.parts import operator_parts
from taketurns.api.problems import Problem, documented
from taketurns.api.requests import PauseQuery, PutPause
from taketurns.companies import pauses
from taketurns.engine.errors import InvalidOption
from taketurns.engine.key import Role

router = APIRouter(route_class=GuardedRoute, generate_unique_id_function=operation_id, tags=["pauses"])


@router.get(
    paths.PAUSES_OF_COMPANY,
    response_model=answers.PauseList,
    responses=documented(problems.COMPANY_NOT_FOUND, problems.UNKNOWN_PARAMETER),
)
@needs(key="any", operator=Role.VIEWER)
async def list_pauses_of_company(request: Request) -> Response:
    """The pauses of a company's queues and types. Whether it is paused itself, the company tells."""
    return await _list(request, paths.company(request))


@router.put(
    paths.PAUSES_OF_COMPANY,
    response_model=answers.PauseBody,
    responses=documented(*problems.IN_BODY, problems.COMPANY_NOT_FOUND),
    openapi_extra=body_of(PutPause),
)
@needs(operator=Role.OPERATOR)
async def put_pause_of_company(request: Request) -> Response:
    """Pause a queue, a type, or a type in a queue, of one company. What runs goes on; what is submitted waits."""
    return await _put(request, paths.company(request))


@router.delete(
    paths.PAUSES_OF_COMPANY,
    dependencies=lists.ONE_OF_EACH,
    status_code=204,
    response_description="The tasks are given turns again, in the order in which they waited.",
    responses=documented(
        problems.COMPANY_NOT_FOUND,
        problems.PAUSE_NOT_FOUND,
        problems.UNKNOWN_PARAMETER,
        problems.INVALID_REQUEST,
    ),
)
@needs(operator=Role.OPERATOR)
async def lift_pause_of_company(request: Request, query: Annotated[PauseQuery, QueryParameters()]) -> Response:
    """Lift a pause of a company, named by its queue and type."""
    return await _lift(request, paths.company(request), query)


@router.get(paths.PAUSES, response_model=answers.PauseList, responses=documented(problems.UNKNOWN_PARAMETER))
@needs(operator=Role.VIEWER)
async def list_pauses(request: Request) -> Response:
    """The pauses of queues and types for every company."""
    return await _list(request, None)


@router.put(
    paths.PAUSES,
    response_model=answers.PauseBody,
    responses=documented(*problems.IN_BODY),
    openapi_extra=body_of(PutPause),
)
@needs(operator=Role.OPERATOR)
async def put_pause(request: Request) -> Response:
    """Pause a queue, a type, or a type in a queue, for every company. What runs goes on; what is submitted waits."""
    return await _put(request, None)


@router.delete(
    paths.PAUSES,
    dependencies=lists.ONE_OF_EACH,
    status_code=204,
    response_description="The tasks are given turns again, in the order in which they waited.",
    responses=documented(problems.PAUSE_NOT_FOUND, problems.UNKNOWN_PARAMETER, problems.INVALID_REQUEST),
)
@needs(operator=Role.OPERATOR)
async def lift_pause(request: Request, query: Annotated[PauseQuery, QueryParameters()]) -> Response:
    """Lift a pause for every company, named by its queue and type."""
    return await _lift(request, None, query)


async def _list(request: Request, company: UUID | str | None) -> Response:
    lists.refuse_query(request)
    standing = await pauses.standing(operator_parts(request).database, company)
    if standing is None:
        raise paths.company_not_found()
    return answers.send(answers.PauseList(pauses=[answers.pause(one) for one in standing]))


async def _put(request: Request, company: UUID | str | None) -> Response:
    lists.refuse_query(request)
    body = await bodies.read(request, PutPause)
    database, by = operator_parts(request).database, guard.actor_of(request)
    try:
        pause = await pauses.put(database, company, queue=body.queue, type=body.type, until=body.until, by=by)
    except InvalidOption as error:
        raise bodies.over("until", error) from None
    if pause is None:
        raise paths.company_not_found()
    await _tell_jobs(request)
    return answers.send(answers.pause(pause))


async def _lift(request: Request, company: UUID | str | None, query: PauseQuery) -> Response:
    database = operator_parts(request).database
    if not await pauses.lift(database, company, queue=query.queue, type=query.type, by=guard.actor_of(request)):
        if await pauses.standing(database, company) is None:
            raise paths.company_not_found()
        raise Problem(problems.PAUSE_NOT_FOUND, "no pause names this queue and this type")
    await _tell_jobs(request)
    return Response(status_code=204)


async def _tell_jobs(request: Request) -> None:
    given = operator_parts(request)
    if given.jobs is not None:
        await given.jobs.follow_pauses(given.database)
