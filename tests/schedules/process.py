"""A process that makes ticks by the clock that the test sets."""

import asyncio
import os

from taketurns.schedules.ticking import Ticking
from taketurns.storage.database import Database


def make_ticks(url: str) -> None:
    asyncio.run(_make_ticks(url))


async def _make_ticks(url: str) -> None:
    database = Database(url, pool_size=2, name="ticking")
    await database.open()
    ticking = Ticking(database, announce=lambda queues: None)
    async with database.connection() as connection:
        await connection.execute("insert into wall.makers values (%s)", (os.getpid(),))
    while True:
        async with database.connection() as connection:
            ((now,),) = await (await connection.execute("select now from wall.clock")).fetchall()
        await ticking.make_due(at=now)
        await asyncio.sleep(0.02)
