"""A company has no more tasks waiting than it may have, however many submit at once."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from taketurns.brokers.postgres.transaction import enqueue_in
from taketurns.engine.errors import QueueFull
from taketurns.engine.task import Enqueued, Status
from tests.brokers.cell import keyed_task, new_tasks, reports
from tests.brokers.postgres.cell import PostgresCell
from tests.waiting import eventually

WORKER = UUID(int=1)


@pytest.fixture(autouse=True)
def acme(cell: PostgresCell) -> UUID:
    return cell.add_company("acme")


def allow(cell: PostgresCell, most: int | None) -> None:
    cell.connection.execute("update companies set max_queued = %s where slug = 'acme'", (most,))


async def submit(cell: PostgresCell, count: int = 1, *, delay_seconds: float | None = None) -> list[Enqueued]:
    return await cell.broker.enqueue("acme", new_tasks(count, delay_seconds=delay_seconds))


async def test_fifty_who_submit_at_once_fill_it_and_no_more(cell: PostgresCell) -> None:
    allow(cell, 20)
    outcomes = await asyncio.gather(*(submit(cell) for _ in range(50)), return_exceptions=True)
    assert sum(isinstance(outcome, list) for outcome in outcomes) == 20
    assert {type(outcome) for outcome in outcomes} == {list, QueueFull}
    assert cell.standing() == {Status.PENDING: 20}
    assert cell.contradictions() == []


async def test_a_batch_is_taken_whole_or_not_at_all(cell: PostgresCell) -> None:
    allow(cell, 5)
    await submit(cell, 2)
    await submit(cell, 1, delay_seconds=60.0)
    with pytest.raises(QueueFull, match=r"at most 5 .* no room for 3 more") as refused:
        await submit(cell, 3)
    assert (refused.value.max_queued, refused.value.wanted) == (5, 3)
    assert cell.rows("select count(*) from tasks") == [(3,)]
    await submit(cell, 2)


async def test_what_has_started_makes_room_and_a_lowered_limit_takes_nothing_away(cell: PostgresCell) -> None:
    allow(cell, 2)
    await submit(cell, 2)
    held = await cell.broker.claim(WORKER, queues=["default"], batch=1)
    await submit(cell)
    allow(cell, 1)
    with pytest.raises(QueueFull):
        await submit(cell)
    await cell.broker.settle(reports(held))
    assert len(await cell.broker.claim(WORKER, queues=["default"], batch=5)) == 2
    allow(cell, 0)
    with pytest.raises(QueueFull):
        await submit(cell)
    allow(cell, None)
    await submit(cell, 3)


async def test_a_request_that_is_repeated_needs_no_room_and_one_that_is_refused_keeps_its_key_free(
    cell: PostgresCell,
) -> None:
    allow(cell, 1)
    (made,) = await cell.broker.enqueue("acme", [keyed_task("first")])
    (again,) = await cell.broker.enqueue("acme", [keyed_task("first")])
    assert (again.replayed, again.task_id) == (True, made.task_id)
    with pytest.raises(QueueFull):
        await cell.broker.enqueue("acme", [keyed_task("second")])
    allow(cell, 2)
    (second,) = await cell.broker.enqueue("acme", [keyed_task("second")])
    assert not second.replayed


async def test_a_retry_by_hand_needs_no_room(cell: PostgresCell) -> None:
    allow(cell, 1)
    (made,) = await submit(cell)
    await cell.broker.settle(reports(await cell.broker.claim(WORKER, queues=["default"], batch=1)))
    await submit(cell)
    assert await cell.broker.retry("acme", made.task_id) is Status.COMPLETED
    assert cell.standing() == {Status.PENDING: 2}


async def test_what_a_transaction_keeps_to_itself_counts(cell: PostgresCell) -> None:
    allow(cell, 1)
    async with cell.broker.database.transaction() as connection:
        await cell.broker.enqueue_on(connection, "acme", new_tasks())
        waiting = asyncio.create_task(submit(cell))
        await eventually(lambda: bool(cell.rows("select from pg_locks where locktype = 'advisory' and not granted")))
    with pytest.raises(QueueFull):
        await waiting


async def test_a_full_queue_leaves_a_transaction_usable(cell: PostgresCell) -> None:
    allow(cell, 1)
    await submit(cell)
    async with cell.broker.database.transaction() as connection:
        with pytest.raises(QueueFull):
            await enqueue_in(connection, "taketurns", "acme", new_tasks(), key_lifetime=cell.broker.key_lifetime)
        assert await (await connection.execute("select 1")).fetchall() == [(1,)]
