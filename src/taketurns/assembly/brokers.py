"""The durable broker, as settings describe it."""

from __future__ import annotations

from datetime import timedelta

from taketurns.brokers.postgres import PostgresBroker
from taketurns.schedules.ticking import Ticking
from taketurns.settings import Settings
from taketurns.storage.database import Database


def make_broker(settings: Settings, *, name: str, pool_size: int | None = None) -> PostgresBroker:
    """A broker on a pool of connections of its own, which is not open yet. `name` is what the server shows of them."""
    return PostgresBroker(
        make_database(settings, name=name, pool_size=pool_size),
        listen_url=settings.listen_url,
        key_lifetime=timedelta(hours=settings.idempotency_hours),
    )


def make_database(settings: Settings, *, name: str, pool_size: int | None = None) -> Database:
    """The pool alone."""
    return Database(
        settings.database_url,
        schema=settings.schema_name,
        pool_size=pool_size or settings.pool_size,
        pool_timeout=settings.pool_timeout,
        statement_timeout=settings.statement_timeout,
        name=name,
        prepare=settings.listen_url is None,  # set for a pooler, which may not keep prepared statements
    )


def make_ticking(broker: PostgresBroker) -> Ticking:
    """What makes the tasks of schedules on the broker's database, and has it wake workers for them."""
    return Ticking(broker.database, announce=broker.notifier.announce)


async def close(broker: PostgresBroker) -> None:
    """Send the wake-ups that are due and close the broker's connections."""
    await broker.notifier.flush()
    await broker.database.close()
