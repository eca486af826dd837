"""What an application does to its cell: enqueue, cancel. Loaded when it is first done, for it brings the drivers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from taketurns.assembly import background
from taketurns.brokers.postgres import PostgresBroker
from taketurns.brokers.postgres.transaction import enqueue_in, is_async, is_sync
from taketurns.engine.errors import InvalidOption
from taketurns.engine.task import Enqueued, NewTask, Status
from taketurns.settings import Settings
from taketurns.storage.database import Database

POOL_SIZE: Final = 10


class Client:
    """An application's way to one cell. Every event loop has connections of its own."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._brokers: dict[asyncio.AbstractEventLoop, PostgresBroker] = {}

    async def submit(self, company: str, tasks: Sequence[NewTask], *, transaction: object = None) -> list[Enqueued]:
        """Enqueue tasks of one company, in a transaction of the caller's if one is given."""
        if not tasks:
            return []
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
            self._settings.schema_name,
            company,
            tasks,
            key_lifetime=timedelta(hours=self._settings.idempotency_hours),
            at=self.now(),
        )

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

    async def cancel(self, company: str, task_id: UUID) -> Status | None:
        async with self.broker() as broker:
            return await broker.cancel(company, task_id, at=self.now())

    @asynccontextmanager
    async def broker(self) -> AsyncIterator[PostgresBroker]:
        """The broker of the running event loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._brokers:
            for ended in [known for known in self._brokers if known.is_closed()]:
                del self._brokers[ended]
            self._brokers[loop] = self.make_broker()
            await self._brokers[loop].database.open()
        yield self._brokers[loop]

    def make_broker(self, *, pool_size: int = POOL_SIZE) -> PostgresBroker:
        """A broker that is not open yet."""
        settings = self._settings
        database = Database(
            settings.database_url,
            schema=settings.schema_name,
            pool_size=pool_size,
            pool_timeout=settings.pool_timeout,
            statement_timeout=settings.statement_timeout,
            name="taketurns-client",
        )
        return PostgresBroker(database, key_lifetime=timedelta(hours=settings.idempotency_hours))

    def now(self) -> datetime | None:
        """The moment that stands in for the database's clock, if any does."""
        return None

    async def close(self) -> None:
        """Send the wake-ups that are due and close the connections; what is done later opens new ones."""
        here = asyncio.get_running_loop()
        brokers, self._brokers = self._brokers, {}
        for loop, broker in brokers.items():
            if loop is here:
                await close(broker)
            elif loop.is_running():
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(close(broker), loop))


async def close(broker: PostgresBroker) -> None:
    """Send the wake-ups that are due and close the broker's connections."""
    await broker.notifier.flush()
    await broker.database.close()


def _kind(value: object) -> str:
    return f"a {type(value).__module__}.{type(value).__qualname__}"
