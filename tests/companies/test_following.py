"""What the jobs' broker was not told of companies while it was away, it is told later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import update

from taketurns.brokers.redis import RedisBroker
from taketurns.companies import directory, pauses
from taketurns.companies.directory import Company
from taketurns.companies.following import Following, as_told, follow_pauses
from taketurns.engine.job import JobCompany, JobPause
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


# Pauses of queues and types


@pytest.fixture
async def acme(database: Database, jobs: RedisBroker) -> Company:
    company = await directory.create(database, name="Acme", slug="acme")
    await jobs.put_company(as_told(company))
    return company


async def test_pauses_that_were_not_told_are_and_so_is_their_end(
    database: Database, jobs: RedisBroker, acme: Company
) -> None:
    later = datetime(2300, 1, 1, tzinfo=UTC)
    await pauses.put(database, "acme", queue="default", type=None, until=later)
    await pauses.put(database, None, queue=None, type="mail", until=later.replace(year=2100))
    await Following(database, jobs).step()
    told = await jobs.pauses()
    assert told.by_company == {
        acme.id: {JobPause("default", None)},  # what is that far away is never
        None: {JobPause(None, "mail", later.replace(year=2100))},
    }
    await Following(database, jobs).step()
    assert await jobs.pauses() == told
    await pauses.lift(database, "acme", queue="default", type=None)
    await pauses.lift(database, None, queue=None, type="mail")
    await Following(database, jobs).step()
    assert (await jobs.pauses()).by_company == {}


async def test_what_was_read_before_others_told_something_is_not_told(
    database: Database, jobs: RedisBroker, acme: Company
) -> None:
    """Even if what they told was what stood there already."""
    revision = (await jobs.pauses()).revision
    assert await jobs.put_pauses(acme.id, [], revision=revision) == revision + 1
    assert await jobs.put_pauses(acme.id, [JobPause("default", None)], revision=revision) is None
    assert (await jobs.pauses()).by_company == {}


async def test_the_pauses_of_a_company_that_is_gone_go_with_it(
    database: Database, jobs: RedisBroker, acme: Company
) -> None:
    await pauses.put(database, "acme", queue="default", type=None, until=datetime(2100, 1, 1, tzinfo=UTC))
    await Following(database, jobs).step()
    await directory.delete(database, "acme")
    await Following(database, jobs).step()
    assert (await jobs.pauses()).by_company == {}


async def test_many_who_follow_at_once_tell_what_stands_in_the_end(
    database: Database, jobs: RedisBroker, acme: Company
) -> None:
    async def change(queue: str) -> None:
        await pauses.put(database, "acme", queue=queue, type=None)
        await follow_pauses(database, jobs)
        await pauses.lift(database, "acme", queue=queue, type=None)
        await follow_pauses(database, jobs)

    await asyncio.gather(*(change(queue) for queue in "abcd"))
    await follow_pauses(database, jobs)
    assert (await jobs.pauses()).by_company == {}
