"""The broker of jobs, as settings describe it. Nobody who only has to do with tasks loads it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Final

from taketurns import telemetry
from taketurns.brokers.redis import RedisBroker
from taketurns.brokers.redis.server import Server
from taketurns.engine.errors import ConfigurationError, Unavailable
from taketurns.engine.retention import Retention
from taketurns.settings import Settings

WAIT_AOF_SECONDS: Final = 2.0  # a server that writes every second needs one at most
LOOK_SECONDS: Final = 2.0


@asynccontextmanager
async def open_job_broker(settings: Settings, *, name: str, pool_size: int | None = None) -> AsyncIterator[RedisBroker]:
    """A broker on a pool of connections of its own, which it makes when it needs them: the server may be away."""
    broker = make_job_broker(settings, name=name, pool_size=pool_size)
    try:
        yield broker
    finally:
        await broker.server.close()


def make_job_broker(settings: Settings, *, name: str, pool_size: int | None = None) -> RedisBroker:
    """The same, to be closed by who asks for it. `name` is what the server shows of the connections."""
    if settings.redis_url is None:
        raise ConfigurationError("there are no jobs without a Redis: set TAKETURNS_REDIS_URL")
    server = Server(
        settings.redis_url,
        cell=settings.schema_name,
        pool_size=pool_size or settings.pool_size,
        pool_timeout=settings.pool_timeout,
        name=name,
    )
    return RedisBroker(
        server,
        completed_lifetime=timedelta(hours=settings.keep_completed_jobs_hours),
        stopped_lifetime=timedelta(days=settings.keep_stopped_jobs_days),
        key_lifetime=timedelta(hours=settings.idempotency_hours),
        wait_aof_seconds=WAIT_AOF_SECONDS if settings.redis_wait_aof else None,
    )


def make_retention(settings: Settings) -> Retention:
    """How long jobs are kept."""
    stopped = timedelta(days=settings.keep_stopped_jobs_days)
    return Retention(completed=timedelta(hours=settings.keep_completed_jobs_hours), failed=stopped, cancelled=stopped)


async def warn(broker: RedisBroker) -> None:
    """Log what is wrong with the way the server is set up, unless it is away, which others tell of."""
    with suppress(Unavailable, TimeoutError):
        async with asyncio.timeout(LOOK_SECONDS):
            for complaint in await broker.check():
                telemetry.logger("jobs").warning(telemetry.Event.REDIS_SET_UP_WRONGLY, complaint=complaint)
