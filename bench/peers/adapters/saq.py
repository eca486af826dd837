"""SAQ on Redis or, as "postgres", on PostgreSQL with its psycopg pool. What is done is removed at once (`ttl=-1`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from saq import Queue, Worker

from bench.peers import adapter
from bench.peers.adapter import ORDERS, Adapter, Producer, Task

IN_POSTGRES = ORDERS.variant == "postgres"


async def mail(_: object, *, task: Task) -> None:
    await adapter.run_async(task["number"])


def make_queue() -> Queue:
    if IN_POSTGRES:
        return Queue.from_url(ORDERS.postgres, min_size=4, max_size=20)
    return Queue.from_url(ORDERS.redis)


class Jobs(Producer):
    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    async def send(self, task: Task) -> None:
        await self._queue.enqueue("mail", task=task, ttl=-1)


class Saq(Adapter):
    def install(self) -> None:
        async def connect() -> None:
            queue = make_queue()
            await queue.connect()
            await queue.disconnect()

        asyncio.run(connect())

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[Producer]:
        queue = make_queue()
        await queue.connect()
        yield Jobs(queue)
        await queue.disconnect()

    def work(self) -> None:
        async def serve() -> None:
            queue = make_queue()
            await queue.connect()
            await Worker(queue, [("mail", mail)], concurrency=ORDERS.concurrency).start()

        asyncio.run(serve())

    def left(self) -> int:
        if IN_POSTGRES:
            return adapter.count("select count(*) from saq_jobs where status in ('new', 'queued', 'active')")
        redis = adapter.connect_redis()
        lists = sum(redis.llen(f"saq:default:{name}") for name in ("queued", "active"))
        return int(lists + redis.zcard("saq:default:incomplete"))


if __name__ == "__main__":
    adapter.main(Saq())
