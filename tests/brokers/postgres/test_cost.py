"""What a claim reads depends on its batch and on what the fleet runs, and on nothing else. Measured in pages."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from statistics import median
from typing import Any

import psycopg
import pytest

from taketurns.storage.database import Row
from tests.brokers.postgres.cell import WORKER, PostgresCell, connect

Fill = Callable[[PostgresCell], None]

FLAT = 1.75
"""Each of a claim's look-ups reads a page more where an index is a level deeper."""


def pages(
    cell: PostgresCell, batch: int, *, on: psycopg.Connection[Row] | None = None, but_of: str = "nobody"
) -> float:
    """How many pages a claim touches, the median of a few that are made within one second of the cell's, in which only
    the first looks for dead rows."""
    with connect(cell.url) as connection:
        ((now,),) = connection.execute("select clock_timestamp()").fetchall()
        return median(_claim(cell, batch, now, on or connection, but_of) for _ in range(5))


def _claim(cell: PostgresCell, batch: int, now: datetime, connection: psycopg.Connection[Row], but_of: str) -> int:
    ((plans,),) = connection.execute(
        "explain (analyze, buffers, timing off, format json)"
        " select * from claim(%s, '{default}', %s, gen_random_uuid(), '{}', %s)",
        (WORKER, batch, now),
    ).fetchall()
    plan: dict[str, Any] = plans[0]["Plan"]
    assert plan["Actual Rows"] == batch
    cell.finish_all(but_of=but_of)
    return _pages(plan)


def pages_of(cell: PostgresCell, statement: str) -> float:
    """How many pages a statement touches while ten tasks run, the median of a few times."""

    def once(connection: psycopg.Connection[Row]) -> int:
        assert len(cell.take(10, on=connection)) == 10
        ((plans,),) = connection.execute(
            f"explain (analyze, buffers, timing off, format json) {statement}".encode()
        ).fetchall()
        plan: dict[str, Any] = plans[0]["Plan"]
        assert plan["Actual Rows"] == 10
        cell.finish_all()
        return _pages(plan)

    with connect(cell.url) as connection:
        return median(once(connection) for _ in range(5))


def _pages(plan: dict[str, Any]) -> int:
    return sum(int(plan[f"{kind} Blocks"]) for kind in ("Shared Hit", "Shared Read", "Local Hit", "Local Read"))


def analyze(cell: PostgresCell) -> None:
    cell.connection.execute("vacuum (analyze)")


def small(cell: PostgresCell) -> None:
    cell.add_companies(50, tasks=20)


def large_backlog(cell: PostgresCell) -> None:
    small(cell)
    cell.add_flood(30_000)


def many_companies(cell: PostgresCell) -> None:
    cell.add_companies(5_000, tasks=6)


def much_delayed(cell: PostgresCell) -> None:
    small(cell)
    cell.add_scheduled(30_000)


def long_history(cell: PostgresCell) -> None:
    small(cell)
    cell.add_finished(30_000)


def as_analyzed(fill: Fill) -> Fill:
    def fill_and_analyze(cell: PostgresCell) -> None:
        fill(cell)
        analyze(cell)

    return fill_and_analyze


def with_stale_statistics(fill: Fill) -> Fill:
    """The server believes that there are three rows of each."""

    def analyze_and_fill(cell: PostgresCell) -> None:
        cell.add_company("first")
        cell.submit("first", 3)
        analyze(cell)
        fill(cell)
        cell.finish(cell.take(1))

    return analyze_and_fill


def never_analyzed(fill: Fill) -> Fill:
    return fill


@pytest.mark.parametrize("statistics", [as_analyzed, never_analyzed, with_stale_statistics])
@pytest.mark.parametrize("fill", [large_backlog, many_companies, much_delayed, long_history])
def test_a_claim_reads_no_more_of_a_large_cell_than_of_a_small_one(
    bare_cell: PostgresCell, new_cell: PostgresCell, statistics: Callable[[Fill], Fill], fill: Fill
) -> None:
    statistics(small)(bare_cell)
    statistics(fill)(new_cell)
    for batch in (1, 10):
        assert pages(new_cell, batch) <= FLAT * pages(bare_cell, batch)


def test_a_plan_made_when_all_was_empty_is_as_good_as_another(new_cell: PostgresCell) -> None:
    with connect(new_cell.url) as connection:
        assert new_cell.take(10, on=connection) == []
        many_companies(new_cell)
        old_plan = pages(new_cell, 10, on=connection)
    analyze(new_cell)
    assert old_plan <= FLAT * pages(new_cell, 10)


def test_a_company_at_its_limit_or_paused_costs_nothing_of_its_backlog(
    bare_cell: PostgresCell, new_cell: PostgresCell
) -> None:
    small(bare_cell)
    small(new_cell)
    new_cell.add_company("limited", max_in_flight=1)
    new_cell.add_company("paused")
    for slug in ("limited", "paused"):
        new_cell.submit(slug, 20_000)
    new_cell.set_paused("paused", True)
    assert pages(new_cell, 10) <= FLAT * pages(bare_cell, 10)


OUT_OF_RATE = "update companies set rate_tasks = 1, rate_seconds = 86400, rate_burst = 1 where slug like 'limited-%'"
PAUSED = "update companies set paused = true where slug like 'limited-%'"
QUEUE_PAUSED = "insert into pauses (company_id, queue) select id, 'default' from companies where slug like 'limited-%'"
FULL = "update companies set max_in_flight = 1 where slug like 'limited-%'"


def claim_until_they_have_left(cell: PostgresCell, *, but_of: str = "nobody") -> None:
    while cell.rows(
        "select from lines l join companies c on c.id = l.company_id"
        " where c.slug like 'limited-%%' and l.rests_place is null limit 1"
    ):
        cell.take(100)
        cell.finish_all(but_of=but_of)


@pytest.mark.parametrize("limit", [OUT_OF_RATE, PAUSED, QUEUE_PAUSED])
def test_many_companies_that_may_not_be_served_cost_a_claim_nothing(
    bare_cell: PostgresCell, new_cell: PostgresCell, limit: str
) -> None:
    for cell in (bare_cell, new_cell):
        cell.add_companies(50, tasks=200)
    new_cell.add_companies(1_000, tasks=10, name="limited")
    new_cell.connection.execute(limit.encode())
    claim_until_they_have_left(new_cell)
    analyze(bare_cell)
    analyze(new_cell)
    assert pages(new_cell, 10) <= FLAT * pages(bare_cell, 10)


def test_companies_at_their_limit_cost_a_claim_no_more_than_the_hands_that_they_hold(
    bare_cell: PostgresCell, new_cell: PostgresCell
) -> None:
    for cell, tasks in ((bare_cell, 1), (new_cell, 20)):
        cell.add_companies(50, tasks=100)
        cell.add_companies(300, tasks=tasks, name="limited")
        cell.connection.execute(FULL.encode())
        claim_until_they_have_left(cell, but_of="limited")
        analyze(cell)
        assert cell.rows("select count(*) from processing_tasks") == [(300,)]
    assert pages(new_cell, 10, but_of="limited") <= FLAT * pages(bare_cell, 10, but_of="limited")


SETTLE = """
    select * from settle(
        array(select p.company_id from processing_tasks p order by p.company_id, p.task_id),
        array(select p.task_id from processing_tasks p order by p.company_id, p.task_id),
        array(select p.claim_token from processing_tasks p order by p.company_id, p.task_id),
        array_fill('completed'::text, array[10]), null, null, null)
"""
ENQUEUE = """
    select * from enqueue((select c.id::text from companies c order by c.id limit 1),
        array(select gen_random_uuid() from generate_series(1, 10)), array_fill('work'::text, array[10]),
        array_fill('{}'::text, array[10]), array_fill('default'::text, array[10]), array_fill(5::smallint, array[10]),
        array_fill(null::timestamptz, array[10]), array_fill(null::float8, array[10]), array_fill(0, array[10]),
        array_fill(null::float8, array[10]))
"""


@pytest.mark.parametrize("fill", [large_backlog, many_companies, much_delayed, long_history])
def test_what_begins_and_ends_tasks_reads_no_more_of_a_large_cell_than_of_a_small_one(
    bare_cell: PostgresCell, new_cell: PostgresCell, fill: Fill
) -> None:
    with_stale_statistics(small)(bare_cell)
    with_stale_statistics(fill)(new_cell)
    for statement in (ENQUEUE, SETTLE):
        assert pages_of(new_cell, statement) <= FLAT * pages_of(bare_cell, statement)


def test_a_batch_costs_in_proportion_to_its_size(bare_cell: PostgresCell) -> None:
    bare_cell.add_companies(50, tasks=50)
    assert pages(bare_cell, 100) <= 10 * FLAT * pages(bare_cell, 10)


def test_a_claim_that_finds_nothing_writes_nothing(bare_cell: PostgresCell) -> None:
    bare_cell.add_company("acme")
    bare_cell.submit("acme")
    bare_cell.finish(bare_cell.take(1))
    assert bare_cell.take(10) == []
    with bare_cell.connection.transaction():
        assert bare_cell.take(10) == []
        assert bare_cell.rows("select pg_current_xact_id_if_assigned()") == [(None,)]
