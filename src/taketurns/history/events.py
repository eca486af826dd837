"""The moves of one task, in the order of their numbers.

Few rows tell them all: the first move stands in the task's record, a row that ends an attempt knows when that attempt
was claimed, and the last move stands where the task does. One statement reads them, so that they agree.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from sqlalchemy import ScalarSelect, Select, SQLColumnExpression, any_, bindparam, func, select, true
from sqlalchemy.dialects.postgresql import ARRAY

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


@dataclass(frozen=True, slots=True)
class Spent:
    """What a task's life went to, in seconds: waiting for its time, due and waiting for a turn, in workers' hands."""

    scheduled: float = 0.0
    due: float = 0.0
    running: float = 0.0

    @property
    def total(self) -> float:
        return self.scheduled + self.due + self.running


def spent(moves: Sequence[Event], *, until: datetime) -> Spent:
    """How the time from the first of these moves on divides; what lies between an end and a new beginning is none."""
    scheduled = due = running = 0.0
    ends = [*(move.at for move in moves[1:]), until]
    for move, end in zip(moves, ends, strict=True):
        seconds = max((end - move.at).total_seconds(), 0.0)
        if move.status is Status.PROCESSING:
            running += seconds
        elif not move.status.is_terminal:
            until_due = 0.0 if move.run_after is None else (move.run_after - move.at).total_seconds()
            early = min(max(until_due, 0.0), seconds)
            scheduled += early
            due += seconds - early
    return Spent(scheduled, due, running)


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


async def of_tasks(
    database: Database, company_id: UUID, task_ids: Sequence[UUID], *, most: int
) -> dict[UUID, list[Event]]:
    """The first events of tasks of a company, at most `most` of each, read together; none of those that it has not."""
    query, constants = _statement_of_many(database.schema)
    parameters = constants | {"company": company_id, "task_ids": list(task_ids), "after": 0, "most": most + 1}
    rows = await reading.rows(database, query, parameters)
    by_task = itertools.groupby(rows, key=operator.itemgetter(0))
    return {task_id: [*_events([row[1:] for row in told])][:most] for task_id, told in by_task}


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
    later = _later(company_id, task_id).subquery("later")
    statement = places.joined(select(*_task_columns(), later).select_from(Task)).outerjoin(later, true())
    return compile_statement(
        schema, statement.where(Task.company_id == company_id, Task.id == task_id).order_by(later.c.number)
    )


@lru_cache(maxsize=8)
def _statement_of_many(schema: str) -> tuple[str, dict[str, Any]]:
    """Lives on the same."""
    company_id = bindparam("company", type_=Task.company_id.type)
    task_ids = bindparam("task_ids", type_=ARRAY(Task.id.type))
    later = _later(company_id, Task.id).lateral("later")
    statement = places.joined(select(Task.id, *_task_columns(), later).select_from(Task)).outerjoin(later, true())
    return compile_statement(
        schema,
        statement.where(Task.company_id == company_id, Task.id == any_(task_ids)).order_by(Task.id, later.c.number),
    )


def _later(
    company_id: SQLColumnExpression[UUID] | ScalarSelect[UUID], task_id: SQLColumnExpression[UUID]
) -> Select[*tuple[Any, ...]]:
    """The moves between the first and the last, as far as they are asked for."""
    return (
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
    )


def _task_columns() -> Iterator[SQLColumnExpression[Any]]:
    """What the record of a task and the place where it stands tell of its first and its last move."""
    yield Task.created_at
    yield Task.run_after
    yield places.status()
    yield func.coalesce(*(table.event_number for table in (*places.PLACES.values(), Task)))
    yield ProcessingTask.claimed_at
    yield ProcessingTask.worker_id
    yield Task.finished_at
    yield Task.started_at
    yield Task.worker_id
    yield Task.error
