"""Unique keys: one task at a time, whoever submits at once, and freed by every end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from uuid import UUID, uuid4

import pytest

from taketurns.engine.errors import IdempotencyConflict, QueueFull, QuotaExceeded, UniqueKeyTaken
from taketurns.engine.task import ClaimedTask, Enqueued, NewTask, OnConflict, Outcome, Report, Status, Unique
from tests.brokers.cell import reports
from tests.brokers.postgres.cell import PostgresCell
from tests.brokers.postgres.connections import is_waiting, other_connection, wait_until
from tests.keeping import NOT_AT_ALL


def unique_task(
    on_conflict: OnConflict = OnConflict.REJECT, *, key: str = "sync", seconds: float | None = None, request: str = ""
) -> NewTask:
    return NewTask(
        type="work",
        payload="{}",
        unique=Unique(key, seconds, on_conflict),
        idempotency_key=request or None,
        fingerprint=request.encode() or None,
    )


async def submit(cell: PostgresCell, task: NewTask) -> Enqueued:
    (made,) = await cell.broker.enqueue("acme", [task])
    return made


async def claim(cell: PostgresCell) -> ClaimedTask:
    (task,) = await cell.broker.claim(UUID(int=1), queues=["default"], batch=1)
    return task


@pytest.fixture
def cell(cell: PostgresCell) -> PostgresCell:
    cell.add_company("acme")
    return cell


async def completed(cell: PostgresCell, task_id: UUID) -> None:
    await cell.broker.settle(reports([await claim(cell)]))


async def failed_after_its_last_retry(cell: PostgresCell, task_id: UUID) -> None:
    await cell.broker.settle([Report(await claim(cell), Outcome.RETRY, error="busy", delay_seconds=0)])
    with pytest.raises(UniqueKeyTaken):
        await submit(cell, unique_task())
    await cell.broker.promote()
    await cell.broker.settle(reports([await claim(cell)], Outcome.FAILED))


async def cancelled_while_it_waits(cell: PostgresCell, task_id: UUID) -> None:
    assert await cell.broker.cancel("acme", task_id) is Status.CANCELLED


async def cancelled_while_it_runs(cell: PostgresCell, task_id: UUID) -> None:
    await claim(cell)
    assert await cell.broker.cancel("acme", task_id) is Status.CANCELLED


async def lost_with_its_workers(cell: PostgresCell, task_id: UUID) -> None:
    await claim(cell)
    await cell.broker.rescue(UUID(int=1), watched_beat=None, max_rescues=0)
    assert cell.status(task_id) is Status.FAILED


async def forgotten(cell: PostgresCell, task_id: UUID) -> None:
    await completed(cell, task_id)
    await cell.broker.prune(NOT_AT_ALL)
    assert cell.rows("select * from unique_keys") == []


async def removed_by_hand(cell: PostgresCell, task_id: UUID) -> None:
    cell.connection.execute("delete from tasks where id = %s", (task_id,))
    cell.connection.execute("delete from pending_tasks where task_id = %s", (task_id,))


# Faults 071 and 072.
@pytest.mark.parametrize(
    "end",
    [
        completed,
        failed_after_its_last_retry,
        cancelled_while_it_waits,
        cancelled_while_it_runs,
        lost_with_its_workers,
        forgotten,
        removed_by_hand,
    ],
)
async def test_every_end_frees_the_key(
    cell: PostgresCell, end: Callable[[PostgresCell, UUID], Awaitable[None]]
) -> None:
    first = await submit(cell, unique_task())
    for on_conflict in (OnConflict.REJECT, OnConflict.RETURN):
        if on_conflict is OnConflict.REJECT:
            with pytest.raises(UniqueKeyTaken) as taken:
                await submit(cell, unique_task(on_conflict))
            assert taken.value.holders == {0: first.task_id}
        else:
            held = await submit(cell, unique_task(on_conflict))
            assert (held.task_id, held.held, held.status) == (first.task_id, True, None)
    await end(cell, first.task_id)
    second = await submit(cell, unique_task())
    assert (second.held, second.replayed, second.status) == (False, False, Status.PENDING)
    assert (await claim(cell)).task_id == second.task_id
    assert cell.contradictions() == []


async def test_of_fifty_at_once_one_is_made(cell: PostgresCell) -> None:
    made = await asyncio.gather(*(submit(cell, unique_task(OnConflict.RETURN)) for _ in range(50)))
    assert len({task.task_id for task in made}) == 1
    assert sum(not task.held for task in made) == 1
    refused = await asyncio.gather(*(submit(cell, unique_task()) for _ in range(50)), return_exceptions=True)
    assert all(isinstance(one, UniqueKeyTaken) for one in refused)
    assert cell.standing() == {Status.PENDING: 1}


async def test_of_fifty_that_replace_each_other_one_waits(cell: PostgresCell) -> None:
    made = await asyncio.gather(*(submit(cell, unique_task(OnConflict.REPLACE)) for _ in range(50)))
    assert len({task.task_id for task in made}) == 50
    assert cell.standing() == {Status.PENDING: 1, Status.CANCELLED: 49}
    assert cell.contradictions() == []


async def test_submitters_claims_and_ends_that_race_never_leave_two(cell: PostgresCell) -> None:
    chance = random.Random(7)
    keys = ["one", "two", "three"]

    async def submit_some() -> None:
        for _ in range(40):
            task = unique_task(chance.choice(list(OnConflict)), key=chance.choice(keys))
            try:
                await submit(cell, task)
            except UniqueKeyTaken:
                continue

    async def run_some() -> None:
        for _ in range(40):
            held = await cell.broker.claim(uuid4(), queues=["default"], batch=2)
            twice = cell.rows(
                "select t.unique_key from tasks t where t.finished_at is null group by 1 having count(*) > 1"
            )
            assert twice == []
            await cell.broker.settle(reports(held, chance.choice([Outcome.COMPLETED, Outcome.FAILED])))

    await asyncio.gather(*(submit_some() for _ in range(6)), *(run_some() for _ in range(3)))
    assert cell.contradictions() == []


async def test_another_company_and_another_key_are_not_in_the_way(cell: PostgresCell) -> None:
    cell.add_company("other")
    await submit(cell, unique_task())
    await submit(cell, unique_task(key="else"))
    await cell.broker.enqueue("other", [unique_task()])
    assert cell.standing() == {Status.PENDING: 3}


async def test_what_is_replaced_is_cancelled_and_gives_its_charge_back(cell: PostgresCell) -> None:
    cell.set_quotas("acme", hour=2)
    first = await submit(cell, unique_task())
    second = await submit(cell, unique_task(OnConflict.REPLACE))
    assert cell.status(first.task_id) is Status.CANCELLED
    assert [move.kind for move in cell.history(first.task_id)] == ["created", "cancelled"]
    assert cell.status(second.task_id) is Status.PENDING
    assert cell.rows("select reserved from quota_usage where period = 'hour'") == [(2,)]
    assert cell.rows("select sum(refunded) from quota_changes") == [(1,)]
    assert cell.contradictions() == []


async def test_a_quota_that_is_used_up_leaves_what_would_have_been_replaced(cell: PostgresCell) -> None:
    cell.set_quotas("acme", hour=1)
    first = await submit(cell, unique_task())
    with pytest.raises(QuotaExceeded):
        await submit(cell, unique_task(OnConflict.REPLACE))
    assert cell.status(first.task_id) is Status.PENDING
    with pytest.raises(UniqueKeyTaken):
        await submit(cell, unique_task())
    assert cell.contradictions() == []


async def test_one_that_runs_is_not_replaced(cell: PostgresCell) -> None:
    await submit(cell, unique_task())
    running = await claim(cell)
    with pytest.raises(UniqueKeyTaken) as taken:
        await submit(cell, unique_task(OnConflict.REPLACE))
    assert taken.value.holders == {0: running.task_id}
    assert cell.standing() == {Status.PROCESSING: 1}


async def test_one_that_starts_while_it_is_to_be_replaced_is_not(cell: PostgresCell) -> None:
    """The claim has it in hand, and has not committed, when the other one looks."""
    cell.set_quotas("acme", hour=5)
    first = await submit(cell, unique_task())
    with other_connection(cell) as claiming, other_connection(cell) as submitting, ThreadPoolExecutor(1) as thread:
        with claiming.transaction():
            assert [turn.task_id for turn in cell.take(1, on=claiming)] == [first.task_id]
            replacing = thread.submit(
                submitting.execute,
                "select outcome, task_id from enqueue('acme', %s, array['work'], array['{}'], array['default'],"
                " array[5]::smallint[], null, null, array[0], null, uniques => array['sync'],"
                " unique_seconds => null, on_conflicts => array['replace'])",
                ([uuid4()],),
            )
            wait_until(lambda: is_waiting(cell, submitting))
        assert replacing.result().fetchall() == [("taken", first.task_id)]
    assert cell.standing() == {Status.PROCESSING: 1}
    assert cell.contradictions() == []
    with pytest.raises(UniqueKeyTaken):
        await submit(cell, unique_task())


async def test_a_window_outlasts_completion_but_not_a_failure(cell: PostgresCell) -> None:
    hour = unique_task(OnConflict.RETURN, seconds=3600)
    first = await submit(cell, hour)
    await cell.broker.settle(reports([await claim(cell)]))
    assert (await submit(cell, hour)).task_id == first.task_id
    with pytest.raises(UniqueKeyTaken, match="at its end or after its uniqueSeconds"):
        await submit(cell, unique_task(OnConflict.REPLACE))
    cell.connection.execute("update unique_keys set expires_at = clock_timestamp()")
    second = await submit(cell, hour)
    assert second.task_id != first.task_id
    await cell.broker.settle(reports([await claim(cell)], Outcome.FAILED))
    assert not (await submit(cell, hour)).held


async def test_a_replayed_request_asks_for_no_unique_key(cell: PostgresCell) -> None:
    first = await submit(cell, unique_task(request="r"))
    again = await submit(cell, unique_task(request="r"))
    assert (again.task_id, again.replayed, again.held) == (first.task_id, True, False)
    with pytest.raises(UniqueKeyTaken):
        await submit(cell, unique_task(request="other"))
    assert cell.rows("select key from idempotency_keys") == [("r",)]


async def test_an_idempotency_key_stands_for_the_task_that_was_held(cell: PostgresCell) -> None:
    first = await submit(cell, unique_task())
    held = await submit(cell, unique_task(OnConflict.RETURN, request="r"))
    await cell.broker.cancel("acme", first.task_id)
    again = await submit(cell, unique_task(OnConflict.RETURN, request="r"))
    assert (held.held, again.replayed) == (True, True)
    assert held.task_id == again.task_id == first.task_id
    with pytest.raises(IdempotencyConflict):
        await cell.broker.enqueue("acme", [NewTask(type="w", payload="{}", idempotency_key="r", fingerprint=b"x")])


async def test_a_batch_is_all_or_none(cell: PostgresCell) -> None:
    first = await submit(cell, unique_task(key="one"))
    tasks = [unique_task(key="two"), unique_task(key="one"), NewTask(type="work", payload="{}")]
    with pytest.raises(UniqueKeyTaken) as taken:
        await cell.broker.enqueue("acme", tasks)
    assert taken.value.holders == {1: first.task_id}
    assert cell.standing() == {Status.PENDING: 1}
    tasks[1] = unique_task(OnConflict.RETURN, key="one")
    made = await cell.broker.enqueue("acme", tasks)
    assert [task.held for task in made] == [False, True, False]
    assert cell.standing() == {Status.PENDING: 3}


async def test_what_is_replaced_gives_its_place_in_a_full_queue(cell: PostgresCell) -> None:
    await submit(cell, unique_task(key="one"))
    await submit(cell, unique_task(key="two"))
    for most in (2, 1, 0):  # fewer than wait already, in the end
        cell.set_max_queued("acme", most)
        await submit(cell, unique_task(OnConflict.REPLACE, key="one"))
    assert cell.standing() == {Status.PENDING: 2, Status.CANCELLED: 3}
    with pytest.raises(QueueFull):
        await submit(cell, unique_task(OnConflict.REPLACE, key="three"))
    assert cell.contradictions() == []


async def test_of_a_batch_that_replaces_and_adds_only_what_it_adds_needs_room(cell: PostgresCell) -> None:
    first = await submit(cell, unique_task(key="one"))
    cell.set_max_queued("acme", 2)
    replacing, adding = unique_task(OnConflict.REPLACE, key="one"), NewTask(type="work", payload="{}")
    with pytest.raises(QueueFull) as refused:
        await cell.broker.enqueue("acme", [replacing, adding, unique_task(key="two")])
    assert refused.value.wanted == 2
    assert cell.standing() == {Status.PENDING: 1}
    assert cell.status(first.task_id) is Status.PENDING
    await cell.broker.enqueue("acme", [replacing, adding])
    assert cell.standing() == {Status.PENDING: 2, Status.CANCELLED: 1}
    cell.set_max_queued("acme", 3)
    await submit(cell, unique_task(key="two"))
    assert cell.contradictions() == []


async def test_submitters_that_replace_never_fill_a_queue_beyond_its_limit(cell: PostgresCell) -> None:
    chance = random.Random(11)
    cell.set_max_queued("acme", 3)

    async def submit_some() -> None:
        for _ in range(30):
            batch = [
                unique_task(OnConflict.REPLACE, key=key) for key in chance.sample("abcdef", k=chance.choice([1, 2]))
            ]
            with suppress(QueueFull, UniqueKeyTaken):
                await cell.broker.enqueue("acme", batch)
            assert len(cell.rows("select from pending_tasks")) <= 3

    async def run_some() -> None:
        for _ in range(30):
            await cell.broker.settle(reports(await cell.broker.claim(uuid4(), queues=["default"], batch=1)))

    await asyncio.gather(*(submit_some() for _ in range(5)), run_some())
    assert cell.contradictions() == []


async def test_one_that_is_run_again_needs_its_key_free(cell: PostgresCell) -> None:
    first = await submit(cell, unique_task())
    await cell.broker.cancel("acme", first.task_id)
    second = await submit(cell, unique_task())
    with pytest.raises(UniqueKeyTaken) as taken:
        await cell.broker.retry("acme", first.task_id)
    assert taken.value.holders == {0: second.task_id}
    assert cell.status(first.task_id) is Status.CANCELLED
    await cell.broker.cancel("acme", second.task_id)
    await cell.broker.retry("acme", first.task_id)
    with pytest.raises(UniqueKeyTaken):
        await submit(cell, unique_task())
    assert cell.contradictions() == []


async def test_tags_are_kept_and_forgotten_with_the_task(cell: PostgresCell) -> None:
    tags = ("eu", "tenant:7", 'a"b', "c\\d")
    await cell.broker.enqueue("acme", [NewTask(type="work", payload="{}", tags=tags), NewTask(type="w", payload="{}")])
    assert {row[0] and tuple(row[0]) for row in cell.rows("select tags from tasks")} == {tags, None}
    assert {row[0] for row in cell.rows("select tag from task_tags")} == set(tags)
    for _ in range(2):
        await completed(cell, uuid4())
    await cell.broker.prune(NOT_AT_ALL)
    assert cell.rows("select * from task_tags") == []


async def test_the_end_of_a_task_with_tags_and_a_key_is_a_heap_only_update(cell: PostgresCell) -> None:
    await cell.broker.enqueue("acme", [NewTask(type="work", payload="{}", tags=("eu", "vip"), unique=Unique("sync"))])
    assert cell.finish(cell.take(1)) == 1
    cell.connection.execute("select pg_stat_force_next_flush()")
    assert cell.rows("select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relname = 'tasks'") == [(1, 1)]
