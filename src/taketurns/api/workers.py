"""The routes of single workers: an operator has one take no more turns, go on, or end."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from taketurns.api import answers, audit, lists, paths, problems
from taketurns.api.guard import GuardedRoute, needs
from taketurns.api.openapi import operation_id
from taketurns.api.parts import operator_parts
from taketurns.api.problems import Problem, documented
from taketurns.engine import orders
from taketurns.engine.broker import Broker
from taketurns.engine.errors import WorkerIsGone, WorkerStops
from taketurns.engine.key import Role
from taketurns.engine.orders import Wanted
from taketurns.history import heartbeats
from taketurns.storage.audit import Action

router = APIRouter(route_class=GuardedRoute, generate_unique_id_function=operation_id, tags=["operations"])

LATE_SECONDS: Final = 600.0
_REFUSALS: Final = documented(
    problems.WORKER_NOT_FOUND, problems.WORKER_GONE, problems.WORKER_STOPS, problems.UNKNOWN_PARAMETER
)


@router.post(paths.WORKER + "/drain", status_code=202, response_model=answers.WorkerBody, responses=_REFUSALS)
@needs(operator=Role.OPERATOR)
async def drain_worker(request: Request) -> Response:
    """Have a worker take no more turns: it runs what it has begun to the end, and gives back what it has not.

    It stays until it is resumed or stopped. By a name all processes are asked that have it.
    """
    return await _order(request, Wanted.DRAIN, Action.DRAIN_WORKER)


@router.post(paths.WORKER + "/resume", status_code=202, response_model=answers.WorkerBody, responses=_REFUSALS)
@needs(operator=Role.OPERATOR)
async def resume_worker(request: Request) -> Response:
    """Have a worker that was drained take turns again. One that was told to stop cannot."""
    return await _order(request, Wanted.RUN, Action.RESUME_WORKER)


@router.post(paths.WORKER + "/stop", status_code=202, response_model=answers.WorkerBody, responses=_REFUSALS)
@needs(operator=Role.OPERATOR)
async def stop_worker(request: Request) -> Response:
    """End a worker as SIGTERM does: it drains, and then its process ends with 0. Whoever keeps it running may start
    another."""
    return await _order(request, Wanted.STOP, Action.STOP_WORKER)


async def _order(request: Request, wanted: Wanted, action: Action) -> Response:
    lists.refuse_query(request)
    named, given = paths.worker(request), operator_parts(request)
    if await heartbeats.find(given.database, named) is None:
        raise paths.worker_not_found()
    brokers: list[Broker] = [given.broker, *([given.jobs.broker] if given.jobs else [])]
    try:
        processes = await orders.give(brokers, named, wanted)
    except WorkerIsGone as error:
        raise Problem(problems.WORKER_GONE, str(error)) from None
    except WorkerStops as error:
        raise Problem(problems.WORKER_STOPS, str(error)) from None
    await audit.note(request, action, target=named, details={"processes": processes})
    heartbeat = await heartbeats.find(given.database, named)
    if heartbeat is None:
        raise paths.worker_not_found()
    return answers.send(answers.worker(heartbeat, max_age_seconds=LATE_SECONDS), 202)
