"""While somebody holds an old snapshot, claims begin their scans at floors: nothing is lost, and nothing slows down."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from tests.brokers.postgres.cell import PostgresCell, Turn
from tests.brokers.postgres.connections import other_connection
from tests.brokers.postgres.test_cost import pages

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
SOON = timedelta(milliseconds=100)
LOOK = timedelta(minutes=1)  # after which a claim begins at the beginning again, however slow this machine is


@contextmanager
def old_snapshot(cell: PostgresCell, *, seconds: float = 0) -> Iterator[None]:
    """A snapshot from before many transactions, that has been kept for so long."""
    with other_connection(cell) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with connection.transaction():
            connection.execute("select from companies")
            for _ in range(101):
                cell.connection.execute("select pg_current_xact_id()")
            connection.execute("select pg_sleep(%s)", (seconds,))
            yield


def has_floors(cell: PostgresCell) -> bool:
    ((has_old_snapshot,),) = cell.rows("select has_old_snapshot from looks order by number desc limit 1")
    return bool(has_old_snapshot)


@pytest.fixture
def cell(bare_cell: PostgresCell) -> Iterator[PostgresCell]:
    """A cell whose claims have seen the old snapshot."""
    bare_cell.add_company("first")
    bare_cell.submit("first")
    with old_snapshot(bare_cell):
        bare_cell.finish(bare_cell.take(1, at=NOON))
        assert has_floors(bare_cell)
        yield bare_cell


def test_without_an_old_snapshot_there_are_no_floors(bare_cell: PostgresCell) -> None:
    bare_cell.add_company("acme")
    bare_cell.submit("acme", 10)
    bare_cell.take(1, at=NOON)
    assert not has_floors(bare_cell)


def test_a_snapshot_that_is_kept_for_a_moment_is_not_old(bare_cell: PostgresCell) -> None:
    """Claimers that wait for each other keep theirs, while others go on."""
    bare_cell.add_company("acme")
    bare_cell.submit("acme", 10)
    with old_snapshot(bare_cell):
        bare_cell.take(1)
    assert not has_floors(bare_cell)


@pytest.mark.parametrize("is_analyzed", [False, True])
def test_a_claim_reads_no_more_after_thousands_of_tasks(new_cell: PostgresCell, is_analyzed: bool) -> None:
    new_cell.add_companies(50, tasks=600)
    if is_analyzed:
        new_cell.connection.execute("vacuum (analyze)")
    with old_snapshot(new_cell, seconds=2):
        new_cell.finish(new_cell.take(10))
        fresh = pages(new_cell, 10, on=new_cell.connection)
        for _ in range(100):
            new_cell.finish(new_cell.take(200))
        assert pages(new_cell, 10, on=new_cell.connection) <= 2 * fresh


def test_a_task_that_is_given_back_below_the_floor_is_found_by_the_next_look(cell: PostgresCell) -> None:
    cell.add_company("acme")
    first, *_ = cell.submit("acme", 10)
    taken = cell.take(5, at=NOON + SOON)
    assert taken[0].task_id == first
    cell.take(1, at=NOON + 2 * SOON)
    cell.give_back(taken[:1])
    assert first in [turn.task_id for turn in cell.take(10, at=NOON + LOOK)]


def test_what_takes_long_to_look_at_is_looked_at_in_a_tenth_of_the_time(cell: PostgresCell) -> None:
    cell.add_company("acme")
    first, *_ = cell.submit("acme", 10)
    taken = cell.take(5, at=NOON + SOON)
    cell.connection.execute("update looks set took = '10 seconds'")
    cell.give_back(taken[:1])
    assert first not in [turn.task_id for turn in cell.take(2, at=NOON + timedelta(seconds=99))]
    assert first in [turn.task_id for turn in cell.take(1, at=NOON + timedelta(seconds=101))]


def test_a_task_of_a_higher_priority_is_found_at_once(cell: PostgresCell) -> None:
    cell.add_company("acme")
    cell.submit("acme", 10)
    cell.take(5, at=NOON + SOON)
    (urgent,) = cell.submit("acme", priority=0)
    assert [turn.task_id for turn in cell.take(1, at=NOON + 2 * SOON)] == [urgent]


def test_a_company_that_joins_is_found_at_once(cell: PostgresCell) -> None:
    cell.add_company("acme")
    cell.submit("acme", 10)
    for _ in range(3):
        cell.take(1, at=NOON + SOON)
    cell.add_company("late")
    cell.submit("late")
    assert "late" in [turn.company for turn in cell.take(2, at=NOON + 2 * SOON)]


def test_companies_alternate(cell: PostgresCell) -> None:
    for slug in ("a", "b"):
        cell.add_company(slug)
        cell.submit(slug, 20)
    taken = [turn.company for step in range(1, 9) for turn in cell.take(2, at=NOON + step * SOON)]
    assert Counter(taken) == {"a": 8, "b": 8}


@pytest.mark.parametrize("seed", range(8))
def test_limits_hold_and_every_task_is_taken_once(cell: PostgresCell, seed: int) -> None:
    chance = random.Random(seed)
    limits = {"a": 1, "b": 3, "c": None}
    for slug, most in limits.items():
        cell.add_company(slug, max_in_flight=most)
    submitted = [task_id for slug in limits for task_id in cell.submit(slug, 30)]
    held: list[Turn] = []
    finished: list[Turn] = []
    now = NOON
    while len(finished) < len(submitted):
        now += timedelta(milliseconds=chance.choice([1, 50, 400, 1_100]))
        held += cell.take(chance.randint(1, 9), at=now)
        counts = Counter(turn.company for turn in held)
        assert all(most is None or counts[slug] <= most for slug, most in limits.items())
        chance.shuffle(held)
        released, ended, held = held[:1], held[1:4], held[4:]
        if chance.random() < 0.5:
            released, ended = [], released + ended
        cell.give_back(released)
        cell.finish(ended)
        finished += ended
        if not chance.randrange(4):
            submitted += cell.submit(chance.choice("abc"), 2, priority=chance.choice([0, 5, 9]))
    assert sorted(turn.task_id for turn in finished) == sorted(submitted)
    assert cell.contradictions() == []
