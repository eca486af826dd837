"""What a worker holds: attempts under way, and claimed tasks that wait for a free hand.

Nothing is kept of a task once it has left the worker's hands (fault 109).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from enum import Enum, auto

from structlog.typing import FilteringBoundLogger

from taketurns import telemetry
from taketurns.engine.task import ClaimedTask, Outcome, Report
from taketurns.execution import Attempt, Executor
from taketurns.telemetry import Event
from taketurns.worker.settling import Settler


class Stop(Enum):
    """Why an attempt is told to stop."""

    GIVE_BACK = auto()  # the worker must leave, or lost its lease: the task is released
    CLAIM_LOST = auto()  # the task was cancelled or taken back: nothing is to be reported


class Hands:
    """`concurrency` attempts run at once; up to `capacity` tasks are held in all."""

    def __init__(
        self,
        executor: Executor,
        settler: Settler,
        *,
        concurrency: int,
        capacity: int,
        on_free: Callable[[], None],
    ) -> None:
        self.concurrency = concurrency
        self.capacity = max(concurrency, capacity)
        self.running: set[Attempt] = set()
        self.waiting: deque[ClaimedTask] = deque()
        self.is_empty = asyncio.Event()
        self.is_empty.set()
        self._executor = executor
        self._settler = settler
        self._on_free = on_free
        self._stopping: dict[Attempt, Stop] = {}
        self._is_starting = False
        self._is_closed = False
        self._log: FilteringBoundLogger = telemetry.logger("worker").bind()

    @property
    def held(self) -> int:
        return len(self.running) + len(self.waiting)

    @property
    def free(self) -> int:
        """How many more tasks may be taken; none while so many wait that no hand will be free soon."""
        if len(self.waiting) * 2 > self.capacity - self.concurrency:
            return 0
        return self.capacity - self.held

    def tasks(self) -> Iterator[ClaimedTask]:
        """Every task held."""
        yield from (attempt.task for attempt in self.running)
        yield from self.waiting

    def take(self, tasks: Iterable[ClaimedTask]) -> None:
        """Start what there are hands for; the rest waits."""
        self.waiting.extend(tasks)
        if self._is_closed:
            self.release_waiting()
        else:
            self._start_waiting()

    def close(self) -> None:
        """Start nothing any more, and release at once what was not started."""
        self._is_closed = True
        self.release_waiting()

    def release_waiting(self) -> None:
        """Give back what was claimed and not started."""
        self._settler.release(self.waiting)
        self.waiting.clear()
        self._tell()

    def stop_all(self) -> None:
        """Tell every attempt to stop; the tasks of those that do are released."""
        self.release_waiting()
        for attempt in list(self.running):
            self._stop(attempt, Stop.GIVE_BACK)

    def leave_running(self) -> list[ClaimedTask]:
        """Release the tasks of handlers that do not stop, for this process ends."""
        tasks = [attempt.task for attempt in self.running]
        self._settler.release(tasks)
        for attempt in self.running:
            self._stopping[attempt] = Stop.CLAIM_LOST
        self.running.clear()
        self._tell()
        return tasks

    def forget(self, lost: Iterable[Attempt], unstarted: Iterable[ClaimedTask]) -> None:
        """Let go of tasks that stand under another claim, or have ended: faults 117 and 119."""
        for attempt in lost:
            self._log.info(Event.CLAIM_LOST, **attempt.context.log_fields())
            self._stop(attempt, Stop.CLAIM_LOST)
        for task in unstarted:
            self.waiting.remove(task)
        self._tell()

    def _stop(self, attempt: Attempt, why: Stop) -> None:
        self._stopping.setdefault(attempt, why)
        attempt.cancel()

    def _start_waiting(self) -> None:
        if self._is_starting:  # an attempt that ended while it was started: its starter goes on
            return
        self._is_starting = True
        try:
            while self.waiting and len(self.running) < self.concurrency:
                attempt = self._executor.start(self.waiting.popleft(), self._ended)
                if not attempt.has_ended:
                    self.running.add(attempt)
        finally:
            self._is_starting = False
        self._tell()

    def _ended(self, attempt: Attempt, report: Report) -> None:
        self.running.discard(attempt)
        why = self._stopping.pop(attempt, None) if self._stopping else None
        if report.outcome is not Outcome.CANCELLED:
            self._settler.report(report, seconds=attempt.seconds)
        elif why is Stop.GIVE_BACK:
            self._settler.release((report.task,))
        else:
            self._settler.forget(report)
        if self.waiting:
            self._start_waiting()
        else:
            self._tell()

    def _tell(self) -> None:
        if self.running or self.waiting:
            self.is_empty.clear()
        else:
            self.is_empty.set()
        if self.free:
            self._on_free()
