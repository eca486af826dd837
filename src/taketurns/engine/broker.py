"""What every broker keeps: the verbs that move tasks, held to their word by `tests/brokers/contract.py`.

Any of them raises Unavailable while the broker is away, and InvalidData for what it cannot store or read.

Times come from the broker's own clock; `at` stands in for it, so that tests can pass time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Protocol
from uuid import UUID

from taketurns.engine.lease import LeaseLine
from taketurns.engine.orders import Asked, Wanted
from taketurns.engine.retention import Retention
from taketurns.engine.task import Claimed, ClaimedTask, Enqueued, NewTask, Promoted, Pruned, Report, Rescued, Status


class Broker(Protocol):
    """Where tasks wait. A company is named by its id or its slug."""

    async def enqueue(
        self,
        company: str,
        tasks: Sequence[NewTask],
        *,
        request_id: str | None = None,
        traceparent: str | None = None,
        at: datetime | None = None,
    ) -> list[Enqueued]:
        """Create tasks of one company, all or none, in order; each once for its idempotency key.

        Raises UnknownCompany, IdempotencyConflict, UniqueKeyTaken, QuotaExceeded (nothing is stored) and Unavailable.
        """
        ...

    async def claim(
        self,
        worker_id: UUID,
        *,
        queues: Sequence[str],
        batch: int,
        skipped_types: Sequence[str] = (),
        at: datetime | None = None,
    ) -> Claimed:
        """Take up to `batch` turns, in the order of the turns; see `taketurns.engine.turns` and `rate`."""
        ...

    async def settle(self, reports: Sequence[Report], *, at: datetime | None = None) -> set[UUID]:
        """Report how attempts ended; answers the ids that still stood under their claim's token.

        A task that is missing was rescued, cancelled or claimed again: the report changed nothing.
        """
        ...

    async def release(self, tasks: Sequence[ClaimedTask], *, at: datetime | None = None) -> set[UUID]:
        """Give claimed tasks back unstarted, with no penalty; answers the ids that were still held."""
        ...

    async def rescue(
        self, worker_id: UUID, *, watched_beat: int | None, max_rescues: int, at: datetime | None = None
    ) -> list[Rescued]:
        """Take back the tasks of a worker that is gone, unless it beat since `watched_beat` was seen.

        `watched_beat` None: its lease is missing altogether. What becomes of them: see `taketurns.engine.rescue`.
        """
        ...

    def lease_line(self, *, patience_seconds: float) -> LeaseLine:
        """Open a line for a lease, which notices within so long that its peer is dead; from any thread.

        Raises Unavailable.
        """
        ...

    async def order(self, worker: UUID | str, wanted: Wanted) -> Asked:
        """Say what is wanted of the worker that has this id, or of all that have this name, and wake them.

        Only what stays until it is told otherwise takes orders: no pass, and no caller.
        """
        ...

    async def beats(self) -> Mapping[UUID, int | None]:
        """How often each lease has been beaten; None for a worker that holds tasks and has no lease."""
        ...

    async def overdue(self, *, seconds: float, at: datetime | None = None) -> Collection[UUID]:
        """Workers that may be gone: not beaten for so long by the broker's clock, or without a lease and with tasks.

        A clock may jump, and nobody can beat a broker that is away: whoever would rescue watches the beats first.
        """
        ...

    async def held(self, worker_id: UUID) -> Sequence[ClaimedTask]:
        """What a worker holds, each told as far as it takes to release it or to report on it."""
        ...

    async def promote(self, *, most: int = 1_000, at: datetime | None = None) -> Promoted:
        """Make scheduled tasks that are due pending."""
        ...

    async def cancel(self, company: str, task_id: UUID, *, at: datetime | None = None) -> Status | None:
        """End an unfinished task as cancelled.

        Answers `cancelled` (also when it was cancelled before), the other terminal status that it has had already,
        or None when the company has no such task.
        """
        ...

    async def retry(self, company: str, task_id: UUID, *, at: datetime | None = None) -> Status | None:
        """Run a task again by hand; answers the status it had, or None when the company has no such task.

        `processing` means that nothing was done. `pending` tasks wait for their turn as they did. A task that had
        ended is charged again. Raises QuotaExceeded, and UniqueKeyTaken when another task has its unique key by now.
        """
        ...

    async def prune(self, keep: Retention, *, most: int = 1_000, at: datetime | None = None) -> Pruned:
        """Forget finished tasks that were kept long enough, and expired idempotency keys.

        Tasks are kept for as long as their company has them kept, where the broker knows of that, or else for `keep`.
        """
        ...

    async def heal(self) -> int:
        """Put companies that have work but no turn back in rotation; answers how many turns were given."""
        ...

    async def park(
        self, types: Sequence[str], *, queues: Sequence[str], most: int = 1_000, at: datetime | None = None
    ) -> dict[str, int]:
        """Set tasks aside where they block a line: those of these types that no living worker knows, and those whose
        type is paused; how many of each. They stay pending.
        """
        ...

    async def unpark(self, *, most: int = 1_000, at: datetime | None = None) -> int:
        """Give tasks that were set aside back to their lines once a living worker knows their type, and it is not
        paused; how many."""
        ...

    def wakeups(self) -> AbstractAsyncContextManager[AsyncIterator[frozenset[str]]]:
        """Listen for new work: yields the queues that got some, until left.

        A quiet yield of no queue says that the line is alive; the iterator ends when the line is lost.
        """
        ...

    async def watch(self, company_id: UUID, task_id: UUID, *, seconds: float) -> None:
        """Have the moves of a task told by `changes` for so long; watching it again makes that longer, never shorter.

        Every move that a read after this call does not see is told.
        """
        ...

    def changes(self) -> AbstractAsyncContextManager[AsyncIterator[frozenset[UUID]]]:
        """Listen for moves of watched tasks: yields the ids of those that moved, until left.

        A quiet yield of no id says that the line is alive; the iterator ends when the line is lost.
        """
        ...


class DurableBroker(Broker, Protocol):
    """A broker whose tasks stay until they are forgotten, and wait for long."""

    async def reschedule(
        self, company: str, task_id: UUID, *, run_after: datetime, at: datetime | None = None
    ) -> Status | None:
        """Put a task that waits off to a time, or bring it forward; answers the status it had, or None."""
        ...

    async def delete(self, company: str, task_id: UUID) -> Status | None:
        """Forget a task that has ended; answers the status it had, or None."""
        ...
