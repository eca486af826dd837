"""The ASGI application: its routes, and what answers when none of them can."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import Final

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Lifespan

from taketurns import telemetry
from taketurns.api import (
    audit,
    bodies,
    changes,
    companies,
    documentation,
    export,
    headers,
    jobs,
    keys,
    leaving,
    lists,
    openapi,
    operations,
    own,
    pauses,
    problems,
    schedules,
    tasks,
    workers,
)
from taketurns.api.cursors import Cursors
from taketurns.api.exchange import Exchange
from taketurns.api.figures import QueueFigures
from taketurns.api.guard import Guard
from taketurns.api.parts import Jobs, Parts, ProcessPass
from taketurns.api.paths import company_not_found
from taketurns.api.problems import FieldError, Problem
from taketurns.api.task_types import TaskTypes
from taketurns.api.waiting import Waiting
from taketurns.companies.keyring import KeyRing
from taketurns.engine.broker import DurableBroker
from taketurns.engine.errors import Busy, QueueFull, QuotaBusy, QuotaExceeded, Unavailable, Unconfirmed, UnknownCompany
from taketurns.engine.job import JobBroker
from taketurns.engine.registry import Registry
from taketurns.storage import schema
from taketurns.storage.database import Database


def create_api(
    *,
    database: Database,
    broker: DurableBroker,
    job_broker: JobBroker | None = None,
    registry: Registry,
    process_pass: ProcessPass | None = None,
    version: str,
    cursor_secret: bytes,
    guard: Guard | None = None,
    lifespan: Lifespan[FastAPI] | None = None,
    on_leaving: Callable[[], None] | None = None,
) -> FastAPI:
    """The API over a database and brokers that the lifespan opens and closes. Without `job_broker` there are no jobs.

    `process_pass(limit=…)` runs one pass of processing; without it there is no POST /workers/process. Processes that
    share a `cursor_secret` read each other's cursors. Without a `guard` everybody may do everything. `on_leaving` is
    called when the process is told to end: what is open then has to let go.
    """
    guard = guard or Guard(keyring=KeyRing(database), asks_for_keys=False)
    waiting = Waiting(broker)
    interactive = None if job_broker is None else Jobs(job_broker, Waiting(job_broker))
    all_waiting = [waiting] if interactive is None else [waiting, interactive.waiting]

    def leave() -> None:
        for some in all_waiting:
            some.leave()
        if on_leaving is not None:
            on_leaving()

    @asynccontextmanager
    async def living(app: FastAPI) -> AsyncIterator[None]:
        async with lifespan(app) if lifespan is not None else nullcontext():
            with leaving.noticed(leave):
                yield
            for some in all_waiting:
                await some.close()
            await guard.close()

    app = FastAPI(
        lifespan=living,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    for router in _routers(process_pass):
        app.router.routes += router.routes
    app.router.routes += _OWN
    app.router.routes += documentation.router(partial(openapi.document, [*app.routes], version)).routes
    app.state.parts = Parts(
        database=database,
        broker=broker,
        jobs=interactive,
        task_types=TaskTypes(database, registry),
        figures=QueueFigures(database),
        guard=guard,
        waiting=waiting,
        cursors=Cursors(cursor_secret),
        process_pass=process_pass,
        version=version,
        migration=schema.head(),
    )
    for error in _HANDLERS:
        app.add_exception_handler(error, _answer)
    app.add_middleware(Exchange)
    return app


_OWN: Final = [route for router in (tasks.router, jobs.router) for route in own.routes(router)]


def _routers(process_pass: ProcessPass | None) -> list[APIRouter]:
    """The most used routes first: they are tried in this order."""
    routers = [
        tasks.router,
        jobs.router,
        companies.router,
        pauses.router,
        schedules.router,
        changes.router,
        operations.router,
        workers.router,
        keys.router,
        audit.router,
        export.router,
    ]
    return routers if process_pass is None else [*routers, operations.processing]


async def _answer(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException) and error.status_code == 405:
        allowed = _allowed_methods(request)
        if request.method == "OPTIONS":
            return Response(status_code=204, headers=allowed)
        return problems.response(
            request.scope,
            Problem(problems.METHOD_NOT_ALLOWED, f"this path takes {allowed['allow']}", headers=allowed),
        )
    if isinstance(error, Unavailable) and not isinstance(error, Busy | Unconfirmed):
        telemetry.logger("api").warning(telemetry.Event.DATABASE_UNAVAILABLE, error=str(error))
    return problems.response(request.scope, _problem(request, error))


def _problem(request: Request, error: Exception) -> Problem:
    match error:
        case Problem():
            return error
        case UnknownCompany():
            return company_not_found()
        case QuotaExceeded() | QueueFull():
            return _refusal(error)
        case Unavailable():
            return _unavailable(error)
        case RequestValidationError():
            return _wrong_parameters(request, error)
        case _:
            return Problem(problems.ROUTE_NOT_FOUND, "there is nothing at this path")


def _refusal(error: QuotaExceeded | QueueFull) -> Problem:
    if isinstance(error, QueueFull):
        return Problem(problems.QUEUE_FULL, f"nothing was created: {error}", headers={headers.RETRY_AFTER: "1"})
    return Problem(problems.QUOTA_EXCEEDED, f"nothing was created: {error}", headers=headers.quota_exceeded(error))


def _unavailable(error: Unavailable) -> Problem:
    match error:
        case QuotaBusy():
            return Problem(problems.QUOTA_BUSY, str(error))
        case Busy():
            return Problem(problems.UNAVAILABLE, str(error))
        case Unconfirmed():
            return Problem(problems.JOB_UNCONFIRMED, str(error))
        case _:
            return Problem(problems.UNAVAILABLE, "the database cannot be reached, or did not answer in time")


_HANDLERS: Final = (
    Problem,
    UnknownCompany,
    QuotaExceeded,
    QueueFull,
    Unavailable,
    RequestValidationError,
    HTTPException,
)


def _wrong_parameters(request: Request, error: RequestValidationError) -> Problem:
    """Unknown query parameters are told with the known ones; others with what is wrong with them."""
    errors = [
        FieldError(pointer=str(wrong["loc"][1]), code=wrong["type"], detail=wrong["msg"]) for wrong in error.errors()
    ]
    if any(wrong["code"] == "extra_forbidden" for wrong in errors):
        known = ", ".join(lists.parameters(request.scope["route"]))
        return Problem(problems.UNKNOWN_PARAMETER, f"the query parameters of this route are {known}", errors=errors)
    return Problem(problems.INVALID_REQUEST, bodies.told(errors), errors=errors)


def _allowed_methods(request: Request) -> dict[str, str]:
    """What any route of this path takes, and what the application answers for all of them."""
    methods = {"OPTIONS"}
    for route in request.app.routes:
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE:
            methods |= route.methods or set()
    if "GET" in methods:
        methods.add("HEAD")
    return {"allow": ", ".join(sorted(methods))}
