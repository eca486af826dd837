"""Procrastinate on its psycopg pool with LISTEN/NOTIFY; jobs are kept, or with "delete" deleted when they are done.
"locks": a lock a company, of which one job runs at a time. It logs warnings only, for it has two lines for each job."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import procrastinate

from bench.peers import adapter
from bench.peers.adapter import ORDERS, Adapter, Producer, Task

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=ORDERS.postgres, min_size=4, max_size=12))


@app.task(name="mail")
async def mail(number: int, **_: object) -> None:
    await adapter.run_async(number)


def deferrer(company: str) -> Any:
    return mail.configure(lock=company) if ORDERS.variant == "locks" else mail


class Jobs(Producer):
    batch = 1_000  # of one company each, for a call has one lock

    async def send(self, task: Task) -> None:
        await deferrer(task["company"]).defer_async(**task)

    async def send_many(self, tasks: list[Task]) -> None:
        await deferrer(tasks[0]["company"]).batch_defer_async(*tasks)


class Procrastinate(Adapter):
    def install(self) -> None:
        async def apply() -> None:
            async with app.open_async():
                await app.schema_manager.apply_schema_async()

        asyncio.run(apply())

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[Producer]:
        one = procrastinate.PsycopgConnector(conninfo=ORDERS.postgres, min_size=1, max_size=1)
        with app.replace_connector(one):
            async with app.open_async():
                yield Jobs()

    def work(self) -> None:
        logging.basicConfig(level=logging.WARNING)

        async def serve() -> None:
            async with app.open_async():
                await app.run_worker_async(
                    concurrency=ORDERS.concurrency, delete_jobs="always" if ORDERS.variant == "delete" else "never"
                )

        asyncio.run(serve())

    def left(self) -> int:
        return adapter.count("select count(*) from procrastinate_jobs where status in ('todo', 'doing')")


if __name__ == "__main__":
    adapter.main(Procrastinate())
