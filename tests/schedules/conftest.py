"""A cell with companies, and schedules in it."""

from collections.abc import AsyncIterator

import pytest

from taketurns.storage.database import Database
from tests.schedules.calendar import Calendar


@pytest.fixture
async def calendar(database_url: str) -> AsyncIterator[Calendar]:
    database = Database(database_url, pool_size=4, name="calendar")
    await database.open()
    calendar = Calendar(database_url, database)
    try:
        yield calendar
    finally:
        calendar.close()
        await database.close()
