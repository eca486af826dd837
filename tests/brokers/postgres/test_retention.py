"""Tasks are forgotten when their company has had them kept long enough, at a cost that what is kept has no part in."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taketurns.companies import directory
from taketurns.engine.quota import Quotas
from taketurns.engine.retention import OwnRetention, Retention
from taketurns.engine.task import ClaimedTask, NewTask, Outcome, Report, Unique
from taketurns.storage.ids import id_at
from tests.brokers.cell import new_tasks, reports
from tests.brokers.postgres.cell import PostgresCell, connect
from tests.effort import examples

NOON = datetime(2030, 1, 31, 12, tzinfo=UTC)
DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
WEEK = Retention(completed=7 * DAY, failed=30 * DAY, cancelled=30 * DAY)
STATUSES = ("completed", "failed", "cancelled")
FLAT = 1.5


@dataclass(frozen=True, slots=True)
class Ended:
    """A task of a company, how it has ended, or that it is open, and when."""

    company_id: UUID
    id: UUID
    status: str
    created_at: datetime
    finished_at: datetime | None

    @property
    def is_quick(self) -> bool:
        return self.finished_at is not None and self.finished_at - self.created_at < 10 * MINUTE

    def has_ended_before(self, at: datetime, length: timedelta) -> bool:
        return self.finished_at is not None and self.finished_at < at - length


def put(cell: PostgresCell, company_id: UUID, status: str, *, finished_at: datetime | None, took: timedelta) -> Ended:
    """A task as the verbs would have left it, whose id was made when it was created."""
    created_at = (finished_at or NOON) - took
    task = Ended(company_id, UUID(int=id_at(created_at).int | random.getrandbits(62)), status, created_at, finished_at)
    put_all(cell, [task])
    return task


def put_all(cell: PostgresCell, tasks: list[Ended]) -> None:
    statement = """
        insert into tasks (company_id, id, type, queue, priority, run_after, max_retries, payload, created_at,
            finished_at, stopped_as)
        values (%s, %s, 'work', 'default', 5, %s, 0, '{}', %s, %s, %s)
    """
    with cell.connection.cursor() as cursor:
        cursor.executemany(
            statement,
            [
                (
                    task.company_id,
                    task.id,
                    task.created_at,
                    task.created_at,
                    task.finished_at,
                    task.status if task.status in {"failed", "cancelled"} else None,
                )
                for task in tasks
            ],
        )


async def claim(cell: PostgresCell) -> list[ClaimedTask]:
    return await cell.broker.claim(uuid4(), queues=["default"], batch=5)


def set_retention(cell: PostgresCell, company_id: UUID, own: OwnRetention) -> None:
    cell.connection.execute(
        "update companies set keep_completed_seconds = %s, keep_failed_seconds = %s, keep_cancelled_seconds = %s"
        " where id = %s",
        (own.completed, own.failed, own.cancelled, company_id),
    )


def prune(cell: PostgresCell, at: datetime, *, keep: Retention = WEEK, most: int = 1_000) -> tuple[int, bool]:
    """How many were forgotten, and whether there may be more."""
    ((tasks, _, has_more),) = cell.rows(
        "select * from prune(%s, %s, %s, %s, %s)", keep.completed, keep.failed, keep.cancelled, most, at
    )
    return tasks, has_more


def prune_all(cell: PostgresCell, at: datetime, *, keep: Retention = WEEK, most: int = 1_000) -> list[int]:
    """How many each pass forgot, until nothing is left to do at once."""
    counts = []
    has_more = True
    while has_more:
        forgotten, has_more = prune(cell, at, keep=keep, most=most)
        counts.append(forgotten)
        assert len(counts) < 1_000
    return counts


def left(cell: PostgresCell) -> set[UUID]:
    return {task_id for (task_id,) in cell.rows("select id from tasks")}


def fill(cell: PostgresCell, company_id: UUID, count: int, status: str, *, since: datetime, until: datetime) -> None:
    """Many tasks that were created and ended evenly over a time, with an event, a tag and a unique key each."""
    cell.connection.execute(
        """
        with made as (
            insert into tasks (company_id, id, type, queue, priority, run_after, max_retries, payload, created_at,
                finished_at, stopped_as, tags, unique_key)
            select %(company)s, (left(first_id(moment)::text, 13) || right(gen_random_uuid()::text, 23))::uuid, 'work',
                'default', 5, moment, 0, '{}', moment, case when %(status)s <> 'open' then moment + interval '1 s' end,
                nullif(nullif(%(status)s, 'completed'), 'open'), '{eu}', gen_random_uuid()::text
            from generate_series(1, %(count)s) n
            cross join lateral (select %(since)s + n * (%(until)s - %(since)s) / %(count)s as moment) m
            returning company_id, id, created_at, unique_key
        ), tag as (
            insert into task_tags (company_id, tag, task_id) select company_id, 'eu', id from made
        ), key as (
            insert into unique_keys (company_id, key, task_id) select company_id, unique_key, id from made
        )
        insert into task_events (company_id, task_id, number, kind, at)
        select company_id, id, 2, 'released', created_at from made
        """,
        {"company": company_id, "count": count, "status": status, "since": since, "until": until},
    )


@pytest.mark.parametrize("status", STATUSES)
def test_a_company_s_own_retention_is_for_the_status_that_it_is_set_for(bare_cell: PostgresCell, status: str) -> None:
    own, other = bare_cell.add_company("own"), bare_cell.add_company("other")
    set_retention(bare_cell, own, OwnRetention(**{status: int(HOUR.total_seconds())}))
    ended = NOON - 2 * HOUR
    tasks = {
        (company, kind): put(bare_cell, company, kind, finished_at=ended, took=MINUTE)
        for company in (own, other)
        for kind in STATUSES
    }
    assert prune_all(bare_cell, NOON) == [1]
    assert left(bare_cell) == {task.id for name, task in tasks.items() if name != (own, status)}


def test_a_task_is_kept_to_the_end_of_its_retention_and_no_longer(bare_cell: PostgresCell) -> None:
    acme = bare_cell.add_company("acme")
    set_retention(bare_cell, acme, OwnRetention(completed=3_600))
    put(bare_cell, acme, "completed", finished_at=NOON, took=9 * MINUTE)
    for _ in range(3):
        assert prune(bare_cell, NOON + HOUR) == (0, False)
    assert prune(bare_cell, NOON + HOUR + timedelta(milliseconds=1)) == (1, False)


def test_a_task_that_took_long_is_forgotten_when_the_walk_begins_again(bare_cell: PostgresCell) -> None:
    acme = bare_cell.add_company("acme")
    put(bare_cell, acme, "completed", finished_at=NOON, took=60 * DAY)
    put(bare_cell, acme, "completed", finished_at=NOON - 1 * DAY, took=MINUTE)
    put(bare_cell, acme, "failed", finished_at=NOON, took=60 * DAY)
    at = NOON + 6 * DAY + HOUR
    assert prune_all(bare_cell, at) == [1]
    while at < NOON + 31 * DAY + HOUR:
        at += HOUR
        prune_all(bare_cell, at)
        rows = bare_cell.rows("select coalesce(stopped_as, 'completed') from tasks")
        if at > NOON + 8 * DAY:
            assert rows != [("completed",)]
    assert left(bare_cell) == set()


async def test_a_task_that_is_retried_by_hand_is_forgotten_after_its_new_end(cell: PostgresCell) -> None:
    cell.add_company("acme")
    (made,) = await cell.broker.enqueue("acme", new_tasks())
    await cell.broker.settle([Report((await claim(cell))[0], Outcome.FAILED)], at=NOON)
    assert (await cell.broker.prune(WEEK, at=NOON + 10 * DAY)).tasks == 0
    await cell.broker.retry("acme", made.task_id, at=NOON + 10 * DAY)
    await cell.broker.settle(reports([(await claim(cell))[0]]), at=NOON + 10 * DAY)
    assert (await cell.broker.prune(WEEK, at=NOON + 16 * DAY)).tasks == 0
    assert (await cell.broker.prune(WEEK, at=NOON + 18 * DAY)).tasks == 1


# Fault 167.
@pytest.mark.parametrize("status", STATUSES)
def test_a_raised_retention_forgets_nothing_and_a_lowered_one_forgets_in_batches(
    bare_cell: PostgresCell, status: str
) -> None:
    acme = bare_cell.add_company("acme")
    fill(bare_cell, acme, 100, status, since=NOON - 6 * DAY, until=NOON - 5 * DAY)
    fill(bare_cell, acme, 50, status, since=NOON - 1 * DAY, until=NOON)
    assert prune_all(bare_cell, NOON) == [0]
    for seconds in (86_400 * 7, 86_400 * 300):
        set_retention(bare_cell, acme, OwnRetention(**{status: seconds}))
        assert prune_all(bare_cell, NOON) == [0]
    set_retention(bare_cell, acme, OwnRetention(**{status: 86_400 * 2}))
    assert prune_all(bare_cell, NOON, most=30) == [30, 30, 30, 10]
    assert len(left(bare_cell)) == 50
    set_retention(bare_cell, acme, OwnRetention())
    assert prune_all(bare_cell, NOON) == [0]


def test_no_company_is_forgotten_by_passes_that_end_before_the_last(bare_cell: PostgresCell) -> None:
    companies = [bare_cell.add_company(f"c{place}") for place in range(7)]
    for company in companies:
        fill(bare_cell, company, 10, "completed", since=NOON - 30 * DAY, until=NOON - 20 * DAY)
    for _ in companies:
        assert prune(bare_cell, NOON, most=5) == (5, True)
    assert bare_cell.rows("select distinct count(*) from tasks group by company_id") == [(5,)]
    prune_all(bare_cell, NOON, most=3)
    assert left(bare_cell) == set()


def test_more_companies_than_one_pass_visits_are_all_seen_to(bare_cell: PostgresCell) -> None:
    bare_cell.add_companies(2_100, tasks=0)
    bare_cell.connection.execute(
        """
        insert into tasks (company_id, id, type, queue, priority, run_after, max_retries, payload, created_at,
            finished_at)
        select id, first_id(%(ended)s), 'work', 'default', 5, %(ended)s, 0, '{}', %(ended)s, %(ended)s from companies
        order by id desc limit 10
        """,
        {"ended": NOON - 10 * DAY},
    )
    assert prune_all(bare_cell, NOON) == [0, 0, 10]


def test_arrears_of_one_company_do_not_hold_up_another_s(bare_cell: PostgresCell) -> None:
    flood, quiet = bare_cell.add_company("flood"), bare_cell.add_company("quiet")
    fill(bare_cell, flood, 500, "completed", since=NOON - 30 * DAY, until=NOON - 20 * DAY)
    fill(bare_cell, quiet, 5, "failed", since=NOON - 60 * DAY, until=NOON - 50 * DAY)
    for _ in range(2):
        prune(bare_cell, NOON, most=50)
    assert bare_cell.rows("select count(*) from tasks where company_id = %s", quiet) == [(0,)]


async def test_many_pruners_forget_each_task_once(cell: PostgresCell) -> None:
    acme = cell.add_company("acme")
    fill(cell, acme, 300, "completed", since=NOON - 30 * DAY, until=NOON - 20 * DAY)
    forgotten = 0
    while left(cell):
        answers = await asyncio.gather(*[cell.broker.prune(WEEK, most=20, at=NOON) for _ in range(8)])
        assert max(pruned.tasks for pruned in answers) == 20
        forgotten += sum(pruned.tasks for pruned in answers)
    assert forgotten == 300
    assert cell.contradictions() == []


def test_nothing_is_remembered_of_a_company_that_is_gone(bare_cell: PostgresCell) -> None:
    """A pass may have begun before the deletion."""
    bare_cell.rows("select remember_pruning(%s, 'failed', '1 day', gen_random_uuid(), null)", uuid4())
    assert bare_cell.rows("select * from prunings") == []


# Fault 173.
async def test_of_every_way_to_end_nothing_is_left_in_any_table(cell: PostgresCell) -> None:
    acme = cell.add_company("acme")
    cell.set_quotas("acme", month=1_000)
    for way in (*STATUSES, "retried"):
        tasks = [
            NewTask(
                type="work",
                payload="{}",
                tags=("eu", way),
                unique=Unique(f"{way}-{place}"),
                idempotency_key=f"{way}-{place}",
                fingerprint=b"x",
            )
            for place in range(5)
        ]
        made = await cell.broker.enqueue("acme", tasks)
        held = await claim(cell)
        if way == "retried":
            await cell.broker.settle([Report(task, Outcome.RETRY, error="no", delay_seconds=0) for task in held])
            await cell.broker.promote()
            held = await claim(cell)
        if way == "cancelled":
            for task in made:
                await cell.broker.cancel("acme", task.task_id)
        outcome = Outcome.FAILED if way == "failed" else Outcome.COMPLETED
        await cell.broker.settle([Report(task, outcome, error="no" if way == "failed" else None) for task in held])
    assert cell.rows("select distinct stopped_as from tasks order by 1") == [("cancelled",), ("failed",), (None,)]
    assert cell.rows("select count(*) from failures(%s, '', '', 10, 10)", acme) == [(1,)]
    soon = datetime.now(UTC) + 2 * DAY
    set_retention(cell, acme, OwnRetention(completed=3_600, failed=3_600, cancelled=3_600))
    pruned = await cell.broker.prune(WEEK, at=soon)
    assert (pruned.tasks, pruned.keys) == (20, 20)
    for table in ("tasks", "task_events", "task_tags", "unique_keys", "idempotency_keys"):
        assert cell.rows(f"select count(*) from {table}") == [(0,)], table
    assert cell.rows("select count(*) from failures(%s, '', '', 10, 10)", acme) == [(0,)]
    assert cell.rows("select sum(kept), sum(refunded) from quota_changes") == [(15, 5)]
    assert cell.contradictions() == []


async def test_a_change_is_in_the_audit_and_acts_at_the_next_pass(cell: PostgresCell) -> None:
    acme = cell.add_company("acme")
    put(cell, acme, "failed", finished_at=NOON - 2 * DAY, took=MINUTE)
    put(cell, acme, "completed", finished_at=NOON - 2 * DAY, took=MINUTE)
    assert (await cell.broker.prune(WEEK, at=NOON)).tasks == 0
    changed = await directory.change(cell.broker.database, acme, {"retention": OwnRetention(failed=86_400)})
    assert changed is not None
    assert changed.retention == OwnRetention(failed=86_400)
    assert changed.quotas == Quotas()
    assert (await cell.broker.prune(WEEK, at=NOON)).tasks == 1
    assert cell.rows("select stopped_as from tasks") == [(None,)]


MOMENTS = st.integers(0, 40 * 24 * 60)
TOOK = st.sampled_from([timedelta(0), MINUTE, 9 * MINUTE, HOUR, DAY, 20 * DAY])
OWN = st.none() | st.sampled_from([60, 3_600, 86_400, 3 * 86_400, 20 * 86_400, 365 * 86_400])
RETENTION = st.tuples(OWN, OWN, OWN)
TASKS = st.tuples(st.integers(0, 3), st.sampled_from([*STATUSES, "open"]), MOMENTS, TOOK)


@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    retentions=st.lists(st.tuples(RETENTION, RETENTION), min_size=4, max_size=4),
    planned=st.lists(TASKS, max_size=40),
    steps=st.lists(st.integers(1, 10 * 24 * 60), min_size=1, max_size=6),
    changes_after=st.integers(0, 5),
    most=st.integers(1, 8),
)
def test_exactly_what_is_past_the_retention_of_its_company_for_its_status_is_gone(
    bare_cell: PostgresCell,
    retentions: list[tuple[Any, Any]],
    planned: list[tuple[int, str, int, timedelta]],
    steps: list[int],
    changes_after: int,
    most: int,
) -> None:
    """Of tasks that took more than ten minutes, what is gone must be so a day later at most."""
    bare_cell.clear()
    start = NOON - timedelta(days=40)
    companies = [bare_cell.add_company(f"c{place}") for place in range(4)]
    plan = [(companies[place], status, start + minute * MINUTE, took) for place, status, minute, took in planned]

    def own(company: UUID, turn: int) -> OwnRetention:
        return OwnRetention(**dict(zip(STATUSES, retentions[companies.index(company)][turn], strict=True)))

    def keep(task: Ended, turn: int) -> timedelta:
        seconds = getattr(own(task.company_id, turn), task.status, None)
        return getattr(WEEK, task.status, timedelta(0)) if seconds is None else timedelta(seconds=seconds)

    made: list[Ended] = []
    at, turn = start, 0
    for number, minutes in enumerate(steps):
        turn = int(number >= changes_after)
        for company in companies:
            set_retention(bare_cell, company, own(company, turn))
        before, at = at, at + minutes * MINUTE
        made += [
            put(bare_cell, company, status, finished_at=None if status == "open" else moment, took=took)
            for company, status, moment, took in plan
            if before < moment <= at
        ]
        prune_all(bare_cell, at, most=most)
        remaining = left(bare_cell)
        for task in made:
            is_old = task.has_ended_before(at, keep(task, turn))
            assert is_old or task.id in remaining, f"{task} was forgotten too early"
            assert not (is_old and task.is_quick) or task.id not in remaining, f"{task} was kept too long"
        made = [task for task in made if task.id in remaining]
    prune_all(bare_cell, at + DAY, most=most)
    remaining = left(bare_cell)
    for task in made:
        length = keep(task, turn)
        assert task.has_ended_before(at + DAY, length) or task.id in remaining, f"{task} was forgotten too early"
        assert not task.has_ended_before(at, length) or task.id not in remaining, f"{task} was not seen again"


def pages(cell: PostgresCell, at: datetime) -> int:
    """How many pages a pass touches."""
    ((plans,),) = cell.connection.execute(
        "explain (analyze, buffers, timing off, format json) select * from prune(%s, %s, %s, 1000, %s)",
        (WEEK.completed, WEEK.failed, WEEK.cancelled, at),
    ).fetchall()
    plan: dict[str, Any] = plans[0]["Plan"]
    return sum(int(plan[f"{kind} Blocks"]) for kind in ("Shared Hit", "Shared Read", "Local Hit", "Local Read"))


def young(cell: PostgresCell, acme: UUID) -> None:
    fill(cell, acme, 30_000, "completed", since=NOON - 6 * DAY, until=NOON)


def kept_by_its_company(cell: PostgresCell, acme: UUID) -> None:
    set_retention(cell, cell.add_company("archive"), OwnRetention(completed=365 * 86_400))
    ((archive,),) = cell.rows("select id from companies where slug = 'archive'")
    fill(cell, archive, 30_000, "completed", since=NOON - 300 * DAY, until=NOON)


def kept_for_another_status(cell: PostgresCell, acme: UUID) -> None:
    fill(cell, acme, 15_000, "failed", since=NOON - 29 * DAY, until=NOON - 8 * DAY)
    fill(cell, acme, 15_000, "cancelled", since=NOON - 29 * DAY, until=NOON - 8 * DAY)


def open_for_long(cell: PostgresCell, acme: UUID) -> None:
    fill(cell, acme, 30_000, "open", since=NOON - 60 * DAY, until=NOON - 8 * DAY)


@pytest.mark.parametrize("statistics", ["analyzed", "never analyzed"])
@pytest.mark.parametrize("keeps", [young, kept_by_its_company, kept_for_another_status, open_for_long])
def test_a_pass_reads_nothing_of_what_is_kept(
    bare_cell: PostgresCell, new_cell: PostgresCell, keeps: Any, statistics: str
) -> None:
    for cell in (bare_cell, new_cell):
        acme = cell.add_company("acme")
        if cell is new_cell:
            keeps(cell, acme)
        fill(cell, acme, 200, "completed", since=NOON - 7 * DAY + HOUR, until=NOON - 7 * DAY + 2 * HOUR)
        fill(cell, acme, 200, "failed", since=NOON - 30 * DAY + HOUR, until=NOON - 30 * DAY + 2 * HOUR)
        if statistics == "analyzed":
            cell.connection.execute("vacuum (analyze)")
        assert sum(prune_all(cell, NOON)) == 0
    later = NOON + 2 * HOUR + MINUTE
    costs = []
    for cell in (bare_cell, new_cell):
        before = len(left(cell))
        costs.append(pages(cell, later))
        assert before - len(left(cell)) == 400
    assert costs[1] <= 2 * costs[0], "what is forgotten is looked up in indexes of one more level"
    idle = pages(new_cell, later)
    assert idle < costs[0] / 4


# Fault 074.
def test_an_old_snapshot_makes_no_pass_dearer(bare_cell: PostgresCell) -> None:
    acme = bare_cell.add_company("acme")
    costs = []
    with connect(bare_cell.url) as holder:
        holder.execute("begin isolation level repeatable read")
        holder.execute("select count(*) from tasks")
        for number in range(8):
            at = NOON + number * HOUR / 2
            fill(bare_cell, acme, 500, "completed", since=at - 7 * DAY - HOUR / 2, until=at - 7 * DAY - MINUTE)
            costs.append(pages(bare_cell, at))
            assert left(bare_cell) == set()
    assert costs[-1] <= FLAT * costs[1]


def test_a_pass_waits_for_nobody_who_holds_a_task(bare_cell: PostgresCell) -> None:
    acme = bare_cell.add_company("acme")
    fill(bare_cell, acme, 3, "completed", since=NOON - 30 * DAY, until=NOON - 20 * DAY)
    with connect(bare_cell.url) as holder, holder.transaction():
        holder.execute("select from tasks order by id limit 1 for update")
        assert prune(bare_cell, NOON) == (2, False)
    assert prune(bare_cell, NOON + DAY) == (1, False)
