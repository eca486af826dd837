"""The database of a command: opened for it, and closed behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from taketurns.assembly.brokers import make_database
from taketurns.settings import Settings
from taketurns.storage.database import Database

Answer = TypeVar("Answer")


def with_database(settings: Settings, act: Callable[[Database], Awaitable[Answer]]) -> Answer:
    """What `act` answers, on connections of its own. Raises Unavailable, and what `act` raises."""

    async def run() -> Answer:
        database = make_database(settings, name="taketurns-command", pool_size=2)
        await database.open()
        try:
            return await act(database)
        finally:
            await database.close()

    return asyncio.run(run())
