"""What a transaction of the caller's sees of how many tasks may wait; the rest is every broker's."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from taketurns.brokers.postgres.transaction import enqueue_in
from taketurns.engine.errors import QueueFull
from taketurns.engine.task import Enqueued
from tests.brokers.cell import new_tasks
from tests.brokers.postgres.cell import PostgresCell
from tests.waiting import eventually


@pytest.fixture(autouse=True)
def acme(cell: PostgresCell) -> UUID:
    return cell.add_company("acme")


async def submit(cell: PostgresCell) -> list[Enqueued]:
    return await cell.broker.enqueue("acme", new_tasks())


async def test_what_a_transaction_keeps_to_itself_counts(cell: PostgresCell) -> None:
    cell.set_max_queued("acme", 1)
    async with cell.broker.database.transaction() as connection:
        await cell.broker.enqueue_on(connection, "acme", new_tasks())
        waiting = asyncio.create_task(submit(cell))
        await eventually(cell.keeps_somebody_waiting)
    with pytest.raises(QueueFull):
        await waiting


async def test_a_full_queue_leaves_a_transaction_usable(cell: PostgresCell) -> None:
    cell.set_max_queued("acme", 1)
    await submit(cell)
    async with cell.broker.database.transaction() as connection:
        with pytest.raises(QueueFull):
            await enqueue_in(connection, "taketurns", "acme", new_tasks(), key_lifetime=cell.broker.key_lifetime)
        assert await (await connection.execute("select 1")).fetchall() == [(1,)]
