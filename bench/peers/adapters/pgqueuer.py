"""PgQueuer on asyncpg, the faster of its drivers, under uvloop; tables are logged, as it makes them.

The concurrency is the batch of one dequeue; where handlers take their time, those that are to run at once are split
into two batches, the fewest it allows. "entrypoints": one a company, each with half of the hands.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.queries import Queries

from bench.peers import adapter
from bench.peers.adapter import ORDERS, Adapter, Producer, Task

HAS_ENTRYPOINTS = ORDERS.variant == "entrypoints"


def entrypoint(company: str) -> str:
    return f"mail_{company}" if HAS_ENTRYPOINTS else "mail"


class Jobs(Producer):
    batch = 1_000

    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    async def send(self, task: Task) -> None:
        await self._queries.enqueue(entrypoint(task["company"]), json.dumps(task).encode())

    async def send_many(self, tasks: list[Task]) -> None:
        await self._queries.enqueue(
            [entrypoint(task["company"]) for task in tasks],
            [json.dumps(task).encode() for task in tasks],
            [0] * len(tasks),
        )


class Pgqueuer(Adapter):
    def install(self) -> None:
        command = [sys.executable, "-m", "pgqueuer", "--pg-dsn", ORDERS.postgres, "install"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[Producer]:
        connection = await asyncpg.connect(ORDERS.postgres)
        yield Jobs(Queries(AsyncpgDriver(connection)))
        await connection.close()

    def work(self) -> None:
        uvloop.run(self._work())

    async def _work(self) -> None:
        pool = await asyncpg.create_pool(ORDERS.postgres, min_size=4, max_size=10)
        queue = PgQueuer(AsyncpgPoolDriver(pool))

        async def mail(job: object) -> None:
            await adapter.run_async(json.loads(job.payload)["number"])  # type: ignore[attr-defined]

        names = {entrypoint(company) for company in adapter.company_names()}
        for name in names:
            queue.entrypoint(name, concurrency_limit=ORDERS.concurrency // 2 if HAS_ENTRYPOINTS else 0)(mail)
        if ORDERS.sleep_seconds:
            await queue.run(batch_size=max(1, ORDERS.concurrency // 2), max_concurrent_tasks=ORDERS.concurrency)
        else:
            await queue.run(batch_size=ORDERS.concurrency)

    def left(self) -> int:
        return adapter.count("select count(*) from pgqueuer")


if __name__ == "__main__":
    adapter.main(Pgqueuer())
