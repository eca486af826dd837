"""What is asked of a broker that keeps its tasks itself, without a database behind it: jobs, as they are read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID

from taketurns.engine.broker import Broker
from taketurns.engine.rate import Rate
from taketurns.engine.task import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A task as its broker remembers it. `payload` and `result` are JSON text; `expires_at` is when it is forgotten,
    None until it has ended. `event_number` is that of its last move. `reserved_at` names the periods whose quotas it
    was reserved from; None when its company has none."""

    company_id: UUID
    id: UUID
    type: str
    queue: str
    priority: int
    status: Status
    payload: str
    result: str | None
    error: str | None
    retry_count: int
    max_retries: int
    timeout_seconds: float | None
    run_after: datetime
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    expires_at: datetime | None
    event_number: int
    request_id: str | None
    reserved_at: datetime | None = None

    @property
    def version(self) -> str:
        """Another one whenever the job has changed. It becomes due without an event."""
        return f"{self.event_number}{'-scheduled' if self.status is Status.SCHEDULED else ''}"

    @property
    def is_refundable(self) -> bool:
        """Whether what was charged for it is given back."""
        return self.status is Status.FAILED or (self.status is Status.CANCELLED and self.started_at is None)


@dataclass(frozen=True, slots=True)
class JobName:
    """Which job of which company."""

    company_id: UUID
    job_id: UUID


@dataclass(frozen=True, slots=True)
class Charge:
    """What one run of a job was charged for. A job that is run again by hand is charged again, to other periods."""

    company_id: UUID
    job_id: UUID
    reserved_at: datetime


@dataclass(frozen=True, slots=True)
class KnownKey:
    """Which job an idempotency key has made, and of what request."""

    job_id: UUID
    fingerprint: bytes


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One move of a job; the kinds are those of a task's history."""

    number: int
    kind: str
    at: datetime
    error: str | None = None
    run_after: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCompany:
    """What a job's broker was told of a company. `updated_at` rises with each change of it."""

    id: UUID
    slug: str
    weight: int = 1
    max_in_flight: int | None = None
    paused: bool = False
    updated_at: datetime
    rate: Rate | None = None
    max_queued: int | None = None


@dataclass(frozen=True, slots=True)
class JobPause:
    """Which jobs wait: those of a queue, of a type, or of both. None is any, and no end."""

    queue: str | None
    type: str | None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class JobPauses:
    """The pauses that a job's broker was told, by company, None for those of everybody. `revision` rises whenever it is
    told any."""

    revision: int
    by_company: Mapping[UUID | None, frozenset[JobPause]]


class JobBroker(Broker, Protocol):
    """A broker that remembers its jobs, and is told what it must know of their companies.

    It may be set up so that what clients ask for (`enqueue`, `cancel`, `retry`) counts as done only once it is known to
    outlive a crash of its server. Until then these raise Unconfirmed.
    """

    async def job(self, company_id: UUID, job_id: UUID, *, confirmed: bool = False) -> Job | None:
        """The job as it stands; None when the company has no such job, or its time is up.

        `confirmed`: only when it would outlive a crash as it stands, if that is asked of this broker at all. Raises
        Unconfirmed.
        """
        ...

    async def job_events(self, company_id: UUID, job_id: UUID, *, after: int = 0) -> list[JobEvent] | None:
        """The moves of a job numbered above `after`, in order; None when the company has no such job."""
        ...

    def job_ids(self, company_id: UUID) -> AsyncIterator[Sequence[UUID]]:
        """Every job of a company that is kept, in no order, some at a time. One may be named twice when others come and
        go meanwhile."""
        ...

    async def known_key(self, company_id: UUID, key: str) -> KnownKey | None:
        """What became of an idempotency key of a company; None when it is free."""
        ...

    async def retry(
        self,
        company: str,
        task_id: UUID,
        *,
        seen: int | None = None,
        reserved_at: datetime | None = None,
        at: datetime | None = None,
    ) -> Status | None:
        """See Broker.retry. What is charged for running a job again that had ended was reserved at `reserved_at`.

        `seen` is the number of the last move that the caller knew when it reserved that, or nothing, for the job: one
        that has ended since is left as it is, and the answer is None.
        """
        ...

    async def put_company(self, company: JobCompany, *, instead_of: datetime | None = None) -> None:
        """Say what is known of a company, which may then have jobs. It acts at the next claim.

        What is older than what was told before changes nothing, unless that is `instead_of`'s.
        """
        ...

    def companies(self) -> AsyncIterator[Sequence[JobCompany]]:
        """Every company that was told of, some at a time."""
        ...

    async def close_company(self, company_id: UUID, *, is_forced: bool) -> bool:
        """Take no jobs of a company for half a minute, for it is about to be deleted; whether that is so. Refused while
        it has jobs that have not ended, unless `is_forced`. Meanwhile `enqueue` and `retry` raise BeingDeleted.
        """
        ...

    async def reopen_company(self, company_id: UUID) -> None:
        """Take jobs of a company again, for it was not deleted."""
        ...

    async def forget_company(self, company_id: UUID) -> None:
        """Drop a company with all its jobs; what is running is told when it reports."""
        ...

    async def pauses(self) -> JobPauses:
        """Which pauses were told."""
        ...

    async def put_pauses(self, company_id: UUID | None, pauses: Collection[JobPause], *, revision: int) -> int | None:
        """Say which queues and types of a company are paused, or of everybody, in place of what was told before. It
        acts at the next claim. Answers the new revision.

        Whoever tells has read `revision` before it read what it tells; when others have told something since, nothing
        is changed, and the answer is None.
        """
        ...

    async def due_refunds(self, *, most: int = 1_000) -> list[Charge]:
        """Charges of jobs that failed, or were cancelled before they started, which were not given back yet, oldest
        first. They are named until `drop_refunds`."""
        ...

    async def drop_refunds(self, charges: Sequence[Charge]) -> None:
        """Name these no more: their quota was given back."""
        ...

    async def check(self) -> list[str]:
        """What is wrong with the way the server is set up, in sentences for an operator; raises Unavailable."""
        ...
