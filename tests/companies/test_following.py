"""What the jobs' broker was not told of companies while it was away, it is told later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import update

from taketurns.brokers.redis import RedisBroker
from taketurns.companies import directory
from taketurns.companies.following import Following, as_told
from taketurns.engine.job import JobCompany
from taketurns.engine.task import NewTask
from taketurns.storage.database import Database
from taketurns.storage.ids import new_id
from taketurns.storage.models import Company as CompanyTable
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
    await jobs.put_company(as_told(company))
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
        await jobs.put_company(as_told(company))
        await jobs.enqueue(company.slug, [NewTask(type="work", payload="{}")])
    await directory.delete(database, "acme")
    await Following(database, jobs).step()
    assert await told(jobs) == [as_told(companies[1])]
    claimed = await jobs.claim(new_id(), queues=["default"], batch=2)
    assert [task.company_id for task in claimed] == [companies[1].id]


async def test_what_was_read_before_a_change_does_not_undo_it(database: Database, jobs: RedisBroker) -> None:
    before = await directory.create(database, name="Acme", slug="acme")
    after = await directory.change(database, "acme", {"weight": 7, "paused": True})
    assert after
    for company in (after, before):
        await jobs.put_company(as_told(company))
    assert await told(jobs) == [as_told(after)]
    await jobs.enqueue("acme", [NewTask(type="work", payload="{}")])
    assert await jobs.claim(new_id(), queues=["default"], batch=1) == []


async def test_every_change_is_newer_than_those_before_whatever_the_clock_says(
    database: Database, jobs: RedisBroker
) -> None:
    company = await directory.create(database, name="Acme", slug="acme")
    ahead = company.updated_at + timedelta(days=1)
    await database.fetch(update(CompanyTable).values(updated_at=ahead).returning(CompanyTable.id))
    changes = await asyncio.gather(*[directory.change(database, "acme", {"weight": weight}) for weight in range(1, 9)])
    times = sorted(changed.updated_at for changed in changes if changed)
    assert (len(set(times)), times[0] > ahead) == (8, True)
    newest = max((changed for changed in changes if changed), key=lambda changed: changed.updated_at)
    assert await directory.find(database, "acme") == newest


async def test_a_database_that_was_put_back_to_an_earlier_time_is_followed(
    database: Database, jobs: RedisBroker
) -> None:
    restored = await directory.create(database, name="Acme", slug="acme")
    lost = replace(as_told(restored), weight=7, updated_at=restored.updated_at + timedelta(days=1))
    await jobs.put_company(lost)
    await Following(database, jobs).step()
    assert await told(jobs) == [as_told(restored)]
