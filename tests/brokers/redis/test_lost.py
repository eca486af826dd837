"""Jobs of which something is gone from Redis: they go to the dead letters, are run by nobody, and are told of."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from taketurns import telemetry
from taketurns.engine.job import Charge, Job, JobName
from taketurns.engine.task import NewTask, Status
from taketurns.telemetry import Event
from tests.brokers.cell import ids, new_tasks
from tests.brokers.redis.cell import RedisCell

WORKER = UUID(int=1)
NOON = datetime(2030, 1, 31, 12, tzinfo=UTC)


async def add(cell: RedisCell, *, delay_seconds: float | None = None, reserved_at: datetime | None = NOON) -> UUID:
    task = NewTask(type="work", payload="{}", priority=3, delay_seconds=delay_seconds, reserved_at=reserved_at)
    (job_id,) = ids(await cell.broker.enqueue("acme", [task]))
    return job_id


async def claim(cell: RedisCell, batch: int = 1) -> list[UUID]:
    return [task.task_id for task in await cell.broker.claim(WORKER, queues=["default"], batch=batch)]


async def dead_letter(cell: RedisCell, company: UUID, job_id: UUID) -> Job:
    """What is kept of the job that was lost, and of no other."""
    assert await cell.broker.dead_letters() == [JobName(company, job_id)]
    job = await cell.broker.job(company, job_id)
    assert job is not None
    assert job.status is Status.FAILED
    assert job.error is not None
    assert job.error.startswith("job lost: ")
    assert job.finished_at is not None
    assert job.expires_at == job.finished_at + timedelta(days=7)
    assert [move.kind for move in cell.history(job_id)][-1] == "failed"
    assert cell.contradictions() == []
    return job


def lose(cell: RedisCell, company: UUID, *job_ids: UUID) -> None:
    """Drop all of these jobs but their places and their histories."""
    assert cell.client.hdel(cell.key("jobs", company), *map(str, job_ids)) == len(job_ids)


def lose_payload(cell: RedisCell, company: UUID, job_id: UUID) -> None:
    told = cell.client.hget(cell.key("jobs", company), str(job_id))
    cell.client.hset(cell.key("jobs", company), str(job_id), told.partition("\n")[0])


async def test_a_job_that_lost_its_payload_is_not_run_and_is_told(
    cell: RedisCell, caplog: pytest.LogCaptureFixture
) -> None:
    company = cell.add_company("acme")
    lost, whole = await add(cell), await add(cell, reserved_at=None)
    lose_payload(cell, company, lost)
    before = telemetry.JOBS_LOST._value.get()
    assert await claim(cell, 2) == [whole]
    job = await dead_letter(cell, company, lost)
    assert (job.type, job.queue, job.priority, job.started_at, job.reserved_at) == ("work", "default", 3, None, NOON)
    assert "payload" in (job.error or "")
    assert await cell.broker.due_refunds() == [Charge(company, lost, NOON)], "what it is charged to is known"
    assert telemetry.JOBS_LOST._value.get() == before + 1
    (told,) = [record for record in caplog.records if Event.JOB_LOST in record.getMessage()]
    assert told.levelname == "ERROR"
    assert f"company_id={company} task_id={lost}" in told.getMessage()


@pytest.mark.parametrize("delay_seconds", [None, 60.0])
async def test_a_job_of_which_only_its_place_is_left_is_a_dead_letter(
    cell: RedisCell, delay_seconds: float | None
) -> None:
    company = cell.add_company("acme")
    job_id = await add(cell, delay_seconds=delay_seconds)
    lose(cell, company, job_id)
    later = datetime.now(UTC) + timedelta(minutes=2)
    before = telemetry.JOBS_LOST._value.get()
    assert (await cell.broker.promote(at=later)).count == 0
    assert await claim(cell) == []
    job = await dead_letter(cell, company, job_id)
    known = ("work", "default", 3) if delay_seconds is None else ("unknown", "unknown", 0)
    assert (job.type, job.queue, job.priority, job.payload) == (*known, "{}")
    assert await cell.broker.due_refunds() == []
    assert telemetry.JOBS_LOST._value.get() == before + 1


async def test_a_job_of_which_nothing_is_left_is_never_run_with_another_payload(cell: RedisCell) -> None:
    company = cell.add_company("acme")
    job_id = await add(cell)
    lose(cell, company, job_id)
    assert await claim(cell) == []
    assert await cell.broker.retry("acme", job_id, reserved_at=NOON) is Status.FAILED
    assert await claim(cell) == []
    job = await dead_letter(cell, company, job_id)
    assert "payload" in (job.error or "")
    assert await cell.broker.due_refunds() == [Charge(company, job_id, NOON)], "what it is charged to is known"


async def test_a_job_that_was_lost_while_it_ran_ends_with_its_worker(cell: RedisCell) -> None:
    company = cell.add_company("acme")
    job_id, whole = await add(cell), await add(cell)
    assert await claim(cell, 2) == [job_id, whole]
    lose(cell, company, job_id)
    assert [task.task_id for task in await cell.broker.held(WORKER)] == [whole]
    (rescued,) = await cell.broker.rescue(WORKER, watched_beat=None, max_rescues=3)
    assert rescued.task_id == whole
    await dead_letter(cell, company, job_id)
    assert await claim(cell, 2) == [whole]


async def test_a_job_that_was_lost_while_it_was_set_aside_is_a_dead_letter(cell: RedisCell) -> None:
    company = cell.add_company("acme")
    gone, lost = await add(cell), await add(cell)
    lose(cell, company, gone)
    cell.add_lease(WORKER, types=["other"])
    assert await cell.broker.park(["work"], queues=["default"]) == {"work": 2}
    lose(cell, company, lost)
    cell.add_lease(WORKER, types=["work"])
    assert await cell.broker.unpark() == 2
    assert {name.job_id for name in await cell.broker.dead_letters()} == {gone, lost}
    assert cell.contradictions() == []


async def test_nothing_is_kept_of_a_job_that_was_lost_with_its_company(cell: RedisCell) -> None:
    company = cell.add_company("acme")
    for job_id in (await add(cell), await add(cell, delay_seconds=60)):
        lose(cell, company, job_id)
    cell.delete_company("acme")
    later = datetime.now(UTC) + timedelta(minutes=2)
    assert (await cell.broker.promote(at=later)).count == 0
    assert await cell.broker.dead_letters() == []
    assert not [key for key in cell.client.scan_iter(match=f"{cell.prefix}:*") if str(company) in key]


async def test_many_lost_jobs_are_put_away_a_thousand_at_a_time(cell: RedisCell) -> None:
    company = cell.add_company("acme")
    *lost, whole = ids(await cell.broker.enqueue("acme", new_tasks(1_006)))
    lose(cell, company, *lost)
    assert await claim(cell) == []
    assert len(await cell.broker.dead_letters(most=2_000)) == 1_000
    assert await claim(cell) == [whole]
    assert cell.contradictions() == []
