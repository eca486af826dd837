"""A task's statuses, the moves between them, and what is said of a task as it passes through a broker."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple
from uuid import UUID

from taketurns.engine import limits, rescue
from taketurns.engine.quota import Allowance


class Status(StrEnum):
    """Where a task is.

    scheduled  → pending                             it is due (promote)
    pending    → processing                          its turn came (claim)
    processing → completed | failed | cancelled      its handler ended (settle)
    processing → scheduled                           its handler failed and is tried again, or is deferred (settle)
    processing → pending                             given back (release) or its worker was lost (rescue)
    scheduled, pending, processing → cancelled       cancel
    completed, failed, cancelled, scheduled → pending   retry, by hand
    """

    SCHEDULED = "scheduled"
    PENDING = "pending"
    PROCESSING = "processing"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        return self in TERMINAL


TERMINAL: Final = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED})


class Outcome(StrEnum):
    """What a worker reports of one attempt; `DEFERRED` puts the task off to a later time and counts as none."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    RETRY = "retry"
    DEFERRED = "deferred"


class OnConflict(StrEnum):
    """What becomes of a new task while another one has its unique key. Only one that waits can be replaced."""

    REJECT = "reject"
    RETURN = "return"
    REPLACE = "replace"


@dataclass(frozen=True, slots=True)
class Unique:
    """Of a company's tasks with this key only one stands at a time: until it has ended, or for so many seconds from its
    creation, unless it fails or is cancelled sooner."""

    key: str
    seconds: float | None = None
    on_conflict: OnConflict = OnConflict.REJECT


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTask:
    """A task as it is submitted. `payload` is JSON text that PostgreSQL takes; at most one of `run_after` and
    `delay_seconds` is set, and neither means at once. `fingerprint` goes with `idempotency_key`.

    `task_id` is for those who must know it before the broker answers. `reserved_at` says that a quota was reserved for
    it then; a broker that reserves by itself takes no notice of it."""

    type: str
    payload: str
    queue: str = "default"
    priority: int = limits.PRIORITY_DEFAULT
    run_after: datetime | None = None
    delay_seconds: float | None = None
    max_retries: int = limits.MAX_RETRIES_DEFAULT
    timeout_seconds: float | None = None
    tags: tuple[str, ...] = ()
    unique: Unique | None = None
    idempotency_key: str | None = None
    fingerprint: bytes | None = None
    task_id: UUID | None = None
    reserved_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Enqueued:
    """What became of one submitted task; `position` is its place in the request, from 0.

    `replayed`: an earlier request with its idempotency key had made it. `held`: another task has its unique key, and is
    the answer. `status`, `run_after` and `created_at` are those of a new task, and None for these two. `allowances`
    says what the request left of its company's quotas; empty where it reserved none.
    """

    position: int
    replayed: bool
    company_id: UUID
    task_id: UUID
    status: Status | None
    run_after: datetime | None
    created_at: datetime | None
    allowances: tuple[Allowance, ...] = ()
    held: bool = False


class ClaimedTask(NamedTuple):
    """A task in a worker's hand. `claim_token` is the claim's; reports without it change nothing."""

    company_id: UUID
    task_id: UUID
    type: str
    queue: str
    priority: int
    run_after: datetime
    retry_count: int
    rescue_count: int
    event_number: int
    claimed_at: datetime
    payload: str
    max_retries: int
    timeout_seconds: float | None
    request_id: str | None
    created_at: datetime
    traceparent: str | None
    claim_token: UUID

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1; a released, rescued or deferred attempt does not count."""
        return self.retry_count + 1

    @property
    def is_suspect(self) -> bool:
        """Whether it may be what kills its workers; see `taketurns.engine.rescue`."""
        return rescue.is_suspect(self.rescue_count)


class Claimed(list[ClaimedTask]):
    """The tasks of one claim, in the order of their turns.

    `again_at`: the claim was not full, and this is when the first company that has used up its rate may be served
    again. None when there is none.
    """

    def __init__(self, tasks: Iterable[ClaimedTask] = (), *, again_at: datetime | None = None) -> None:
        super().__init__(tasks)
        self.again_at = again_at


class Report(NamedTuple):
    """How one attempt ended. `result` is JSON text; `delay_seconds` is for a retry and for what is deferred."""

    task: ClaimedTask
    outcome: Outcome
    result: str | None = None
    error: str | None = None
    delay_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Rescued:
    """A task taken back from a lost worker; `failed` when that was once too often."""

    company_id: UUID
    task_id: UUID
    type: str
    queue: str
    failed: bool


@dataclass(frozen=True, slots=True)
class Promoted:
    """How many scheduled tasks became pending, in which queues, and when the next one is due."""

    count: int
    queues: tuple[str, ...]
    next_due: datetime | None


@dataclass(frozen=True, slots=True)
class Pruned:
    """How many finished tasks and expired idempotency keys were forgotten; whether there may be more at once."""

    tasks: int
    keys: int
    has_more: bool


@dataclass(slots=True)
class PassReport:
    """What one bounded pass of processing did, in tasks."""

    claimed: int = 0
    completed: int = 0
    retried: int = 0
    deferred: int = 0
    failed: int = 0
    released: int = 0
    lost: int = 0
