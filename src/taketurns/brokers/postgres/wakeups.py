"""Telling workers of new work: NOTIFY after commit, a burst of it in one; LISTEN on a connection of its own.

A wake-up is a hint. Nothing is lost when one is: workers poll all the same. Moves of watched tasks come the same way,
sent by the verbs themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

from psycopg import AsyncConnection, sql
from psycopg.abc import PQGen

from taketurns.engine.errors import Unavailable
from taketurns.storage.database import Database, conninfo

Answer = TypeVar("Answer")

BURST_SECONDS = 0.002
ALIVE_SECONDS = 15.0

# A notice is no longer there after a crash, so nobody waits until the disk has its commit.
_NOTIFY = """
    select pg_notify(%s, queue)
    from (select set_config('synchronous_commit', 'off', true) offset 0) s, unnest(%s::text[]) as queue
"""


def channel(schema: str) -> str:
    """The channel of a cell; its payload is the name of a queue that got work."""
    return f"{schema}.tasks"


def moves_channel(schema: str) -> str:
    """The channel on which moves of watched tasks are told; its payload is the id of a task. See watch.sql."""
    return f"{schema}.moves"


class Notifier:
    """Sends one notice for each queue that got work in a burst, on a pooled connection, outside any transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._channel = channel(database.schema)
        self._queues: set[str] = set()
        self._sending: asyncio.Task[None] | None = None

    def announce(self, queues: Iterable[str]) -> None:
        """Say soon that these queues got work. Never fails, never waits."""
        self._queues.update(queues)
        if self._queues and (self._sending is None or self._sending.done()):
            self._sending = asyncio.create_task(self._send())

    async def _send(self) -> None:
        while self._queues:
            queues, self._queues = self._queues, set()
            try:
                async with self._database.connection() as connection:
                    await connection.execute(_NOTIFY, (self._channel, list(queues)))
            except Unavailable:
                return
            except asyncio.CancelledError:
                self._queues |= queues
                raise
            await asyncio.sleep(BURST_SECONDS)

    async def flush(self) -> None:
        """Wait until what was announced has been sent, also what was being sent when its event loop came to its end."""
        if self._sending is not None:
            with suppress(asyncio.CancelledError):
                await self._sending
            self.announce(())
            await self._sending


@asynccontextmanager
async def listen(url: str, *, channel: str) -> AsyncIterator[AsyncIterator[frozenset[str]]]:
    """Listen on a connection of its own; see Broker.wakeups. Raises psycopg.OperationalError when none can be made."""
    connection = await _Listener.connect(
        conninfo(url),
        autocommit=True,
        application_name="taketurns-listen",
        connect_timeout=5,
        keepalives_idle=30,
        keepalives_interval=5,
        keepalives_count=3,
    )
    async with connection:
        await connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
        yield _notices(connection)


class _Listener(AsyncConnection[tuple[object, ...]]):
    """Wakes when something comes, where the driver would look ten times a second for an interruption besides."""

    async def wait(
        self,
        gen: PQGen[Answer],
        interval: float = ALIVE_SECONDS,
        timeout: float | None = None,  # noqa: ASYNC109  the driver's own signature
    ) -> Answer:
        return await super().wait(gen, interval=interval, timeout=timeout)


async def _notices(connection: AsyncConnection[tuple[object, ...]]) -> AsyncIterator[frozenset[str]]:
    """Each burst of notices as the set of what they tell; an empty set once the server has answered a quiet spell."""
    while True:
        told = {notice.payload async for notice in connection.notifies(timeout=ALIVE_SECONDS, stop_after=1)}
        if not told:
            async with asyncio.timeout(ALIVE_SECONDS):
                await connection.execute("select 1")
        yield frozenset(told)
