"""RQ: the worker that forks for every job, its default, or with "simple" the one that does not. One job at a time, no
results."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rq import Queue, SimpleWorker, Worker

from bench.peers import adapter
from bench.peers.adapter import ORDERS, Adapter, Producer, Task

MAIL = "bench.peers.adapters.rq.mail"


def mail(task: Task) -> None:
    adapter.run(task["number"])


class Jobs(Producer):
    batch = 1_000

    def __init__(self) -> None:
        self._queue = Queue("mail", connection=adapter.connect_redis())

    async def send(self, task: Task) -> None:
        self._queue.enqueue(MAIL, task, result_ttl=0)

    async def send_many(self, tasks: list[Task]) -> None:
        self._queue.enqueue_many([Queue.prepare_data(MAIL, (task,), result_ttl=0) for task in tasks])


class Rq(Adapter):
    @asynccontextmanager
    async def producer(self) -> AsyncIterator[Producer]:
        yield Jobs()

    def work(self) -> None:
        logging.disable(logging.INFO)
        connection = adapter.connect_redis()
        kind = SimpleWorker if ORDERS.variant == "simple" else Worker
        kind([Queue("mail", connection=connection)], connection=connection).work(logging_level="WARNING")

    def left(self) -> int:
        redis = adapter.connect_redis()
        return int(redis.llen("rq:queue:mail") + redis.zcard("rq:wip:mail"))


if __name__ == "__main__":
    adapter.main(Rq())
