"""A worker, put together from its parts as settings say. It brings no web framework."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

from taketurns.assembly.application import Taketurns
from taketurns.assembly.brokers import close, make_broker, make_ticking
from taketurns.engine.registry import Registry
from taketurns.settings import Settings
from taketurns.storage.budgets import PostgresBudgets
from taketurns.worker import Worker
from taketurns.worker.metrics import MetricsServer
from taketurns.worker.process import work_until_told

WORKER_CONNECTIONS: Final = 6  # one each to claim, settle, notify, keep the house, audit and spend budgets


@asynccontextmanager
async def build_worker(settings: Settings, registry: Registry) -> AsyncIterator[Worker]:
    """A worker for the handlers of the registry, whose connections are open in the context."""
    broker = make_broker(settings, name="taketurns-worker", pool_size=WORKER_CONNECTIONS)
    await broker.database.open()
    try:
        yield Worker(
            broker=broker,
            registry=registry,
            ticking=make_ticking(broker),
            queues=settings.queues,
            concurrency=settings.concurrency,
            batch=settings.batch,
            poll_seconds=settings.poll_seconds,
            beat_seconds=settings.beat_seconds,
            stale_after_seconds=settings.stale_after_seconds,
            max_rescues=settings.max_rescues,
            shutdown_grace_seconds=settings.shutdown_grace_seconds,
            keep_completed=timedelta(days=settings.keep_completed_days),
            keep_stopped=timedelta(days=settings.keep_stopped_days),
            budgets=PostgresBudgets(broker.database),
        )
    finally:
        await close(broker)


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
        try:
            await work_until_told(worker)
        finally:
            figures.close()
