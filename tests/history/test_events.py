"""The history of a task is whole: numbered without gaps, in order, and its newest event has the task's status."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from taketurns.companies import directory
from taketurns.engine.task import ClaimedTask, Outcome, Status
from taketurns.history import events, tasks
from taketurns.history.events import Event, Spent
from tests.history.conftest import Life

NOW = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)


async def history(life: Life, task_id: UUID, *, after: int = 0, most: int = 1000) -> list[Event]:
    found = await events.of_task(life.database, life.company_id, task_id, after=after, most=most)
    assert found is not None
    return found


def kinds(found: list[Event]) -> list[str]:
    return [event.kind for event in found]


async def test_a_smooth_life_is_created_claimed_completed(life: Life) -> None:
    (task,) = await life.create(at=NOW)
    (claimed,) = await life.claim(at=NOW + timedelta(seconds=1))
    await life.end([claimed], at=NOW + timedelta(seconds=2))
    created, claim, completed = await history(life, task)
    assert created == Event(1, "created", Status.PENDING, NOW, NOW)
    assert claim.number == 2
    assert (claim.kind, claim.status, claim.at) == ("claimed", Status.PROCESSING, NOW + timedelta(seconds=1))
    assert completed.number == 3
    assert (completed.kind, completed.status, completed.at) == (
        "completed",
        Status.COMPLETED,
        NOW + timedelta(seconds=2),
    )
    assert claim.worker_id == completed.worker_id
    assert claim.worker_id is not None


async def test_a_retry_tells_why_and_until_when(life: Life) -> None:
    (task,) = await life.create(at=NOW)
    await life.end(await life.claim(at=NOW), Outcome.RETRY, delay_seconds=90, at=NOW)
    retried = (await history(life, task))[-1]
    assert (retried.kind, retried.status, retried.error) == ("retried", Status.SCHEDULED, "went wrong")
    assert retried.run_after == NOW + timedelta(seconds=90)


async def test_a_promoted_task_is_pending_by_its_newest_event(life: Life) -> None:
    (task,) = await life.create(delay_seconds=10, at=NOW)
    assert (await history(life, task))[-1].status is Status.SCHEDULED
    await life.broker.promote(at=NOW + timedelta(seconds=11))
    (created,) = await history(life, task)
    assert (created.kind, created.status) == ("created", Status.PENDING)


async def test_those_of_many_tasks_are_told_together_as_of_each_alone(life: Life) -> None:
    made = await life.create(count=6, at=NOW)
    held = await life.claim(5, at=NOW)
    await life.end(held[:2], at=NOW)
    await life.end(held[2:4], Outcome.RETRY, delay_seconds=0, at=NOW)
    await life.broker.promote(at=NOW + timedelta(seconds=1))
    await life.end(await life.claim(10, at=NOW), Outcome.FAILED, at=NOW)
    told: dict[UUID, list[Event]] = {}
    for most in (1, 2, 3, 100):
        told = await events.of_tasks(life.database, life.company_id, [*made, uuid4()], most=most)
        assert told == {task: (await history(life, task))[:most] for task in made}
    assert {len(told[task]) for task in made} == {2, 3, 5}
    assert await events.of_tasks(life.database, uuid4(), made, most=10) == {}


@pytest.mark.parametrize("seed", range(12))
async def test_every_life_is_told_without_gaps(life: Life, seed: int) -> None:
    chance = random.Random(seed)
    (task,) = await life.create(delay_seconds=chance.choice([None, 5]), at=NOW)
    at = NOW
    held: list[ClaimedTask] = []
    told: list[Event] = []
    for _ in range(25):
        at += timedelta(seconds=10)
        await life.broker.promote(at=at)
        match chance.choice(["claim", "claim", "end", "release", "rescue", "cancel", "retry"]):
            case "claim" if not held:
                held = await life.claim(at=at)
            case "end" if held:
                await life.end(held, chance.choice(list(Outcome)), delay_seconds=5, at=at)
                held = []
            case "release" if held:
                await life.broker.release(held, at=at)
                held = []
            case "rescue" if held:
                (lost,) = await life.database.call("rescue", (await _worker(life, task)), None, 3, at)
                assert lost[1] == task
                held = []
            case "cancel":
                await life.broker.cancel("acme", task, at=at)
                held = []
            case "retry":
                await life.broker.retry("acme", task, at=at)
        before, told = told, await history(life, task)
        record = await tasks.find(life.database, life.company_id, task)
        assert record is not None
        assert [event.number for event in told] == list(range(1, record.event_number + 1))
        assert told[-1].status is record.status
        assert [(event.number, event.kind, event.at) for event in told][: len(before)] == [
            (event.number, event.kind, event.at) for event in before
        ]
        assert [event.at for event in told] == sorted(event.at for event in told)


async def _worker(life: Life, task: UUID) -> UUID:
    record = await tasks.find(life.database, life.company_id, task)
    assert record is not None
    assert record.worker_id is not None
    return record.worker_id


async def test_events_are_paged_by_their_numbers(life: Life) -> None:
    (task,) = await life.create(at=NOW)
    for _ in range(5):
        await life.end(await life.claim(at=NOW), Outcome.FAILED, at=NOW)
        await life.broker.retry("acme", task, at=NOW)
    everything = await history(life, task)
    assert len(everything) == 16
    for most in (1, 2, 3, 7, 15, 16):
        found: list[Event] = []
        while page := await history(life, task, after=found[-1].number if found else 0, most=most):
            assert len(page) <= most
            found += page
        assert found == everything


async def test_a_task_belongs_to_its_company_alone(life: Life) -> None:  # fault 039
    (task,) = await life.create()
    other = await directory.create(life.database, name="Other")
    for company in (other.id, other.slug, uuid4()):
        assert await events.of_task(life.database, company, task, most=10) is None
    assert await events.of_task(life.database, life.company_id, uuid4(), most=10) is None


async def test_a_life_divides_into_waits_for_a_time_and_for_turns_and_the_time_in_hands(life: Life) -> None:
    def at(seconds: float) -> datetime:
        return NOW + timedelta(seconds=seconds)

    (task,) = await life.create(delay_seconds=60, at=NOW)
    assert events.spent(await history(life, task), until=at(20)) == Spent(scheduled=20)
    await life.broker.promote(at=at(61))
    assert events.spent(await history(life, task), until=at(70)) == Spent(scheduled=60, due=10)
    await life.end(await life.claim(at=at(75)), Outcome.RETRY, delay_seconds=30, at=at(80))
    await life.broker.promote(at=at(111))
    (claimed,) = await life.claim(at=at(112))
    assert events.spent(await history(life, task), until=at(115)) == Spent(scheduled=90, due=17, running=8)
    await life.end([claimed], Outcome.FAILED, at=at(120))
    whole = Spent(scheduled=90, due=17, running=13)
    assert events.spent(await history(life, task), until=at(500)) == whole
    assert whole.total == 120
    assert events.spent(await history(life, task), until=at(0)) == whole  # a clock that is behind takes nothing away
