"""What a company submits is charged to its quotas once, and given back once, to the periods that it came from."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import LiteralString, cast
from uuid import UUID

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taketurns.brokers.postgres.transaction import enqueue_in
from taketurns.engine.errors import IdempotencyConflict, QuotaBusy, QuotaExceeded, Unavailable
from taketurns.engine.quota import Period, Quotas
from taketurns.engine.task import ClaimedTask, Enqueued, NewTask, Outcome, Report, Status
from taketurns.storage.database import conninfo
from tests.brokers.cell import Cell, ids, keyed_task, new_tasks, reports
from tests.brokers.contract import Walk
from tests.brokers.postgres.cell import PostgresCell
from tests.brokers.postgres.connections import wait_until
from tests.effort import examples
from tests.keeping import kept

WORKER = UUID(int=1)
NOON = datetime(2030, 1, 31, 12, 0, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
KEY_LIFETIME = timedelta(hours=24)


@pytest.fixture
def acme(cell: PostgresCell) -> UUID:
    return cell.add_company("acme")


def used(cell: PostgresCell, period: str = "hour", *, company: str = "acme", at: datetime = NOON) -> int:
    ((count,),) = cell.rows(
        "select reserved - refunded from allowances(company_id(%s), %s) where period = %s", company, at, period
    )
    return int(count)


def counted(cell: PostgresCell) -> list[tuple[str, datetime, int, int]]:
    """Every period with what was reserved and refunded."""
    cell.rows("select tally(1000)")
    return [
        (period, starts_at, reserved, refunded)
        for period, starts_at, reserved, refunded in cell.rows(
            "select period, starts_at, reserved, refunded from quota_usage order by starts_at, period"
        )
    ]


async def submit(cell: PostgresCell, count: int = 1, *, at: datetime = NOON, company: str = "acme") -> list[Enqueued]:
    return await cell.broker.enqueue(company, new_tasks(count), at=at)


async def claim_one(cell: PostgresCell, *, at: datetime = NOON) -> ClaimedTask:
    (task,) = await cell.broker.claim(WORKER, queues=["default"], batch=1, at=at)
    return task


async def end(cell: PostgresCell, outcome: Outcome, *, at: datetime = NOON) -> UUID:
    """Claim a task and settle it."""
    task = await claim_one(cell, at=at)
    assert await cell.broker.settle([Report(task, outcome, delay_seconds=0.0)], at=at) == {task.task_id}
    return task.task_id


async def test_what_is_over_the_quota_is_refused_whole(cell: PostgresCell, acme: UUID) -> None:
    cell.set_quotas("acme", hour=5, day=100)
    (made,) = await submit(cell)
    assert [(one.period, one.quota, one.used, one.remaining) for one in made.allowances] == [
        (Period.HOUR, 5, 1, 4),
        (Period.DAY, 100, 1, 99),
        (Period.MONTH, None, 1, None),
    ]
    with pytest.raises(QuotaExceeded, match=r"this hour has room for 4, not for 5: .* 2030-01-31T13:00:00Z") as refused:
        await submit(cell, 5)
    assert (refused.value.period, refused.value.retry_after) == (Period.HOUR, 3600)
    assert cell.rows("select count(*) from tasks") == [(1,)]
    await submit(cell, 4)
    with pytest.raises(QuotaExceeded):
        await submit(cell)
    await submit(cell, 5, at=NOON + HOUR)
    assert used(cell, "day", at=NOON + HOUR) == 10
    assert cell.contradictions() == []


async def test_the_quota_that_is_used_up_longest_is_named(cell: PostgresCell, acme: UUID) -> None:
    cell.set_quotas("acme", hour=1, day=1, month=5)
    await submit(cell)
    with pytest.raises(QuotaExceeded) as refused:
        await submit(cell)
    assert (refused.value.period, refused.value.resets_at) == (Period.DAY, datetime(2030, 2, 1, tzinfo=UTC))
    cell.set_quotas("acme", month=1)
    with pytest.raises(QuotaExceeded) as refused:
        await submit(cell)
    assert (refused.value.period, refused.value.resets_at) == (Period.MONTH, datetime(2030, 2, 1, tzinfo=UTC))


async def test_periods_are_those_of_utc_whatever_the_zone_of_the_connection(cell: PostgresCell, acme: UUID) -> None:
    cell.set_quotas("acme", day=1)
    cell.connection.execute("set timezone to 'Pacific/Kiritimati'")
    assert cell.rows("select ends_at from allowances(company_id('acme'), %s) where period = 'day'", NOON) == [
        (datetime(2030, 2, 1, tzinfo=UTC),)
    ]
    assert cell.rows("select ends_at from allowances(company_id('acme'), %s) where period = 'month'", NOON) == [
        (datetime(2030, 2, 1, tzinfo=UTC),)
    ]


# Fault 047.
async def test_only_what_is_new_uses_quota(cell: PostgresCell, acme: UUID) -> None:
    cell.set_quotas("acme", hour=1)
    with pytest.raises(QuotaExceeded):
        await cell.broker.enqueue("acme", [keyed_task("k"), keyed_task("l")], at=NOON)
    (first,) = await cell.broker.enqueue("acme", [keyed_task("k")], at=NOON)
    (again,) = await cell.broker.enqueue("acme", [keyed_task("k")], at=NOON)
    assert (again.replayed, again.task_id, again.allowances) == (True, first.task_id, ())
    with pytest.raises(IdempotencyConflict):
        await cell.broker.enqueue("acme", [keyed_task("k", request="other")], at=NOON)
    with pytest.raises(IdempotencyConflict):
        await cell.broker.enqueue("acme", [keyed_task("l"), keyed_task("k", request="other")], at=NOON)
    with pytest.raises(QuotaExceeded):
        await cell.broker.enqueue("acme", [keyed_task("l")], at=NOON)
    cell.set_quotas("acme", hour=0)
    assert (await cell.broker.enqueue("acme", [keyed_task("k")], at=NOON))[0].replayed
    assert used(cell) == 1
    cell.set_quotas("acme", hour=2)
    mixed = await cell.broker.enqueue("acme", [keyed_task("k"), keyed_task("l"), keyed_task("l")], at=NOON)
    assert [task.replayed for task in mixed] == [True, False, True]
    assert used(cell) == 2
    assert cell.rows("select count(*) from idempotency_keys") == [(2,)]
    assert cell.contradictions() == []


# Fault 087.
async def test_no_quota_is_no_limit_zero_is_none_and_a_lowered_one_breaks_nothing(
    cell: PostgresCell, acme: UUID
) -> None:
    await submit(cell, 3)
    assert cell.rows("select count(*) from quota_usage") == [(0,)]
    cell.set_quotas("acme", hour=0)
    with pytest.raises(QuotaExceeded, match="quota of 0 tasks"):
        await submit(cell)
    assert await cell.broker.enqueue("acme", [], at=NOON) == []
    cell.set_quotas("acme", hour=10)
    await submit(cell, 10)
    cell.set_quotas("acme", hour=2)
    with pytest.raises(QuotaExceeded, match="room for 0, not for 1"):
        await submit(cell)
    for _ in range(13):
        await end(cell, Outcome.FAILED)
    assert used(cell) == 0
    await submit(cell, 2)
    cell.set_quotas("acme")
    await submit(cell, 5)
    assert used(cell) == 2
    for _ in range(7):
        await end(cell, Outcome.FAILED)
    assert used(cell) == 0
    assert cell.contradictions() == []


async def test_what_fails_for_good_is_given_back_to_the_periods_it_came_from(cell: PostgresCell, acme: UUID) -> None:
    cell.set_quotas("acme", hour=10)
    await submit(cell, 4)
    late = NOON + DAY
    await submit(cell, 2, at=late)
    await end(cell, Outcome.COMPLETED, at=late)
    await end(cell, Outcome.RETRY, at=late)
    for outcome in (Outcome.FAILED, Outcome.CANCELLED):
        await end(cell, outcome, at=late)
    assert counted(cell) == [
        ("month", datetime(2030, 1, 1, tzinfo=UTC), 4, 1),
        ("day", datetime(2030, 1, 31, tzinfo=UTC), 4, 1),
        ("hour", NOON, 4, 1),
        ("day", datetime(2030, 2, 1, tzinfo=UTC), 2, 0),
        ("month", datetime(2030, 2, 1, tzinfo=UTC), 2, 0),
        ("hour", late, 2, 0),
    ]
    assert cell.contradictions() == []


async def test_a_report_that_comes_twice_or_too_late_gives_nothing_back(cell: PostgresCell, acme: UUID) -> None:
    """Faults 116 and 117: a cancel that came first stands, with its charge."""
    cell.set_quotas("acme", hour=10)
    await submit(cell, 2)
    failed, cancelled = await claim_one(cell), await claim_one(cell)
    for _ in range(3):
        await cell.broker.settle([Report(failed, Outcome.FAILED)], at=NOON)
    assert used(cell) == 1
    assert await cell.broker.cancel("acme", cancelled.task_id, at=NOON) is Status.CANCELLED
    assert await cell.broker.settle([Report(cancelled, Outcome.FAILED)], at=NOON) == set()
    assert used(cell) == 1
    assert cell.contradictions() == []


async def test_a_lost_worker_gives_back_only_what_it_failed_for_good(cell: PostgresCell, acme: UUID) -> None:
    cell.set_quotas("acme", hour=10)
    await submit(cell, 3)
    for max_rescues, still_used in ((3, 3), (0, 2)):
        await claim_one(cell)
        await cell.broker.rescue(WORKER, watched_beat=None, max_rescues=max_rescues, at=NOON)
        assert used(cell) == still_used
    assert cell.contradictions() == []


async def test_a_cancelled_task_is_given_back_unless_it_had_started(cell: PostgresCell, acme: UUID) -> None:
    cell.set_quotas("acme", hour=10)
    pending, scheduled = ids(
        [*await submit(cell), *await cell.broker.enqueue("acme", new_tasks(delay_seconds=60), at=NOON)]
    )
    for task_id in (pending, scheduled, scheduled):
        await cell.broker.cancel("acme", task_id, at=NOON)
    assert used(cell) == 0

    await submit(cell)
    task = await claim_one(cell)
    await cell.broker.release([task], at=NOON)
    await cell.broker.cancel("acme", task.task_id, at=NOON)
    assert used(cell) == 0, "a released task never started"

    await submit(cell)
    retried = await end(cell, Outcome.RETRY)
    await cell.broker.retry("acme", retried, at=NOON)
    assert used(cell) == 1, "it had not ended, so it is not charged again"
    await cell.broker.cancel("acme", retried, at=NOON)
    assert used(cell) == 1, "its first attempt had started"

    await submit(cell)
    rescued = await claim_one(cell)
    await cell.broker.rescue(WORKER, watched_beat=None, max_rescues=3, at=NOON)
    await cell.broker.cancel("acme", rescued.task_id, at=NOON)
    assert used(cell) == 2

    await cell.broker.retry("acme", retried, at=NOON)
    assert used(cell) == 3
    await cell.broker.cancel("acme", retried, at=NOON)
    assert used(cell) == 2, "it was run again, and had not started since"
    assert cell.contradictions() == []


# Fault 085.
async def test_a_retry_by_hand_is_charged_and_the_earlier_charge_stands(cell: PostgresCell, acme: UUID) -> None:
    cell.set_quotas("acme", hour=2)
    await submit(cell)
    task_id = await end(cell, Outcome.COMPLETED)
    await submit(cell)
    with pytest.raises(QuotaExceeded):
        await cell.broker.retry("acme", task_id, at=NOON)
    assert cell.status(task_id) is Status.COMPLETED
    assert used(cell) == 2, "the refused retry costs nothing, and gives nothing back"

    late = NOON + HOUR
    assert await cell.broker.retry("acme", task_id, at=late) is Status.COMPLETED
    assert (used(cell), used(cell, at=late), used(cell, "day")) == (2, 1, 3)
    while (task := await claim_one(cell, at=late)).task_id != task_id:
        await cell.broker.settle(reports([task]), at=late)
    await cell.broker.settle([Report(task, Outcome.FAILED)], at=late)
    assert (used(cell), used(cell, at=late), used(cell, "day")) == (2, 0, 2), "the second run alone is given back"
    assert await cell.broker.retry("acme", task_id, at=late) is Status.FAILED
    assert (used(cell), used(cell, at=late)) == (2, 1)
    assert cell.contradictions() == []


async def test_forgotten_tasks_stay_counted(cell: PostgresCell, acme: UUID) -> None:
    cell.set_quotas("acme", month=10)
    await submit(cell, 3)
    for outcome in (Outcome.COMPLETED, Outcome.COMPLETED, Outcome.FAILED):
        await end(cell, outcome)
    week = timedelta(days=7)
    pruned = await cell.broker.prune(kept(week), at=NOON + 2 * week)
    assert pruned.tasks == 3
    assert used(cell, "month") == 2
    assert cell.contradictions() == []
    assert cell.rows("select corrected from audit_quotas(null, 10, %s)", NOON) == [(0,)]


@asynccontextmanager
async def submitters(cell: PostgresCell, count: int) -> AsyncIterator[PostgresCell]:
    """The same cell with so many connections."""
    crowd = await PostgresCell.open(cell.url, pool_size=count)
    yield crowd
    await crowd.close()


# Fault 083.
async def test_fifty_submitters_at_once_use_a_quota_up_and_no_more(cell: PostgresCell, acme: UUID) -> None:
    limit, seen = 60, []
    cell.set_quotas("acme", hour=limit, day=1_000)
    is_over = asyncio.Event()

    async def watch() -> None:
        while not is_over.is_set():
            seen.append(used(cell))
            await asyncio.sleep(0)

    async def keep_submitting(crowd: PostgresCell, number: int) -> int:
        made = 0
        for turn in range(4):
            with suppress(QuotaExceeded):
                made += len(await submit(crowd, 5 if (number + turn) % 3 == 0 else 1))
        return made

    async with submitters(cell, 50) as crowd:
        watching = asyncio.create_task(watch())
        made = await asyncio.gather(*[keep_submitting(crowd, number) for number in range(50)])
        is_over.set()
        await watching
    assert sum(made) == used(cell) == limit
    assert cell.rows("select count(*) from tasks") == [(limit,)]
    assert seen == sorted(seen)
    assert max(seen) <= limit
    assert cell.standing() == {Status.PENDING: limit}
    assert cell.contradictions() == []


async def test_a_request_that_loses_the_race_leaves_nothing(cell: PostgresCell, acme: UUID) -> None:
    """It saw room and wrote its tasks, then waited, and there was none left."""
    cell.set_quotas("acme", hour=4)
    await submit(cell)
    tasks = [keyed_task("k"), *new_tasks(1, delay_seconds=60)]
    async with cell.broker.database.transaction() as first:
        await cell.broker.enqueue_on(first, "acme", new_tasks(2), at=NOON)
        late = asyncio.create_task(cell.broker.enqueue("acme", tasks, at=NOON))
        await waits_for_the_quotas(cell)
    with pytest.raises(QuotaExceeded):
        await late
    assert cell.standing() == {Status.PENDING: 3}
    assert cell.rows("select count(*) from idempotency_keys") == [(0,)]
    assert used(cell) == 3
    assert cell.contradictions() == []


async def waits_for_the_quotas(cell: PostgresCell) -> None:
    """Until somebody does."""
    await asyncio.to_thread(wait_until, cell.keeps_somebody_waiting)


@contextmanager
def short_patience(cell: PostgresCell, function: LiteralString = "reserve") -> Iterator[None]:
    """Nobody waits two seconds there, as they would."""
    ((settings,),) = cell.rows("select proconfig from pg_proc where proname = %s", function)
    assert "lock_timeout=2s" in settings
    cell.connection.execute(f"alter function {function} set lock_timeout = '50ms'")
    yield
    cell.connection.execute(f"alter function {function} set lock_timeout = '2s'")


async def test_a_long_transaction_of_one_submitter_holds_others_no_longer_than_two_seconds(
    cell: PostgresCell, acme: UUID
) -> None:
    cell.set_quotas("acme", hour=100)
    cell.add_company("other")
    cell.set_quotas("other", hour=100)
    await submit(cell)
    with short_patience(cell):
        async with cell.broker.database.transaction() as long:
            await cell.broker.enqueue_on(long, "acme", new_tasks(), at=NOON)
            with pytest.raises(QuotaBusy):
                await cell.broker.enqueue("acme", [keyed_task("k")], at=NOON)
            assert cell.rows("select count(*) from idempotency_keys") == [(0,)]
            with pytest.raises(QuotaBusy):
                await cell.broker.retry("acme", await end(cell, Outcome.COMPLETED), at=NOON)
            await submit(cell, company="other")
            assert (await cell.broker.enqueue("other", [keyed_task("k")], at=NOON))[0].status is Status.PENDING
    assert cell.standing() == {Status.PENDING: 3, Status.COMPLETED: 1}
    await submit(cell)
    assert used(cell) == 3
    assert cell.contradictions() == []


async def test_a_companys_first_task_in_a_long_transaction_holds_others_no_longer_either(
    cell: PostgresCell, acme: UUID
) -> None:
    with short_patience(cell, "join_rotation"):
        async with cell.broker.database.transaction() as long:
            await cell.broker.enqueue_on(long, "acme", new_tasks(), at=NOON)
            with pytest.raises(Unavailable, match="another transaction kept"):
                await submit(cell)
    assert cell.standing() == {Status.PENDING: 1}


async def test_what_ends_waits_for_no_submitter(cell: PostgresCell, acme: UUID) -> None:
    """A worker settles for all companies at once, so one company's transaction must not hold it up."""
    cell.set_quotas("acme", hour=100)
    await submit(cell, 5)
    running = [await claim_one(cell) for _ in range(3)]
    (waiting, _) = cell.rows("select task_id from pending_tasks order by task_id")
    async with cell.broker.database.transaction() as long:
        await cell.broker.enqueue_on(long, "acme", new_tasks(), at=NOON)
        cell.connection.execute("set lock_timeout = '1ms'")
        cell.finish_all_as("failed", running[:2])
        cell.rows("select rescue(%s, null, 0)", WORKER)
        cell.rows("select cancel('acme', %s)", waiting[0])
        cell.rows("select prune('0 s', '0 s', '0 s', 100)")
        cell.rows("select tally(100), audit_quotas(null, 100), prune_quotas(100)")
        assert used(cell) == 1
        cell.connection.execute("reset lock_timeout")
    assert used(cell) == 2
    assert cell.contradictions() == []


async def test_a_transaction_of_the_callers_goes_on_after_a_refusal(cell: PostgresCell, acme: UUID) -> None:
    cell.set_quotas("acme", hour=1)

    async def submit_in(connection: psycopg.AsyncConnection[object], *tasks: NewTask) -> list[Enqueued]:
        return await enqueue_in(connection, "taketurns", "acme", tasks, key_lifetime=KEY_LIFETIME, at=NOON)

    async with await psycopg.AsyncConnection.connect(conninfo(cell.url)) as connection:
        with pytest.raises(QuotaExceeded):
            await submit_in(connection, *new_tasks(2))
        (made,) = await submit_in(connection, *new_tasks())
        assert made.allowances[0].remaining == 0
        with pytest.raises(QuotaExceeded):
            await submit_in(connection, *new_tasks())
        await connection.commit()
        cell.set_quotas("acme", hour=5)
        with short_patience(cell):
            async with cell.broker.database.transaction() as long:
                await cell.broker.enqueue_on(long, "acme", new_tasks(), at=NOON)
                with pytest.raises(QuotaBusy):
                    await submit_in(connection, *new_tasks())
                assert await (await connection.execute("select 1")).fetchone() == (1,)
        await submit_in(connection, *new_tasks())
        await connection.rollback()
    assert used(cell) == 2
    assert cell.standing() == {Status.PENDING: 2}
    assert cell.contradictions() == []


async def test_two_transactions_that_wait_for_each_other_end_as_busy(cell: PostgresCell, acme: UUID) -> None:
    cell.add_company("other")
    for slug in ("acme", "other"):
        cell.set_quotas(slug, hour=10)
        await submit(cell, company=slug)

    async def submit_to(*companies: str, both: asyncio.Barrier) -> None:
        async with cell.broker.database.transaction() as connection:
            for company in companies:
                await cell.broker.enqueue_on(connection, company, new_tasks(), at=NOON)
                if company == companies[0]:
                    await both.wait()

    both = asyncio.Barrier(2)
    ended = await asyncio.gather(
        submit_to("acme", "other", both=both), submit_to("other", "acme", both=both), return_exceptions=True
    )
    assert any(one is None for one in ended)
    assert all(one is None or isinstance(one, QuotaBusy) for one in ended)
    assert cell.contradictions() == []


async def test_an_old_snapshot_never_submits_more_than_the_quota(cell: PostgresCell, acme: UUID) -> None:
    cell.set_quotas("acme", hour=1)
    async with await psycopg.AsyncConnection.connect(conninfo(cell.url)) as connection:
        await connection.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
        await connection.execute("select 1")
        await submit(cell)
        with pytest.raises(psycopg.errors.SerializationFailure):
            await enqueue_in(connection, "taketurns", "acme", new_tasks(), key_lifetime=KEY_LIFETIME, at=NOON)
    assert used(cell) == 1


# Fault 073.
@pytest.mark.parametrize(
    "spoil",
    [
        "update quota_usage set reserved = 1000",
        "update quota_usage set refunded = 2, reserved = 3",
        "delete from quota_usage",
        "delete from quota_changes",
        "update quota_usage set reserved = reserved + 1 where period = 'hour'",
    ],
)
async def test_a_count_that_was_spoiled_by_hand_is_corrected(cell: PostgresCell, acme: UUID, spoil: str) -> None:
    cell.set_quotas("acme", hour=10)
    await submit(cell, 4)
    await end(cell, Outcome.FAILED)
    cell.connection.execute(spoil.encode())
    ((last, corrected),) = cell.rows("select * from audit_quotas(null, 10, %s)", NOON)
    assert last == acme
    assert corrected > 0
    assert [used(cell, period) for period in ("hour", "day", "month")] == [3, 3, 3]
    assert cell.rows("select * from audit_quotas(%s, 10, %s)", acme, NOON) == [(None, 0)]
    assert cell.contradictions() == []


async def test_old_periods_are_forgotten_in_batches(cell: PostgresCell, acme: UUID) -> None:
    cell.set_quotas("acme", hour=10)
    for hours in range(5):
        await submit(cell, at=NOON + hours * HOUR)
    assert cell.rows("select prune_quotas(2, %s)", NOON + 2 * DAY) == [(0,)]
    later = NOON + 3 * DAY
    assert [cell.rows("select prune_quotas(2, %s)", later)[0][0] for _ in range(4)] == [2, 2, 1, 0]
    assert [row[0] for row in counted(cell)] == ["month", "day"]
    assert cell.rows("select prune_quotas(10, %s)", NOON + 70 * DAY) == [(1,)]
    for task in cell.rows("select task_id from pending_tasks"):
        await cell.broker.cancel("acme", task[0], at=NOON)
    assert counted(cell) == [("month", datetime(2030, 1, 1, tzinfo=UTC), 5, 5)]
    assert cell.rows("select prune_quotas(10, %s)", NOON + 500 * DAY) == [(1,)]


@dataclass
class Charged:
    """A task as the model of charges knows it."""

    company: str
    charged_at: datetime | None
    has_started: bool = False


@dataclass
class Ledger:
    """A random walk beside a model of its charges; every company but the last may have quotas."""

    cell: PostgresCell
    chance: random.Random
    slugs: tuple[str, ...] = ("a", "b", "c")
    now: datetime = NOON + timedelta(minutes=30)
    quotas: dict[str, Quotas] = field(default_factory=dict)
    reserved: Counter[tuple[str, str, datetime]] = field(default_factory=Counter)
    refunded: Counter[tuple[str, str, datetime]] = field(default_factory=Counter)
    tasks: dict[UUID, Charged] = field(default_factory=dict)
    keys: dict[tuple[str, str], datetime] = field(default_factory=dict)
    held: list[ClaimedTask] = field(default_factory=list)

    async def set_quotas(self) -> None:
        slug = self.chance.choice(self.slugs[:-1])
        hour, day, month = (self.chance.choice([None, None, 0, 3, 10, 25]) for _ in range(3))
        self.quotas[slug] = Quotas(hour, day, month)
        self.cell.set_quotas(slug, hour=hour, day=day, month=month)

    async def pass_time(self) -> None:
        self.now += self.chance.choice([timedelta(minutes=1), HOUR, 11 * HOUR, 5 * DAY])

    async def submit(self) -> None:
        await self.enqueue(self.chance.choice(self.slugs), new_tasks(self.chance.choice([1, 1, 2, 7])))

    async def submit_keyed(self) -> None:
        keys = self.chance.sample(["k", "l", "m"], 2)
        await self.enqueue(self.chance.choice(self.slugs), [keyed_task(key) for key in keys])

    async def enqueue(self, company: str, tasks: list[NewTask]) -> None:
        new = [task for task in tasks if not self.is_known(company, task.idempotency_key)]
        try:
            made = await self.cell.broker.enqueue(company, tasks, at=self.now)
        except QuotaExceeded:
            assert new
            assert not self.has_room(company, len(new))
            return
        assert not new or self.has_room(company, len(new))
        assert sum(not task.replayed for task in made) == len(new)
        charged_at = self.charge(company, len(new))
        for task, one in zip(tasks, made, strict=True):
            if not one.replayed:
                self.tasks[one.task_id] = Charged(company, charged_at)
                if task.idempotency_key:
                    self.keys[company, task.idempotency_key] = self.now

    def is_known(self, company: str, key: str | None) -> bool:
        return (
            key is not None
            and self.now < self.keys.get((company, key), datetime.min.replace(tzinfo=UTC)) + KEY_LIFETIME
        )

    async def claim(self) -> None:
        worker = UUID(int=self.chance.randint(1, 3))
        self.held += await self.cell.broker.claim(
            worker, queues=["default"], batch=self.chance.randint(1, 6), at=self.now
        )

    async def settle(self) -> None:
        told = [
            Report(task, self.chance.choice(list(Outcome)), delay_seconds=60)
            for task in self.chance.sample(self.held, min(len(self.held), 6))
        ]
        settled = await self.cell.broker.settle(told, at=self.now)
        for report in told:
            if report.task.task_id in settled:
                self.tasks[report.task.task_id].has_started = True
                if report.outcome is Outcome.FAILED:
                    self.refund(report.task.task_id)

    async def release(self) -> None:
        await self.cell.broker.release(self.chance.sample(self.held, min(len(self.held), 3)), at=self.now)

    async def rescue(self) -> None:
        worker, most = UUID(int=self.chance.randint(1, 3)), self.chance.choice([0, 2])
        for task in await self.cell.broker.rescue(worker, watched_beat=None, max_rescues=most, at=self.now):
            self.tasks[task.task_id].has_started = True
            if task.failed:
                self.refund(task.task_id)

    async def promote(self) -> None:
        await self.cell.broker.promote(most=20, at=self.now)

    async def cancel(self) -> None:
        for task_id in self.some_tasks():
            before = self.cell.status(task_id)
            await self.cell.broker.cancel(self.tasks[task_id].company, task_id, at=self.now)
            if before in {Status.PENDING, Status.SCHEDULED} and not self.tasks[task_id].has_started:
                self.refund(task_id)

    async def retry(self) -> None:
        for task_id in self.some_tasks():
            task, before = self.tasks[task_id], self.cell.status(task_id)
            assert before is not None
            try:
                await self.cell.broker.retry(task.company, task_id, at=self.now)
            except QuotaExceeded:
                assert before.is_terminal
                assert not self.has_room(task.company, 1)
                continue
            if before.is_terminal:
                assert self.has_room(task.company, 1)
                self.tasks[task_id] = Charged(task.company, self.charge(task.company, 1))

    async def keep_house(self) -> None:
        self.cell.rows("select tally(10)")
        ((_, corrected),) = self.cell.rows("select * from audit_quotas(null, 10, %s)", self.now)
        assert corrected == 0

    def some_tasks(self) -> list[UUID]:
        return self.chance.sample(list(self.tasks), min(len(self.tasks), 4))

    def periods(self, company: str, at: datetime) -> list[tuple[str, str, datetime]]:
        hour = at.replace(minute=0)
        return [
            (company, "hour", hour),
            (company, "day", hour.replace(hour=0)),
            (company, "month", hour.replace(hour=0, day=1)),
        ]

    def has_room(self, company: str, wanted: int) -> bool:
        quotas = self.quotas.get(company, Quotas())
        return all(
            quota is None or self.reserved[period] - self.refunded[period] + wanted <= quota
            for period, quota in zip(
                self.periods(company, self.now), (quotas.hour, quotas.day, quotas.month), strict=True
            )
        )

    def charge(self, company: str, count: int) -> datetime | None:
        if self.quotas.get(company, Quotas()) == Quotas():
            return None
        self.reserved.update(dict.fromkeys(self.periods(company, self.now), count))
        return self.now

    def refund(self, task_id: UUID) -> None:
        task = self.tasks[task_id]
        if task.charged_at is not None:
            self.refunded.update(self.periods(task.company, task.charged_at))
            task.charged_at = None

    def told(self) -> dict[tuple[str, str, datetime], tuple[int, int]]:
        self.cell.rows("select tally(1000)")
        return {
            (self.cell.slug_of(company), period, starts_at): (reserved, refunded)
            for company, period, starts_at, reserved, refunded in self.cell.rows(
                "select company_id, period, starts_at, reserved, refunded from quota_usage"
            )
        }

    def expected(self) -> dict[tuple[str, str, datetime], tuple[int, int]]:
        return {period: (count, self.refunded[period]) for period, count in self.reserved.items() if count}


STEPS = [
    *[Ledger.submit] * 3,
    *[Ledger.claim] * 2,
    *[Ledger.settle] * 2,
    Ledger.set_quotas,
    Ledger.pass_time,
    Ledger.submit_keyed,
    Ledger.release,
    Ledger.rescue,
    Ledger.promote,
    Ledger.cancel,
    Ledger.retry,
    Ledger.keep_house,
]


@settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(STEPS), min_size=10, max_size=50), st.integers(0, 10_000))
async def test_what_is_used_is_what_a_ledger_would_say(cell: PostgresCell, steps: list[object], seed: int) -> None:
    cell.clear()
    ledger = Ledger(cell, random.Random(seed))
    for slug in ledger.slugs:
        cell.add_company(slug)
    await ledger.set_quotas()
    for step in steps:
        await step(ledger)  # type: ignore[operator]
        assert cell.contradictions() == []
    assert ledger.told() == ledger.expected()
    assert all(reserved >= refunded >= 0 for reserved, refunded in ledger.told().values())


class WalkWithQuotas(Walk):
    """The walk of the contract, whose companies are refused at times, and whose clock passes the ends of periods."""

    async def submit(self) -> None:
        with suppress(QuotaExceeded):
            await super().submit()

    async def retry(self) -> None:
        with suppress(QuotaExceeded):
            await super().retry()

    async def pass_time(self) -> None:
        self.now += timedelta(minutes=self.chance.choice([1, 61]))

    async def set_quotas(self) -> None:
        cell = cast(PostgresCell, self.cell)
        cell.set_quotas(self.chance.choice(self.slugs[:-1]), hour=self.chance.randint(0, 30), day=60)

    async def tally(self) -> None:
        cell = cast(PostgresCell, self.cell)
        await cell.broker.database.call("tally", 10)
        ((_, corrected),) = await cell.broker.database.call("audit_quotas", None, 10, self.now)
        assert corrected == 0


TOGETHER = [
    WalkWithQuotas.submit,
    WalkWithQuotas.submit,
    WalkWithQuotas.claim,
    WalkWithQuotas.settle,
    WalkWithQuotas.release,
    WalkWithQuotas.rescue,
    WalkWithQuotas.promote,
    WalkWithQuotas.cancel,
    WalkWithQuotas.retry,
    WalkWithQuotas.pass_time,
    WalkWithQuotas.set_quotas,
    WalkWithQuotas.tally,
]


@settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.sampled_from(TOGETHER), min_size=2, max_size=12), max_size=10), st.integers(0, 10_000))
async def test_all_of_it_at_the_same_time_keeps_counts_and_rows_together(
    cell: PostgresCell, rounds: list[list[object]], seed: int
) -> None:
    cell.clear()
    walk = WalkWithQuotas(cast(Cell, cell), random.Random(seed))
    for slug in walk.slugs:
        cell.add_company(slug)
    for slug in walk.slugs[:-1]:
        cell.set_quotas(slug, hour=20, day=60)
    for moves in rounds:
        await asyncio.gather(*[move(walk) for move in moves])  # type: ignore[operator]
        assert cell.contradictions() == []
