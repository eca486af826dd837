"""Quotas of jobs, which wait where PostgreSQL does not see them; and the duties that keep counts in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from taketurns import telemetry
from taketurns.brokers.redis import RedisBroker
from taketurns.companies import directory, quotas
from taketurns.companies.directory import Company
from taketurns.companies.quotas import JobRefunds, Tally
from taketurns.engine.errors import QuotaExceeded, Unavailable, UnknownCompany
from taketurns.engine.job import Charge, JobCompany
from taketurns.engine.quota import Quotas
from taketurns.engine.task import NewTask, Outcome, Report, Status
from taketurns.storage.database import Database
from tests.brokers.redis.cell import RedisCell

NOON = datetime(2030, 1, 31, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture
async def acme(database: Database) -> Company:
    return await directory.create(database, name="Acme", slug="acme", quotas=Quotas(hour=3))


async def counts(database: Database, *, at: datetime = NOON) -> tuple[int, int]:
    """What was reserved in the hour, and refunded of it."""
    usage = await quotas.usage(database, "acme", at=at)
    assert usage is not None
    hour = usage.current[0]
    return hour.reserved, hour.refunded


@pytest.fixture
async def jobs(valkey_url: str, valkey_cell: str, acme: Company) -> AsyncIterator[RedisBroker]:
    """The broker of jobs, which knows the company."""
    cell = RedisCell.open(valkey_url, valkey_cell)
    await cell.broker.put_company(JobCompany(id=acme.id, slug="acme", updated_at=datetime.now(UTC)))
    yield cell.broker
    await cell.close()


async def hand_over(jobs: RedisBroker, name: Charge, *, reserved_at: datetime = NOON) -> None:
    task = NewTask(type="work", payload="{}", task_id=name.job_id, reserved_at=reserved_at)
    (made,) = await jobs.enqueue("acme", [task])
    assert made.task_id == name.job_id


async def fail(jobs: RedisBroker) -> None:
    """Let the next job fail for good."""
    claimed = await jobs.claim(UUID(int=1), queues=["default"], batch=1)
    assert await jobs.settle([Report(task, Outcome.FAILED) for task in claimed]) == {claimed[0].task_id}


async def test_jobs_are_charged_all_or_none_and_once(database: Database, acme: Company) -> None:
    first, second = uuid4(), uuid4()
    reserved = await quotas.reserve(database, "acme", [first, second], at=NOON)
    assert (reserved.company_id, reserved.reserved_at) == (acme.id, NOON)
    assert [one.remaining for one in reserved.allowances] == [1, None, None]
    repeated = await quotas.reserve(database, "acme", [first, second], at=NOON + HOUR)
    assert repeated.reserved_at == NOON
    assert await counts(database) == (2, 0)
    with pytest.raises(QuotaExceeded):
        await quotas.reserve(database, "acme", [uuid4(), uuid4()], at=NOON)
    assert await counts(database) == (2, 0)
    with pytest.raises(UnknownCompany):
        await quotas.reserve(database, "nobody", [uuid4()])


async def test_without_quotas_nothing_is_written(database: Database, acme: Company) -> None:
    await directory.change(database, "acme", {"quotas": Quotas()})
    reserved = await quotas.reserve(database, "acme", [uuid4()], at=NOON)
    assert (reserved.reserved_at, reserved.allowances) == (None, ())
    assert await counts(database) == (0, 0)


async def test_a_refund_that_is_told_several_times_is_made_once(database: Database, acme: Company) -> None:
    name = Charge(acme.id, uuid4(), NOON)
    await quotas.reserve(database, "acme", [name.job_id], at=NOON)
    refunded = await asyncio.gather(
        *[quotas.refund(database, [name, Charge(acme.id, uuid4(), NOON)]) for _ in range(8)]
    )
    assert sorted(refunded) == [0] * 7 + [1]
    await Tally(database).step()
    assert await quotas.refund(database, [name]) == 0
    assert await counts(database) == (1, 1)


async def test_a_job_that_is_run_again_by_hand_is_charged_once_more(database: Database, acme: Company) -> None:
    """Fault 085: the failure of the second run gives the second charge back, and the first stands."""
    name = Charge(acme.id, uuid4(), NOON)
    await quotas.reserve(database, "acme", [name.job_id], at=NOON)
    await quotas.confirm(database, [name])
    again = await quotas.reserve(database, "acme", [name.job_id], at=NOON + HOUR)
    assert again.reserved_at == NOON + HOUR
    late = await quotas.reserve(database, "acme", [name.job_id], instead_of=NOON, at=NOON + 2 * HOUR)
    assert late.reserved_at == NOON + HOUR, "somebody else runs it again already"
    assert await quotas.refund(database, [name]) == 0, "the first charge stands"
    name = replace(name, reserved_at=NOON + HOUR)
    assert (await counts(database), await counts(database, at=NOON + HOUR)) == ((1, 0), (1, 0))
    assert await quotas.refund(database, [name]) == 1
    assert (await counts(database), await counts(database, at=NOON + HOUR)) == ((1, 0), (1, 1))
    assert await database.call("audit_quotas", None, 10, NOON) == [(acme.id, 0)]


async def test_a_job_that_never_arrived_is_given_back_and_one_that_did_is_not(
    database: Database, acme: Company, jobs: RedisBroker
) -> None:
    arrived, lost, young = (Charge(acme.id, uuid4(), NOON) for _ in range(3))
    await quotas.reserve(database, "acme", [arrived.job_id, lost.job_id], at=NOON)
    await quotas.reserve(database, "acme", [young.job_id], at=NOON + timedelta(minutes=5))
    await hand_over(jobs, arrived)
    duty = JobRefunds(database, jobs)
    await duty.step(at=NOON + timedelta(minutes=5))
    assert await counts(database) == (3, 1)
    await jobs.forget_company(acme.id)
    await duty.step(at=NOON + timedelta(minutes=5))
    assert await counts(database) == (3, 1), "what has arrived once is not asked for again"
    await duty.step(at=NOON + timedelta(minutes=7))
    assert await counts(database) == (3, 2)


async def test_a_reservation_for_another_run_that_never_came_is_given_back(
    database: Database, acme: Company, jobs: RedisBroker
) -> None:
    name = Charge(acme.id, uuid4(), NOON)
    await quotas.reserve(database, "acme", [name.job_id], at=NOON)
    await quotas.confirm(database, [name])
    await hand_over(jobs, name)
    claimed = await jobs.claim(UUID(int=1), queues=["default"], batch=1)
    await jobs.settle([Report(task, Outcome.COMPLETED) for task in claimed])
    await quotas.reserve(database, "acme", [name.job_id], instead_of=NOON, at=NOON + HOUR)
    await JobRefunds(database, jobs).step(at=NOON + 2 * HOUR)
    assert (await counts(database), await counts(database, at=NOON + HOUR)) == ((1, 0), (1, 1))


async def test_a_job_that_fails_or_never_starts_is_given_back_once(
    database: Database, acme: Company, jobs: RedisBroker
) -> None:
    failed, cancelled, running = (Charge(acme.id, uuid4(), NOON) for _ in range(3))
    await quotas.reserve(database, "acme", [failed.job_id, cancelled.job_id, running.job_id], at=NOON)
    await hand_over(jobs, failed)
    await fail(jobs)
    await hand_over(jobs, running)
    await jobs.claim(UUID(int=1), queues=["default"], batch=1)
    await hand_over(jobs, cancelled)
    for name in (running, cancelled):
        assert await jobs.cancel("acme", name.job_id) is Status.CANCELLED
    duty = JobRefunds(database, jobs)
    for _ in range(2):
        await duty.step(at=NOON)
    assert await counts(database) == (3, 2), "what had started stays charged"
    assert await jobs.due_refunds() == []


async def test_refunds_wait_with_the_jobs_broker_while_the_database_is_away(
    database: Database, acme: Company, jobs: RedisBroker
) -> None:
    name = Charge(acme.id, uuid4(), NOON)
    await quotas.reserve(database, "acme", [name.job_id], at=NOON)
    await hand_over(jobs, name)
    await fail(jobs)
    away = Database("postgresql://taketurns@127.0.0.1:1/taketurns", pool_timeout=0.05)
    await away.open()
    try:
        with pytest.raises(Unavailable):
            await JobRefunds(away, jobs).step()
    finally:
        await away.close()
    assert await jobs.due_refunds() == [name]
    assert await JobRefunds(database, jobs, every_seconds=7).step(at=NOON) == 7
    assert await jobs.due_refunds() == []
    assert await counts(database) == (1, 1)


async def test_the_tally_corrects_and_tells(database: Database, acme: Company) -> None:
    await quotas.reserve(database, "acme", [uuid4()])
    tally = Tally(database, every_seconds=7)
    before = telemetry.QUOTAS_CORRECTED._value.get()
    assert await tally.step() == 7
    async with database.connection() as connection:
        await connection.execute(f"update {database.schema}.quota_usage set reserved = 50".encode())
    await tally.step()  # looks for companies after the last, and begins anew
    await tally.step()
    assert telemetry.QUOTAS_CORRECTED._value.get() == before + 3
    usage = await quotas.usage(database, "acme")
    assert usage is not None
    assert [one.used for one in usage.current] == [1, 1, 1]
