"""Nothing is kept for ever: ended jobs have their time, and every trace of them goes with them."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from uuid import UUID

from taketurns.brokers.redis import RedisBroker
from taketurns.engine.job import Charge, JobName
from taketurns.engine.task import NewTask, Outcome, Report, Status
from tests.brokers.cell import ids, keyed_task, new_tasks
from tests.brokers.redis.cell import RedisCell
from tests.keeping import kept
from tests.waiting import eventually

WORKER = UUID(int=1)
DAY = timedelta(days=1)


async def through_all_states(cell: RedisCell, count: int) -> None:
    """Jobs that were retried, released and rescued before they ended in every way."""
    chance = random.Random(3)
    cell.add_company("acme")
    for start in range(0, count, 50):
        await cell.broker.enqueue("acme", [keyed_task(f"k{start + place}") for place in range(50)])
    for _ in range(3):
        held = await cell.broker.claim(WORKER, queues=["default"], batch=count // 3)
        await cell.broker.release(held[::2])
        await cell.broker.rescue(WORKER, watched_beat=None, max_rescues=3)
        await cell.broker.promote(at=datetime.now(UTC) + DAY)
    while held := await cell.broker.claim(WORKER, queues=["default"], batch=100):
        told = [Report(task, chance.choice(list(Outcome)), delay_seconds=0) for task in held]
        await cell.broker.settle(told)
        await cell.broker.promote()


# Fault 142.
async def test_jobs_that_ended_are_kept_for_their_time_whatever_they_went_through(cell: RedisCell) -> None:
    await through_all_states(cell, 300)
    assert cell.standing().keys() == {Status.COMPLETED, Status.FAILED, Status.CANCELLED}
    assert cell.contradictions() == []
    (company,) = cell.client.smembers(cell.key("companies"))
    async for ids_of_some in cell.broker.job_ids(UUID(company)):
        for job_id in ids_of_some:
            job = await cell.broker.job(UUID(company), job_id)
            assert job is not None
            assert job.finished_at is not None
            assert job.expires_at == job.finished_at + (DAY if job.status is Status.COMPLETED else 7 * DAY)


async def test_a_job_that_is_run_again_is_not_forgotten_meanwhile(cell: RedisCell) -> None:
    company = cell.add_company("acme")
    (job_id,) = ids(await cell.broker.enqueue("acme", new_tasks()))
    (task,) = await cell.broker.claim(WORKER, queues=["default"], batch=1)
    await cell.broker.settle([Report(task, Outcome.FAILED, error="broken")])
    assert await cell.broker.dead_letters() == [JobName(company, job_id)]
    job = await cell.broker.job(company, job_id)
    assert job is not None
    assert job.finished_at is not None
    assert job.expires_at == job.finished_at + 7 * DAY
    await cell.broker.retry("acme", job_id)
    assert await cell.broker.dead_letters() == []
    again = await cell.broker.job(company, job_id)
    assert again is not None
    assert (again.finished_at, again.expires_at) == (None, None)
    assert cell.contradictions() == []


# Faults 142 and 155.
async def test_nothing_but_companies_is_left_when_the_time_of_all_jobs_is_up(cell: RedisCell) -> None:
    short = timedelta(milliseconds=1)
    cell.broker = RedisBroker(cell.broker.server, completed_lifetime=short, stopped_lifetime=short, key_lifetime=short)
    await through_all_states(cell, 100)
    (company,) = cell.client.smembers(cell.key("companies"))
    gone = list(cell.client.hkeys(cell.key("jobs", company)))
    assert len(gone) == 100
    await eventually(lambda: not any(cell.status(UUID(job_id)) for job_id in gone))
    for _ in range(3):
        await cell.broker.prune(kept(DAY))
    await cell.broker.claim(WORKER, queues=["default"], batch=1)
    await cell.broker.prune(kept(DAY))
    await cell.broker.beats()
    left = set(cell.client.scan_iter(match=f"{cell.prefix}:*", count=10_000))
    assert left == {cell.key(name) for name in ("companies", "slugs", "weight", "kept", f"company:{company}")}


async def test_a_company_that_is_forgotten_leaves_nothing(cell: RedisCell) -> None:
    cell.add_company("acme")
    cell.add_company("globex")
    for slug in ("acme", "globex"):
        await cell.broker.enqueue(slug, [*new_tasks(20), *new_tasks(5, delay_seconds=60), *new_tasks(3, queue="bulk")])
    held = await cell.broker.claim(WORKER, queues=["default"], batch=10)
    await cell.broker.settle([Report(task, Outcome.FAILED) for task in held[:4]])
    cell.delete_company("acme")
    acme = next(company for company in {task.company_id for task in held} if cell.slug_of(company) == "acme")
    assert not [key for key in cell.client.scan_iter(match=f"{cell.prefix}:*") if str(acme) in key]
    assert cell.contradictions() == []
    mine = {task.task_id for task in held[4:] if task.company_id != acme}
    assert await cell.broker.settle([Report(task, Outcome.COMPLETED) for task in held[4:]]) == mine
    assert await cell.broker.cancel("acme", held[0].task_id) is None


# Fault 139.
async def test_a_history_is_in_order_whoever_writes_it(cell: RedisCell) -> None:
    company = cell.add_company("acme")
    (job_id,) = ids(await cell.broker.enqueue("acme", new_tasks()))

    async def work() -> None:
        for _ in range(20):
            await cell.broker.release(await cell.broker.claim(WORKER, queues=["default"], batch=1))

    async def cancel() -> None:
        while not (job := await cell.broker.job(company, job_id)) or job.event_number < 30:
            pass
        await cell.broker.cancel("acme", job_id)

    await asyncio.gather(cancel(), *[work() for _ in range(10)])
    events = await cell.broker.job_events(company, job_id)
    assert events is not None
    assert [event.number for event in events] == list(range(1, len(events) + 1))
    assert events[-1].kind == "cancelled"
    assert Counter(event.kind for event in events)["cancelled"] == 1
    assert await cell.broker.job_events(company, job_id, after=28) == events[28:]
    assert [move.at for move in events] == sorted(move.at for move in events)


async def test_quotas_are_to_be_given_back_for_jobs_that_failed_or_never_started(cell: RedisCell) -> None:
    company = cell.add_company("acme")
    reserved_at = (await cell.broker.enqueue("acme", new_tasks(queue="other")))[0].created_at
    tasks = [NewTask(type="work", payload="{}", reserved_at=reserved_at) for _ in range(4)]
    failed, completed, stopped, waiting = ids(await cell.broker.enqueue("acme", tasks))
    claimed = await cell.broker.claim(WORKER, queues=["default"], batch=3)
    outcomes = dict(zip((failed, completed), (Outcome.FAILED, Outcome.COMPLETED), strict=True))
    await cell.broker.settle([Report(task, outcomes[task.task_id]) for task in claimed if task.task_id in outcomes])
    for job_id in (stopped, waiting):
        await cell.broker.cancel("acme", job_id)
    assert reserved_at is not None
    due = [Charge(company, failed, reserved_at), Charge(company, waiting, reserved_at)]
    assert await cell.broker.due_refunds() == due
    await cell.broker.drop_refunds(due[:1])
    assert await cell.broker.due_refunds() == due[1:]
    job = await cell.broker.job(company, failed)
    assert job is not None
    assert job.reserved_at == reserved_at
