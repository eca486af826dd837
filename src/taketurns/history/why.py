"""Why a task waits: the first of the reasons that holds, and how its wait so far divides into parts that are known.

Rows tell for how long a task waited for its time and for how long it has been due, and not how much of that was whose
fault: reasons change with every claim, and nobody writes them down.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, Literal
from uuid import UUID

from sqlalchemy import select, true

from taketurns.engine import durations
from taketurns.storage.database import Database
from taketurns.storage.models import Line, PendingTask

AHEAD_MOST: Final = 1_000
LIVING: Final = timedelta(minutes=1)  # the slowest beat of a worker that can be set

Of = Literal["company", "queue", "type"]


class Reason(StrEnum):
    """In this order: each one matters only when those before do not hold."""

    NOT_DUE = "notDue"
    PAUSED = "paused"
    NO_WORKER_FOR = "noWorkerFor"
    COMPANY_AT_LIMIT = "companyAtLimit"
    RATE_LIMITED = "rateLimited"
    BEHIND_OWN = "behindOwn"
    OTHERS_TURN = "othersTurn"
    NEXT_TURN = "nextTurn"


@dataclass(frozen=True, slots=True)
class Facts:
    """What why.sql tells. `since` is when the task was last moved; what is ahead is counted up to `AHEAD_MOST` + 1."""

    now: datetime
    run_after: datetime
    since: datetime
    queue: str
    type: str
    paused: Of | None
    paused_until: datetime | None
    queue_is_served: bool
    type_is_served: bool
    in_flight: int
    max_in_flight: int | None
    may_start_at: datetime | None
    tasks_ahead: int
    turns_ahead: int

    @property
    def is_due(self) -> bool:
        return self.run_after <= self.now

    @property
    def scheduled_seconds(self) -> float:
        """For how long it has waited for its time."""
        return max((min(self.run_after, self.now) - self.since).total_seconds(), 0.0)

    @property
    def pending_seconds(self) -> float:
        """For how long it has been due."""
        return max((self.now - max(self.run_after, self.since)).total_seconds(), 0.0)


@dataclass(frozen=True, slots=True)
class Waiting:
    """`of` is what is paused, or what no worker serves; `until` is when the reason ends, where that is known."""

    reason: Reason
    facts: Facts
    of: Of | None = None
    until: datetime | None = None


async def read(database: Database, company_id: UUID, task_id: UUID, *, at: datetime | None = None) -> Waiting | None:
    """Why a task waits; None when it does not. Raises Unavailable."""
    rows = await database.call("why", company_id, task_id, AHEAD_MOST, LIVING, at)
    return explain(Facts(*rows[0])) if rows else None


async def of_company(database: Database, company_id: UUID) -> Waiting | None:
    """Why a company waits: what holds for the task at the head of its lines that has been due longest, or, of one whose
    lines all stand aside, for its first task; None when none waits. Raises Unavailable."""
    head = (
        select(PendingTask.task_id, PendingTask.run_after)
        .where(PendingTask.queue == Line.queue, PendingTask.company_id == Line.company_id)
        .order_by(
            PendingTask.queue,
            PendingTask.company_id,
            PendingTask.priority,
            PendingTask.run_after,
            PendingTask.task_id,
        )
        .limit(1)
        .lateral("head")
    )
    longest = select(head.c.task_id).select_from(Line).join(head, true()).where(Line.company_id == company_id)
    first = (
        select(PendingTask.task_id)
        .where(PendingTask.company_id == company_id)
        .order_by(PendingTask.company_id, PendingTask.task_id)
    )
    for statement in (longest.order_by(head.c.run_after).limit(1), first.limit(1)):
        for (task_id,) in await database.fetch(statement):
            return await read(database, company_id, task_id)
    return None


def explain(facts: Facts) -> Waiting:
    """The first reason that holds."""
    is_full = facts.max_in_flight is not None and facts.in_flight >= facts.max_in_flight
    may_start_at = facts.may_start_at or facts.now
    if not facts.is_due:
        waiting = Waiting(Reason.NOT_DUE, facts, until=facts.run_after)
    elif facts.paused is not None:
        waiting = Waiting(Reason.PAUSED, facts, of=facts.paused, until=facts.paused_until)
    elif not facts.type_is_served:
        waiting = Waiting(Reason.NO_WORKER_FOR, facts, of="type" if facts.queue_is_served else "queue")
    elif is_full:
        waiting = Waiting(Reason.COMPANY_AT_LIMIT, facts)
    elif may_start_at > facts.now:
        waiting = Waiting(Reason.RATE_LIMITED, facts, until=may_start_at)
    elif facts.tasks_ahead:
        waiting = Waiting(Reason.BEHIND_OWN, facts)
    elif facts.turns_ahead:
        waiting = Waiting(Reason.OTHERS_TURN, facts)
    else:
        waiting = Waiting(Reason.NEXT_TURN, facts)
    return waiting


def told(slug: str, waiting: Waiting) -> str:
    """The reason in words that go after `it waits`."""
    facts = waiting.facts
    may_start_at = facts.may_start_at or facts.now
    match waiting.reason:
        case Reason.NOT_DUE:
            left = durations.told((facts.run_after - facts.now).total_seconds())
            because = f"for its time, {_moment(facts.run_after)}, in {left}"
        case Reason.PAUSED:
            paused = {"company": slug, "queue": f"the queue {facts.queue!r}", "type": f"the type {facts.type!r}"}
            until = "" if waiting.until is None else f" until {_moment(waiting.until)}"
            because = f"because {paused[waiting.of or 'company']} is paused{until}"
        case Reason.NO_WORKER_FOR:
            of_type = f" and has a handler for the type {facts.type!r}" if waiting.of == "type" else ""
            because = f"because no living worker serves the queue {facts.queue!r}{of_type}"
        case Reason.COMPANY_AT_LIMIT:
            because = f"because {slug} has {facts.in_flight} tasks in flight, and may have {facts.max_in_flight}"
        case Reason.RATE_LIMITED:
            left = durations.told((may_start_at - facts.now).total_seconds())
            because = f"for the rate of {slug}, which lets a task start in {left}"
        case Reason.BEHIND_OWN:
            because = f"behind {_counted(facts.tasks_ahead, 'other task', 'other tasks')} of {slug}"
        case Reason.OTHERS_TURN:
            because = f"for the turns of {_counted(facts.turns_ahead, 'other company', 'other companies')}"
        case _:
            because = "for a free hand of a worker: its turn is the next"
    return because


def _moment(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _counted(count: int, one: str, several: str) -> str:
    if count > AHEAD_MOST:
        return f"more than {AHEAD_MOST:,} {several}"
    return f"{count} {one if count == 1 else several}"
