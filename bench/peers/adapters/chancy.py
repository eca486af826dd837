"""Chancy with its async executor, notifications and eager polling; the concurrency is what it fetches at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from chancy import Chancy, Queue, Worker, job

from bench.peers import adapter
from bench.peers.adapter import ORDERS, Adapter, Producer, Task

quiet = logging.getLogger("quiet")
quiet.setLevel(logging.WARNING)


@job(queue="mail")
async def mail(number: int, **_: object) -> None:
    await adapter.run_async(number)


class Jobs(Producer):
    batch = 1_000

    def __init__(self, app: Any) -> None:
        self._app = app

    async def send(self, task: Task) -> None:
        await self._app.push(mail.job.with_kwargs(**task))

    async def send_many(self, tasks: list[Task]) -> None:
        async for _ in self._app.push_many([mail.job.with_kwargs(**task) for task in tasks]):
            pass


class ChancyPeer(Adapter):
    def install(self) -> None:
        async def migrate() -> None:
            async with Chancy(ORDERS.postgres, log=quiet) as app:
                await app.migrate()

        asyncio.run(migrate())

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[Producer]:
        async with Chancy(ORDERS.postgres, log=quiet, max_connection_pool_size=1) as app:
            yield Jobs(app)

    def work(self) -> None:
        queue = Queue(
            "mail",
            concurrency=ORDERS.concurrency,
            executor=Chancy.Executor.Async,
            polling_interval=1,
            eager_polling=True,
        )

        async def serve() -> None:
            async with Chancy(ORDERS.postgres, log=quiet) as app:
                await app.declare(queue, upsert=True)
                async with Worker(app) as worker:
                    await worker.wait_for_shutdown()

        asyncio.run(serve())

    def left(self) -> int:
        return adapter.count("select count(*) from chancy_jobs where state not in ('succeeded', 'failed', 'expired')")


if __name__ == "__main__":
    adapter.main(ChancyPeer())
