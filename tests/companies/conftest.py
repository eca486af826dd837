"""A fresh database for companies, a broker of their tasks, one company, and a clock."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from taketurns.brokers.postgres import PostgresBroker
from taketurns.companies import directory
from taketurns.companies.directory import Company
from taketurns.storage.database import Database
from tests.companies.clock import Clock


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


@pytest.fixture
async def acme(database: Database) -> Company:
    return await directory.create(database, name="Acme", slug="acme")


@pytest.fixture
def clock() -> Clock:
    return Clock()
