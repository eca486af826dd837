"""Dramatiq on Redis: one process with so many threads, with the middleware that it comes with."""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from bench.peers import adapter
from bench.peers.adapter import ORDERS, Adapter, Producer, Task

broker = RedisBroker(url=ORDERS.redis)
dramatiq.set_broker(broker)


@dramatiq.actor(actor_name="mail")
def mail(task: Task) -> None:
    adapter.run(task["number"])


class Messages(Producer):
    async def send(self, task: Task) -> None:
        mail.send(task)


class Dramatiq(Adapter):
    @asynccontextmanager
    async def producer(self) -> AsyncIterator[Producer]:
        yield Messages()

    def work(self) -> None:
        logging.basicConfig(level=logging.WARNING)
        dramatiq.Worker(broker, worker_threads=ORDERS.concurrency).start()
        threading.Event().wait()

    def left(self) -> int:
        return int(adapter.connect_redis().hlen("dramatiq:default.msgs"))


if __name__ == "__main__":
    adapter.main(Dramatiq())
