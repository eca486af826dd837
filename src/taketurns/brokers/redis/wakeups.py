"""Hearing of new work, and of moves of watched jobs, on channels of the cell, each on a connection of its own.

A wake-up is a hint. Nothing is lost when one is: workers poll all the same.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from redis.asyncio.client import PubSub

from taketurns.brokers.redis.server import Server, told_as_unavailable
from taketurns.engine.errors import Unavailable

ALIVE_SECONDS: Final = 15.0


@asynccontextmanager
async def listen(server: Server, channel: str) -> AsyncIterator[AsyncIterator[frozenset[str]]]:
    """See Broker.wakeups. Raises Unavailable when no connection can be made."""
    async with server.subscribe(server.key(channel)) as pubsub:
        yield _bursts(pubsub, server.url)


async def _bursts(pubsub: PubSub, url: str) -> AsyncIterator[frozenset[str]]:
    """Each burst of messages as the set of what they tell; an empty set once the server has answered a quiet spell."""
    while True:
        with told_as_unavailable(url):
            told = {_text(message) async for message in _burst(pubsub)}
            if not told:
                await pubsub.ping()
                if await pubsub.get_message(timeout=ALIVE_SECONDS) is None:
                    raise Unavailable("the line for messages is silent")
        yield frozenset(told)


async def _burst(pubsub: PubSub) -> AsyncIterator[dict[str, Any]]:
    timeout = ALIVE_SECONDS
    while message := await pubsub.get_message(timeout=timeout):
        yield message
        timeout = 0.0


def _text(message: dict[str, Any]) -> str:
    data: bytes = message["data"]
    return data.decode()
