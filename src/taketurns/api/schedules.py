"""The routes of schedules: what a company wants done again and again."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final

from fastapi import APIRouter
from fastapi import Query as QueryParameters
from starlette.requests import Request
from starlette.responses import Response

from taketurns.api import answers, bodies, guard, lists, paths, payloads, problems
from taketurns.api.guard import GuardedRoute, needs
from taketurns.api.openapi import body_of, operation_id
from taketurns.api.parts import parts
from taketurns.api.problems import FieldError, Problem, documented
from taketurns.api.requests import ChangeSchedule, CreateSchedule, Query
from taketurns.engine import limits, schedule
from taketurns.engine.errors import InvalidOption
from taketurns.engine.key import Role, Scope
from taketurns.engine.schedule import Missed
from taketurns.schedules import timetable
from taketurns.schedules.errors import NameTaken, TooManySchedules
from taketurns.schedules.timetable import NewSchedule, Schedule

router = APIRouter(route_class=GuardedRoute, generate_unique_id_function=operation_id, tags=["schedules"])

_IN_SCHEDULE: Final = (
    *problems.IN_BODY,
    problems.UNKNOWN_TYPE,
    problems.INVALID_PAYLOAD,
    problems.SCHEDULE_NAME_TAKEN,
)
_FIELDS: Final = {"expression": "/expression", "time_zone": "/timeZone"}


@router.post(
    paths.SCHEDULES,
    status_code=201,
    response_model=answers.ScheduleBody,
    response_description="The schedule was created.",
    responses=documented(*_IN_SCHEDULE, problems.COMPANY_NOT_FOUND, problems.TOO_MANY_SCHEDULES),
    openapi_extra=body_of(CreateSchedule),
)
@needs(key=Scope.SCHEDULES_WRITE, operator=Role.OPERATOR)
async def create_schedule(request: Request) -> Response:
    """Have a task made at each tick of a cron expression, from the next one on."""
    lists.refuse_query(request)
    given = parts(request)
    company = paths.company(request)
    body = await bodies.read(request, CreateSchedule)
    known, text = await payloads.checked(given, body.type, body.payload)
    new = NewSchedule(
        name=body.name,
        type=body.type,
        payload=text,
        queue=known.queue if body.queue is None else body.queue,
        priority=known.priority if body.priority is None else body.priority,
        max_retries=known.max_retries if body.max_retries is None else body.max_retries,
        timeout_seconds=known.timeout_seconds if body.timeout_seconds is None else body.timeout_seconds,
        cron=schedule.read(body.expression, body.time_zone),
        missed=Missed(body.missed),
        paused=body.paused,
    )
    try:
        by = guard.actor_of(request)
        made = await timetable.create(given.database, company, new, most=limits.SCHEDULES_MAX, by=by)
    except (NameTaken, InvalidOption) as error:
        raise _refused(error) from None
    except TooManySchedules as error:
        raise Problem(problems.TOO_MANY_SCHEDULES, str(error)) from None
    location = {"location": f"/companies/{made.company_id}/schedules/{made.id}"}
    return answers.send(answers.schedule(made), 201, location)


@router.get(
    paths.SCHEDULES,
    response_model=answers.SchedulePage,
    responses=documented(
        problems.COMPANY_NOT_FOUND,
        problems.UNKNOWN_PARAMETER,
        problems.INVALID_CURSOR,
        problems.OFFSET_TOO_LARGE,
        problems.INVALID_REQUEST,
    ),
    dependencies=lists.ONE_OF_EACH,
)
@needs(key=Scope.SCHEDULES_READ, operator=Role.VIEWER)
async def list_schedules(request: Request, query: Annotated[Query, QueryParameters()]) -> Response:
    """A company's schedules, the newest first."""
    given = parts(request)
    company = await paths.company_id(request)
    after = lists.start(query, given.cursors, "schedules", company)
    page = await timetable.page(given.database, company, limit=query.limit, offset=query.offset, after=after)
    if page is None:
        raise paths.company_not_found()
    cursor = given.cursors.write(page.next_after, "schedules", company) if page.next_after else None
    body = answers.SchedulePage(
        schedules=await asyncio.to_thread(lambda: [answers.schedule(told) for told in page.schedules]),
        hasMore=cursor is not None,
        nextCursor=cursor,
    )
    return await lists.send(request, body, cursor)


@router.get(
    paths.SCHEDULE,
    response_model=answers.ScheduleBody,
    responses=documented(problems.SCHEDULE_NOT_FOUND, problems.UNKNOWN_PARAMETER),
)
@needs(key=Scope.SCHEDULES_READ, operator=Role.VIEWER)
async def get_schedule(request: Request) -> Response:
    """A schedule as it stands, with its next five ticks."""
    lists.refuse_query(request)
    return answers.send(answers.schedule(await _schedule(request)))


@router.patch(
    paths.SCHEDULE,
    response_model=answers.ScheduleBody,
    responses=documented(*_IN_SCHEDULE, problems.SCHEDULE_NOT_FOUND),
    openapi_extra=body_of(ChangeSchedule),
)
@needs(key=Scope.SCHEDULES_WRITE, operator=Role.OPERATOR)
async def change_schedule(request: Request) -> Response:
    """Change, pause or resume a schedule. While it was paused nothing was missed: it goes on at its next tick."""
    lists.refuse_query(request)
    given = parts(request)
    company, schedule_id = paths.company(request), paths.schedule_id(request)
    body = await bodies.read(request, ChangeSchedule)
    changes: dict[str, Any] = body.model_dump(exclude_unset=True)
    if body.payload is not None:
        _, changes["payload"] = await payloads.checked(given, (await _schedule(request)).type, body.payload)
    try:
        changed = await timetable.change(given.database, company, schedule_id, changes, by=guard.actor_of(request))
    except (NameTaken, InvalidOption) as error:
        raise _refused(error) from None
    if changed is None:
        raise paths.schedule_not_found()
    return answers.send(answers.schedule(changed))


@router.delete(
    paths.SCHEDULE,
    status_code=204,
    response_description="The schedule is gone. The tasks that it has made stay.",
    responses=documented(problems.SCHEDULE_NOT_FOUND, problems.UNKNOWN_PARAMETER),
)
@needs(key=Scope.SCHEDULES_WRITE, operator=Role.OPERATOR)
async def delete_schedule(request: Request) -> Response:
    """Delete a schedule. One that code declares comes back when the code is applied again: pause it instead."""
    lists.refuse_query(request)
    database, company, schedule_id = parts(request).database, paths.company(request), paths.schedule_id(request)
    if not await timetable.delete(database, company, schedule_id, by=guard.actor_of(request)):
        raise paths.schedule_not_found()
    return Response(status_code=204)


async def _schedule(request: Request) -> Schedule:
    found = await timetable.find(parts(request).database, paths.company(request), paths.schedule_id(request))
    if found is None:
        raise paths.schedule_not_found()
    return found


def _refused(error: NameTaken | InvalidOption) -> Problem:
    if isinstance(error, NameTaken):
        errors = [FieldError(pointer="/name", code="schedule_name_taken", detail="another schedule has it")]
        return Problem(problems.SCHEDULE_NAME_TAKEN, "the company has another schedule of this name", errors=errors)
    errors = [FieldError(pointer=_FIELDS[error.field], code=f"invalid_{error.field}", detail=error.message)]
    return Problem(problems.INVALID_REQUEST, bodies.told(errors), errors=errors)
