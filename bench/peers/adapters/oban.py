"""oban for Python: its psycopg pool with LISTEN/NOTIFY, under uvloop as its own command runs it. It gathers what is
done, and fetches every 5 ms at most. Fairness is in its commercial edition only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvloop
from oban import Oban, worker
from oban.schema import install
from psycopg_pool import AsyncConnectionPool

from bench.peers import adapter
from bench.peers.adapter import ORDERS, Adapter, Producer, Task


@worker(queue="default")
class Mail:
    async def process(self, job: Any) -> None:
        await adapter.run_async(job.args["number"])


class Jobs(Producer):
    batch = 1_000

    def __init__(self, oban: Any) -> None:
        self._oban = oban

    async def send(self, task: Task) -> None:
        await self._oban.enqueue(Mail.new(task))  # type: ignore[attr-defined]

    async def send_many(self, tasks: list[Task]) -> None:
        await self._oban.enqueue_many(Mail.new(task) for task in tasks)  # type: ignore[attr-defined]


class ObanForPython(Adapter):
    def install(self) -> None:
        async def make() -> None:
            async with AsyncConnectionPool(ORDERS.postgres, min_size=1, max_size=1, open=False) as pool:
                await install(pool)

        asyncio.run(make())

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[Producer]:
        async with AsyncConnectionPool(ORDERS.postgres, min_size=1, max_size=1, open=False) as pool:
            yield Jobs(Oban(pool=pool))

    def work(self) -> None:
        async def serve() -> None:
            async with (
                AsyncConnectionPool(ORDERS.postgres, min_size=4, max_size=10, open=False) as pool,
                Oban(pool=pool, queues={"default": ORDERS.concurrency}),
            ):
                await asyncio.Event().wait()

        uvloop.run(serve())

    def left(self) -> int:
        return adapter.count("select count(*) from oban_jobs where state in ('available', 'scheduled', 'executing')")


if __name__ == "__main__":
    adapter.main(ObanForPython())
