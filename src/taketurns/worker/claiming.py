"""Takes turns: claims as many tasks as there are free hands, whenever there may be some.

There may be some after a wake-up, after a claim that came back full, after a settlement (a company at its limit has
room again), at every poll, and when a company that has used up its rate may be served again.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from uuid import UUID

from structlog.typing import FilteringBoundLogger

from taketurns import telemetry
from taketurns.engine.broker import Broker
from taketurns.engine.errors import InvalidData
from taketurns.engine.registry import TYPE_NAME, Registry
from taketurns.engine.task import ClaimedTask, Outcome, Report
from taketurns.telemetry import Event
from taketurns.worker.audit import Audit
from taketurns.worker.hands import Hands
from taketurns.worker.lease import Lease
from taketurns.worker.rounds import AFTER_FAILURE, signal_within, tell_failure
from taketurns.worker.settling import Settler

MET_MOST = 1_000
SUSPECTS_WAIT_POLLS = (5.0, 15.0)
AGAIN_SECONDS = 0.01  # the least that is waited for a rate, of which there may be many
BEFORE_FIRST_BEAT_SECONDS = 0.1  # what is waited for it as long as the broker's clock is not known


class Prospects:
    """Whether a claim is worth making."""

    def __init__(self) -> None:
        self.has_work = True
        self._change = asyncio.Event()

    def work_may_wait(self) -> None:
        """Somebody may have got work, or room for it."""
        self.has_work = True
        self._change.set()

    def have_changed(self) -> None:
        """A hand is free, or it is time to stop."""
        self._change.set()

    async def change(self, *, within: float) -> None:
        """Wait for the next change."""
        await signal_within(self._change, within)
        self._change.clear()


class Claiming:
    """The claims of one worker, one at a time."""

    def __init__(
        self,
        broker: Broker,
        *,
        prospects: Prospects,
        lease: Lease,
        hands: Hands,
        settler: Settler,
        audit: Audit,
        under_way: asyncio.Lock,
        registry: Registry,
        queues: Sequence[str],
        batch: int | None,
        poll_seconds: float,
    ) -> None:
        self._under_way = under_way
        self._audit = audit
        self._broker = broker
        self._lease = lease
        self._hands = hands
        self._settler = settler
        self._registry = registry
        self._queues = list(queues)
        self._batch = batch or hands.capacity
        self._poll_seconds = poll_seconds
        self._prospects = prospects
        self._is_stopping = False
        self._is_paused = False
        self._one_by_one = 0
        self._until_next = poll_seconds
        self._met: set[str] = set()
        self._log: FilteringBoundLogger = telemetry.logger("worker").bind()

    def stop(self) -> None:
        """Claim no more. What a claim under way brings is released."""
        self._is_stopping = True
        self._prospects.have_changed()

    def pause(self) -> None:
        """Claim no more until `go_on`. What a claim under way brings is released."""
        self._is_paused = True

    def go_on(self) -> None:
        """Claim again."""
        self._is_paused = False
        self._prospects.work_may_wait()

    async def run(self) -> None:
        """Claim until stopped, through whatever failures."""
        failures = 0
        poll_at = 0.0
        while not self._is_stopping:
            until_poll = poll_at - time.monotonic()
            if not self.room:
                await self._prospects.change(within=self._poll_seconds)
                continue
            if not self._prospects.has_work and until_poll > 0:
                await self._prospects.change(within=until_poll)
                continue
            try:
                await self.step()
                failures, poll_at = 0, time.monotonic() + self._until_next
            except Exception as error:
                tell_failure(self._log, Event.CLAIM_FAILED, error)
                poll_at = time.monotonic() + AFTER_FAILURE.delay(failures)
                failures += 1

    @property
    def has_prospects(self) -> bool:
        """Whether the next claim need not wait for the poll."""
        return self._prospects.has_work

    @property
    def room(self) -> int:
        """How many tasks may be claimed."""
        if self._is_paused or not self._lease.is_held:
            return 0
        return min(self._hands.free, self._settler.room, 1 if self._one_by_one else self._batch)

    async def until_room(self) -> None:
        """Wait until a task may be claimed, or the lease is lost."""
        while self._lease.is_held and not self.room:
            await self._prospects.change(within=self._poll_seconds)

    async def step(self, *, most: int | None = None) -> int:
        """Claim once and start what was claimed; answers how many tasks that was."""
        room = self.room if most is None else min(self.room, most)
        worker_id = self._lease.worker_id
        if worker_id is None or room < 1:
            return 0
        if self._hands.concurrency == 1:  # what ended counts as held until it is settled: it costs its company the turn
            await self._settle_first()
        self._prospects.has_work = False
        try:
            count = await self._claim(worker_id, room)
        except Exception as error:
            await self._find_out(error, asked=room)
            raise
        self._one_by_one = max(self._one_by_one - 1, 0)
        if count == room:
            self._prospects.work_may_wait()
        return count

    async def _settle_first(self) -> None:
        """Wait for a while until all that was reported is settled."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._poll_seconds):
                await self._settler.flush()

    async def _claim(self, worker_id: UUID, room: int) -> int:
        async with self._under_way:
            began = time.monotonic()
            tasks = await self._broker.claim(
                worker_id, queues=self._queues, batch=room, skipped_types=self.skipped_types()
            )
            self._count(tasks, room, time.monotonic() - began)
            self._until_next = min(self._poll_seconds, self._seconds_until(tasks.again_at))
            to_begin = await self._with_one_suspect(tasks)
            self._begin(to_begin, worker_id is self._lease.worker_id and self._lease.is_held)
            return len(tasks)

    def _seconds_until(self, again_at: datetime | None) -> float:
        """How long to wait for what a rate lets start again."""
        if again_at is None:
            return self._poll_seconds
        seconds = self._lease.seconds_until(again_at)
        return BEFORE_FIRST_BEAT_SECONDS if seconds is None else max(seconds, AGAIN_SECONDS)

    async def _with_one_suspect(self, tasks: Sequence[ClaimedTask]) -> Sequence[ClaimedTask]:
        """What is left once all suspects but one in hand are put off, so that a killer dies alone: fault 092."""
        suspects = [task for task in tasks if task.is_suspect]
        if suspects and not any(task.is_suspect for task in self._hands.tasks()):
            suspects.pop(0)
        if not suspects:
            return tasks
        for task in suspects:
            delay = self._poll_seconds * random.uniform(*SUSPECTS_WAIT_POLLS)  # noqa: S311
            why = "another task that was lost with its workers runs first"
            self._settler.report(Report(task, Outcome.DEFERRED, error=why, delay_seconds=delay), seconds=0.0)
        while self._settler.unsettled and self._lease.is_held and not self._is_stopping:
            await self._settle_first()
        put_off = {task.task_id for task in suspects}
        return [task for task in tasks if task.task_id not in put_off]

    async def _find_out(self, error: Exception, *, asked: int) -> None:
        """A claim that failed may have moved tasks all the same: an answer that was lost, or a row that cannot be
        read (fault 078). That row is found by claims of one task."""
        is_unreadable = isinstance(error, InvalidData)
        if is_unreadable and asked > 1:
            self._one_by_one = asked
        with suppress(Exception):  # the next round of the audit will do
            await self._audit.compare(unreadable=repr(error) if is_unreadable and asked == 1 else None)

    def _begin(self, tasks: Sequence[ClaimedTask], is_ours: bool) -> None:
        if not is_ours or self._is_stopping or self._is_paused:
            self._settler.release(tasks)
            return
        if unknown := [task for task in tasks if self._is_for_others(task.type)]:
            for task in unknown:
                self._meet(task.type)
            self._settler.release(unknown)
            tasks = [task for task in tasks if not self._is_for_others(task.type)]
        self._hands.take(tasks)

    def _is_for_others(self, type: str) -> bool:
        """A type that this worker does not know, and another might; a name that no type can have is for nobody."""
        return type not in self._registry and TYPE_NAME.fullmatch(type) is not None

    def _meet(self, type: str) -> None:
        if type not in self._met:
            self._log.warning(Event.TASK_TYPE_UNKNOWN, type=type)
        if len(self._met) >= MET_MOST:
            self._met.clear()
        self._met.add(type)

    def skipped_types(self) -> list[str]:
        """What others have published, or this worker has met, and does not know."""
        return [name for name in self._lease.published_types | self._met if name not in self._registry]

    def _count(self, tasks: Sequence[ClaimedTask], room: int, seconds: float) -> None:
        telemetry.CLAIM_SECONDS.observe(seconds)
        telemetry.CLAIM_BATCH_SIZE.observe(len(tasks))
        _CLAIMS[_result(len(tasks), room)].inc()
        self._settler.tally.claimed += len(tasks)
        if tasks:
            self._lease.last_claim_at = time.monotonic()
            self._log.debug(Event.TASKS_CLAIMED, count=len(tasks), asked=room)


def _result(count: int, room: int) -> str:
    if count == 0:
        return "empty"
    return "full" if count == room else "partial"


_CLAIMS = {result: telemetry.CLAIMS.labels(result) for result in ("full", "partial", "empty")}
