"""A task is told by where it stands, and pages of tasks are whole, in order, and cheap."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import chain, combinations, product
from typing import Any
from uuid import UUID, uuid4

import pytest

from taketurns.companies import directory
from taketurns.engine.task import Outcome, Status
from taketurns.history import pages, reading, tasks
from taketurns.history.tasks import Filter, TaskRecord
from taketurns.storage.database import compile_statement
from tests.history.conftest import Life

EVERY = Filter()


async def status(life: Life, task_id: UUID) -> Status:
    record = await tasks.find(life.database, life.company_id, task_id)
    assert record is not None
    return record.status


async def walk(
    life: Life, wanted: Filter = EVERY, *, limit: int = 7, company: UUID | str | None = None
) -> list[TaskRecord]:
    """Every page to the last."""
    found: list[TaskRecord] = []
    after = None
    while True:
        page = await tasks.page(life.database, company or life.company_id, wanted, limit=limit, after=after)
        assert page is not None
        assert len(page.tasks) <= limit
        found += page.tasks
        if page.next_after is None:
            return found
        after = page.next_after


def ids(records: Sequence[TaskRecord]) -> list[UUID]:
    return [record.id for record in records]


async def test_a_status_is_where_the_task_stands(life: Life) -> None:
    (task,) = await life.create(delay_seconds=3600)
    assert await status(life, task) is Status.SCHEDULED
    await life.broker.retry("acme", task)
    assert await status(life, task) is Status.PENDING
    claimed = await life.claim()
    assert await status(life, task) is Status.PROCESSING
    await life.end(claimed, Outcome.RETRY)
    assert await status(life, task) is Status.SCHEDULED
    await life.broker.retry("acme", task)
    await life.end(await life.claim(), Outcome.FAILED)
    assert await status(life, task) is Status.FAILED
    await life.broker.retry("acme", task)
    await life.end(await life.claim(), Outcome.CANCELLED)
    assert await status(life, task) is Status.CANCELLED
    await life.broker.retry("acme", task)
    await life.end(await life.claim())
    assert await status(life, task) is Status.COMPLETED


async def test_a_record_tells_the_current_attempt(life: Life) -> None:
    (task,) = await life.create()
    (claimed,) = await life.claim()
    record = await tasks.find(life.database, "acme", task)
    assert record is not None
    assert (record.started_at, record.finished_at, record.event_number) == (claimed.claimed_at, None, 2)
    await life.end([claimed])
    record = await tasks.find(life.database, "acme", task)
    assert record is not None
    assert (record.started_at, record.result, record.event_number) == (claimed.claimed_at, '"done"', 3)
    assert record.finished_at is not None


async def test_a_task_belongs_to_its_company_alone(life: Life) -> None:  # fault 039
    (task,) = await life.create()
    other = await directory.create(life.database, name="Other")
    for company in (other.id, other.slug, uuid4(), "nobody"):
        assert await tasks.find(life.database, company, task) is None
    assert await walk(life, company=other.id) == []


async def test_an_unknown_company_has_no_page(life: Life) -> None:
    assert await tasks.page(life.database, uuid4(), EVERY, limit=1) is None
    assert await tasks.page(life.database, "nobody", EVERY, limit=1) is None


async def test_a_page_of_no_task_is_empty(life: Life) -> None:
    assert await tasks.page(life.database, "acme", EVERY, limit=1) == tasks.Page()


async def some_of_every_status(life: Life) -> None:
    await life.create(5, type="mail", delay_seconds=3600, tags=("vip",))
    await life.create(4, type="call")
    await life.end(await life.claim(4), Outcome.FAILED)
    await life.create(6, type="mail")
    await life.end(await life.claim(3))
    await life.end(await life.claim(2), Outcome.CANCELLED)
    await life.create(6, type="call", tags=("eu", "new", "vip"))
    await life.end(await life.claim(4))
    await life.claim(2)
    await life.create(5, type="mail", tags=("eu", "vip"))
    await life.create(3, type="call", delay_seconds=3600, tags=("eu",))


def some_statuses() -> Iterator[frozenset[Status]]:
    """None, each, and each two of them."""
    yield from map(frozenset, chain.from_iterable(combinations(Status, size) for size in range(3)))


@pytest.mark.parametrize("oldest_first", [False, True])
@pytest.mark.parametrize("look_ahead", [3, 20_000])
async def test_every_filter_pages_through_exactly_the_tasks_it_names(  # fault 015
    life: Life, oldest_first: bool, look_ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "LOOK_AHEAD", look_ahead)
    tasks._page_statement.cache_clear()
    await some_of_every_status(life)
    everything = sorted(await walk(life), key=lambda record: record.id, reverse=not oldest_first)
    assert len(everything) == 29
    assert {record.status for record in everything} == set(Status)
    middle = everything[14].created_at
    for statuses in some_statuses():
        for types in map(frozenset[str], ((), ("mail",), ("mail", "work"), ("nothing", "mail"))):
            for created_after in (None, middle):
                wanted = Filter(statuses=statuses, types=types, created_after=created_after, oldest_first=oldest_first)
                expected = [
                    record
                    for record in everything
                    if (not statuses or record.status in statuses)
                    and (not types or record.type in types)
                    and (created_after is None or record.created_at > created_after)
                ]
                assert await walk(life, wanted) == expected, wanted
    tasks._page_statement.cache_clear()


@pytest.mark.parametrize("look_ahead", [3, 20_000])
async def test_tags_page_through_exactly_the_tasks_that_have_them(
    life: Life, look_ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "LOOK_AHEAD", look_ahead)
    tasks._page_statement.cache_clear()
    await some_of_every_status(life)
    everything = sorted(await walk(life), key=lambda record: record.id)
    some = (EVERY, *(Filter(statuses=frozenset({status})) for status in Status), Filter(types=frozenset({"mail"})))
    for tags in map(frozenset[str], (("eu",), ("vip", "eu"), ("none", "eu"))):
        for wanted in some:
            expected = [
                record
                for record in everything
                if tags <= {*(record.tags or ())}
                and (not wanted.statuses or record.status in wanted.statuses)
                and (not wanted.types or record.type in wanted.types)
            ]
            assert await walk(life, replace(wanted, tags=tags, oldest_first=True)) == expected, (wanted, tags)
    tasks._page_statement.cache_clear()


async def test_a_batch_of_one_moment_is_paged_without_gaps(life: Life) -> None:  # fault 015
    created = await life.create(250)
    for oldest_first in (False, True):
        found = ids(await walk(life, Filter(oldest_first=oldest_first)))
        assert found == sorted(created, reverse=not oldest_first)


async def test_tasks_that_come_and_go_do_not_shift_the_pages(life: Life) -> None:  # fault 016
    created = await life.create(40)
    found: list[UUID] = []
    after = None
    while True:
        page = await tasks.page(life.database, "acme", EVERY, limit=10, after=after)
        assert page is not None
        found += ids(page.tasks)
        await life.create(20)
        await life.end(await life.claim(5))
        if page.next_after is None:
            break
        after = page.next_after
    assert sorted(found) == sorted(created)


async def test_offsets_skip_tasks(life: Life) -> None:
    created = sorted(await life.create(10), reverse=True)
    page = await tasks.page(life.database, "acme", Filter(statuses=frozenset({Status.PENDING})), limit=3, offset=4)
    assert page is not None
    assert ids(page.tasks) == created[4:7]
    assert page.next_after == created[6]


async def test_bounds_of_creation_are_exclusive_and_those_of_postgresql(life: Life) -> None:
    moment = datetime.now(UTC) + timedelta(seconds=20)  # the clock of PostgreSQL is ahead of that of the ids
    await life.create(at=moment - timedelta(microseconds=1))
    (task,) = await life.create(at=moment)
    await life.create(at=moment + timedelta(microseconds=1))
    around = timedelta(microseconds=1)
    wanted = Filter(created_after=moment - around, created_before=moment + around)
    assert ids(await walk(life, wanted)) == [task]


async def test_a_record_that_stands_nowhere_is_told_all_the_same(life: Life) -> None:  # fault 003
    (task,) = await life.create()
    await life.execute("delete from pending_tasks")
    await life.execute("update tasks set payload = %s, error = %s", json.dumps("x" * 100_000), "\x01\x1b[31m")
    assert ids(await walk(life)) == [task]


BACKLOG = 20_000


@pytest.fixture
async def backlog(life: Life) -> Life:
    """Many tasks that wait, many that have ended, and a few of what filters look for."""
    await life.execute(
        """
        insert into tasks (company_id, id, type, queue, priority, run_after, max_retries, payload, created_at,
            finished_at, stopped_as)
        select %s, (lpad(to_hex(1800000000000 + n), 12, '0') || '7000800000000000000' || '0')::uuid,
            case when n %% 5000 = 0 then 'rare' else 'work' end, 'default', 5, now(), 5, '{}',
            to_timestamp((1800000000000 + n) / 1000.0),
            case when n <= %s then now() end, case when n <= %s and n %% 2000 = 0 then 'failed' end
        from generate_series(1, %s) n
        """,
        life.company_id,
        BACKLOG,
        BACKLOG,
        2 * BACKLOG,
    )
    await life.execute(
        "insert into pending_tasks (queue, company_id, priority, run_after, task_id, type)"
        " select queue, company_id, priority, run_after, id, type from tasks where finished_at is null"
    )
    await life.execute(
        "with tagged as (update tasks set tags = '{eu,vip}' returning company_id, id)"
        " insert into task_tags (company_id, tag, task_id)"
        " select company_id, tag, id from tagged cross join unnest(array['eu', 'vip']) as t(tag)"
    )
    async with life.database.connection() as connection:
        await connection.execute("vacuum analyze")
    return life


def scanned_rows(plan: dict[str, Any]) -> float:
    """How many rows or entries the scans of a plan touched."""
    own = 0.0
    if "Relation Name" in plan or "Index Name" in plan:
        removed = plan.get("Rows Removed by Filter", 0) + plan.get("Rows Removed by Join Filter", 0)
        own = (plan["Actual Rows"] + removed) * plan["Actual Loops"]
    return own + sum(scanned_rows(part) for part in plan.get("Plans", []))


async def test_no_filter_scans_a_backlog(backlog: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    look_ahead = 500
    monkeypatch.setattr(pages, "LOOK_AHEAD", look_ahead)
    parameters = {
        "company": backlog.company_id,
        "type_0": "rare",
        "type_1": "nothing",
        "queue_0": "elsewhere",
        "tag_0": "eu",
        "tag_1": "none",
        "low": UUID(int=0),
        "high": UUID(int=2**128 - 1),
        "created_after": datetime(2000, 1, 1, tzinfo=UTC),
        "created_before": datetime(2100, 1, 1, tzinfo=UTC),
        "most": 11,
        "skip": 0,
        "reach": 11,
    }
    either = (False, True)
    one = [frozenset[Status](), *(frozenset({status}) for status in Status)]
    shapes = chain(
        product(some_statuses(), range(3), (0,), either, either, (0,)),
        product(one, (0, 1), (1, 2), (False,), either, (0,)),
        product(one, (0,), (0, 1), (False,), (False,), (1,)),
    )
    for statuses, types, tags, has_times, oldest_first, queues in shapes:
        shape = pages.Shape(True, statuses, types, tags, False, has_times, oldest_first, queues)
        query, constants = compile_statement(backlog.database.schema, pages.statement(shape, tasks.COLUMNS))
        ((plan,),) = await reading.rows(
            backlog.database, f"explain (analyze, format json) {query}", constants | parameters
        )
        # For each status and type the entries, once more to find where they ended, and the records if those know the
        # time of creation; for each task that was found its record and three places.
        most = 4 * look_ahead * max(len(statuses), 1) * max(types, 1) + 100
        if tags:
            most = 10 * look_ahead  # besides the entries, the record and the three places of each
        assert scanned_rows(plan[0]["Plan"]) <= most, shape


async def test_totals_count_what_the_pages_hold(life: Life) -> None:
    await life.create(count=12)
    await life.create(count=3, delay_seconds=3600)
    await life.end(await life.claim(), Outcome.FAILED)
    filters = (
        EVERY,
        Filter(statuses=frozenset({Status.FAILED, Status.SCHEDULED})),
        Filter(types=frozenset({"nothing"})),
    )
    for wanted, exactly in product(filters, (False, True)):
        found = await walk(life, wanted)
        assert await tasks.total(life.database, "acme", wanted, exactly=exactly) == tasks.Total(len(found), True)


async def test_a_total_beyond_its_bound_is_a_bound_unless_it_is_asked_for(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    await life.create(count=3000)  # which cannot be counted in no time
    monkeypatch.setattr(tasks, "COUNT_MOST", 10)
    assert await tasks.total(life.database, life.company_id, EVERY, exactly=False) == tasks.Total(10, False)
    assert await tasks.total(life.database, life.company_id, EVERY, exactly=True) == tasks.Total(3000, True)
    monkeypatch.setattr(tasks, "COUNT_SECONDS", 0.0)
    assert await tasks.total(life.database, life.company_id, EVERY, exactly=True) == tasks.Total(10, False)
