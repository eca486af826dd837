"""Tells the broker how attempts ended and which tasks are given back: in batches, and again until it was heard.

A report is fenced by its claim's token, so to send it twice, or late, changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

from structlog.typing import FilteringBoundLogger

from taketurns import telemetry
from taketurns.engine.broker import Broker
from taketurns.engine.errors import InvalidData, Unavailable
from taketurns.engine.retry import Backoff
from taketurns.engine.task import ClaimedTask, Outcome, PassReport, Report
from taketurns.execution import outcome, storable
from taketurns.telemetry import Event, SeriesByType
from taketurns.worker.rounds import signal_within, tell_failure

AGAIN = Backoff(first_seconds=0.05, ceiling_seconds=1.0)


@dataclass(slots=True)
class Ended:
    """An attempt's report, and how long its handler ran."""

    report: Report
    seconds: float


class Settler:
    """A settlement begins `linger_seconds` after the first report of a batch, or when `most` are there."""

    def __init__(
        self,
        broker: Broker,
        series: SeriesByType,
        *,
        on_settled: Callable[[], None] = lambda: None,
        count: Callable[[Iterable[Report]], None] = lambda _: None,
        linger_seconds: float = 0.002,
        most: int = 500,
        unsettled_most: int = 2_000,
    ) -> None:
        self.tally = PassReport()
        self._broker = broker
        self._series = series
        self._on_settled = on_settled
        self._count_attempts = count
        self._linger_seconds = linger_seconds
        self._most = most
        self._unsettled_most = unsettled_most
        self._ended: deque[Ended] = deque()
        self._released: deque[ClaimedTask] = deque()
        self._settling: dict[int, Ended] = {}  # by the number that the task's id is, which costs no call to find
        self._releasing: list[ClaimedTask] = []
        self._some = asyncio.Event()
        self._enough = asyncio.Event()
        self._all_settled = asyncio.Event()
        self._all_settled.set()
        self._is_closing = False
        self._log: FilteringBoundLogger = telemetry.logger("worker").bind()

    def report(self, report: Report, *, seconds: float) -> None:
        """Have the end of an attempt settled soon."""
        self._ended.append(Ended(report, seconds))
        if len(self._ended) == 1:
            self._all_settled.clear()
            self._some.set()
        elif len(self._ended) >= self._most:
            self._enough.set()

    def release(self, tasks: Iterable[ClaimedTask]) -> None:
        """Have tasks given back at once."""
        self._released.extend(tasks)
        if self._released:
            self._all_settled.clear()
            self._some.set()
            self._enough.set()

    def forget(self, report: Report) -> None:
        """Count an attempt that is nobody's any more."""
        self._count(report.task.type, report.outcome, 1)
        self._log.info(Event.TASK_CANCELLED, **_fields(report))

    @property
    def unsettled(self) -> int:
        return len(self._ended) + len(self._settling) + len(self._released) + len(self._releasing)

    @property
    def room(self) -> int:
        """How many more tasks may be claimed without reports piling up while none can be settled."""
        return max(self._unsettled_most - self.unsettled, 0)

    def tasks(self) -> Iterator[ClaimedTask]:
        """The tasks of what is not settled yet."""
        yield from (ended.report.task for ended in self._ended)
        yield from (ended.report.task for ended in self._settling.values())
        yield from self._released
        yield from self._releasing

    async def run(self, *, may_go_on: Callable[[], bool] = lambda: True) -> None:
        """Settle until closed and everything was: faults 066, 105 and 116. Once closed, only while `may_go_on`."""
        failures = 0
        while await self._has_some():
            try:
                await self.step()
                failures = 0
            except Exception as error:
                tell_failure(self._log, Event.SETTLE_FAILED, error, unsettled=self.unsettled)
                if self._is_closing and not may_go_on():
                    self._log.error(Event.REPORTS_DROPPED, unsettled=self.unsettled)
                    return
                await asyncio.sleep(AGAIN.delay(failures))
                failures += 1

    def close(self) -> None:
        """Let `run` return once nothing is left to settle."""
        self._is_closing = True
        self._some.set()
        self._enough.set()

    async def flush(self) -> None:
        """Wait until nothing is left to settle; `run` must be running."""
        await self._all_settled.wait()

    async def step(self) -> None:
        """Give back every released task, and settle one batch of reports."""
        if self._releasing or self._released:
            await self._release_all()
        self._take_batch()
        if self._settling:
            await self._settle(list(self._settling.values()))
        if not self.unsettled:
            self._all_settled.set()

    async def _has_some(self) -> bool:
        """Wait for a batch. False once closed and empty."""
        if not self.unsettled:
            if self._is_closing:
                return False
            self._some.clear()
            await self._some.wait()
        if len(self._ended) < self._most and not self._released and not self._is_closing:
            self._enough.clear()
            await signal_within(self._enough, self._linger_seconds)
        return self.unsettled > 0 or not self._is_closing

    def _take_batch(self) -> None:
        """A task stands in a batch once, so that the ids that were settled tell the reports that were."""
        while self._ended and len(self._settling) < self._most:
            task_id = self._ended[0].report.task.task_id.int
            if task_id in self._settling:
                return
            self._settling[task_id] = self._ended.popleft()

    async def _release_all(self) -> None:
        self._releasing.extend(self._released)
        self._released.clear()
        released = await self._broker.release(self._releasing)
        telemetry.TASKS_RELEASED.inc(len(released))
        self.tally.released += len(released)
        self._log.info(Event.TASKS_RELEASED, count=len(released), gone=len(self._releasing) - len(released))
        self._releasing.clear()

    async def _settle(self, batch: Sequence[Ended]) -> None:
        began = time.perf_counter()
        try:
            settled = await self._broker.settle([ended.report for ended in batch])
        except Unavailable:
            raise
        except Exception as error:
            await self._settle_each(batch, error)
            return
        telemetry.SETTLE_SECONDS.observe(time.perf_counter() - began)
        self._settled(batch, settled)

    async def _settle_each(self, batch: Sequence[Ended], error: Exception) -> None:
        """One report that cannot be stored must not hold up the others, nor be sent for ever: fault 091."""
        if len(batch) > 1:
            for ended in batch:
                await self._settle([ended])
            return
        if not isinstance(error, InvalidData):
            raise error
        (ended,) = batch
        substitute = _refused(ended.report, error)
        settled = await self._broker.settle([substitute])
        self._log.error(Event.REPORT_REFUSED, error=repr(error), **_fields(ended.report))
        self._settled([Ended(substitute, ended.seconds)], settled)

    def _settled(self, batch: Sequence[Ended], settled: set[UUID]) -> None:
        for ended in batch:
            del self._settling[ended.report.task.task_id.int]
        if len(settled) < len(batch):
            for ended in batch:
                if ended.report.task.task_id not in settled:
                    self._ignored(ended.report)
            batch = [ended for ended in batch if ended.report.task.task_id in settled]
        seconds: defaultdict[tuple[str, Outcome], list[float]] = defaultdict(list)
        for ended in batch:
            seconds[ended.report.task.type, ended.report.outcome].append(ended.seconds)
        for (type, ended_as), of_each in seconds.items():
            self._count(type, ended_as, len(of_each))
            self._series[type].seconds.observe(of_each)
        self._count_attempts(ended.report for ended in batch)
        self._tell_outcomes(batch)
        self._on_settled()

    def _ignored(self, report: Report) -> None:
        """The attempt's claim is no more; what it did changed nothing: faults 052, 053 and 117."""
        telemetry.REPORTS_IGNORED.inc()
        self.tally.lost += 1
        self._log.warning(Event.REPORT_IGNORED, outcome=report.outcome.value, **_fields(report))

    def _count(self, type: str, ended_as: Outcome, count: int) -> None:
        series = self._series[type]
        series.processed[ended_as.value].inc(count)
        match ended_as:
            case Outcome.COMPLETED:
                self.tally.completed += count
            case Outcome.RETRY:
                series.retried.inc(count)
                self.tally.retried += count
            case Outcome.DEFERRED:
                self.tally.deferred += count
            case Outcome.FAILED:
                self.tally.failed += count
            case Outcome.CANCELLED:
                self.tally.lost += count

    def _tell_outcomes(self, batch: Iterable[Ended]) -> None:
        is_debug = self._log.is_enabled_for(logging.DEBUG) and telemetry.is_told("worker", logging.DEBUG)
        for ended in batch:
            if is_debug or ended.report.outcome is not Outcome.COMPLETED:
                self._tell_outcome(ended)

    def _tell_outcome(self, ended: Ended) -> None:
        fields = _fields(ended.report) | {"seconds": round(ended.seconds, 3)}
        match ended.report.outcome:
            case Outcome.COMPLETED:
                self._log.debug(Event.TASK_COMPLETED, **fields)
            case Outcome.RETRY:
                self._log.info(Event.TASK_RETRIED, delay_seconds=ended.report.delay_seconds, **fields)
            case Outcome.DEFERRED:
                self._log.info(Event.TASK_DEFERRED, delay_seconds=ended.report.delay_seconds, **fields)
            case Outcome.FAILED:
                self._log.warning(Event.TASK_FAILED, **fields)
            case Outcome.CANCELLED:
                self._log.info(Event.TASK_CANCELLED, **fields)


def _refused(report: Report, error: Exception) -> Report:
    """What is reported in place of a report that the database refuses: a failure, within the retry plan."""
    unstorable = storable.Unstorable(f"what the handler returned could not be stored: {error}")
    return outcome.report(report.task, outcome.Raised(unstorable), backoff=Backoff())


def _fields(report: Report) -> dict[str, object]:
    task = report.task
    fields: dict[str, object] = {
        "company_id": str(task.company_id),
        "task_id": str(task.task_id),
        "type": task.type,
        "attempt": task.attempt,
    }
    if task.request_id is not None:
        fields["request_id"] = task.request_id
    if report.error is not None:
        fields["error"] = report.error.partition("\n")[0]
    return fields
