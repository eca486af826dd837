"""Hearing of new work, and of moves of watched jobs, on channels of the cell, each on a connection of its own.

A wake-up is a hint. Nothing is lost when one is: workers poll all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from taketurns.brokers.redis.line import Line
from taketurns.brokers.redis.server import Server, told_as_unavailable
from taketurns.engine.errors import Unavailable

ALIVE_SECONDS: Final = 15.0


@asynccontextmanager
async def listen(server: Server, channel: str) -> AsyncIterator[AsyncIterator[frozenset[str]]]:
    """See Broker.wakeups. Raises Unavailable when no connection can be made."""
    async with server.subscribe(server.key(channel)) as line:
        yield _bursts(line, server.url)


async def _bursts(line: Line, url: str) -> AsyncIterator[frozenset[str]]:
    """Each burst of messages as the set of what they tell; an empty set once the server has answered a quiet spell."""
    while True:
        with told_as_unavailable(url):
            told = await line.messages(within=ALIVE_SECONDS)
            if not told:
                await _answers(line)
        yield frozenset(message.decode() for message in told)


async def _answers(line: Line) -> None:
    try:
        async with asyncio.timeout(ALIVE_SECONDS):
            await line.call("PING")
    except TimeoutError as error:
        raise Unavailable("the line for messages is silent") from error
