"""taskiq with taskiq-redis' stream broker, the one that acknowledges, 100 messages a read; its own command as worker,
one process, with uvloop. No results, no bulk."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from taskiq_redis import RedisStreamBroker

from bench.peers import adapter
from bench.peers.adapter import ORDERS, Adapter, Producer, Task

broker = RedisStreamBroker(ORDERS.redis, consumer_id="0", xread_count=100)


@broker.task(task_name="mail")
async def mail(task: Task) -> None:
    await adapter.run_async(task["number"])


class Messages(Producer):
    async def send(self, task: Task) -> None:
        await mail.kiq(task)


class Taskiq(Adapter):
    @asynccontextmanager
    async def producer(self) -> AsyncIterator[Producer]:
        await broker.startup()
        yield Messages()
        await broker.shutdown()

    def work(self) -> None:
        size = [
            "--workers",
            "1",
            "--max-async-tasks",
            str(ORDERS.concurrency),
            "--max-prefetch",
            str(ORDERS.concurrency),
        ]
        command = ["-m", "taskiq", "worker", "bench.peers.adapters.taskiq:broker", *size]
        os.execv(sys.executable, [sys.executable, *command, "--log-level", "WARNING", "--no-parse"])  # noqa: S606

    def left(self) -> int:
        return adapter.unread([adapter.connect_redis().xinfo_groups("taskiq")])


if __name__ == "__main__":
    adapter.main(Taskiq())
