"""streaQ under uvloop, which is asked for; no results, no line in the log for every task."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from streaq import Worker

from bench.peers import adapter
from bench.peers.adapter import ORDERS, Adapter, Producer, Task

worker = Worker(redis_url=ORDERS.redis, concurrency=ORDERS.concurrency, anyio_kwargs={"use_uvloop": True})


@worker.task(name="mail", ttl=0, silent=True)
async def mail(task: Task) -> None:
    await adapter.run_async(task["number"])


class Messages(Producer):
    batch = 1_000

    async def send(self, task: Task) -> None:
        await mail.enqueue(task)

    async def send_many(self, tasks: list[Task]) -> None:
        await worker.enqueue_many([mail.enqueue(task) for task in tasks])


class Streaq(Adapter):
    @asynccontextmanager
    async def producer(self) -> AsyncIterator[Producer]:
        async with worker:
            yield Messages()

    def work(self) -> None:
        logging.basicConfig(level=logging.WARNING)
        worker.run_sync()

    def left(self) -> int:
        redis = adapter.connect_redis()
        streams = redis.scan_iter("streaq:default:queues:*", _type="stream")
        return adapter.unread([redis.xinfo_groups(stream) for stream in streams])


if __name__ == "__main__":
    adapter.main(Streaq())
