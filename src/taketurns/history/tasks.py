"""What tasks a company has and where each stands: some by their ids, or a page of them by a filter."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Text, bindparam, cast, func, select

from taketurns.engine.errors import Unavailable
from taketurns.engine.task import Status
from taketurns.history import pages, places, reading
from taketurns.storage.database import Database, Row, compile_statement
from taketurns.storage.ids import id_at
from taketurns.storage.models import Task

# An id is made by the clock of whoever enqueues, and `created_at` is PostgreSQL's: they may differ by this much.
CLOCK_SLACK: Final = timedelta(minutes=1)

COUNT_MOST: Final = 10_000
COUNT_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """A task as it stands. `payload` and `result` are JSON text."""

    company_id: UUID
    id: UUID
    type: str
    queue: str
    priority: int
    payload: str
    max_retries: int
    timeout_seconds: float | None
    request_id: str | None
    traceparent: str | None
    schedule_id: UUID | None
    tags: Sequence[str] | None
    unique_key: str | None
    created_at: datetime
    finished_at: datetime | None
    result: str | None
    error: str | None
    error_fingerprint: str | None
    status: Status
    run_after: datetime
    started_at: datetime | None
    retry_count: int
    event_number: int
    worker_id: UUID | None

    @property
    def version(self) -> str:
        """Another one whenever the task has changed. It becomes due without an event."""
        return f"{self.event_number}{'-scheduled' if self.status is Status.SCHEDULED else ''}"


COLUMNS: Final = (
    Task.company_id,
    Task.id,
    Task.type,
    Task.queue,
    Task.priority,
    cast(Task.payload, Text).label("payload"),
    Task.max_retries,
    Task.timeout_seconds,
    Task.request_id,
    Task.traceparent,
    Task.schedule_id,
    Task.tags,
    Task.unique_key,
    Task.created_at,
    Task.finished_at,
    cast(Task.result, Text).label("result"),
    Task.error,
    Task.error_fingerprint,
    *places.columns(),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which tasks of a company, and in which order. No status, type or queue means every one. A task has all of the
    tags, and may have more. Times are exclusive bounds."""

    statuses: frozenset[Status] = frozenset()
    types: frozenset[str] = frozenset()
    queues: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()
    error_fingerprint: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    oldest_first: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """Some tasks, and the id to go on after when there may be more."""

    tasks: list[TaskRecord] = field(default_factory=list)
    next_after: UUID | None = None


@dataclass(frozen=True, slots=True)
class Ids:
    """The ids of some tasks, and the one to go on after when there may be more."""

    ids: list[UUID]
    next_after: UUID | None


@dataclass(frozen=True, slots=True)
class Total:
    """How many tasks a filter names, or at least that many when it is not exact."""

    count: int
    is_exact: bool


async def find(database: Database, company: UUID | str, task_id: UUID) -> TaskRecord | None:
    """The task, or None when the company (an id or a slug) has none of this id."""
    return next(iter(await find_all(database, company, [task_id])), None)


async def find_all(database: Database, company: UUID | str, task_ids: Sequence[UUID]) -> list[TaskRecord]:
    """Those of these tasks that the company has, in any order."""
    query, constants = _find_statement(database.schema, is_id=isinstance(company, UUID))
    parameters = constants | {"company": company, "task_ids": list(task_ids)}
    return [_record(row) for row in await reading.rows(database, query, parameters, is_planned_once=True)]


async def page(
    database: Database,
    company: UUID | str,
    wanted: Filter,
    *,
    limit: int,
    offset: int = 0,
    after: UUID | None = None,
) -> Page | None:
    """At most `limit` tasks beyond the id `after`, in the order of ids; None when there is no such company.

    A page may hold fewer, or none, and still have a next one: see `taketurns.history.pages`.
    """
    query, constants = _page_statement(database.schema, _shape(company, wanted))
    bounds = {"most": limit + 1, "skip": offset, "reach": offset + limit + 1}
    parameters = constants | _parameters(company, wanted, after=after) | bounds
    rows = await reading.rows(database, query, parameters)
    return _page(rows, limit=limit, oldest_first=wanted.oldest_first) if rows else None


async def ids(database: Database, company_id: UUID, wanted: Filter, *, limit: int, after: UUID | None = None) -> Ids:
    """The same as `page`, of the ids alone; of a company that is gone, none."""
    query, constants = _ids_statement(database.schema, _shape(company_id, wanted))
    bounds = {"most": limit + 1, "skip": 0, "reach": limit + 1}
    parameters = constants | _parameters(company_id, wanted, after=after) | bounds
    return _ids(await reading.rows(database, query, parameters), wanted, limit=limit)


async def ids_of_each(
    database: Database, company_ids: Sequence[UUID], wanted: Filter, *, limit: int, after: UUID | None = None
) -> dict[UUID, Ids]:
    """The same for several companies, in one round trip. Raises Unavailable."""
    query, constants = _ids_statement(database.schema, _shape(_FIRST_ID, wanted))
    bounds = {"most": limit + 1, "skip": 0, "reach": limit + 1}
    asked = [constants | _parameters(company_id, wanted, after=after) | bounds for company_id in company_ids]
    answers = await reading.rows_of_each(database, query, asked)
    return {company_id: _ids(rows, wanted, limit=limit) for company_id, rows in zip(company_ids, answers, strict=True)}


async def total(database: Database, company: UUID | str, wanted: Filter, *, exactly: bool) -> Total:
    """How many tasks of the company the filter names: counted up to a bound, or exactly if that takes little time."""
    shape = _shape(company, wanted)
    if exactly:
        with suppress(Unavailable, TimeoutError):
            async with asyncio.timeout(COUNT_SECONDS):
                ((count, _),) = await _counted(database, company, wanted, shape, is_bounded=False)
                return Total(int(count), True)
    ((count, end),) = await _counted(database, company, wanted, shape, is_bounded=True)
    return Total(min(int(count), COUNT_MOST), int(count) <= COUNT_MOST and end is None)


async def _counted(
    database: Database, company: UUID | str, wanted: Filter, shape: pages.Shape, *, is_bounded: bool
) -> list[Row]:
    query, constants = _count_statement(database.schema, shape, is_bounded=is_bounded)
    parameters = constants | _parameters(company, wanted, after=None) | {"reach": COUNT_MOST + 1}
    return await reading.rows(database, query, parameters)


def _shape(company: UUID | str, wanted: Filter) -> pages.Shape:
    return pages.Shape(
        is_id=isinstance(company, UUID),
        statuses=_statuses(wanted),
        types=len(wanted.types),
        queues=len(wanted.queues),
        tags=len(wanted.tags),
        has_error=wanted.error_fingerprint is not None,
        has_times=wanted.created_after is not None or wanted.created_before is not None,
        oldest_first=wanted.oldest_first,
    )


def _statuses(wanted: Filter) -> frozenset[Status]:
    """Only what has failed has the fingerprint of an error."""
    return wanted.statuses if wanted.error_fingerprint is None else frozenset({Status.FAILED})


def _parameters(company: UUID | str, wanted: Filter, *, after: UUID | None) -> dict[str, Any]:
    low, high = _id_range(wanted, after)
    return {
        "company": company,
        **{f"type_{number}": type for number, type in enumerate(wanted.types)},
        **{f"queue_{number}": queue for number, queue in enumerate(wanted.queues)},
        **{f"tag_{number}": tag for number, tag in enumerate(sorted(wanted.tags))},
        "error_fingerprint": wanted.error_fingerprint,
        "low": low,
        "high": high,
        "created_after": wanted.created_after or _BEGINNING,
        "created_before": wanted.created_before or _END,
    }


_BEGINNING: Final = datetime(1, 1, 2, tzinfo=UTC)
_END: Final = datetime(9999, 12, 30, tzinfo=UTC)
_FIRST_ID: Final = UUID(int=0)
_LAST_ID: Final = UUID(int=2**128 - 1)


def _id_range(wanted: Filter, after: UUID | None) -> tuple[UUID, UUID]:
    """The ids that may be on the page, both bounds exclusive."""
    low = _FIRST_ID if wanted.created_after is None else id_at(wanted.created_after - CLOCK_SLACK)
    high = _LAST_ID if wanted.created_before is None else id_at(wanted.created_before + CLOCK_SLACK)
    if after is not None and wanted.oldest_first:
        low = max(low, after)
    elif after is not None:
        high = min(high, after)
    return low, high


def _ids(rows: Sequence[Row], wanted: Filter, *, limit: int) -> Ids:
    end: UUID | None = rows[0][0] if rows else None
    found = [id for _, id in rows if id is not None]
    if end is not None:
        found = [id for id in found if (id <= end if wanted.oldest_first else id >= end)]
    return Ids(found[:limit], found[limit - 1]) if len(found) > limit else Ids(found, end)


def _page(rows: Sequence[Row], *, limit: int, oldest_first: bool) -> Page:
    """Each row is the end of what was looked at and a task; an empty page is one row without a task."""
    end: UUID | None = rows[0][0]
    tasks = [_record(row[1:]) for row in rows if row[1] is not None]
    if end is not None:
        tasks = [task for task in tasks if (task.id <= end if oldest_first else task.id >= end)]
    if len(tasks) > limit:
        return Page(tasks[:limit], tasks[limit - 1].id)
    return Page(tasks, end)


def _record(row: Row) -> TaskRecord:
    record = TaskRecord(*row)
    object.__setattr__(record, "status", Status(record.status))
    return record


@lru_cache(maxsize=8)
def _find_statement(schema: str, *, is_id: bool) -> tuple[str, dict[str, Any]]:
    owner = pages.owner(is_id=is_id)
    return compile_statement(
        schema,
        places.joined(select(*COLUMNS).select_from(Task)).where(
            Task.company_id == select(owner.c.id).scalar_subquery(), Task.id == func.any(bindparam("task_ids"))
        ),
    )


@lru_cache(maxsize=256)
def _count_statement(schema: str, shape: pages.Shape, *, is_bounded: bool) -> tuple[str, dict[str, Any]]:
    return compile_statement(schema, pages.count_statement(shape, is_bounded=is_bounded))


@lru_cache(maxsize=1024)
def _page_statement(schema: str, shape: pages.Shape) -> tuple[str, dict[str, Any]]:
    return compile_statement(schema, pages.statement(shape, COLUMNS))


@lru_cache(maxsize=256)
def _ids_statement(schema: str, shape: pages.Shape) -> tuple[str, dict[str, Any]]:
    return compile_statement(schema, pages.statement(shape, [Task.id]))
