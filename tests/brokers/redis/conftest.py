"""A cell in Redis, of a name that no other test has, on a server that the run's processes share."""

from collections.abc import AsyncIterator

import pytest

from tests.brokers.redis.cell import RedisCell


@pytest.fixture
async def cell(valkey_url: str, valkey_cell: str) -> AsyncIterator[RedisCell]:
    cell = RedisCell.open(valkey_url, valkey_cell)
    yield cell
    await cell.close()
