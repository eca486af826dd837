"""Single tasks submitted at once go together, and each caller is answered as if it had come alone."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import pytest

from taketurns.brokers.postgres.gathering import LARGEST_PAYLOAD, MOST_TOGETHER, Gathering, Submission
from taketurns.engine.errors import Busy, InvalidData, QuotaExceeded, UnknownCompany
from taketurns.engine.task import Enqueued, NewTask
from tests.brokers.postgres.cell import PostgresCell
from tests.brokers.postgres.connections import other_connection
from tests.waiting import eventually


@pytest.fixture(autouse=True)
def acme(cell: PostgresCell) -> UUID:
    return cell.add_company("acme")


async def submit(
    cell: PostgresCell, payload: str = "{}", *, company: str = "acme", request_id: str | None = None
) -> Enqueued:
    task = NewTask(type="work", payload=payload)
    (made,) = await cell.broker.enqueue(company, [task], request_id=request_id, traceparent=request_id)
    return made


@asynccontextmanager
async def one_under_way(cell: PostgresCell, acme: UUID) -> AsyncIterator[asyncio.Task[Enqueued]]:
    """A submission that waits for a lock until what is submitted inside waits for it."""
    with other_connection(cell) as connection, connection.transaction():
        connection.execute("select pg_advisory_xact_lock(company_lock('taketurns', %s))", (acme,))
        first = asyncio.create_task(submit(cell))
        await eventually(cell.keeps_somebody_waiting)
        yield first


def moments(cell: PostgresCell) -> list[int]:
    """How many tasks each statement has made, the largest last."""
    return sorted(count for (count,) in cell.rows("select count(*) from tasks group by created_at"))


async def test_what_comes_while_one_is_under_way_goes_together(cell: PostgresCell, acme: UUID) -> None:
    async with one_under_way(cell, acme) as first:
        others = [asyncio.create_task(submit(cell, request_id=f"request-{number}")) for number in range(49)]
    made = await asyncio.gather(first, *others)
    assert moments(cell) == [1, 49]
    assert len({task.task_id for task in made}) == 50
    assert {task.position for task in made} == {0}
    told: dict[UUID, str] = dict(cell.rows("select id, request_id from tasks where request_id = traceparent"))
    assert [told[task.task_id] for task in made[1:]] == [f"request-{number}" for number in range(49)]
    assert cell.contradictions() == []


async def test_many_go_in_several(cell: PostgresCell, acme: UUID) -> None:
    async with one_under_way(cell, acme) as first:
        others = [asyncio.create_task(submit(cell)) for _ in range(MOST_TOGETHER + 7)]
    await asyncio.gather(first, *others)
    assert moments(cell) == [1, 7, MOST_TOGETHER]


async def test_what_is_large_or_of_another_company_goes_by_itself(cell: PostgresCell, acme: UUID) -> None:
    cell.add_company("globex")
    large = '{"text": "' + LARGEST_PAYLOAD * "x" + '"}'
    async with one_under_way(cell, acme) as first:
        other = await submit(cell, company="globex")
        waiting = [asyncio.create_task(submit(cell, large)), asyncio.create_task(submit(cell))]
        assert not first.done()
    made = await asyncio.gather(first, *waiting)
    assert other.company_id != acme
    assert {task.company_id for task in made} == {acme}
    assert moments(cell) == [1, 1, 1, 1]


async def test_each_has_its_own_part_of_a_quota(cell: PostgresCell, acme: UUID) -> None:
    cell.set_quotas("acme", hour=8)
    async with one_under_way(cell, acme) as first:
        others = [asyncio.create_task(submit(cell)) for _ in range(19)]
    outcomes = await asyncio.gather(first, *others, return_exceptions=True)
    assert Counter(map(type, outcomes)) == {Enqueued: 8, QuotaExceeded: 12}
    assert cell.rows("select count(*) from tasks") == [(8,)]
    assert cell.contradictions() == []


async def test_one_that_cannot_be_stored_fails_alone(cell: PostgresCell, acme: UUID) -> None:
    async with one_under_way(cell, acme) as first:
        others = [asyncio.create_task(submit(cell, payload)) for payload in ("{}", "{", "{}")]
    outcomes = await asyncio.gather(first, *others, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Enqueued, Enqueued, InvalidData, Enqueued]


async def test_who_gives_up_keeps_nobody_waiting(cell: PostgresCell, acme: UUID) -> None:
    async with one_under_way(cell, acme) as first:
        others = [asyncio.create_task(submit(cell)) for _ in range(3)]
        await asyncio.sleep(0)
        first.cancel()
        others[0].cancel()
        await asyncio.wait([first])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await asyncio.shield(others[1])
    outcomes = await asyncio.gather(*others, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError, Enqueued, Enqueued]


async def test_who_has_waited_for_too_long_is_not_submitted(cell: PostgresCell, acme: UUID) -> None:
    """However many statements would have to end or fail before: fault 043."""
    gathering = Gathering(cell.broker._enqueue_together, patience_seconds=0.0)
    task = NewTask(type="work", payload="{}")

    async def come() -> Enqueued:
        return await gathering.enqueue("acme", Submission(task, None, None))

    async with one_under_way(cell, acme) as first:
        under_way = asyncio.create_task(come())
        await asyncio.sleep(0)
        others = [asyncio.create_task(come()) for _ in range(MOST_TOGETHER + 1)]
        await asyncio.sleep(0)
    await asyncio.gather(first, under_way)
    outcomes = await asyncio.gather(*others, return_exceptions=True)
    assert Counter(map(type, outcomes)) == {Busy: MOST_TOGETHER + 1}
    assert moments(cell) == [1, 1]
    assert (await come()).created_at is not None


async def test_what_was_given_up_while_it_waited_is_not_submitted(cell: PostgresCell, acme: UUID) -> None:
    async with one_under_way(cell, acme) as first:
        others = [asyncio.create_task(submit(cell)) for _ in range(6)]
        await asyncio.sleep(0)
        for given_up in (others[0], others[3], others[5]):
            given_up.cancel()
        await asyncio.sleep(0)
    await asyncio.gather(first, *others, return_exceptions=True)
    assert moments(cell) == [1, 3]


async def test_a_company_that_nobody_knows_is_told_to_each(cell: PostgresCell) -> None:
    outcomes = await asyncio.gather(*(submit(cell, company="nobody") for _ in range(5)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [UnknownCompany] * 5
    assert (await submit(cell)).created_at is not None
