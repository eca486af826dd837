"""The inline broker: a task is done where it is asked for, by the executor that workers have, and recorded like any.

It waits in no line and is nobody's turn: it takes no hand of the fleet, and counts for no company's share or limit.
There is one attempt. A caller that dies is noticed by its lease, as a worker is, and then the task has failed.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Final, Protocol
from uuid import UUID

from taketurns import telemetry
from taketurns.engine.broker import Broker
from taketurns.engine.errors import Unavailable
from taketurns.engine.retry import Backoff
from taketurns.engine.task import ClaimedTask, Enqueued, NewTask, Outcome, Report
from taketurns.execution import Executor
from taketurns.execution.executor import Attempt

AFTER_FAILURE: Final = Backoff(first_seconds=0.1, ceiling_seconds=2.0)
TRIES: Final = 6
LAST: Final = frozenset({Outcome.COMPLETED, Outcome.FAILED, Outcome.CANCELLED})


class Recorder(Broker, Protocol):
    """The broker that keeps the record."""

    async def begin(
        self, company: str, task: NewTask, worker_id: UUID, *, at: datetime | None = None
    ) -> tuple[Enqueued, ClaimedTask | None]:
        """Create a task that is in this worker's hand from the first; in nobody's if an earlier request made it."""
        ...


class InlineBroker:
    """Runs tasks for callers in one event loop. `lease` holds one for the time of a run, and tells its worker's id;
    `now` stands in for the database's clock."""

    def __init__(
        self,
        recorder: Recorder,
        *,
        lease: Callable[[], AbstractAsyncContextManager[UUID]],
        now: Callable[[], datetime | None],
    ) -> None:
        self._recorder = recorder
        self._lease = lease
        self._now = now
        self._runs: set[asyncio.Task[Enqueued]] = set()

    async def run(self, executor: Executor, company: str, task: NewTask) -> Enqueued:
        """Create a task and do it. How that ended is in the record: a handler that fails raises nothing here.

        A caller that is cancelled leaves at once; its handler is told to stop, and its end is recorded all the same.
        Raises UnknownCompany, IdempotencyConflict, QuotaExceeded and Unavailable.
        """
        run = Run(self._recorder, executor, now=self._now)
        running = asyncio.create_task(self._held(run, company, task), name="taketurns-inline")
        self._runs.add(running)
        running.add_done_callback(self._runs.discard)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            run.stop()
            running.add_done_callback(_tell)
            raise

    async def ended(self) -> None:
        """Wait for what runs."""
        await asyncio.gather(*self._runs, return_exceptions=True)

    async def _held(self, run: Run, company: str, task: NewTask) -> Enqueued:
        async with self._lease() as worker_id:
            return await run.carry_out(company, task, worker_id)


class Run:
    """One task on its way from its creation to its record's end."""

    def __init__(self, recorder: Recorder, executor: Executor, *, now: Callable[[], datetime | None]) -> None:
        self._recorder = recorder
        self._executor = executor
        self._now = now
        self._attempt: Attempt | None = None
        self._is_stopped = False

    async def carry_out(self, company: str, task: NewTask, worker_id: UUID) -> Enqueued:
        made, claimed = await self._recorder.begin(company, task, worker_id, at=self._now())
        if claimed is not None:
            await self._record(_last(await self._report(claimed)))
        return made

    def stop(self) -> None:
        """Nobody waits for it any more."""
        self._is_stopped = True
        if self._attempt is not None:
            self._attempt.cancel()

    async def _report(self, claimed: ClaimedTask) -> Report:
        if self._is_stopped:
            return Report(claimed, Outcome.CANCELLED, error="cancelled before it ran")
        ended: asyncio.Future[Report] = asyncio.get_running_loop().create_future()

        def done(_: Attempt, report: Report) -> None:
            if not ended.done():
                ended.set_result(report)

        self._attempt = self._executor.start(claimed, done)
        return await ended

    async def _record(self, report: Report) -> None:
        for failures in range(TRIES):
            try:
                await self._recorder.settle([report], at=self._now())
            except Unavailable:
                if failures == TRIES - 1:
                    raise
                await asyncio.sleep(AFTER_FAILURE.delay(failures))
            else:
                return


def _last(report: Report) -> Report:
    """There is one attempt: what would be tried again, or put off, has failed, and says when it might go better."""
    if report.outcome in LAST:
        return report
    error = report.error or "the handler asked for another attempt"
    if report.outcome is Outcome.DEFERRED:
        error = f"{error}: try again in {math.ceil(report.delay_seconds or 0)} s"
    return Report(report.task, Outcome.FAILED, error=error)


def _tell(running: asyncio.Task[Enqueued]) -> None:
    """Say what went wrong after the caller had left."""
    if not running.cancelled() and (error := running.exception()) is not None:
        telemetry.logger("execution").error(telemetry.Event.SETTLE_FAILED, error=repr(error))
