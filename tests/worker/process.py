"""A worker process for tests."""

import os
from typing import Any

from taketurns import telemetry
from taketurns.brokers.postgres import PostgresBroker
from taketurns.storage.database import Database
from taketurns.worker import Worker, process
from tests.worker.app import URL, registry


async def serve(options: dict[str, Any]) -> None:
    database = Database(os.environ[URL], pool_size=4)
    await database.open()
    broker = PostgresBroker(database)
    await process.work_until_told(Worker(broker=broker, registry=registry, **options))
    await broker.notifier.flush()
    await database.close()


def work(url: str, options: dict[str, Any]) -> None:
    os.environ[URL] = url
    telemetry.configure(form="json", level="info")
    process.run(lambda: serve(options))
