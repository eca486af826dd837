"""What keeps a cell in order; every worker does all of it, and none waits for another.

Rescue takes back the tasks of lost workers. Promote makes due tasks pending, and Schedules makes the tasks of ticks
that have come. Prune forgets finished ones. Heal puts companies back in rotation that should be there. Park sets tasks
aside that are paused by their type, or that no living worker knows how to run.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final
from uuid import UUID

from structlog.typing import FilteringBoundLogger

from taketurns import telemetry
from taketurns.engine.broker import Broker
from taketurns.engine.retention import Retention
from taketurns.schedules.ticking import Ticking
from taketurns.telemetry import Event
from taketurns.worker.lease import Lease

MOST: Final = 1_000


class Watch:
    """Which leases have stood still for so long that their workers are gone.

    Only what was seen counts: after a gap between two looks (a database that was away, a process that was stopped)
    the watch begins anew, for nobody could beat, or nobody looked.
    """

    def __init__(self, *, stale_after_seconds: float, gap_seconds: float) -> None:
        self._stale_after_seconds = stale_after_seconds
        self._gap_seconds = gap_seconds
        self._looked_at = float("-inf")
        self._since: dict[UUID, tuple[int | None, float]] = {}

    def look(self, beats: Mapping[UUID, int | None], *, now: float) -> list[tuple[UUID, int | None]]:
        """Take note of every lease's beat (None: tasks without a lease); answers those that are gone."""
        if now - self._looked_at > self._gap_seconds:
            self._since.clear()
        self._looked_at = now
        self._since = {worker: (beat, self._first_seen(worker, beat, now)) for worker, beat in beats.items()}
        return [
            (worker, beat) for worker, (beat, since) in self._since.items() if now - since >= self._stale_after_seconds
        ]

    def _first_seen(self, worker: UUID, beat: int | None, now: float) -> float:
        known = self._since.get(worker)
        return known[1] if known is not None and known[0] == beat else now


class Rescue:
    """Faults 050, 057 and 060: a lease decides, never a task's age, and its row may be missing altogether."""

    name = "rescue"

    def __init__(
        self,
        broker: Broker,
        *,
        lease: Lease,
        stale_after_seconds: float,
        max_rescues: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._broker = broker
        self._lease = lease
        self._max_rescues = max_rescues
        self._stale_after_seconds = stale_after_seconds
        self._clock = clock
        self._every_seconds = min(1.0, stale_after_seconds / 15)
        self._watch = Watch(stale_after_seconds=stale_after_seconds, gap_seconds=stale_after_seconds / 3)
        self._log: FilteringBoundLogger = telemetry.logger("worker").bind()

    async def step(self) -> float:
        beats = await self._broker.beats()
        beats = {worker: beat for worker, beat in beats.items() if worker != self._lease.worker_id}
        for worker, beat in self._watch.look(beats, now=self._clock()):
            rescued = await self._broker.rescue(worker, watched_beat=beat, max_rescues=self._max_rescues)
            failed = sum(task.failed for task in rescued)
            telemetry.TASKS_RESCUED.labels("pending").inc(len(rescued) - failed)
            telemetry.TASKS_RESCUED.labels("failed").inc(failed)
            self._log.warning(Event.WORKER_RESCUED, worker_id=str(worker), tasks=len(rescued), failed=failed)
        return self._every_seconds

    async def rescue_overdue(self) -> bool:
        """Watch workers that may be gone until they have beaten again or were rescued; whether there were any.

        What one that only passes by must do, for it can hold nothing against a lease that it has not watched itself.
        """
        overdue = set(await self._overdue())
        if not overdue:
            return False
        while overdue:
            await asyncio.sleep(await self.step())
            overdue &= await self._overdue()
        return True

    async def _overdue(self) -> set[UUID]:
        return {*await self._broker.overdue(seconds=self._stale_after_seconds)} - {self._lease.worker_id}


class Promote:
    """Wakes when the next task is due, by the database's clock, or after a second."""

    name = "promote"

    def __init__(self, broker: Broker, *, lease: Lease, most_seconds: float = 1.0) -> None:
        self._broker = broker
        self._lease = lease
        self._most_seconds = most_seconds
        self._log: FilteringBoundLogger = telemetry.logger("worker").bind()

    async def step(self) -> float:
        promoted = await self._broker.promote(most=MOST)
        if promoted.count:
            telemetry.TASKS_PROMOTED.inc(promoted.count)
            self._log.debug(Event.TASKS_PROMOTED, count=promoted.count)
        if promoted.count >= MOST:
            return 0.0
        until_due = self._lease.seconds_until(promoted.next_due) if promoted.next_due else None
        return self._most_seconds if until_due is None else min(max(until_due, 0.005), self._most_seconds)


class Schedules:
    """Wakes when the next tick is due, by the database's clock, or after a second: a schedule may be new."""

    name = "schedules"

    def __init__(self, ticking: Ticking, *, lease: Lease, most_seconds: float = 1.0) -> None:
        self._ticking = ticking
        self._lease = lease
        self._most_seconds = most_seconds

    async def step(self) -> float:
        ticked = await self._ticking.make_due()
        until_due = self._lease.seconds_until(ticked.next_due) if ticked.next_due else None
        return self._most_seconds if until_due is None else min(max(until_due, 0.005), self._most_seconds)


class Prune:
    """In small batches, each a transaction of its own, so that a long arrears is worked off in the background."""

    name = "prune"

    def __init__(self, broker: Broker, *, retention: Retention, every_seconds: float = 60.0) -> None:
        self._broker = broker
        self._retention = retention
        self._every_seconds = every_seconds
        self._log: FilteringBoundLogger = telemetry.logger("worker").bind()

    async def step(self) -> float:
        pruned = await self._broker.prune(self._retention, most=MOST)
        if pruned.tasks or pruned.keys:
            telemetry.TASKS_PRUNED.inc(pruned.tasks)
            telemetry.IDEMPOTENCY_KEYS_PRUNED.inc(pruned.keys)
            self._log.info(Event.TASKS_PRUNED, tasks=pruned.tasks, keys=pruned.keys)
        return 0.1 if pruned.has_more else _about(self._every_seconds)


class Park:
    """Keeps types that are paused, or that no living worker knows, from blocking their companies' lines: fault 070."""

    name = "park"

    def __init__(
        self,
        broker: Broker,
        *,
        queues: Sequence[str],
        skipped_types: Callable[[], Sequence[str]],
        on_work: Callable[[], None],
        every_seconds: float = 2.0,
    ) -> None:
        self._broker = broker
        self._queues = queues
        self._skipped_types = skipped_types
        self._on_work = on_work
        self._every_seconds = every_seconds
        self._log: FilteringBoundLogger = telemetry.logger("worker").bind()

    async def step(self) -> float:
        parked = await self._broker.park(self._skipped_types(), queues=self._queues, most=MOST)
        for type, count in parked.items():
            self._log.warning(Event.TASKS_PARKED, type=type, count=count)
        unparked = await self._broker.unpark(most=MOST)
        if unparked:
            self._log.info(Event.TASKS_UNPARKED, count=unparked)
        if parked:
            self._on_work()
        return 0.05 if parked or unparked >= MOST else _about(self._every_seconds)


class Heal:
    """The net under the rotation; finds nothing unless somebody changed rows by hand."""

    name = "heal"

    def __init__(self, broker: Broker, *, every_seconds: float = 30.0) -> None:
        self._broker = broker
        self._every_seconds = every_seconds
        self._log: FilteringBoundLogger = telemetry.logger("worker").bind()

    async def step(self) -> float:
        if healed := await self._broker.heal():
            telemetry.TURNS_HEALED.inc(healed)
            self._log.warning(Event.ROTATION_HEALED, turns=healed)
        return _about(self._every_seconds)


def _about(seconds: float) -> float:
    """So that workers that started together do not go on together."""
    return seconds * random.uniform(0.8, 1.2)  # noqa: S311
