"""A worker: its parts, put together, and the order in which they start and stop."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from typing import Any, Final

from structlog.typing import FilteringBoundLogger

from taketurns import telemetry
from taketurns.engine.broker import Broker
from taketurns.engine.budget import Budgets
from taketurns.engine.errors import InvalidData, Unavailable
from taketurns.engine.lease import Holder, Kind
from taketurns.engine.orders import Wanted, WorkerState
from taketurns.engine.registry import Registry
from taketurns.engine.retention import Retention
from taketurns.engine.task import Outcome, PassReport
from taketurns.execution import Executor
from taketurns.history.rollups import Attempts
from taketurns.schedules.ticking import Ticking
from taketurns.telemetry import Event, SeriesByType
from taketurns.worker import metrics
from taketurns.worker.audit import Audit
from taketurns.worker.claiming import Claiming, Prospects
from taketurns.worker.hands import Hands
from taketurns.worker.lease import Lease
from taketurns.worker.listening import Listening
from taketurns.worker.rounds import Duty, end, keep, keep_once, signal_within, to_the_end
from taketurns.worker.settling import Settler
from taketurns.worker.upkeep import MOST, Heal, Park, Promote, Prune, Rescue, Schedules

LEAVE_SECONDS: Final = 2.0  # what handlers have to stop in once the grace is over
TELL_SECONDS: Final = 1.0  # what a worker that leaves waits for the last of its figures to be told
RETENTION: Final = Retention()
PASS_LEASE_SECONDS: Final = 15.0  # what a pass waits for its lease


class Worker:
    """Takes turns until stopped, by its own process or by the order of an operator, which comes with the lease.

    Up to `concurrency` handlers run at once. A claim takes as many tasks as there are free hands, or up to `batch`,
    which may be more: those wait in the worker's hand. With a `ticking` it makes the tasks of schedules as well, and
    with `attempts` it tells what companies' attempts came to. After `stop`, running handlers are waited for, without
    `shutdown_grace_seconds` for as long as it takes. `end_process` is what a lost lease ends the process with, when
    handlers do not stop in time. `name`, `kind` and `comes_again` are for its heartbeat.
    """

    def __init__(
        self,
        *,
        broker: Broker,
        registry: Registry,
        ticking: Ticking | None = None,
        attempts: Attempts | None = None,
        queues: Sequence[str] = ("default",),
        concurrency: int = 16,
        batch: int | None = None,
        poll_seconds: float = 1.0,
        beat_seconds: float = 3.0,
        stale_after_seconds: float = 15.0,
        max_rescues: int = 3,
        shutdown_grace_seconds: float | None = None,
        retention: Retention = RETENTION,
        name: str = "",
        kind: Kind = Kind.WORKER,
        comes_again: bool = True,
        budgets: Budgets | None = None,
        duties: Sequence[Duty] = (),
        end_process: Callable[[int], None] | None = os._exit,
    ) -> None:
        self.left_running = 0
        self._broker = broker
        self._ticking = ticking
        self._attempts = attempts
        self._shutdown_grace_seconds = shutdown_grace_seconds
        self._has_to_stop = asyncio.Event()
        self._is_running = False
        self._parts: list[asyncio.Task[None]] = []
        self._recovery: asyncio.Task[None] | None = None
        self._log: FilteringBoundLogger = telemetry.logger("worker").bind()

        prospects = Prospects()
        self.holder = Holder(
            queues=queues,
            types=tuple(registry),
            concurrency=concurrency,
            name=name,
            kind=kind,
            comes_again=comes_again,
        )
        self._description = {
            "name": self.holder.full_name,
            "queues": list(queues),
            "concurrency": concurrency,
            "types": registry.names,
        }
        self.executor = Executor(registry, threads=concurrency, budgets=budgets)
        self.lease = Lease(
            broker,
            holder=self.holder,
            beat_seconds=beat_seconds,
            stale_after_seconds=stale_after_seconds,
            on_taken=prospects.work_may_wait,
            on_lost=self._lease_was_lost,
            on_order=self._obey,
            end_process=end_process,
        )
        self.settler = Settler(
            broker,
            SeriesByType(registry.names, outcomes=[outcome.value for outcome in Outcome]),
            on_settled=prospects.work_may_wait,
            count=attempts.add if attempts else lambda _: None,
        )
        self.hands = Hands(
            self.executor,
            self.settler,
            concurrency=concurrency,
            capacity=batch or concurrency,
            on_free=prospects.have_changed,
        )
        under_way = asyncio.Lock()
        self._audit = Audit(
            broker,
            lease=self.lease,
            no_claims=under_way,
            hands=self.hands,
            settler=self.settler,
            every_seconds=beat_seconds,
        )
        self.claiming = Claiming(
            broker,
            prospects=prospects,
            lease=self.lease,
            hands=self.hands,
            settler=self.settler,
            audit=self._audit,
            under_way=under_way,
            registry=registry,
            queues=queues,
            batch=batch,
            poll_seconds=poll_seconds,
        )
        self.listening = Listening(
            broker, queues=queues, on_work=prospects.work_may_wait, on_order=self.lease.beat_soon
        )
        self._rescue = Rescue(
            broker,
            lease=self.lease,
            stale_after_seconds=stale_after_seconds,
            max_rescues=max_rescues,
        )
        self._upkeep: tuple[Duty, ...] = (
            Promote(broker, lease=self.lease),
            Prune(broker, retention=retention),
            Heal(broker),
            Park(
                broker,
                queues=queues,
                skipped_types=self.claiming.skipped_types,
                on_work=prospects.work_may_wait,
            ),
            *([Schedules(ticking, lease=self.lease)] if ticking else []),
            *([attempts] if attempts else []),
            *duties,
        )

    async def run(self) -> None:
        """Take turns until `stop`. Raises what a part of it died of, after an orderly end (fault 110)."""
        async with self._at_work():
            self._begin(self.claiming.run(), "claiming")
            self._begin(self.listening.run(), "listening")
            for duty in (self._rescue, *self._upkeep):
                self._begin(keep(duty), duty.name)
            self._log.info(Event.WORKER_STARTED, **self._description)
            await self._has_to_stop.wait()
            self._log.info(Event.WORKER_STOPPING, held=self.held)
        self._log.info(Event.WORKER_STOPPED, left_running=self.left_running)

    async def run_pass(
        self, *, limit: int | None = None, drains: bool = False, keeps_house: bool = True, rescues: bool = True
    ) -> PassReport:
        """Make what is due pending, ticks too, process until `limit` tasks were claimed or none is left, and stop.

        One that `drains` goes on with what has become due meanwhile. One that `keeps_house` does a worker's other
        duties once. One that `rescues` waits for workers that may be gone, while there are any, until they have beaten
        or their tasks are taken back, and then processes those too. Ends early, in good order, when told to `stop`.
        """
        async with self._at_work():
            await self._lease_or_unavailable()
            await self._unless_stopped(
                self._make_pass(limit or math.inf, drains=drains, keeps_house=keeps_house, rescues=rescues)
            )
        self._log.info(Event.PASS_MADE, **asdict(self.settler.tally))
        return self.settler.tally

    def stop(self) -> None:
        """Claim no more, release what was not started, let running handlers end, and leave. From the event loop."""
        self._has_to_stop.set()
        self.lease.tell(WorkerState.STOPPING)

    def _obey(self, wanted: Wanted) -> None:
        """One that stops already does nothing else any more."""
        if self._has_to_stop.is_set():
            return
        self._log.info(Event.WORKER_ORDERED, wanted=wanted.value, held=self.held)
        match wanted:
            case Wanted.RUN:
                self.claiming.go_on()
                self.lease.tell(WorkerState.RUNNING)
            case Wanted.DRAIN:
                self.claiming.pause()
                self.hands.release_waiting()
                self.lease.tell(WorkerState.DRAINING)
            case Wanted.STOP:
                self.stop()

    @property
    def held(self) -> int:
        """Tasks in hand."""
        return self.hands.held

    @property
    def lease_age(self) -> float:
        """Seconds since the last beat."""
        return self.lease.age

    @property
    def is_healthy(self) -> bool:
        """Whether every part of it works, whatever the database does."""
        return self._is_running and not any(part.done() for part in self._parts)

    @property
    def is_ready(self) -> bool:
        """Whether it takes turns: its lease is held, and nobody wants it to take none."""
        return self.is_healthy and self.lease.is_held and self.lease.state is WorkerState.RUNNING

    @asynccontextmanager
    async def _at_work(self) -> AsyncIterator[None]:
        """With a lease, and something that settles; in the end, an orderly stop."""
        self._is_running = True
        metrics.measure(self)
        self.lease.open()
        settling = asyncio.create_task(self.settler.run(may_go_on=lambda: self.lease.is_held), name="settling")
        self._begin(keep(self._audit), self._audit.name)
        try:
            yield
        finally:
            await to_the_end(asyncio.create_task(self._leave(settling), name="leaving"))
            metrics.forget(self)
            self._is_running = False
        self._raise_what_parts_died_of()

    async def _leave(self, settling: asyncio.Task[None]) -> None:
        """The lease is beaten to the very end (fault 102), and what is done is settled before it (fault 105)."""
        self.claiming.stop()
        self.hands.close()
        await self._end_part("claiming")
        if not await signal_within(self.hands.is_empty, self._shutdown_grace_seconds):
            await self._leave_handlers()
        with suppress(Exception):  # what a cancelled claim has taken would be rescued, and is sooner released
            await self._audit.compare()
        await end(self._parts)
        self.left_running += len(self.executor.abandoned)
        self.settler.close()
        await settling
        if self._attempts is not None:
            with suppress(Exception):  # statistics are worth no delay
                async with asyncio.timeout(TELL_SECONDS):
                    await self._attempts.step()
        if self._recovery is not None:
            self._recovery.cancel()
        await self.lease.close()
        self.executor.close()

    async def _leave_handlers(self) -> None:
        """Fault 103: one that does not stop must not keep the process."""
        self.hands.stop_all()
        if not await signal_within(self.hands.is_empty, LEAVE_SECONDS):
            tasks = self.hands.leave_running()
            self.left_running = len(tasks)
            self._log.error(Event.WORKER_LEFT_HANDLERS, task_ids=[str(task.task_id) for task in tasks])

    def _begin(self, part: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(part, name=name)
        task.add_done_callback(lambda _: self.stop())
        self._parts.append(task)

    async def _end_part(self, name: str) -> None:
        await asyncio.gather(*(part for part in self._parts if part.get_name() == name), return_exceptions=True)

    def _raise_what_parts_died_of(self) -> None:
        for part in self._parts:
            if not part.cancelled() and (error := part.exception()) is not None:
                raise error

    def _lease_was_lost(self) -> None:
        """Others may take the work: stop it, and take a new lease once nothing is under way any more."""
        self.hands.stop_all()
        self._recovery = asyncio.create_task(self._recover(), name="recovery")

    async def _recover(self) -> None:
        await self.hands.is_empty.wait()
        self.lease.acknowledge_loss()

    async def _lease_or_unavailable(self) -> None:
        try:
            async with asyncio.timeout(PASS_LEASE_SECONDS):
                await self.lease.taken()
        except TimeoutError as error:
            raise Unavailable("the pass could not take a lease in time") from error

    async def _unless_stopped(self, making: Coroutine[Any, Any, None]) -> None:
        made = asyncio.create_task(making, name="pass")
        told = asyncio.create_task(self._has_to_stop.wait(), name="told to stop")
        try:
            await asyncio.wait((made, told), return_when=asyncio.FIRST_COMPLETED)
            if made.done():
                made.result()
        finally:
            told.cancel()
            await to_the_end(asyncio.create_task(end([made]), name="ending"))

    async def _make_pass(self, limit: float, *, drains: bool, keeps_house: bool, rescues: bool) -> None:
        rescuing = asyncio.create_task(self._rescue.rescue_overdue(), name="rescue") if rescues else None
        try:
            for duty in self._upkeep if keeps_house else ():
                await keep_once(duty)
            await self._process_due(limit, drains=drains)
            if rescuing is not None and await rescuing:
                await self._process_due(limit, drains=drains)
        finally:
            if rescuing is not None:
                await end([rescuing])

    async def _process_due(self, limit: float, *, drains: bool) -> None:
        """A drain ends when nothing is due any more."""
        await self._make_due()
        await self._process(limit)
        while drains and self.settler.tally.claimed < limit and await self._make_due():
            await self._process(limit)

    async def _make_due(self) -> bool:
        """Make what is due pending; whether anything was."""
        made = 0 if self._ticking is None else (await self._ticking.make_due()).made
        while (promoted := (await self._broker.promote(most=MOST)).count) >= MOST:
            made += promoted
        return made + promoted > 0

    async def _process(self, limit: float) -> None:
        """A claim that comes back with less than was asked is followed by another once its tasks have ended: they may
        have left room for others of their company, or have made new ones."""
        tally = self.settler.tally
        while tally.claimed < limit and self.lease.is_held and not self._has_to_stop.is_set():
            await self.claiming.until_room()
            asked = int(min(self.claiming.room, limit - tally.claimed))
            if await self._claim(asked) == asked:
                continue
            if not self.hands.held and not self.settler.unsettled:
                return
            await self._until_all_settled()
        await self._until_all_settled()

    async def _claim(self, asked: int) -> int:
        """By a row that cannot be read two claims fail, and then the row's task."""
        for _ in range(2):
            with suppress(InvalidData):
                return await self.claiming.step(most=asked)
        return await self.claiming.step(most=asked)

    async def _until_all_settled(self) -> None:
        await self.hands.is_empty.wait()
        await self.settler.flush()


async def run_pass(
    *,
    broker: Broker,
    registry: Registry,
    ticking: Ticking | None = None,
    attempts: Attempts | None = None,
    queues: Sequence[str] = ("default",),
    limit: int | None = 100,
    drains: bool = False,
    keeps_house: bool = True,
    rescues: bool = True,
    name: str = "",
    comes_again: bool = True,
    budgets: Budgets | None = None,
    **options: Any,
) -> PassReport:
    """One pass in this process, under a lease of its own; see `Worker.run_pass`, and `Worker` for the options.

    Raises Unavailable when no lease can be had. Its handlers are waited for; when the caller is cancelled, they are
    told to stop and their tasks are released.
    """
    worker = Worker(
        broker=broker,
        registry=registry,
        ticking=ticking,
        attempts=attempts,
        queues=queues,
        shutdown_grace_seconds=0.0,
        name=name,
        kind=Kind.PASS,
        comes_again=comes_again,
        budgets=budgets,
        end_process=None,
        **options,
    )
    return await worker.run_pass(limit=limit, drains=drains, keeps_house=keeps_house, rescues=rescues)
