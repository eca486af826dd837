"""One change of many tasks: what it finds, what becomes of each, and what a crash leaves of it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from uuid import UUID, uuid4

import pytest

from taketurns.engine import limits
from taketurns.engine.errors import IdempotencyConflict, TooManyOperations, UnknownCompany
from taketurns.engine.task import NewTask, Outcome, Report, Status, Unique
from taketurns.history.tasks import Filter
from taketurns.operations import carrying, ledger
from taketurns.operations.carrying import Carrying
from taketurns.operations.ledger import Kind, NewOperation, Operation, Stage
from taketurns.storage.audit import Actor, ActorKind
from taketurns.storage.database import Database
from tests.brokers.cell import reports
from tests.brokers.postgres.cell import PostgresCell
from tests.keeping import kept

LATER = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.fixture
async def cell(database_url: str) -> AsyncIterator[PostgresCell]:
    cell = await PostgresCell.open(database_url)
    cell.add_company("acme")
    yield cell
    await cell.close()


def duty(cell: PostgresCell) -> Carrying:
    return Carrying(cell.broker.database, announce=lambda queues: None)


def hasty_duty(cell: PostgresCell) -> Carrying:
    """By a clock that runs ahead a minute a look, so that every pause and lease is over."""
    looks = count()
    began_at = datetime.now(UTC)
    return Carrying(
        cell.broker.database,
        announce=lambda queues: None,
        now=lambda: began_at + timedelta(minutes=next(looks)),
    )


async def begin(cell: PostgresCell, kind: Kind, **options: object) -> Operation:
    operation, _ = await ledger.create(cell.broker.database, "acme", NewOperation(kind=kind, **options))  # type: ignore[arg-type]
    return operation


async def stands(cell: PostgresCell, operation: Operation) -> Operation:
    found = await ledger.find(cell.broker.database, "acme", operation.id)
    assert found is not None
    return found


async def carry_on(cell: PostgresCell, operation: Operation) -> Operation:
    """To its end, whatever pauses it would make."""
    carrier = hasty_duty(cell)
    while not (now := await stands(cell, operation)).finished_at:
        await carrier.step()
    assert cell.rows("select * from operation_tasks") == []
    return now


async def add(cell: PostgresCell, number: int = 1, **options: object) -> list[UUID]:
    tasks = [NewTask(**{"type": "work", "payload": "{}", **options})] * number  # type: ignore[arg-type]
    return [made.task_id for made in await cell.broker.enqueue("acme", tasks)]


async def fail(cell: PostgresCell, number: int, error: str = "ValueError: no 7") -> list[UUID]:
    held = await cell.broker.claim(UUID(int=1), queues=["default"], batch=number)
    await cell.broker.settle([Report(task, Outcome.FAILED, error=error) for task in held])
    return [task.task_id for task in held]


def statuses(cell: PostgresCell, tasks: Sequence[UUID]) -> set[Status | None]:
    return {cell.status(task) for task in tasks}


async def test_operations_of_one_company_leave_others_alone(cell: PostgresCell) -> None:
    cell.add_company("other")
    (mine,) = await add(cell)
    (others,) = [made.task_id for made in await cell.broker.enqueue("other", [NewTask(type="work", payload="{}")])]
    over = await carry_on(cell, await begin(cell, Kind.CANCEL, task_ids=[mine, others]))
    assert (over.done, over.skipped) == (1, {"notFound": 1})
    await carry_on(cell, await begin(cell, Kind.CANCEL, wanted=Filter(types=frozenset({"work"}))))
    assert cell.status(others) is Status.PENDING


async def test_many_operations_of_one_company_do_not_hold_up_another_s(
    cell: PostgresCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carrying, "MOST", 1)
    cell.add_company("quiet")
    flood = [await begin(cell, Kind.CANCEL, task_ids=await add(cell, 5)) for _ in range(10)]
    task_ids = [made.task_id for made in await cell.broker.enqueue("quiet", [NewTask(type="work", payload="{}")] * 3)]
    new = NewOperation(kind=Kind.CANCEL, task_ids=task_ids)
    quiet, _ = await ledger.create(cell.broker.database, "quiet", new)
    for _ in range(2 * len(task_ids) + 1):
        await duty(cell).step()
    over = await ledger.find(cell.broker.database, "quiet", quiet.id)
    assert over is not None
    assert over.finished_at is not None
    done = [(await stands(cell, operation)).done for operation in flood]
    assert (max(done), sum(done)) == (1, 4)  # among themselves they take turns as well


async def test_so_many_of_a_company_go_on_at_a_time_and_no_more_however_many_ask_at_once(cell: PostgresCell) -> None:
    cell.add_company("other")
    (task_id,) = await add(cell)
    made = await asyncio.gather(
        *(begin(cell, Kind.CANCEL, task_ids=[task_id], idempotency_key=f"{number}") for number in range(30)),
        return_exceptions=True,
    )
    begun = [one for one in made if isinstance(one, Operation)]
    assert len(begun) == limits.OPERATIONS_MAX
    assert {type(one) for one in made} == {Operation, TooManyOperations}
    await ledger.create(cell.broker.database, "other", NewOperation(kind=Kind.CANCEL, task_ids=[task_id]))
    taken = {one.id for one in begun}
    again = await asyncio.gather(
        *(begin(cell, Kind.CANCEL, task_ids=[task_id], idempotency_key=f"{number}") for number in range(30)),
        return_exceptions=True,
    )
    assert {one.id for one in again if isinstance(one, Operation)} == taken
    while not (await stands(cell, begun[0])).finished_at:
        await duty(cell).step()
    await begin(cell, Kind.CANCEL, task_ids=[task_id])


async def test_many_are_cancelled_wherever_they_stand(cell: PostgresCell) -> None:
    cell.set_quotas("acme", hour=1_000)
    waiting = await add(cell, 30) + await add(cell, 20, run_after=LATER)
    assert len(await cell.broker.claim(uuid4(), queues=["default"], batch=3)) == 3
    operation = await begin(cell, Kind.CANCEL, wanted=Filter(types=frozenset({"work"})))
    assert (operation.stage, operation.matched, operation.done) == (Stage.MATCHING, 0, 0)
    late = await add(cell, 2)
    over = await carry_on(cell, operation)
    assert (over.stage, over.matched, over.done, over.skipped) == (Stage.COMPLETED, 50, 50, {})
    assert statuses(cell, waiting) == {Status.CANCELLED}
    assert statuses(cell, late) == {Status.PENDING}
    assert cell.rows("select sum(refunded) from quota_changes") == [(47,)]
    assert cell.contradictions() == []


async def test_what_is_named_is_changed_and_the_rest_is_told(cell: PostgresCell) -> None:
    (done,) = await add(cell)
    await cell.broker.settle(reports(await cell.broker.claim(uuid4(), queues=["default"], batch=1)))
    (open_one,) = await add(cell)
    over = await carry_on(cell, await begin(cell, Kind.CANCEL, task_ids=[done, open_one, open_one, uuid4()]))
    assert (over.matched, over.done, over.skipped) == (3, 1, {"completed": 1, "notFound": 1})
    assert over.filter == {"taskIds": 4}
    assert statuses(cell, [open_one]) == {Status.CANCELLED}


async def test_failed_ones_are_run_again_and_a_quota_stops_at_its_end(cell: PostgresCell) -> None:
    failed = await add(cell, 8)
    await fail(cell, 8)
    cell.set_quotas("acme", day=5)
    over = await carry_on(cell, await begin(cell, Kind.RETRY, wanted=Filter(statuses=frozenset({Status.FAILED}))))
    assert (over.done, over.skipped) == (5, {"quotaExceeded": 3})
    assert cell.standing() == {Status.PENDING: 5, Status.FAILED: 3}
    assert [move.kind for move in cell.history(failed[0])] == ["created", "claimed", "failed", "requeued"]
    assert cell.contradictions() == []


async def test_what_was_run_again_meanwhile_is_not_run_once_more(cell: PostgresCell) -> None:
    """It was found as failed; somebody ran it by hand, and it completed, before its turn came."""
    first, second = await add(cell, 2)
    await fail(cell, 2)
    operation = await begin(cell, Kind.RETRY, wanted=Filter(statuses=frozenset({Status.FAILED})))
    await duty(cell).step()
    assert (await stands(cell, operation)).stage is Stage.RUNNING
    await cell.broker.retry("acme", first)
    await cell.broker.settle(reports(await cell.broker.claim(uuid4(), queues=["default"], batch=1)))
    over = await carry_on(cell, operation)
    assert (over.done, over.skipped) == (1, {"completed": 1})
    assert (cell.status(first), cell.status(second)) == (Status.COMPLETED, Status.PENDING)


async def test_a_unique_key_that_another_has_by_now_is_respected(cell: PostgresCell) -> None:
    (first,) = await add(cell, unique=Unique("sync"))
    await fail(cell, 1)
    await add(cell, unique=Unique("sync"))
    over = await carry_on(cell, await begin(cell, Kind.RETRY, task_ids=[first]))
    assert (over.done, over.skipped) == (0, {"uniqueKeyTaken": 1})


async def test_what_waits_is_put_off_and_brought_forward(cell: PostgresCell) -> None:
    pending, scheduled = await add(cell, 3), await add(cell, 2, run_after=LATER)
    everything = Filter(statuses=frozenset({Status.PENDING, Status.SCHEDULED}))
    over = await carry_on(cell, await begin(cell, Kind.RESCHEDULE, wanted=everything, run_after=LATER))
    assert (over.done, cell.standing()) == (5, {Status.SCHEDULED: 5})
    past = datetime(2020, 1, 1, tzinfo=UTC)
    await carry_on(cell, await begin(cell, Kind.RESCHEDULE, task_ids=[*pending, *scheduled], run_after=past))
    await cell.broker.promote()
    assert cell.standing() == {Status.PENDING: 5}
    assert [move.kind for move in cell.history(pending[0])] == ["created", "rescheduled", "rescheduled"]
    assert cell.contradictions() == []


async def test_what_has_ended_is_deleted_and_its_charge_stands(cell: PostgresCell) -> None:
    cell.set_quotas("acme", hour=100)
    await add(cell, 6, tags=("eu",), unique=None)
    await cell.broker.settle(reports(await cell.broker.claim(uuid4(), queues=["default"], batch=4)))
    over = await carry_on(cell, await begin(cell, Kind.DELETE, wanted=Filter(tags=frozenset({"eu"}))))
    assert (over.matched, over.done) == (4, 4)
    assert cell.standing() == {Status.PENDING: 2}
    assert cell.rows("select count(*) from task_tags") == [(2,)]
    assert cell.contradictions() == []
    assert await cell.broker.delete("acme", uuid4()) is None


async def test_errors_that_are_alike_are_found_by_their_fingerprint(cell: PostgresCell) -> None:
    await add(cell, 5)
    alike = await fail(cell, 2, "ValueError: no 7 in 'a'") + await fail(cell, 1, "ValueError: no 81 in 'b'\n\ntrace")
    await fail(cell, 2, "TypeError: no 7")
    ((fingerprint,),) = cell.rows("select error_fingerprint from tasks where id = %s", alike[0])
    wanted = Filter(error_fingerprint=fingerprint)
    for types in (frozenset[str](), frozenset({"work", "other"})):
        wanted = Filter(error_fingerprint=fingerprint, types=types)
        new = NewOperation(kind=Kind.RETRY, wanted=wanted)
        total = await ledger.count(cell.broker.database, "acme", new)
        assert total is not None
        assert total.count == 3
    over = await carry_on(cell, await begin(cell, Kind.RETRY, wanted=wanted))
    assert over.done == 3
    assert statuses(cell, alike) == {Status.PENDING}
    assert cell.rows("select count(*) from tasks where error_fingerprint is not null") == [(2,)]


async def test_a_rate_is_kept(cell: PostgresCell) -> None:
    await add(cell, 30)
    operation = await begin(cell, Kind.CANCEL, wanted=Filter(types=frozenset({"work"})), rate=10.0)
    carrier = duty(cell)
    changed = []
    while not (now := await stands(cell, operation)).finished_at:
        ((moment,),) = cell.rows("select next_step_at from operations")
        carrier = Carrying(cell.broker.database, announce=lambda queues: None, now=lambda moment=moment: moment)  # type: ignore[misc]
        await carrier.step()
        changed.append(((await stands(cell, operation)).done, moment))
    first, last = next(moment for done, moment in changed if done == 10), changed[-1][1]
    assert now.done == 30
    assert last - first >= timedelta(seconds=2)


async def test_a_worker_comes_back_when_a_rate_lets_it_go_on(cell: PostgresCell) -> None:
    await add(cell, 2)
    carrier = duty(cell)
    assert await carrier.step() == carrying.IDLE_SECONDS
    operation = await begin(cell, Kind.CANCEL, wanted=Filter(types=frozenset({"work"})), rate=1.0)
    while (await stands(cell, operation)).done < 1:
        assert await carrier.step() == 0.0
    assert 0.0 < await carrier.step() <= 1.0
    await carry_on(cell, operation)
    assert await carrier.step() == carrying.IDLE_SECONDS


async def test_an_abort_leaves_the_rest(cell: PostgresCell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carrying, "MOST", 4)
    await add(cell, 20)
    operation = await begin(cell, Kind.CANCEL, wanted=Filter(types=frozenset({"work"})))
    carrier = duty(cell)
    while (await stands(cell, operation)).done < 4:
        await carrier.step()
    ada = Actor(kind=ActorKind.OPERATOR, name="ada")
    assert await ledger.abort(cell.broker.database, "acme", operation.id, by=ada)
    over = await carry_on(cell, operation)
    assert (over.stage, over.done) == (Stage.ABORTED, 4)
    assert cell.standing() == {Status.CANCELLED: 4, Status.PENDING: 16}
    assert await ledger.abort(cell.broker.database, "acme", operation.id, by=ada)
    assert cell.rows("select action from audit_entries") == [("abortOperation",)], "what is over is not ended again"
    assert not await ledger.abort(cell.broker.database, "acme", uuid4())


async def test_a_step_that_dies_is_gone_on_with_and_nothing_is_changed_twice(
    cell: PostgresCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carrying, "MOST", 7)
    monkeypatch.setattr(carrying, "MOST_FOUND", 9)
    failed = await add(cell, 40)
    await fail(cell, 40)
    operation = await begin(cell, Kind.RETRY, wanted=Filter(statuses=frozenset({Status.FAILED})))
    chance = random.Random(3)
    began_at = datetime.now(UTC)
    for attempt in count():
        if (await stands(cell, operation)).finished_at:
            break
        database = Database(cell.url, pool_size=1)
        await database.open()
        moment = began_at + attempt * carrying.LEASE
        carrier = Carrying(database, announce=lambda queues: None, now=lambda moment=moment: moment)  # type: ignore[misc]
        step = asyncio.create_task(carrier.step())
        if chance.random() < 0.5:
            await asyncio.wait([step], timeout=chance.uniform(0.005, 0.1))
            step.cancel()
        await asyncio.gather(step, return_exceptions=True)
        await database.close()
    over = await stands(cell, operation)
    assert (over.matched, over.done, over.skipped) == (40, 40, {})
    assert all([move.kind for move in cell.history(task)].count("requeued") == 1 for task in failed)
    assert cell.contradictions() == []


async def test_many_workers_carry_one_on_beside_claims_and_prune(cell: PostgresCell) -> None:  # fault 065
    await add(cell, 300)
    await fail(cell, 100)
    operations = [
        await begin(cell, Kind.CANCEL, wanted=Filter(types=frozenset({"work"}))),
        await begin(cell, Kind.RETRY, wanted=Filter(statuses=frozenset({Status.FAILED, Status.CANCELLED}))),
        await begin(cell, Kind.DELETE, wanted=Filter(statuses=frozenset({Status.FAILED}))),
        await begin(cell, Kind.RESCHEDULE, wanted=Filter(types=frozenset({"work"})), run_after=LATER),
    ]

    async def carry() -> None:
        carrier = hasty_duty(cell)
        while not all([(await stands(cell, one)).finished_at for one in operations]):
            await carrier.step()

    async def work() -> None:
        while not all([(await stands(cell, one)).finished_at for one in operations]):
            held = await cell.broker.claim(uuid4(), queues=["default"], batch=5)
            await cell.broker.settle(reports(held))
            await cell.broker.prune(kept(timedelta(0), timedelta(days=1)), most=5)

    await asyncio.gather(*(carry() for _ in range(3)), work())
    for one in operations:
        over = await stands(cell, one)
        assert over.done + sum(over.skipped.values()) == over.matched
    assert cell.contradictions() == []
    assert cell.rows("select deadlocks from pg_stat_database where datname = current_database()") == [(0,)]


async def test_a_key_makes_one_operation(cell: PostgresCell) -> None:
    new = NewOperation(kind=Kind.CANCEL, wanted=Filter(types=frozenset({"work"})), idempotency_key="k")
    made = await asyncio.gather(*(ledger.create(cell.broker.database, "acme", new) for _ in range(10)))
    assert len({operation.id for operation, _ in made}) == 1
    assert sum(not is_replayed for _, is_replayed in made) == 1
    with pytest.raises(IdempotencyConflict):
        await ledger.create(
            cell.broker.database, "acme", NewOperation(kind=Kind.CANCEL, task_ids=[uuid4()], idempotency_key="k")
        )
    with pytest.raises(UnknownCompany):
        await ledger.create(cell.broker.database, "nobody", new)
