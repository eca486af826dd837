"""arq, which polls: every 10 ms here, every 500 ms by default; a poll starts as many as it has hands. No results."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from arq.connections import RedisSettings, create_pool
from arq.worker import Worker, func

from bench.peers import adapter
from bench.peers.adapter import ORDERS, Adapter, Producer, Task


async def mail(_: object, task: Task) -> None:
    await adapter.run_async(task["number"])


class Jobs(Producer):
    def __init__(self, pool: Any) -> None:
        self._pool = pool

    async def send(self, task: Task) -> None:
        await self._pool.enqueue_job("mail", task)


class Arq(Adapter):
    settings = RedisSettings(port=urlsplit(ORDERS.redis).port or 0)

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[Producer]:
        pool = await create_pool(self.settings)
        yield Jobs(pool)
        await pool.aclose()

    def work(self) -> None:
        logging.basicConfig(level=logging.WARNING)
        Worker(
            functions=[func(mail, keep_result=0)],
            redis_settings=self.settings,
            max_jobs=ORDERS.concurrency,
            queue_read_limit=ORDERS.concurrency * 2,
            poll_delay=0.01,
        ).run()

    def left(self) -> int:
        return int(adapter.connect_redis().zcard("arq:queue"))


if __name__ == "__main__":
    adapter.main(Arq())
