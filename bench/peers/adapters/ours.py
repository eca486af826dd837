"""Ours, as a program uses it: handlers in an application, the worker that `taketurns worker` runs. Tasks wait in
PostgreSQL, or in Redis, where the variant begins with "redis"; "sync" handlers run in threads.

Tasks are of twenty companies, and every claim is fair between them. A worker claims up to a thousand tasks at once, but
where the handlers take their time: then as many as it has free hands.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import groupby

from bench.peers import adapter
from bench.peers.adapter import ORDERS, Adapter, Producer, Task
from taketurns import Taketurns, assembly, telemetry
from taketurns.assembly.jobs import open_job_broker
from taketurns.brokers.postgres import PostgresBroker
from taketurns.brokers.redis import RedisBroker
from taketurns.companies import directory
from taketurns.companies.following import as_told
from taketurns.engine import payload
from taketurns.engine.task import NewTask
from taketurns.settings import Settings
from taketurns.storage import schema
from taketurns.storage.database import Database
from taketurns.worker import process

BATCH = 1_000
CLAIM = 1_000
IN_REDIS = ORDERS.variant.startswith("redis")
SETTINGS = Settings(
    database_url=ORDERS.postgres,
    redis_url=ORDERS.redis,
    broker="redis" if IN_REDIS else "postgres",
    concurrency=ORDERS.concurrency,
    batch=None if ORDERS.sleep_seconds else CLAIM,
    metrics_port=0,
    log_level="warning",
)
CELL = f"{{taketurns:{SETTINGS.schema_name}}}"

tt = Taketurns(database_url=ORDERS.postgres)


async def mail(to: str, subject: str, number: int) -> None:
    await adapter.run_async(number)


def mail_sync(to: str, subject: str, number: int) -> None:
    adapter.run(number)


handler = tt.task(name="mail")(mail_sync if ORDERS.variant.endswith("sync") else mail)


class Tasks(Producer):
    """By the application."""

    batch = BATCH

    async def send(self, task: Task) -> None:
        await handler.enqueue(task.pop("company"), **task)

    async def send_many(self, tasks: list[Task]) -> None:
        for company, of_one in groupby(tasks, key=lambda task: str(task.pop("company"))):
            await handler.enqueue_many(company, list(of_one))


class Jobs(Producer):
    """By the broker that the API has; Python programs create no jobs otherwise."""

    batch = BATCH

    def __init__(self, broker: RedisBroker) -> None:
        self._broker = broker

    async def send(self, task: Task) -> None:
        await self._broker.enqueue(task.pop("company"), [_job(task)])

    async def send_many(self, tasks: list[Task]) -> None:
        for company, of_one in groupby(tasks, key=lambda task: str(task.pop("company"))):
            await self._broker.enqueue(company, [_job(task) for task in of_one])


def _job(task: Task) -> NewTask:
    return NewTask(type="mail", payload=payload.encode("mail", task))


class Ours(Adapter):
    def install(self) -> None:
        schema.upgrade(ORDERS.postgres)
        asyncio.run(_make_companies())

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[Producer]:
        if IN_REDIS:
            async with open_job_broker(SETTINGS, name="producer", pool_size=1) as broker:
                yield Jobs(broker)
        else:
            async with tt:
                yield Tasks()

    def work(self) -> None:
        telemetry.configure(form=SETTINGS.log_format, level=SETTINGS.log_level)
        process.run(lambda: assembly.serve_worker(SETTINGS, tt))

    def left(self) -> int:
        if not IN_REDIS:
            return adapter.count(
                "select (select count(*) from taketurns.pending_tasks)"
                " + (select count(*) from taketurns.processing_tasks)"
            )
        redis = adapter.connect_redis()
        lines = [f"{CELL}:line:{company.decode()}:default" for company in redis.smembers(f"{CELL}:companies")]
        return int(redis.hlen(f"{CELL}:processing") + sum(redis.zcard(line) for line in lines))


async def _make_companies() -> None:
    database = Database(ORDERS.postgres)
    await database.open()
    try:
        async with open_job_broker(SETTINGS, name="installation") as jobs:
            for name in adapter.company_names():
                company = await directory.create(PostgresBroker(database).database, name=name, slug=name)
                await jobs.put_company(as_told(company))
    finally:
        await database.close()


if __name__ == "__main__":
    adapter.main(Ours())
