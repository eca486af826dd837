"""A worker, put together from its parts as settings say. It brings no web framework."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from taketurns.assembly.application import Taketurns
from taketurns.assembly.brokers import close, make_broker, make_carrying, make_database, make_retention, make_ticking
from taketurns.brokers.postgres.heartbeats import Heartbeats
from taketurns.companies.deletion import Forgetting
from taketurns.companies.following import Following
from taketurns.companies.pauses import EndPauses
from taketurns.companies.quotas import JobRefunds, Tally
from taketurns.engine.broker import Broker
from taketurns.engine.lease import Kind
from taketurns.engine.registry import Registry
from taketurns.engine.retention import Retention
from taketurns.engine.task import PassReport
from taketurns.history.rollups import Attempts, RollUp
from taketurns.schedules.ticking import Ticking
from taketurns.settings import Settings
from taketurns.storage.budgets import PostgresBudgets
from taketurns.storage.database import Database
from taketurns.worker import Worker
from taketurns.worker.metrics import MetricsServer
from taketurns.worker.process import pass_until_told, work_until_told
from taketurns.worker.rounds import Duty, end, keep, keep_once

WORKER_CONNECTIONS: Final = 6  # one each to claim, settle, notify, keep the house, audit and spend budgets
JOB_WORKER_CONNECTIONS: Final = 4  # one each to claim, settle, keep the house and audit
WORKER_NAME: Final = "taketurns-worker"
NEVER_AGAIN: Final = timedelta(days=365).total_seconds()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lane:
    """What a worker is given besides what all workers are: where it takes its turns, and what it does there.

    `told` is the database that keeps its heartbeat, when the broker does not."""

    broker: Broker
    budgets: PostgresBudgets
    ticking: Ticking | None = None
    attempts: Attempts
    told: Database | None = None
    retention: Retention
    duties: Sequence[Duty] = ()


@asynccontextmanager
async def build_worker(settings: Settings, registry: Registry, *, kind: Kind = Kind.WORKER) -> AsyncIterator[Worker]:
    """A worker for the handlers of the registry, whose connections are open in the context."""
    async with _jobs(settings) if settings.broker == "redis" else _tasks(settings) as lane:
        worker = Worker(
            broker=lane.broker,
            registry=registry,
            ticking=lane.ticking,
            attempts=lane.attempts,
            queues=settings.queues,
            concurrency=settings.concurrency,
            batch=settings.batch,
            poll_seconds=settings.poll_seconds,
            beat_seconds=settings.beat_seconds,
            stale_after_seconds=settings.stale_after_seconds,
            max_rescues=settings.max_rescues,
            shutdown_grace_seconds=settings.shutdown_grace_seconds,
            retention=lane.retention,
            budgets=lane.budgets,
            duties=lane.duties,
            name=settings.worker_name or "",
            kind=kind,
        )
        if lane.told is None:
            yield worker
            return
        async with _heard_of(worker, lane.told, every_seconds=settings.beat_seconds):
            yield worker


@asynccontextmanager
async def _heard_of(worker: Worker, database: Database, *, every_seconds: float) -> AsyncIterator[None]:
    """Keep the heartbeat of a worker whose broker keeps none."""
    heartbeats = Heartbeats(
        database,
        worker.holder,
        last_claim_at=lambda: worker.lease.last_claim_at,
        worker_id=lambda: worker.lease.worker_id,
        standing=lambda: (worker.lease.wanted, worker.lease.state),
        every_seconds=every_seconds,
    )
    keeping = asyncio.create_task(keep(heartbeats), name=heartbeats.name)
    try:
        yield
    finally:
        await end([keeping])
        await heartbeats.leave()


@asynccontextmanager
async def _tasks(settings: Settings) -> AsyncIterator[_Lane]:
    broker = make_broker(settings, name=WORKER_NAME, pool_size=WORKER_CONNECTIONS)
    await broker.database.open()
    try:
        yield _Lane(
            broker=broker,
            budgets=PostgresBudgets(broker.database),
            ticking=make_ticking(broker),
            attempts=Attempts(broker.database),
            retention=make_retention(settings),
            duties=[
                Tally(broker.database),
                EndPauses(broker.database),
                make_carrying(broker),
                RollUp(broker.database),
                Forgetting(broker.database),
            ],
        )
    finally:
        await close(broker)


@asynccontextmanager
async def _jobs(settings: Settings) -> AsyncIterator[_Lane]:
    """The database has heartbeats, budgets, quotas and figures; nothing else is asked of it, and it may be away."""
    from taketurns.assembly import jobs  # noqa: PLC0415  not for a worker that takes its turns in PostgreSQL

    database = make_database(settings, name=WORKER_NAME, pool_size=1)
    async with jobs.open_job_broker(settings, name=WORKER_NAME, pool_size=JOB_WORKER_CONNECTIONS) as broker:
        await database.open()
        try:
            await jobs.warn(broker)
            yield _Lane(
                broker=broker,
                budgets=PostgresBudgets(database),
                attempts=Attempts(database, lane="jobs"),
                told=database,
                duties=[JobRefunds(database, broker), Following(database, broker), EndPauses(database)],
                retention=jobs.make_retention(settings),
            )
        finally:
            await database.close()


class Declare:
    """Applies the schedules that code declares, once, however long the database or a company is waited for."""

    name = "declare"

    def __init__(self, application: Taketurns) -> None:
        self._application = application

    async def step(self) -> float:
        await self._application.apply_schedules()
        return NEVER_AGAIN


async def serve_worker(settings: Settings, application: Taketurns) -> None:
    """Take turns, and serve the figures of it, until a signal stops this process."""
    settings = application.adopt(settings)
    async with application, build_worker(settings, application.registry) as worker:
        figures = MetricsServer(
            host=settings.metrics_host,
            port=settings.metrics_port,
            is_healthy=lambda: worker.is_healthy,
            is_ready=lambda: worker.is_ready,
        )
        duties = [Declare(application)] if settings.broker == "postgres" else []
        declaring = [asyncio.create_task(keep(duty), name=duty.name) for duty in duties]
        try:
            await work_until_told(worker)
        finally:
            await end(declaring)
            figures.close()


async def serve_pass(settings: Settings, application: Taketurns, *, limit: int | None, drains: bool) -> PassReport:
    """Make one pass, which a signal ends early. Raises Unavailable."""
    settings = application.adopt(settings)
    async with application, build_worker(settings, application.registry, kind=Kind.PASS) as worker:
        if settings.broker == "postgres":
            await keep_once(Declare(application))
        return await pass_until_told(worker, limit=limit, drains=drains)
