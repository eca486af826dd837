"""A house for every test of workers."""

from collections.abc import AsyncIterator

import pytest

from taketurns.storage.database import Database
from tests.worker.house import House


@pytest.fixture
async def house(database_url: str) -> AsyncIterator[House]:
    database = Database(database_url, pool_size=4, name="house")
    await database.open()
    house = House(database_url, database)
    try:
        yield house
    finally:
        await house.broker.notifier.flush()
        house.close()
        await database.close()
