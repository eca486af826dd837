"""Quotas of jobs, which wait where PostgreSQL does not see them; and the duties that keep counts in order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from taketurns import telemetry
from taketurns.companies import directory, quotas
from taketurns.companies.directory import Company
from taketurns.companies.quotas import JobRefunds, Tally
from taketurns.engine.errors import QuotaExceeded, UnknownCompany
from taketurns.engine.job import Job, JobName
from taketurns.engine.quota import Quotas
from taketurns.engine.task import Status
from taketurns.storage.database import Database

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


def job(name: JobName) -> Job:
    return Job(
        company_id=name.company_id,
        id=name.job_id,
        type="work",
        queue="default",
        priority=5,
        status=Status.PENDING,
        payload="{}",
        result=None,
        error=None,
        retry_count=0,
        max_retries=5,
        timeout_seconds=None,
        run_after=NOON,
        created_at=NOON,
        started_at=None,
        finished_at=None,
        expires_at=None,
        event_number=1,
        request_id=None,
        reserved_at=NOON,
    )


@dataclass
class Shelf:
    """Jobs as their broker would know them."""

    jobs: dict[UUID, Job] = field(default_factory=dict)
    refunds: list[JobName] = field(default_factory=list)

    async def job(self, company_id: UUID, job_id: UUID) -> Job | None:
        found = self.jobs.get(job_id)
        return found if found and found.company_id == company_id else None

    async def due_refunds(self, *, most: int = 1_000) -> list[JobName]:
        return self.refunds[:most]

    async def drop_refunds(self, jobs: Sequence[JobName]) -> None:
        self.refunds = [name for name in self.refunds if name not in jobs]


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
    name = JobName(acme.id, uuid4())
    await quotas.reserve(database, "acme", [name.job_id], at=NOON)
    refunded = await asyncio.gather(*[quotas.refund(database, [name, JobName(acme.id, uuid4())]) for _ in range(8)])
    assert sorted(refunded) == [0] * 7 + [1]
    await Tally(database).step()
    assert await quotas.refund(database, [name]) == 0
    assert await counts(database) == (1, 1)


async def test_a_job_that_is_run_again_by_hand_is_charged_once_more(database: Database, acme: Company) -> None:
    """Fault 085: the failure of the second run gives the second charge back, and the first stands."""
    name = JobName(acme.id, uuid4())
    await quotas.reserve(database, "acme", [name.job_id], at=NOON)
    await quotas.confirm(database, [name])
    again = await quotas.reserve(database, "acme", [name.job_id], at=NOON + HOUR)
    assert again.reserved_at == NOON + HOUR
    assert (await counts(database), await counts(database, at=NOON + HOUR)) == ((1, 0), (1, 0))
    assert await quotas.refund(database, [name]) == 1
    assert (await counts(database), await counts(database, at=NOON + HOUR)) == ((1, 0), (1, 1))
    assert await database.call("audit_quotas", None, 10, NOON) == [(acme.id, 0)]


async def test_a_job_that_never_arrived_is_given_back_and_one_that_did_is_not(
    database: Database, acme: Company
) -> None:
    arrived, lost, young = (JobName(acme.id, uuid4()) for _ in range(3))
    shelf = Shelf(jobs={arrived.job_id: job(arrived)})
    await quotas.reserve(database, "acme", [arrived.job_id, lost.job_id], at=NOON)
    await quotas.reserve(database, "acme", [young.job_id], at=NOON + timedelta(minutes=5))
    duty = JobRefunds(database, shelf)
    await duty.step(at=NOON + timedelta(minutes=5))
    assert await counts(database) == (3, 1)
    shelf.jobs.clear()
    await duty.step(at=NOON + timedelta(minutes=5))
    assert await counts(database) == (3, 1), "what has arrived once is not asked for again"
    await duty.step(at=NOON + timedelta(minutes=7))
    assert await counts(database) == (3, 2)


async def test_refunds_wait_with_the_jobs_broker_until_they_are_made(database: Database, acme: Company) -> None:
    name = JobName(acme.id, uuid4())
    await quotas.reserve(database, "acme", [name.job_id], at=NOON)
    await quotas.confirm(database, [name])
    shelf = Shelf(refunds=[name])
    away = Database("postgresql://taketurns@127.0.0.1:1/taketurns", pool_timeout=0.05)
    await away.open()
    try:
        with pytest.raises(Exception, match="no connection"):
            await JobRefunds(away, shelf).step()
    finally:
        await away.close()
    assert shelf.refunds == [name]
    assert await JobRefunds(database, shelf, every_seconds=7).step() == 7
    assert shelf.refunds == []
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
