"""Huey: RedisHuey, which pops and waits, with so many threads and no results. What is popped stands nowhere until it is
done, so a crash loses it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from huey import RedisHuey

from bench.peers import adapter
from bench.peers.adapter import ORDERS, Adapter, Producer, Task

huey = RedisHuey("peers", url=ORDERS.redis, results=False)


@huey.task(name="mail")
def mail(task: Task) -> None:
    adapter.run(task["number"])


class Messages(Producer):
    async def send(self, task: Task) -> None:
        mail(task)


class Huey(Adapter):
    @asynccontextmanager
    async def producer(self) -> AsyncIterator[Producer]:
        yield Messages()

    def work(self) -> None:
        logging.basicConfig(level=logging.WARNING)
        huey.create_consumer(workers=ORDERS.concurrency, worker_type="thread", periodic=False).run()

    def left(self) -> int:
        return int(huey.pending_count())


if __name__ == "__main__":
    adapter.main(Huey())
