"""Compares what a worker holds with the rows that say so.

A task in hand without its row was cancelled or taken back: its attempt is told to stop. A row without a task in hand
was claimed, and the answer never came: it is released, or fails if it is its own fault.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from uuid import UUID

from structlog.typing import FilteringBoundLogger

from taketurns import telemetry
from taketurns.engine.broker import Broker
from taketurns.engine.task import ClaimedTask, Outcome, Report
from taketurns.telemetry import Event
from taketurns.worker.hands import Hands
from taketurns.worker.lease import Lease
from taketurns.worker.settling import Settler

Claim = tuple[UUID, UUID]


class Audit:
    """A duty of every worker."""

    name = "audit"

    def __init__(
        self,
        broker: Broker,
        *,
        lease: Lease,
        no_claims: asyncio.Lock,
        hands: Hands,
        settler: Settler,
        every_seconds: float,
    ) -> None:
        self._broker = broker
        self._lease = lease
        self._no_claims = no_claims
        self._hands = hands
        self._settler = settler
        self._every_seconds = every_seconds
        self._log: FilteringBoundLogger = telemetry.logger("worker").bind()

    async def step(self) -> float:
        await self.compare()
        return self._every_seconds

    async def compare(self, *, unreadable: str | None = None) -> None:
        """While no claim is under way. What comes or goes during the look is left to the next one.

        `unreadable`: what is wrong with the only row that can be there without a task in hand.
        """
        if self._lease.worker_id is None or not self._lease.is_held:
            return
        async with self._no_claims:
            running, waiting = set(self._hands.running), list(self._hands.waiting)
            busy = _claims(self._hands.tasks()) | _claims(self._settler.tasks())
            rows = await self._broker.held(self._lease.worker_id)
            busy |= _claims(self._settler.tasks())
        held = {_claim(task): task for task in rows}
        self._hands.forget(
            [attempt for attempt in running & self._hands.running if _claim(attempt.task) not in held],
            [task for task in waiting if task in self._hands.waiting and _claim(task) not in held],
        )
        if ghosts := [task for claim, task in held.items() if claim not in busy]:
            await self._lay(ghosts, unreadable)

    async def _lay(self, ghosts: Sequence[ClaimedTask], unreadable: str | None) -> None:
        if unreadable is None:
            released = await self._broker.release(ghosts)
            telemetry.TASKS_RELEASED.inc(len(released))
            self._log.warning(Event.GHOSTS_RELEASED, count=len(released))
        else:
            error = f"the task's row cannot be read: {unreadable}"
            await self._broker.settle([Report(task, Outcome.FAILED, error=error) for task in ghosts])
            self._log.error(Event.ROW_UNREADABLE, task_ids=[str(task.task_id) for task in ghosts], error=unreadable)


def _claim(task: ClaimedTask) -> Claim:
    return task.task_id, task.claim_token


def _claims(tasks: Iterable[ClaimedTask]) -> set[Claim]:
    return {_claim(task) for task in tasks}
