"""DBOS queues: a workflow without steps a task, which it looks for every 20 ms (every second by default), or sooner not
at all. Its bulk is single inserts in one transaction. "sync": a plain function, on its threads. "partitions": one a
company, with half of the hands each."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import sqlalchemy
from dbos import DBOS, DBOSClient

from bench.peers import adapter
from bench.peers.adapter import ORDERS, Adapter, Producer, Task

URL = ORDERS.postgres.replace("postgresql://", "postgresql+psycopg://")
HAS_PARTITIONS = ORDERS.variant == "partitions"


def options(task: Task) -> dict[str, str]:
    more = {"queue_partition_key": task["company"]} if HAS_PARTITIONS else {}
    return {"workflow_name": "mail", "queue_name": "mail", **more}


class Workflows(Producer):
    batch = 1_000

    def __init__(self, client: Any, engine: sqlalchemy.Engine) -> None:
        self._client = client
        self._engine = engine

    async def send(self, task: Task) -> None:
        self._client.enqueue(options(task), json.dumps(task))

    async def send_many(self, tasks: list[Task]) -> None:
        with self._engine.begin() as connection:
            for task in tasks:
                self._client.enqueue_in_transaction(connection, options(task), json.dumps(task))


class Dbos(Adapter):
    def install(self) -> None:
        self._launch()
        DBOS.destroy()

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[Producer]:
        engine = sqlalchemy.create_engine(URL)
        client = DBOSClient(system_database_url=URL)
        yield Workflows(client, engine)
        client.destroy()
        engine.dispose()

    def work(self) -> None:
        self._launch()
        half = {"partition_worker_concurrency": max(1, ORDERS.concurrency // 2)} if HAS_PARTITIONS else {}
        DBOS.register_queue("mail", worker_concurrency=ORDERS.concurrency, polling_interval_sec=0.02, **half)
        threading.Event().wait()

    def left(self) -> int:
        return adapter.count(
            "select count(*) from dbos.workflow_status where status in ('ENQUEUED', 'PENDING', 'DELAYED')"
        )

    def _launch(self) -> None:
        DBOS(
            config={
                "name": "peers",
                "system_database_url": URL,
                "log_level": "ERROR",
                "application_version": "1",
                "sys_db_pool_size": 20,
            }
        )

        async def mail(task: str) -> None:
            await adapter.run_async(json.loads(task)["number"])

        def mail_sync(task: str) -> None:
            adapter.run(json.loads(task)["number"])

        DBOS.workflow(name="mail")(mail_sync if ORDERS.variant == "sync" else mail)
        DBOS.launch()


if __name__ == "__main__":
    adapter.main(Dbos())
