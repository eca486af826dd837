"""Absurd: its async worker, which claims in batches and polls every 50 ms when it has nothing (250 by default).

Its SQL is not in its own package; django-absurd has it, and is only read. It has no bulk call.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from absurd_sdk import AsyncAbsurd

from bench.peers import adapter
from bench.peers.adapter import ORDERS, Adapter, Producer, Task

SCHEMA = "0001_initial_0_5_0.sql"


class Tasks(Producer):
    def __init__(self, app: Any) -> None:
        self._app = app

    async def send(self, task: Task) -> None:
        await self._app.spawn("mail", task, queue="default")


class Absurd(Adapter):
    def install(self) -> None:
        (script,) = (file for file in importlib.metadata.files("django-absurd") or () if file.name == SCHEMA)
        with psycopg.connect(ORDERS.postgres, autocommit=True) as connection:
            connection.execute(script.read_text().encode())
            connection.execute("select absurd.create_queue('default')")

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[Producer]:
        app = AsyncAbsurd(ORDERS.postgres)
        yield Tasks(app)
        await app.close()

    def work(self) -> None:
        logging.basicConfig(level=logging.WARNING)
        app = AsyncAbsurd(ORDERS.postgres)

        @app.register_task("mail")
        async def mail(task: Task, _: object) -> None:
            await adapter.run_async(task["number"])

        asyncio.run(app.start_worker(concurrency=ORDERS.concurrency, batch_size=ORDERS.concurrency, poll_interval=0.05))

    def left(self) -> int:
        return adapter.count(
            "select count(*) from absurd.t_default where state not in ('completed', 'failed', 'cancelled')"
        )


if __name__ == "__main__":
    adapter.main(Absurd())
