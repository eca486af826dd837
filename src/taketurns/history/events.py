"""The moves of one task, in the order of their numbers.

Few rows tell them all: the first move stands in the task's record, a row that ends an attempt knows when that attempt
was claimed, and the last move stands where the task does. One statement reads them, so that they agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from sqlalchemy import and_, bindparam, func, select, true

from taketurns.engine.task import Status
from taketurns.history import pages, places, reading
from taketurns.storage.database import Database, Row, compile_statement
from taketurns.storage.models import ProcessingTask, Task, TaskEvent

CREATED: Final = "created"
CLAIMED: Final = "claimed"
_LEADS_TO: Final = {
    CLAIMED: Status.PROCESSING,
    "released": Status.PENDING,
    "rescued": Status.PENDING,
    "requeued": Status.PENDING,
    "retried": Status.SCHEDULED,
    "deferred": Status.SCHEDULED,
    "rescheduled": Status.SCHEDULED,
    "completed": Status.COMPLETED,
    "failed": Status.FAILED,
    "cancelled": Status.CANCELLED,
}


@dataclass(frozen=True, slots=True)
class Event:
    """One move: its number within the task, what it was, and the status that it led to.

    The newest one has the status of the task: a task that was `scheduled` by it may have become `pending` since.
    """

    number: int
    kind: str
    status: Status
    at: datetime
    run_after: datetime | None = None
    worker_id: UUID | None = None
    error: str | None = None


async def of_task(
    database: Database, company: UUID | str, task_id: UUID, *, after: int = 0, most: int
) -> list[Event] | None:
    """At most `most` events numbered above `after`; None when the company has no such task."""
    query, constants = _statement(database.schema, is_id=isinstance(company, UUID))
    parameters = constants | {"company": company, "task_id": task_id, "after": after, "most": most + 1}
    rows = await reading.rows(database, query, parameters)
    if not rows:
        return None
    return [event for event in _events(rows) if event.number > after][:most]


def status_after(kind: str, *, at: datetime, run_after: datetime | None) -> Status:
    """What a move leads to."""
    if kind == CREATED:
        return Status.SCHEDULED if run_after is not None and run_after > at else Status.PENDING
    return _LEADS_TO.get(kind, Status.PENDING)


_TASK_COLUMNS: Final = 10


def _events(rows: Sequence[Row]) -> Iterator[Event]:
    created_at, run_after, status, number, claimed_at, claimed_by, *end = rows[0][:_TASK_COLUMNS]
    finished_at, started_at, worker_id, error = end
    first = status_after(CREATED, at=created_at, run_after=run_after)
    moves = [Event(1, CREATED, first, created_at, run_after)]
    for row in rows:
        if row[_TASK_COLUMNS] is not None:
            moves += _moves(row[_TASK_COLUMNS:])
    if claimed_at is not None:
        moves.append(Event(number, CLAIMED, Status.PROCESSING, claimed_at, worker_id=claimed_by))
    elif finished_at is not None:
        moves += _moves((number, status, finished_at, started_at, None, worker_id, error))
    for move in moves:
        yield move if move.number != number else replace(move, status=Status(status))


def _moves(row: Row) -> Iterator[Event]:
    """What a row tells: the claim of the attempt that it ended, if it did, and itself."""
    number, kind, at, started_at, run_after, worker_id, error = row
    if started_at is not None:
        yield Event(number - 1, CLAIMED, Status.PROCESSING, started_at, worker_id=worker_id)
    yield Event(number, kind, status_after(kind, at=at, run_after=run_after), at, run_after, worker_id, error)


@lru_cache(maxsize=8)
def _statement(schema: str, *, is_id: bool) -> tuple[str, dict[str, Any]]:
    """Lives on tasks_pkey, task_events_pkey and the (company_id, task_id) indexes of the narrow tables."""
    owner = pages.owner(is_id=is_id)
    company_id = select(owner.c.id).scalar_subquery()
    task_id = bindparam("task_id", type_=Task.id.type)
    later = (
        select(
            TaskEvent.number,
            TaskEvent.kind,
            TaskEvent.at,
            TaskEvent.started_at,
            TaskEvent.run_after,
            TaskEvent.worker_id,
            TaskEvent.error,
        )
        .where(TaskEvent.company_id == company_id, TaskEvent.task_id == task_id)
        .where(TaskEvent.number > bindparam("after"))
        .order_by(TaskEvent.number)
        .limit(bindparam("most"))
        .subquery("later")
    )
    number = func.coalesce(*(table.event_number for table in (*places.PLACES.values(), Task)))
    return compile_statement(
        schema,
        places.joined(
            select(
                Task.created_at,
                Task.run_after,
                places.status(),
                number,
                ProcessingTask.claimed_at,
                ProcessingTask.worker_id,
                Task.finished_at,
                Task.started_at,
                Task.worker_id,
                Task.error,
                later,
            ).select_from(Task)
        )
        .outerjoin(later, true())
        .where(and_(Task.company_id == company_id, Task.id == task_id))
        .order_by(later.c.number),
    )
