"""A worker's lease: one row that it beats, so that others know that what it holds is being worked on.

Two threads, so that no handler can starve them: one beats, on a connection of its own; the other only looks at the
clock. A lease that was not beaten in time counts as lost well before anybody may take the work: attempts are told to
stop, and if one still runs when time is up, the process ends. With nothing under way any more a new lease is taken,
under a new id.

             ┌── beats ──┐
absent ───► held ────────┴──► lost ───► absent      row gone, or no beat within two thirds of stale_after;
                                └─────► process ends    five sixths, and handlers still run
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from datetime import datetime
from enum import Enum, auto
from typing import Final
from uuid import UUID

from structlog.typing import FilteringBoundLogger

from taketurns import telemetry
from taketurns.engine.broker import Broker
from taketurns.engine.errors import ConfigurationError, Unavailable
from taketurns.engine.lease import Holder, LeaseLine
from taketurns.engine.orders import Wanted, WorkerState
from taketurns.storage.ids import new_id
from taketurns.telemetry import Event
from taketurns.worker.loop_watch import LoopWatch
from taketurns.worker.rounds import AFTER_FAILURE

LOST_AFTER: Final = 2 / 3
ENDS_AFTER: Final = 5 / 6
EXIT_CODE: Final = 70


class State(Enum):
    ABSENT = auto()
    HELD = auto()
    LOST = auto()
    CLOSED = auto()


class Lease:
    """Use from the event loop; `on_taken`, `on_lost` and `on_order` are called in it.

    `end_process` is called with an exit code in a thread of the lease, when time is up and attempts still run.
    """

    def __init__(
        self,
        broker: Broker,
        *,
        holder: Holder,
        beat_seconds: float,
        stale_after_seconds: float,
        on_taken: Callable[[], None] = lambda: None,
        on_lost: Callable[[], None] = lambda: None,
        on_order: Callable[[Wanted], None] = lambda _: None,
        end_process: Callable[[int], None] | None = os._exit,
    ) -> None:
        if beat_seconds * 3 > stale_after_seconds:
            raise ConfigurationError(
                f"stale_after_seconds ({stale_after_seconds:g}) must be at least three times beat_seconds"
                f" ({beat_seconds:g}), or one late beat would cost a worker its lease"
            )
        self.worker_id: UUID | None = None
        self.published_types: frozenset[str] = frozenset()
        self.last_claim_at: float | None = None
        self.beat_sent_at = time.monotonic()
        self.wanted = Wanted.RUN
        self.state = WorkerState.RUNNING
        self._broker = broker
        self._holder = holder
        self._beat_seconds = beat_seconds
        self._stale_after_seconds = stale_after_seconds
        self._on_taken = on_taken
        self._on_lost = on_lost
        self._on_order = on_order
        self._end_process = end_process
        self._state = State.ABSENT
        self._ends_at = 0.0
        self._clock_offset: float | None = None
        self._lock = threading.Lock()
        self._beat_early = threading.Event()
        self._look_early = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._taken = asyncio.Event()
        self._threads: list[threading.Thread] = []
        self._log: FilteringBoundLogger = telemetry.logger("worker").bind()

    def open(self) -> None:
        """Begin to take the lease, for as long as that needs."""
        self._loop = asyncio.get_running_loop()
        self._loop_watch = LoopWatch()
        self._threads = [
            threading.Thread(target=body, name=f"lease-{name}", daemon=True)
            for name, body in (("beat", self._keep_beating), ("clock", self._keep_looking))
        ]
        for thread in self._threads:
            thread.start()

    async def close(self) -> None:
        """Give the lease up: its row is removed, if the database can be reached soon."""
        with self._lock:
            self._state = State.CLOSED
        self._beat_early.set()
        self._look_early.set()
        await asyncio.to_thread(self._join)

    @property
    def is_held(self) -> bool:
        return self._state is State.HELD and time.monotonic() < self.beat_sent_at + self._lost_after

    async def taken(self) -> None:
        """Wait until it is held."""
        await self._taken.wait()

    def acknowledge_loss(self) -> None:
        """Nothing runs any more: a new lease may be taken."""
        with self._lock:
            if self._state is State.LOST:
                self._state = State.ABSENT
        self._beat_early.set()
        self._look_early.set()

    def beat_soon(self) -> None:
        """Do not wait for the time of the next beat: something may be wanted of this worker."""
        self._beat_early.set()

    def tell(self, state: WorkerState) -> None:
        """Say what the worker does, with a beat that is sent soon."""
        if state is not self.state:
            self.state = state
            self.beat_soon()

    @property
    def age(self) -> float:
        """Seconds since the last beat that arrived was sent."""
        return time.monotonic() - self.beat_sent_at

    def seconds_until(self, moment: datetime) -> float | None:
        """Seconds until a moment of the broker's clock; None before the first beat (fault 075)."""
        if self._clock_offset is None:
            return None
        return moment.timestamp() - (time.monotonic() + self._clock_offset)

    def _is_closed(self) -> bool:
        return self._state is State.CLOSED

    # The thread that beats.

    def _keep_beating(self) -> None:
        line: LeaseLine | None = None
        failures = 0
        while not self._is_closed():
            self._beat_early.clear()
            try:
                if line is None:
                    line = self._open_line()
                self._round(line)
                failures, pause = 0, self._beat_seconds
            except Unavailable as error:
                self._log.warning(Event.LEASE_UNREACHABLE, error=str(error))
                if line is not None:
                    line.close()
                line = None
                pause = min(AFTER_FAILURE.delay(failures), self._beat_seconds)
                failures += 1
            self._loop_watch.look()
            if not self._is_closed():
                self._beat_early.wait(pause)
        self._remove(line)

    def _open_line(self) -> LeaseLine:
        """A dead peer must be noticed in less time than a lease lasts."""
        return self._broker.lease_line(patience_seconds=max(self._stale_after_seconds / 2, 2.0))

    def _round(self, line: LeaseLine) -> None:
        match self._state:
            case State.ABSENT:
                self._register(line)
            case State.HELD:
                self._beat(line)
            case State.LOST | State.CLOSED:
                pass

    def _register(self, line: LeaseLine) -> None:
        """Also leaves no row of an id that this worker had before: nothing is under way under it."""
        worker_id = new_id()
        sent_at = time.monotonic()
        beat = line.take(worker_id, self._holder, former=self.worker_id, wanted=self.wanted)
        self.published_types = beat.published_types
        with self._lock:
            self.worker_id = worker_id
            if self._state is not State.ABSENT:  # closed meanwhile: the row is removed
                return
            self.beat_sent_at, self._state = sent_at, State.HELD
        self._look_early.set()
        self._log.debug(Event.LEASE_TAKEN, worker_id=str(worker_id))
        self._call(self._tell_taken)
        self._heed(beat.wanted)

    def _beat(self, line: LeaseLine) -> None:
        if self.worker_id is None:
            return
        sent_at = time.monotonic()
        beat = line.beat(self.worker_id, seconds_since_claim=self._seconds_since_claim(), state=self.state)
        if beat is None:
            self._lose("others have taken its work")
            return
        with self._lock:
            if self._state is State.HELD:
                self.beat_sent_at = sent_at
        self._clock_offset = beat.at.timestamp() - time.monotonic()
        self.published_types = beat.published_types
        self._heed(beat.wanted)

    def _heed(self, wanted: Wanted) -> None:
        if wanted is not self.wanted:
            self.wanted = wanted
            self._call(lambda: self._on_order(wanted))

    def _seconds_since_claim(self) -> float | None:
        return None if self.last_claim_at is None else time.monotonic() - self.last_claim_at

    def _remove(self, line: LeaseLine | None) -> None:
        if self.worker_id is not None:
            try:
                line = line or self._open_line()
                line.remove(self.worker_id, seconds_since_claim=self._seconds_since_claim())
            except Unavailable as error:  # it goes stale by itself
                self._log.warning(Event.LEASE_UNREACHABLE, error=str(error))
        if line is not None:
            line.close()

    # The thread that looks at the clock.

    def _keep_looking(self) -> None:
        while True:
            self._look_early.clear()
            if self._is_closed():
                return
            self._look_early.wait(self._look(time.monotonic()))

    def _look(self, now: float) -> float | None:
        """Judge the lease; answers the seconds until it must be looked at again."""
        if self._state is State.HELD:
            left = self.beat_sent_at + self._lost_after - now
            if left > 0:
                return left
            self._lose("it could not be beaten in time")
        if self._state is State.LOST:
            left = self._ends_at - now
            if left > 0:
                return left
            self._end()
        return None

    def _lose(self, reason: str) -> None:
        """From either thread. Handlers have until `_ends_at` to stop."""
        now = time.monotonic()
        with self._lock:
            if self._state is not State.HELD:
                return
            self._state = State.LOST
            least = self._stale_after_seconds * (ENDS_AFTER - LOST_AFTER)
            self._ends_at = max(self.beat_sent_at + self._stale_after_seconds * ENDS_AFTER, now + least)
        telemetry.LEASES_LOST.inc()
        self._log.error(Event.LEASE_LOST, worker_id=str(self.worker_id), reason=reason)
        self._look_early.set()
        self._call(self._tell_lost)

    def _end(self) -> None:
        if self._end_process is not None:
            self._log.critical(Event.LEASE_ENDS_PROCESS, worker_id=str(self.worker_id))
            self._end_process(EXIT_CODE)

    @property
    def _lost_after(self) -> float:
        return self._stale_after_seconds * LOST_AFTER

    # In the loop.

    def _call(self, callback: Callable[[], None]) -> None:
        try:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(callback)
        except RuntimeError:  # the loop is closed
            return

    def _tell_taken(self) -> None:
        self._taken.set()
        self._on_taken()

    def _tell_lost(self) -> None:
        self._taken.clear()
        self._on_lost()

    def _join(self) -> None:
        for thread in self._threads:
            thread.join(timeout=self._stale_after_seconds)
