"""Everything that a company owns, as one stream of lines: what a customer takes along before the company is deleted.

It is read page by page, so its length costs no memory; and so it is no picture of a single moment.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final, Protocol, TypeVar
from uuid import UUID

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from taketurns import telemetry
from taketurns.api import answers, lists, paths, problems
from taketurns.api.guard import GuardedRoute, needs
from taketurns.api.openapi import operation_id
from taketurns.api.parts import operator_parts
from taketurns.api.problems import documented
from taketurns.api.waiting import Waiting
from taketurns.companies import audit, directory, keys, pauses, quotas
from taketurns.companies.directory import Company
from taketurns.engine.errors import Unavailable
from taketurns.engine.job import JobBroker
from taketurns.engine.key import Role
from taketurns.history import events, tasks
from taketurns.history.tasks import Filter
from taketurns.operations import ledger
from taketurns.schedules import timetable
from taketurns.storage.database import Database
from taketurns.telemetry import Event

MEDIA_TYPE: Final = "application/x-ndjson"
TASKS_AT_A_TIME: Final = 50  # a task may have megabytes
AT_A_TIME: Final = 100
FIRST_EVENTS: Final = 20  # of each task on a page, read together
EVENTS_AT_A_TIME: Final = 1_000
_SCHEMA: Final = {
    "type": "string",
    "description": """JSON objects, one a line, each `{"kind": …, "value": …}`. The kinds, in this order:

- `company`, once: its settings, limits, quotas and retention, as `GET /companies/{companyId}` shows it
- `key`: its keys, also those that are revoked; what they are checked by is not among it
- `pause`, `schedule`, `operation`: as their lists show them
- `usage`, once, if it has quotas: as `GET …/usage` shows it
- `task`, the oldest first, as `GET …/tasks/{taskId}` shows it, and after each one its `event`s, as `…/events` does
- `job`, in no order, as `GET …/jobs/{jobId}` shows it, and after each one its `jobEvent`s; a job may come twice
- `auditEntry`: what was changed about it and by whom, the newest first
- `end`, once: `lines` is how many came before. Without this line the export was broken off.

Lines of kinds that are not known are to be passed over.""",
}

router = APIRouter(route_class=GuardedRoute, generate_unique_id_function=operation_id, tags=["companies"])

Line = tuple[str, Mapping[str, Any]]


class _Page(Protocol):
    @property
    def next_after(self) -> UUID | None: ...


SomePage = TypeVar("SomePage", bound=_Page)


@router.get(
    paths.COMPANY + "/export",
    response_class=StreamingResponse,
    responses=documented(problems.COMPANY_NOT_FOUND, problems.UNKNOWN_PARAMETER)
    | {200: {"description": "Everything that the company owns.", "content": {MEDIA_TYPE: {"schema": _SCHEMA}}}},
)
@needs(operator=Role.ADMIN)
async def export_company(request: Request) -> Response:
    """Everything that a company owns: with its keys (not what they are checked by), its tasks and jobs with their
    events, as far as they are kept, and the entries of the audit about it. Jobs that cannot be read break it off."""
    lists.refuse_query(request)
    given = operator_parts(request)
    company = await directory.find(given.database, paths.company(request))
    if company is None:
        raise paths.company_not_found()
    told = {"content-disposition": f'attachment; filename="{company.slug}.ndjson"', "cache-control": "no-store"}
    jobs = None if given.jobs is None else given.jobs.broker
    lines = _written(given.database, jobs, company, given.waiting)
    return StreamingResponse(lines, headers=told, media_type=MEDIA_TYPE)


async def _written(
    database: Database, jobs: JobBroker | None, company: Company, waiting: Waiting
) -> AsyncIterator[bytes]:
    """The lines; broken off, without the last one, when the company goes, the database does, or this process must."""
    count = 0
    try:
        async for kind, value in _lines(database, jobs, company):
            if waiting.is_closed:
                return
            yield _line(kind, value)
            count += 1
        if await directory.find(database, company.id) is not None:
            yield _line("end", {"lines": count})
    except Unavailable as error:
        telemetry.logger("api").warning(Event.EXPORT_BROKEN_OFF, company_id=str(company.id), error=str(error))


def _line(kind: str, value: Mapping[str, Any]) -> bytes:
    return orjson.dumps({"kind": kind, "value": value}, option=orjson.OPT_UTC_Z | orjson.OPT_APPEND_NEWLINE)


async def _lines(database: Database, jobs: JobBroker | None, company: Company) -> AsyncIterator[Line]:
    yield "company", answers.company(company)
    async for line in _arrangements(database, company.id):
        yield line
    async for line in _tasks(database, company.id):
        yield line
    if jobs is not None:
        async for line in _jobs(jobs, company.id):
            yield line
    async for notes in _pages(lambda after: audit.page(database, company_id=company.id, limit=AT_A_TIME, after=after)):
        for entry in notes.entries:
            yield "auditEntry", answers.audit_entry(entry)


async def _arrangements(database: Database, company_id: UUID) -> AsyncIterator[Line]:
    """What was set up for the company, and how its quotas stand."""
    async for key_page in _pages(lambda after: keys.page(database, company_id, limit=AT_A_TIME, after=after)):
        for key in key_page.keys:
            yield "key", answers.key(key)
    for pause in await pauses.standing(database, company_id) or ():
        yield "pause", answers.pause(pause)
    async for plans in _pages(lambda after: timetable.page(database, company_id, limit=AT_A_TIME, after=after)):
        for schedule in plans.schedules:
            yield "schedule", answers.schedule(schedule)
    async for changes in _pages(lambda after: ledger.page(database, company_id, limit=AT_A_TIME, after=after)):
        for operation in changes.operations:
            yield "operation", answers.operation(operation)
    usage = await quotas.usage(database, company_id)
    if usage is not None:
        yield "usage", answers.usage(usage)


async def _tasks(database: Database, company_id: UUID) -> AsyncIterator[Line]:
    """Each task, the oldest first, and after it its events."""
    wanted = Filter(oldest_first=True)
    async for page in _pages(
        lambda after: tasks.page(database, company_id, wanted, limit=TASKS_AT_A_TIME, after=after)
    ):
        ids = [task.id for task in page.tasks]
        first = await events.of_tasks(database, company_id, ids, most=FIRST_EVENTS)
        for task in page.tasks:
            yield "task", answers.task(task)
            some, most = first.get(task.id), FIRST_EVENTS
            while some:
                for event in some:
                    yield "event", answers.event(event)
                if len(some) < most:
                    break
                most = EVENTS_AT_A_TIME
                some = await events.of_task(database, company_id, task.id, after=some[-1].number, most=most)


async def _jobs(jobs: JobBroker, company_id: UUID) -> AsyncIterator[Line]:
    """Each job that is still kept, and after it its events."""
    async for job_ids in jobs.job_ids(company_id):
        for job_id in job_ids:
            job = await jobs.job(company_id, job_id)
            if job is None:
                continue
            yield "job", answers.job(job)
            for event in await jobs.job_events(company_id, job_id) or ():
                yield "jobEvent", answers.job_event(event)


async def _pages(read: Callable[[UUID | None], Awaitable[SomePage | None]]) -> AsyncIterator[SomePage]:
    """Every page, one after the other; none of a company that is gone."""
    after: UUID | None = None
    while (page := await read(after)) is not None:
        yield page
        after = page.next_after
        if after is None:
            return
