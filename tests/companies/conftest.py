"""A fresh database for companies, and a broker of their tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from taketurns.brokers.postgres import PostgresBroker
from taketurns.storage.database import Database


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    database = Database(database_url, pool_size=4)
    await database.open()
    yield database
    await database.close()


@pytest.fixture
async def broker(database: Database) -> AsyncIterator[PostgresBroker]:
    broker = PostgresBroker(database)
    yield broker
    await broker.notifier.flush()
