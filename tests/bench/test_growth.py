"""Cells that are measured are as they are said to be, and what is told of curves and of a soak follows from figures."""

from __future__ import annotations

import psycopg
import pytest

from bench import claim, soak
from bench.growth import claims, workers
from bench.growth.curve import Curve, powers_of_ten
from bench.server import connect
from scripts import perf_seed
from scripts.perf_seed import Backlog
from taketurns.storage.database import Row

BACKLOG = Backlog(2_000, 10)
WAITING = "select company_id, count(*) from pending_tasks group by company_id order by company_id"
COMPLETED = (
    "select stopped_as, result, error, event_number, retry_count, reserved_at, started_at <= finished_at,"
    " worker_id is not null, queue, priority from tasks where finished_at is not null"
)


@pytest.fixture
def connection(database_url: str) -> psycopg.Connection[Row]:
    with psycopg.connect(database_url, autocommit=True) as seeding:
        perf_seed.seed_cell(seeding, BACKLOG)
    return connect(database_url)


def test_a_cell_that_is_kept_full_has_as_many_tasks_of_each_company_as_before(
    connection: psycopg.Connection[Row],
) -> None:
    with connection:
        before = connection.execute(WAITING).fetchall()
        kept_full = claims.kept_full(connection)
        for batch in (1, 10, 100):
            kept_full(batch)
        assert connection.execute(WAITING).fetchall() == before
        assert connection.execute("select count(*) from processing_tasks").fetchone() == (0,)


def test_so_many_tasks_run_elsewhere_whatever_is_claimed_beside_them(connection: psycopg.Connection[Row]) -> None:
    with claims.with_running(connection, 30):
        claims.kept_full(connection)(10)
        assert connection.execute("select count(*) from processing_tasks").fetchone() == (30,)


def test_a_seeded_history_is_what_claims_and_settlements_leave(connection: psycopg.Connection[Row]) -> None:
    with connection:
        claim.ours(connection)(10)
        done = set(connection.execute(COMPLETED).fetchall())
        perf_seed.seed_history(connection, 100)
        assert connection.execute("select count(*) from tasks where finished_at is not null").fetchone() == (110,)
        assert set(connection.execute(COMPLETED).fetchall()) == done
        assert connection.execute("select count(*) from task_events").fetchone() == (0,)


def test_every_company_with_work_is_in_the_rotation_however_many_they_are(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        perf_seed.seed_cell(connection, Backlog(5_000, perf_seed.LOCKS + 500, flood=0))
        waiting = connection.execute("select count(distinct company_id) from pending_tasks").fetchone()
        assert connection.execute("select count(*) from turns where queue = 'default'").fetchone() == waiting
    assert waiting is not None
    assert waiting[0] > perf_seed.LOCKS


def test_worker_processes_drain_all_that_waits(database_url: str) -> None:
    assert workers.drained_per_second(database_url, 250, workers=2, concurrency=10) > 0
    with connect(database_url) as connection:
        assert connection.execute("select count(*) from tasks where finished_at is not null").fetchone() == (
            connection.execute("select 250 - count(*) from scheduled_tasks").fetchone()
        )


async def test_a_soak_submits_what_it_says_and_sees_every_table(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        perf_seed.seed_cell(connection, Backlog(0, soak.COMPANIES))
    samples, load = await soak.soaked(database_url, 400, seconds=0.5)
    with connect(database_url) as connection:
        assert connection.execute("select count(*) from tasks").fetchone() == (load.submitted,)
    assert 0 < load.submitted <= 200
    assert load.left == load.submitted
    assert {sample.table for sample in samples} == {*soak.PASSING, soak.RECORDS}


@pytest.mark.parametrize(
    ("sizes", "is_flat"),
    [
        ([1.0, 5.0, 1.0, 5.0, 1.0, 5.0], True),
        ([5.0, 5.0, 5.1, 5.2, 5.4, 5.4], True),
        ([5.0, 5.0, 5.5, 5.5, 6.0, 6.0], False),
        ([0.01, 0.02, 0.1, 0.2, 0.3, 0.4], True),
    ],
)
def test_a_table_is_flat_when_its_end_is_as_its_beginning(sizes: list[float], is_flat: bool) -> None:
    assert soak.is_flat(sizes) is is_flat


def test_a_curve_tells_each_figure_and_what_it_is_to_the_first() -> None:
    curve = Curve("Claim", against="tasks", at=[10, 1_000], values={"of 10": [2.0, 3.0]}, unit="ms", note="Bar: 1.5 ×.")
    assert curve.table.splitlines()[2:] == ["| 10 | 2.00 | 1.00 × |", "| 1,000 | 3.00 | 1.50 × |", "", "Bar: 1.5 ×."]
    assert powers_of_ten(1_000, 250_000) == [1_000, 10_000, 100_000]
