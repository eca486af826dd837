"""The durable broker, as settings describe it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from taketurns.brokers.postgres import PostgresBroker
from taketurns.engine.retention import Retention
from taketurns.operations.carrying import Carrying
from taketurns.schedules.ticking import Ticking
from taketurns.settings import Settings
from taketurns.storage.database import Database

OPERATORS_PART: Final = 3


def make_broker(settings: Settings, *, name: str, pool_size: int | None = None, walled: bool = False) -> PostgresBroker:
    """A broker on a pool of connections of its own, which is not open yet. `name` is what the server shows of them.

    `walled`: what it does for a company, it does in the role of companies if one is set.
    """
    return PostgresBroker(
        make_walled_database(settings, name=name)
        if walled
        else make_database(settings, name=name, pool_size=pool_size),
        listen_url=settings.listen_url,
        key_lifetime=timedelta(hours=settings.idempotency_hours),
    )


def make_walled_database(settings: Settings, *, name: str) -> Database:
    """A pool for operators, and another one for companies where a role for them is set: as large as one together."""
    if settings.company_database_url is None:
        return make_database(settings, name=name)
    for_operators = max(settings.pool_size // OPERATORS_PART, 1)
    companies = make_database(
        settings.model_copy(update={"database_url": settings.company_database_url}),
        name=f"{name}-companies",
        pool_size=settings.pool_size - for_operators,
    )
    return make_database(settings, name=name, pool_size=for_operators, companies=companies)


def make_database(
    settings: Settings, *, name: str, pool_size: int | None = None, companies: Database | None = None
) -> Database:
    """The pool alone."""
    return Database(
        settings.database_url,
        schema=settings.schema_name,
        pool_size=pool_size or settings.pool_size,
        pool_timeout=settings.pool_timeout,
        statement_timeout=settings.statement_timeout,
        name=name,
        prepare=settings.listen_url is None,  # set for a pooler, which may not keep prepared statements
        companies=companies,
    )


def make_retention(settings: Settings) -> Retention:
    """How long the tasks of companies are kept that have no retention of their own."""
    return Retention(
        completed=timedelta(days=settings.keep_completed_days),
        failed=timedelta(days=settings.keep_failed_days),
        cancelled=timedelta(days=settings.keep_cancelled_days),
    )


def make_ticking(broker: PostgresBroker) -> Ticking:
    """What makes the tasks of schedules on the broker's database, and has it wake workers for them."""
    return Ticking(broker.database, announce=broker.notifier.announce)


def make_carrying(broker: PostgresBroker, *, now: Callable[[], datetime | None] = lambda: None) -> Carrying:
    """What carries operations on in the broker's database, and has it wake workers for what runs again."""
    return Carrying(broker.database, announce=broker.notifier.announce, now=now)


async def close(broker: PostgresBroker) -> None:
    """Send the wake-ups that are due and close the broker's connections."""
    await broker.notifier.flush()
    await broker.database.close()
