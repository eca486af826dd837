"""Celery on Redis: results ignored, 64 messages ahead a process, as it advises for many short tasks; no gossip, no
mingling. Processes, or with "threads" threads. "queues": a queue a company, which it reads in turn. It has no bulk.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from celery import Celery
from kombu import Queue

from bench.peers import adapter
from bench.peers.adapter import ORDERS, Adapter, Producer, Task

HAS_QUEUES = ORDERS.variant == "queues"
QUEUES = ["flood", "quiet"] if HAS_QUEUES else ["mail"]

app = Celery("peers", broker=ORDERS.redis)
app.conf.update(
    task_ignore_result=True,
    worker_prefetch_multiplier=64,
    broker_pool_limit=1,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    task_default_queue=QUEUES[0],
    task_queues=[Queue(name) for name in QUEUES],
)


@app.task(name="mail")
def mail(task: Task) -> None:
    adapter.run(task["number"])


class Messages(Producer):
    async def send(self, task: Task) -> None:
        mail.apply_async((task,), queue=task["company"] if HAS_QUEUES else "mail")


class CeleryPeer(Adapter):
    @asynccontextmanager
    async def producer(self) -> AsyncIterator[Producer]:
        yield Messages()

    def work(self) -> None:
        pool = "threads" if ORDERS.variant == "threads" else "prefork"
        alone = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        app.worker_main(["worker", "-P", pool, "-c", str(ORDERS.concurrency), "-l", "WARNING", *alone])

    def left(self) -> int:
        redis = adapter.connect_redis()
        return int(sum(redis.llen(name) for name in QUEUES) + redis.hlen("unacked"))


if __name__ == "__main__":
    adapter.main(CeleryPeer())
