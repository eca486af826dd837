"""What a test does with the engine, whose parts are the ones that run in production; only the clock is the test's."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence, Set
from contextlib import asynccontextmanager, contextmanager
from dataclasses import fields
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, cast
from uuid import UUID

import psycopg
from psycopg import sql
from sqlalchemy import Executable, select, union
from sqlalchemy.dialects.postgresql import insert

from taketurns.assembly.application import StandIn, Taketurns, standing_in
from taketurns.assembly.brokers import close, make_broker, make_ticking
from taketurns.assembly.client import Client
from taketurns.assembly.handler import Handler
from taketurns.assembly.inline import Inline
from taketurns.assembly.schedule import Declared
from taketurns.assembly.state import TaskState
from taketurns.brokers.postgres import PostgresBroker
from taketurns.companies import directory
from taketurns.engine.broker import Broker
from taketurns.engine.errors import UnknownCompany
from taketurns.engine.registry import Registry
from taketurns.engine.task import Enqueued, NewTask, PassReport
from taketurns.execution.context import Context
from taketurns.history import places, tasks
from taketurns.settings import Settings
from taketurns.storage import models
from taketurns.storage import schema as cell
from taketurns.storage.budgets import PostgresBudgets
from taketurns.storage.database import compile_statement, conninfo
from taketurns.storage.ids import new_id
from taketurns.worker import run_pass

DRAIN_MOST: Final = 10_000
VERBS: Final = frozenset({"enqueue", "claim", "settle", "release", "rescue", "promote", "cancel", "retry", "prune"})


class Engine:
    """Companies and tasks of one test, and the worker that runs them when the test says so."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._skipped = timedelta()
        self._clock = DatabaseClock(settings.database_url)
        self._client = ClockedClient(settings, now=self.now)
        self._stand_in = StandIn(settings, self._client)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Empty, with every application of the process led here."""
        self._forget_everything()
        with standing_in(self._stand_in):
            yield

    def now(self) -> datetime:
        """The time by the test's clock: the database's, and what the test has skipped."""
        return self._clock.now() + self._skipped

    async def advance(self, length: timedelta = timedelta(), **parts: float) -> datetime:
        """Move the clock on, by a timedelta or `hours=1` and the like, and make what is due by then pending.

        Schedules tick on the way, each at its times. Nothing runs until `drain`. Answers the new time.
        """
        skipped = length + timedelta(**parts)
        if skipped < timedelta():
            raise ValueError("a clock only moves on")
        before = self.now()
        self._skipped += skipped
        async with self._client.broker() as broker:
            ticking, tick = make_ticking(broker), None
            while (tick := await ticking.next_due(after=tick)) is not None and tick <= self.now():
                await ticking.make_due(at=max(tick, before))
            while (await broker.promote(at=self.now())).count:
                pass
        return self.now()

    async def drain(self, *, concurrency: int = 16) -> PassReport:
        """Run tasks here, in turns, until none is due any more; answers what was done.

        Tasks that wait for a later time, for a retry too, go on waiting: see `advance`. Raises RuntimeError after
        10,000 tasks.
        """
        done = PassReport()
        registry = _registry(self._stand_in.applications)
        async with self._client.broker() as broker:
            clocked = self._client.by_the_clock(broker)
            while queues := [queue for (queue,) in await broker.database.fetch(_queues_with_work(self.now()))]:
                report = await run_pass(
                    broker=clocked,
                    registry=registry,
                    queues=queues,
                    limit=DRAIN_MOST,
                    concurrency=concurrency,
                    keeps_house=False,
                    rescues=False,
                    budgets=PostgresBudgets(broker.database, now=self.now),
                )
                _add(report, to=done)
                if not report.completed + report.retried + report.deferred + report.failed + report.lost:
                    return done
                if done.claimed >= DRAIN_MOST:
                    raise RuntimeError(f"{done.claimed:,} tasks ran and more wait: does a handler enqueue itself?")
        return done

    async def company(
        self, slug: str, *, weight: int = 1, paused: bool = False, max_in_flight: int | None = None
    ) -> UUID:
        """Make a company of this slug, or change the one there is. One that is enqueued for is made by itself."""
        options: dict[str, Any] = {"weight": weight, "paused": paused, "max_in_flight": max_in_flight}
        async with self._client.broker() as broker:
            company = await directory.change(broker.database, slug, options)
            if company is None:
                company = await directory.create(broker.database, name=slug, slug=slug, **options)
        return company.id

    def tasks(self, handler: Handler[..., ..., Any] | str | None = None) -> list[TaskState]:
        """Every task, or every task of a handler (or the type of that name), in the order of creation."""
        name = handler.type.name if isinstance(handler, Handler) else handler
        statement = places.joined(select(*tasks.COLUMNS).select_from(models.Task)).order_by(models.Task.id)
        if name is not None:
            statement = statement.where(models.Task.type == name)
        query, parameters = compile_statement(self.settings.schema_name, statement)
        with psycopg.connect(conninfo(self.settings.database_url)) as connection:
            rows = connection.execute(query.encode(), parameters).fetchall()
        return [TaskState.of(tasks.TaskRecord(*row)) for row in rows]

    def finished(self, handler: Handler[..., ..., Any] | str | None = None) -> list[TaskState]:
        """The tasks that have ended: completed, failed or cancelled, in the order of their ends."""
        ended = [task for task in self.tasks(handler) if task.finished_at is not None]
        return sorted(ended, key=lambda task: (task.finished_at, task.id))

    def _forget_everything(self) -> None:
        """By DELETE, which does not wait for a transaction that a test left open somewhere. The audit cannot forget."""
        tables = models.Base.metadata.tables.keys() - {models.AuditEntry.__tablename__}
        names = [sql.Identifier(self.settings.schema_name, name) for name in sorted(tables)]
        statements = sql.SQL("; ").join(sql.SQL("delete from {}").format(name) for name in names)
        with psycopg.connect(conninfo(self.settings.database_url)) as connection:
            connection.execute(statements)


class DatabaseClock:
    """The database's time, asked once and kept by this machine's monotonic clock."""

    def __init__(self, url: str) -> None:
        with psycopg.connect(conninfo(url)) as connection:
            (self._began_at,) = connection.execute("select clock_timestamp()").fetchone() or (None,)
        self._began = time.monotonic()

    def now(self) -> datetime:
        return cast(datetime, self._began_at) + timedelta(seconds=time.monotonic() - self._began)


class ClockedClient(Client):
    """Enqueues by the test's clock, on connections that are closed again at once: a test's event loop may end any time.

    A company that is named by a slug is made when there is none.
    """

    def __init__(self, settings: Settings, *, now: Callable[[], datetime]) -> None:
        super().__init__(settings)
        self._now = now

    def now(self) -> datetime:
        return self._now()

    async def submit(self, company: str, tasks: Sequence[NewTask], *, transaction: object = None) -> list[Enqueued]:
        try:
            return await super().submit(company, tasks, transaction=transaction)
        except UnknownCompany:
            if not directory.is_slug(company):
                raise
        self._make_company(company)
        return await super().submit(company, tasks, transaction=transaction)

    async def apply_schedules(self, declarations: Sequence[Declared], *, types: Collection[str]) -> None:
        for slug in {company for declared in declarations for company in declared.companies or ()}:
            if directory.is_slug(slug):
                self._make_company(slug)
        await super().apply_schedules(declarations, types=types)

    def by_the_clock(self, broker: PostgresBroker) -> Broker:
        return cast(Broker, ClockedBroker(broker, now=self._now))

    async def run(self, company: str, task: NewTask, registry: Registry) -> TaskState:
        if directory.is_slug(company):
            self._make_company(company)
        return await super().run(company, task, registry)

    def _make_company(self, slug: str) -> None:
        """Not awaited, for a sync transaction cannot be."""
        values = {"id": new_id(), "slug": slug, "name": slug}
        query, parameters = compile_statement(
            self.settings.schema_name, insert(models.Company).values(values).on_conflict_do_nothing()
        )
        with psycopg.connect(conninfo(self.settings.database_url)) as connection:
            connection.execute(query.encode(), parameters)

    @asynccontextmanager
    async def broker(self) -> AsyncIterator[PostgresBroker]:
        broker = make_broker(self.settings, name="taketurns-test")
        await broker.database.open()
        try:
            yield broker
        finally:
            await close(broker)

    @asynccontextmanager
    async def inline(self) -> AsyncIterator[tuple[PostgresBroker, Inline]]:
        async with self.broker() as broker:
            inline = Inline(broker, self.settings, now=self.now)
            try:
                yield broker, inline
            finally:
                await inline.close()


class ClockedBroker:
    """A broker whose every verb takes place at the test's time."""

    def __init__(self, broker: PostgresBroker, *, now: Callable[[], datetime]) -> None:
        self._broker = broker
        self._now = now

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._broker, name)
        return partial(attribute, at=self._now()) if name in VERBS else attribute


@contextmanager
def schema(url: str, name: str) -> Iterator[None]:
    """A cell in a schema of this name, dropped in the end."""
    cell.upgrade(url, schema=name)
    try:
        yield
    finally:
        with psycopg.connect(conninfo(url)) as connection:
            connection.execute(sql.SQL("drop schema {} cascade").format(sql.Identifier(name)))


def _queues_with_work(now: datetime) -> Executable:
    due = select(models.ScheduledTask.queue).where(models.ScheduledTask.run_after <= now)
    return union(select(models.PendingTask.queue), due)


def _registry(applications: Set[Taketurns]) -> Registry:
    """The handlers of the applications that the test used; usually that is one."""
    if len(applications) == 1:
        return next(iter(applications)).registry
    registry = Registry()
    for task_type in (known for application in applications for known in application.registry):
        registry.add(
            task_type.handler,
            name=task_type.name,
            context_type=Context,
            queue=task_type.queue,
            priority=task_type.priority,
            max_retries=task_type.max_retries,
            timeout_seconds=task_type.timeout_seconds,
            backoff=task_type.backoff,
        )
    return registry


def _add(report: PassReport, *, to: PassReport) -> None:
    for field in fields(PassReport):
        setattr(to, field.name, getattr(to, field.name) + getattr(report, field.name))
