"""A waiting task knows why it waits: the first reason that holds, found at a bounded cost."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from taketurns.companies import directory, pauses
from taketurns.engine.rate import Rate
from taketurns.engine.task import NewTask, Outcome
from taketurns.history import why
from taketurns.history.why import Reason, Waiting
from tests.history.conftest import Life


async def reason(life: Life, task_id: UUID, *, at: datetime | None = None) -> Waiting:
    waiting = await why.read(life.database, life.company_id, task_id, at=at)
    assert waiting is not None
    return waiting


async def another(life: Life, slug: str, *, tasks: int = 1) -> Life:
    company = await directory.create(life.database, name=slug, slug=slug)
    other = Life(life.database, life.broker, company.id)
    if tasks:
        await other.create(tasks)
    return other


async def test_a_task_that_is_not_due_waits_for_its_time(life: Life) -> None:
    at = datetime.now(UTC)
    (task,) = await life.create(delay_seconds=60, at=at)
    told = await reason(life, task, at=at + timedelta(seconds=20))
    assert (told.reason, told.until) == (Reason.NOT_DUE, at + timedelta(seconds=60))
    assert (told.facts.scheduled_seconds, told.facts.pending_seconds) == (20, 0)
    await another(life, "other")
    told = await reason(life, task, at=at)
    assert told.facts.turns_ahead <= 1  # a company that has no turn comes back to where the rotation is


async def test_the_wait_divides_into_the_part_before_it_was_due_and_the_part_after(life: Life) -> None:
    at = datetime.now(UTC)
    (task,) = await life.create(delay_seconds=60, at=at)
    await life.broker.promote(at=at + timedelta(seconds=61))
    told = await reason(life, task, at=at + timedelta(seconds=90))
    assert (told.facts.scheduled_seconds, told.facts.pending_seconds) == (60, 30)


async def test_the_wait_for_a_retry_begins_with_the_end_of_the_attempt_before(life: Life) -> None:
    at = datetime.now(UTC)
    (task,) = await life.create(at=at)
    claimed = await life.claim(at=at + timedelta(seconds=5))
    await life.end(claimed, Outcome.RETRY, delay_seconds=30, at=at + timedelta(seconds=10))
    told = await reason(life, task, at=at + timedelta(seconds=15))
    assert (told.reason, told.facts.scheduled_seconds, told.facts.pending_seconds) == (Reason.NOT_DUE, 5, 0)


async def test_a_task_of_a_paused_company_waits_for_that(life: Life) -> None:
    (task,) = await life.create()
    await life.add_worker()
    await directory.change(life.database, life.company_id, {"paused": True})
    told = await reason(life, task)
    assert (told.reason, told.of) == (Reason.PAUSED, "company")


@pytest.mark.parametrize(
    ("queues", "types", "age_seconds", "of"),
    [
        (["mail"], ["work"], 0, "queue"),
        (["default"], ["other"], 0, "type"),
        (["default"], ["work"], 61, "queue"),
        (["default", "mail"], ["other", "work"], 50, None),
    ],
)
async def test_a_task_that_no_living_worker_serves_waits_for_one(
    life: Life, queues: Sequence[str], types: Sequence[str], age_seconds: float, of: str | None
) -> None:
    (task,) = await life.create()
    await life.add_worker(queues=queues, types=types, age_seconds=age_seconds)
    told = await reason(life, task)
    assert told.of == of
    assert told.reason is (Reason.NEXT_TURN if of is None else Reason.NO_WORKER_FOR)


async def test_a_queue_is_served_between_two_passes_that_come_again(life: Life) -> None:
    (task,) = await life.create()
    await life.execute(
        "insert into heartbeats (name, id, kind, comes_again, host, version, queues, types, concurrency, started_at,"
        " beat_at) values ('pass', gen_random_uuid(), 'pass', true, 'host', '0.1.0', '{default}', 1, 1,"
        " now() - interval '1 hour', now() - interval '1 hour')"
    )
    assert (await reason(life, task)).reason is Reason.NEXT_TURN


async def test_a_task_that_was_set_aside_waits_for_a_worker_of_its_type(life: Life) -> None:
    (task,) = await life.create(type="rare")
    await life.add_worker()
    assert await life.broker.park(["rare"], queues=["default"]) == {"rare": 1}
    told = await reason(life, task)
    assert (told.reason, told.of, told.facts.queue) == (Reason.NO_WORKER_FOR, "type", "default")


async def test_a_company_at_its_limit_keeps_its_tasks_waiting(life: Life) -> None:
    _, task = await life.create(2)
    await life.add_worker()
    await life.claim(1)
    assert (await reason(life, task)).reason is Reason.NEXT_TURN
    await directory.change(life.database, life.company_id, {"max_in_flight": 1})
    assert (await reason(life, task)).reason is Reason.COMPANY_AT_LIMIT


async def test_a_company_that_has_used_its_rate_waits_for_it(life: Life) -> None:
    at = datetime.now(UTC)
    _, task = await life.create(2, at=at)
    await life.add_worker()
    await directory.change(life.database, life.company_id, {"rate": Rate(tasks=1, seconds=60, burst=1)})
    assert len(await life.claim(2, at=at)) == 1
    told = await reason(life, task, at=at + timedelta(seconds=10))
    assert (told.reason, told.until, told.facts.tasks_ahead) == (Reason.RATE_LIMITED, at + timedelta(seconds=60), 0)
    assert (await reason(life, task, at=at + timedelta(seconds=60))).reason is Reason.NEXT_TURN


@pytest.mark.parametrize(
    ("company", "queue", "type", "of"),
    [
        ("acme", "default", None, "queue"),
        (None, "default", None, "queue"),
        ("acme", None, "work", "type"),
        (None, "default", "work", "type"),
        ("other", "default", None, None),
        ("acme", "mail", "work", None),
        ("acme", "default", "rare", None),
    ],
)
async def test_what_is_paused_is_named_and_until_when(
    life: Life, company: str | None, queue: str | None, type: str | None, of: str | None
) -> None:
    await another(life, "other", tasks=0)
    (task,) = await life.create()
    await life.add_worker()
    until = datetime.now(UTC) + timedelta(hours=1)
    await pauses.put(life.database, company, queue=queue, type=type, until=until)
    told = await reason(life, task)
    assert (told.of, told.until) == (of, until if of else None)
    assert told.reason is (Reason.PAUSED if of else Reason.NEXT_TURN)
    assert (await reason(life, task, at=until)).reason is not Reason.PAUSED


async def test_the_turn_of_a_line_that_rests_is_where_it_will_come_back_to(life: Life) -> None:
    await life.add_worker()
    first, last = await life.create(2)
    await another(life, "other", tasks=3)
    await directory.change(life.database, life.company_id, {"max_in_flight": 1})
    claimed = await life.claim(3)
    assert first in {task.task_id for task in claimed}
    assert len(claimed) == 3
    told = await reason(life, last)
    assert told.reason is Reason.COMPANY_AT_LIMIT
    assert told.facts.turns_ahead <= 1


async def test_tasks_of_its_own_company_come_first_in_the_order_of_the_line(life: Life) -> None:
    await life.add_worker()
    tasks = await life.create(3)
    made = await life.broker.enqueue("acme", [NewTask(type="work", payload="{}", priority=0)])
    urgent = made[0].task_id
    await another(life, "other", tasks=5)
    assert (await reason(life, urgent)).facts.tasks_ahead == 0
    for ahead, task in enumerate(tasks, start=1):
        told = await reason(life, task)
        assert (told.reason, told.facts.tasks_ahead) == (Reason.BEHIND_OWN, ahead)


async def test_the_head_of_a_line_waits_for_the_companies_before_it(life: Life) -> None:
    await life.add_worker()
    heads: list[tuple[Life, UUID]] = [(life, (await life.create())[0])]
    for number in range(3):
        other = await another(life, f"other-{number}", tasks=0)
        heads.append((other, (await other.create())[0]))
    for ahead, (company, head) in enumerate(heads):
        told = await reason(company, head)
        assert (told.reason, told.facts.turns_ahead) == (Reason.OTHERS_TURN if ahead else Reason.NEXT_TURN, ahead)


async def test_what_is_ahead_is_counted_to_a_bound(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(why, "AHEAD_MOST", 2)
    await life.add_worker()
    for number in range(5):
        await another(life, f"other-{number}")
    *_, task = await life.create(9)
    told = await reason(life, task)
    assert told.facts.tasks_ahead == 3
    assert told.facts.turns_ahead <= 3


async def test_a_task_that_does_not_wait_has_no_reason(life: Life) -> None:
    (task,) = await life.create()
    claimed = await life.claim()
    assert await why.read(life.database, life.company_id, task) is None
    await life.end(claimed)
    assert await why.read(life.database, life.company_id, task) is None
    assert await why.read(life.database, life.company_id, uuid4()) is None


async def test_a_reason_is_of_the_company_that_was_asked_for(life: Life) -> None:
    (task,) = await life.create()
    other = await another(life, "other")
    assert await why.read(life.database, other.company_id, task) is None


async def test_a_reason_is_found_by_index_whatever_waits(life: Life) -> None:
    """What was read is counted: EXPLAIN does not show the plan of a function."""
    await life.add_worker()
    *_, task = await life.create(900)
    await another(life, "other", tasks=900)
    async with life.database.transaction() as connection:
        await connection.execute("select taketurns.why(%s, %s, 20, '1 min')", (life.company_id, task))
        cursor = await connection.execute(
            "select relname, seq_scan, idx_tup_fetch from pg_stat_xact_user_tables where relname = any (%s)",
            (["pending_tasks", "scheduled_tasks", "tasks", "task_events", "turns"],),
        )
        read = await cursor.fetchall()
    assert len(read) == 5
    assert all(scans == 0 and fetched <= 22 for _, scans, fetched in read)
