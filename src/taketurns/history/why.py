"""Why a task waits: the first of the reasons that holds, and how its wait so far divides into parts that are known.

Rows tell for how long a task waited for its time and for how long it has been due, and not how much of that was whose
fault: reasons change with every claim, and nobody writes them down.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Literal
from uuid import UUID

from taketurns.storage.database import Database

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
