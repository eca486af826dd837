"""The routes for operators and their machines: health, readiness, metrics, limits, types, and a pass of processing."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

import orjson
import psycopg
from fastapi import APIRouter
from fastapi import Query as QueryParameters
from prometheus_client import CONTENT_TYPE_LATEST
from psycopg import sql
from pydantic.alias_generators import to_camel
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from taketurns.api import answers, audit, bodies, lists, problems
from taketurns.api.guard import GuardedRoute, needs, open_to_all
from taketurns.api.openapi import body_of, operation_id
from taketurns.api.parts import Parts, parts
from taketurns.api.problems import Problem, documented
from taketurns.api.requests import ProcessTasks, WorkerQuery
from taketurns.engine import limits
from taketurns.engine.errors import ConfigurationError, Unavailable
from taketurns.engine.job import JobBroker
from taketurns.engine.key import Role
from taketurns.history import heartbeats
from taketurns.storage import walls
from taketurns.storage.audit import Action
from taketurns.storage.database import Database

router = APIRouter(route_class=GuardedRoute, generate_unique_id_function=operation_id, tags=["operations"])
processing = APIRouter(route_class=GuardedRoute, generate_unique_id_function=operation_id, tags=["operations"])

JOBS_SECONDS: Final = 1.0  # who asks for readiness does not wait long
LIMITS: Final = {
    to_camel(name.lower()): value
    for name, value in vars(limits).items()
    if name.isupper() and isinstance(value, int | float)
}


@router.get("/health", response_model=answers.HealthBody, responses=documented(problems.UNKNOWN_PARAMETER))
@open_to_all
async def get_health(request: Request) -> Response:
    """Whether this process answers. It asks nobody else: restart what does not answer here."""
    lists.refuse_query(request)
    return answers.send(answers.HealthBody(status="ok", version=parts(request).version))


@router.get(
    "/ready", response_model=answers.ReadyBody, responses=documented(problems.NOT_READY, problems.UNKNOWN_PARAMETER)
)
@open_to_all
async def get_ready(request: Request) -> Response:
    """Whether this process can serve: its database answers, and has the schema that this version needs.

    Tasks do not need the server of jobs: while that is away, this process is degraded, and ready all the same.
    """
    lists.refuse_query(request)
    given = parts(request)
    migration = await _migration(given)
    if migration != given.migration:
        raise Problem(
            problems.NOT_READY,
            f"the database's schema is at {migration or 'no revision'} and this version needs {given.migration}:"
            " run the migrations",
        )
    if given.database.companies is not None:
        await _is_walled(given.database.companies)
    jobs, detail = await _jobs(None if given.jobs is None else given.jobs.broker)
    return answers.send(
        answers.ReadyBody(
            status="ready" if detail is None else "degraded", migration=migration, jobs=jobs, detail=detail
        )
    )


async def _jobs(broker: JobBroker | None) -> tuple[answers.JobsStatus | None, str | None]:
    """How it stands with jobs, and what is wrong with them."""
    if broker is None:
        return None, None
    try:
        async with asyncio.timeout(JOBS_SECONDS):
            complaints = await broker.check()
    except Unavailable as error:
        return "unavailable", str(error)
    except TimeoutError:
        return "unavailable", f"Redis did not answer within {JOBS_SECONDS:g} s"
    return ("misconfigured", "; ".join(complaints)) if complaints else ("ready", None)


async def _migration(given: Parts) -> str | None:
    query = sql.SQL("select version_num from {}").format(sql.Identifier(given.database.schema, "alembic_version"))
    try:
        async with given.database.connection() as connection:
            row = await (await connection.execute(query)).fetchone()
    except psycopg.errors.UndefinedTable:
        return None
    except Unavailable as error:
        raise Problem(problems.NOT_READY, str(error)) from None
    return str(row[0]) if row else None


async def _is_walled(companies: Database) -> None:
    try:
        await walls.check(companies)
    except (ConfigurationError, Unavailable) as error:
        raise Problem(problems.NOT_READY, str(error)) from None


@router.get("/metrics", response_class=PlainTextResponse, responses=documented(problems.UNKNOWN_PARAMETER))
@needs(operator=Role.VIEWER, by_token=True)
async def get_metrics(request: Request) -> Response:
    """This process's metrics and the queue's figures, in Prometheus' text format."""
    return Response(await parts(request).figures.exposition(), media_type=CONTENT_TYPE_LATEST)


@router.get("/limits", response_model=dict[str, float], responses=documented(problems.UNKNOWN_PARAMETER))
@open_to_all
async def get_limits(request: Request) -> Response:
    """The limits that requests meet."""
    lists.refuse_query(request)
    return answers.send(LIMITS)


@router.get("/task-types", response_model=answers.TaskTypesBody, responses=documented(problems.UNKNOWN_PARAMETER))
@needs(key="any", operator=Role.VIEWER)
async def list_task_types(request: Request) -> Response:
    """The types of task that can be created, with the JSON Schemas of their payloads."""
    lists.refuse_query(request)
    shown = [
        answers.TaskTypeBody(
            name=known.name,
            queue=known.queue,
            priority=known.priority,
            maxRetries=known.max_retries,
            timeoutSeconds=known.timeout_seconds,
            payloadSchema=orjson.Fragment(known.payload_schema),
        )
        for known in await parts(request).task_types.all()
    ]
    return await lists.send(request, answers.TaskTypesBody(taskTypes=shown))


@router.get(
    "/workers",
    response_model=answers.WorkerPage,
    responses=documented(
        problems.UNKNOWN_PARAMETER, problems.INVALID_CURSOR, problems.OFFSET_TOO_LARGE, problems.INVALID_REQUEST
    ),
    dependencies=lists.ONE_OF_EACH,
)
@needs(operator=Role.VIEWER)
async def list_workers(request: Request, query: Annotated[WorkerQuery, QueryParameters()]) -> Response:
    """Workers and passes as they were last heard of, those that began last first. A name is shown once."""
    given = parts(request)
    after = lists.start(query, given.cursors, "workers")
    page = await heartbeats.page(given.database, limit=query.limit, offset=query.offset, after=after)
    cursor = given.cursors.write(page.next_after, "workers") if page.next_after else None
    body = answers.WorkerPage(
        workers=[answers.worker(one, max_age_seconds=query.max_age_seconds) for one in page.heartbeats],
        hasMore=cursor is not None,
        nextCursor=cursor,
    )
    return await lists.send(request, body, cursor)


@processing.post(
    "/workers/process",
    response_model=answers.PassBody,
    responses=documented(*problems.IN_BODY),
    openapi_extra=body_of(ProcessTasks, required=False),
)
@needs(operator=Role.OPERATOR)
async def process_tasks(request: Request) -> Response:
    """One pass of processing, now, in this process: claims a batch by the rule of turns and runs it to its end."""
    lists.refuse_query(request)
    body = await bodies.read_if_any(request, ProcessTasks) or ProcessTasks.model_validate({})
    process_pass = parts(request).process_pass
    if process_pass is None:
        raise TypeError("this route is there only with a pass to run")
    report = answers.report(await process_pass(limit=body.limit))
    await audit.note(request, Action.PROCESS_TASKS, target="workers", details=report)
    return answers.send(report)
