"""awa, a core in Rust under handlers in Python: its queue storage, under uvloop, COPY for bulk.

The concurrency is that of the queue and the batch of its claims, with 4 claimers, which its documentation names for
queues under load; "default" sets the concurrency alone. "queues": a queue a company, equal in weight.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import awa
import uvloop

from bench.peers import adapter
from bench.peers.adapter import ORDERS, Adapter, Producer, Task

HAS_QUEUES = ORDERS.variant == "queues"
URL = ORDERS.postgres.replace("@/", "@localhost/")  # it wants a host there; the one after the `?` counts


@dataclass
class Mail:
    to: str
    subject: str
    number: int
    company: str


def queue(company: str) -> str:
    return f"mail_{company}" if HAS_QUEUES else "mail"


class Jobs(Producer):
    batch = 5_000

    def __init__(self, client: Any) -> None:
        self._client = client

    async def send(self, task: Task) -> None:
        await self._client.insert(Mail(**task), queue=queue(task["company"]))

    async def send_many(self, tasks: list[Task]) -> None:
        options = [{"queue": queue(task["company"])} for task in tasks] if HAS_QUEUES else None
        await self._client.enqueue_many_copy([Mail(**task) for task in tasks], queue="mail", opts=options)


class Awa(Adapter):
    def install(self) -> None:
        with awa.Client(URL, 2) as client:
            client.migrate()
            client.install_queue_storage()

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[Producer]:
        async with awa.AsyncClient(URL, 2) as client:
            yield Jobs(client)

    def work(self) -> None:
        uvloop.run(self._work())

    async def _work(self) -> None:
        client = awa.AsyncClient(URL, 30)

        async def mail(job: Any) -> None:
            await adapter.run_async(job.args.number)

        busy: dict[str, object] = {"claimers": 4, "claim_batch_size": ORDERS.concurrency}
        if HAS_QUEUES:
            names = [queue(company) for company in ("flood", "quiet")]
            client.task(Mail, queue=names[0])(mail)
            queues = [{"name": name, "min_workers": 0, "weight": 1, **busy} for name in names]
            await client.start(queues, global_max_workers=ORDERS.concurrency)
        else:
            client.task(Mail, queue="mail")(mail)
            more = {} if ORDERS.variant == "default" else busy
            await client.start([{"name": "mail", "max_workers": ORDERS.concurrency, **more}])
        await asyncio.Event().wait()

    def left(self) -> int:
        return adapter.count(
            "select (select count(*) from awa.ready_entries) - (select count(*) from awa.done_entries)"
            " - (select coalesce(sum(completed_count), 0)::bigint from awa.receipt_completion_batches)"
        )


if __name__ == "__main__":
    adapter.main(Awa())
