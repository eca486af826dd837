"""What the jobs' broker was not told of companies while it was away, it is told later."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from taketurns.brokers.redis import RedisBroker
from taketurns.companies import directory
from taketurns.companies.following import Following, as_told, tell
from taketurns.engine.job import JobCompany
from taketurns.engine.task import NewTask
from taketurns.storage.database import Database
from taketurns.storage.ids import new_id
from tests.brokers.redis.cell import RedisCell


@pytest.fixture
async def jobs(valkey_url: str, valkey_cell: str) -> AsyncIterator[RedisBroker]:
    cell = RedisCell.open(valkey_url, valkey_cell)
    yield cell.broker
    await cell.close()


async def told(jobs: RedisBroker) -> list[JobCompany]:
    return [company async for some in jobs.companies() for company in some]


async def test_a_change_that_was_not_told_is(database: Database, jobs: RedisBroker) -> None:
    company = await directory.create(database, name="Acme", slug="acme", max_in_flight=3)
    await tell(jobs, company)
    assert await told(jobs) == [as_told(company)]
    changed = await directory.change(database, "acme", {"weight": 7, "paused": True, "max_in_flight": None})
    assert changed
    await jobs.enqueue("acme", [NewTask(type="work", payload="{}")])
    await Following(database, jobs).step()
    assert await told(jobs) == [as_told(changed)]
    assert await jobs.claim(new_id(), queues=["default"], batch=1) == []


async def test_the_jobs_of_a_company_that_is_gone_are_dropped_and_no_others(
    database: Database, jobs: RedisBroker
) -> None:
    companies = [await directory.create(database, name=slug, slug=slug) for slug in ("acme", "zeta")]
    for company in companies:
        await tell(jobs, company)
        await jobs.enqueue(company.slug, [NewTask(type="work", payload="{}")])
    await directory.delete(database, "acme")
    await Following(database, jobs).step()
    assert await told(jobs) == [as_told(companies[1])]
    claimed = await jobs.claim(new_id(), queues=["default"], batch=2)
    assert [task.company_id for task in claimed] == [companies[1].id]
