"""What an application asks of its cell. Loaded when it first does, for it brings the drivers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Self
from uuid import UUID

from taketurns.assembly import background
from taketurns.assembly.brokers import close, make_broker, make_carrying, make_retention, make_ticking
from taketurns.assembly.inline import Inline
from taketurns.assembly.schedule import Declared
from taketurns.assembly.state import TaskState
from taketurns.brokers.postgres import PostgresBroker
from taketurns.brokers.postgres.transaction import enqueue_in, is_async, is_sync
from taketurns.companies import directory
from taketurns.companies.quotas import Tally
from taketurns.engine.broker import Broker
from taketurns.engine.errors import InvalidOption, TaketurnsError, UnknownCompany
from taketurns.engine.registry import Registry
from taketurns.engine.task import Enqueued, NewTask, PassReport, Status
from taketurns.history import tasks as history
from taketurns.history.rollups import Attempts, RollUp
from taketurns.schedules.declarations import Declaration, apply
from taketurns.schedules.timetable import NewSchedule
from taketurns.settings import Settings
from taketurns.storage.budgets import PostgresBudgets


class Client:
    """An application's way to one cell. Every event loop has connections of its own."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._lines: dict[asyncio.AbstractEventLoop, Line] = {}

    async def submit(self, company: str, tasks: Sequence[NewTask], *, transaction: object = None) -> list[Enqueued]:
        """Enqueue tasks of one company, in a transaction of the caller's if one is given."""
        if not tasks:
            return []
        if directory.reference(company) is None:
            raise UnknownCompany(company)
        if transaction is None:
            async with self.broker() as broker:
                return await broker.enqueue(company, tasks, at=self.now())
        if not (is_sync(transaction) or is_async(transaction)):
            raise InvalidOption(
                "session",
                "must be a session of SQLAlchemy (or, as `connection`, a connection of SQLAlchemy or psycopg),"
                f" not {_kind(transaction)}",
            )
        return await enqueue_in(
            transaction,
            self.settings.schema_name,
            company,
            tasks,
            key_lifetime=timedelta(hours=self.settings.idempotency_hours),
            at=self.now(),
        )

    def run_sync(self, company: str, task: NewTask, registry: Registry) -> TaskState:
        """Like `run`, for code that cannot await."""
        return background.run(self.run(company, task, registry))

    def submit_sync(self, company: str, tasks: Sequence[NewTask], *, transaction: object = None) -> list[Enqueued]:
        """Like `submit`, for code that cannot await."""
        if is_async(transaction):
            raise InvalidOption("session", f"must be a sync one here: await `enqueue` with {_kind(transaction)}")
        submission = self.submit(company, tasks, transaction=transaction)
        if transaction is None:
            return background.run(submission)
        try:
            submission.send(None)
        except StopIteration as end:
            return list(end.value)
        raise RuntimeError("a sync transaction was waited for")

    async def apply_schedules(self, declarations: Sequence[Declared], *, types: Collection[str]) -> None:
        """Bring the timetable up to what code declares."""
        told = [
            Declaration(
                NewSchedule(
                    name=declared.name,
                    type=declared.task.type,
                    payload=declared.task.payload,
                    queue=declared.task.queue,
                    priority=declared.task.priority,
                    max_retries=declared.task.max_retries,
                    timeout_seconds=declared.task.timeout_seconds,
                    cron=declared.cron,
                    missed=declared.missed,
                ),
                declared.companies,
            )
            for declared in declarations
        ]
        async with self.broker() as broker:
            await apply(broker.database, told, types=types, at=self.now())

    async def run(self, company: str, task: NewTask, registry: Registry) -> TaskState:
        """Create a task and do it here; how it stands then."""
        if directory.reference(company) is None:
            raise UnknownCompany(company)
        async with self.inline() as (broker, inline):
            made = await inline.run(registry, company, task)
            record = await history.find(broker.database, made.company_id, made.task_id)
        if record is None:
            raise TaketurnsError("the idempotency key made a task that is forgotten by now: use a new key")
        return TaskState.of(record)

    async def cancel(self, company: str, task_id: UUID) -> Status | None:
        if directory.reference(company) is None:
            return None
        async with self.broker() as broker:
            return await broker.cancel(company, task_id, at=self.now())

    async def get(self, company: str, task_id: UUID) -> TaskState | None:
        async with self.broker() as broker:
            record = await history.find(broker.database, directory.reference(company) or "", task_id)
        return None if record is None else TaskState.of(record)

    async def run_once(self, registry: Registry, *, limit: int | None, drains: bool, name: str | None) -> PassReport:
        """One pass here, as the settings say. Raises Unavailable."""
        from taketurns.worker import run_pass  # noqa: PLC0415  who only enqueues needs none of it

        async with self.broker() as broker:
            return await run_pass(
                broker=self.by_the_clock(broker),
                registry=registry,
                ticking=make_ticking(broker),
                attempts=Attempts(broker.database),
                queues=self.settings.queues,
                concurrency=self.settings.concurrency,
                beat_seconds=self.settings.beat_seconds,
                stale_after_seconds=self.settings.stale_after_seconds,
                max_rescues=self.settings.max_rescues,
                retention=make_retention(self.settings),
                name=name or self.settings.worker_name or "",
                limit=limit,
                drains=drains,
                duties=[Tally(broker.database), make_carrying(broker, now=self.now), RollUp(broker.database)],
                budgets=PostgresBudgets(broker.database, now=self.now),
            )

    def by_the_clock(self, broker: PostgresBroker) -> Broker:
        """The broker, by the moment that stands in for the database's clock, if any does."""
        return broker

    @asynccontextmanager
    async def broker(self) -> AsyncIterator[PostgresBroker]:
        """The broker of the running event loop."""
        yield (await self._line()).broker

    @asynccontextmanager
    async def inline(self) -> AsyncIterator[tuple[PostgresBroker, Inline]]:
        """The broker of the running event loop, and what runs tasks in it."""
        line = await self._line()
        yield line.broker, line.inline

    async def _line(self) -> Line:
        loop = asyncio.get_running_loop()
        if loop not in self._lines:
            for ended in [known for known in self._lines if known.is_closed()]:
                del self._lines[ended]
            broker = make_broker(self.settings, name="taketurns-client")
            self._lines[loop] = Line(broker, Inline(broker, self.settings, now=self.now))
        return await self._lines[loop].opened()

    def now(self) -> datetime | None:
        """The moment that stands in for the database's clock, if any does."""
        return None

    async def close(self) -> None:
        """Send the wake-ups that are due and close the connections; what is done later opens new ones."""
        here = asyncio.get_running_loop()
        lines, self._lines = self._lines, {}
        for loop, line in lines.items():
            if loop is here:
                await line.close()
            elif loop.is_running():
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(line.close(), loop))


class Line:
    """The broker of one event loop, open until it is closed or the loop comes to its end.

    That end is noticed by a task that lives as long as the loop does. Without it, the tasks of the pool would be
    cancelled alone; they take no notice of that, and the program would never end.
    """

    def __init__(self, broker: PostgresBroker, inline: Inline) -> None:
        self.broker = broker
        self.inline = inline
        self._is_open = asyncio.Event()
        self._keeping = asyncio.create_task(self._keep(), name="taketurns-client")

    async def opened(self) -> Self:
        await self._is_open.wait()
        return self

    async def close(self) -> None:
        self._keeping.cancel()
        await asyncio.gather(self._keeping, return_exceptions=True)

    async def _keep(self) -> None:
        await self.broker.database.open()
        self._is_open.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            await self.inline.close()
            await close(self.broker)
            raise


def _kind(value: object) -> str:
    return f"a {type(value).__module__}.{type(value).__qualname__}"
