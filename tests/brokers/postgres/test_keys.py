"""Idempotency keys and the connections that take them: a key is never left without its task."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import psycopg
import pytest

from taketurns.storage.database import Row
from taketurns.storage.ids import new_id
from tests.brokers.postgres.cell import PostgresCell
from tests.brokers.postgres.connections import is_waiting, other_connection, wait_until


def submit_keyed(connection: psycopg.Connection[Row], key: str, *, request: bytes = b"same") -> str:
    """The outcome of one keyed task."""
    ((outcome,),) = connection.execute(
        "select outcome from enqueue('acme', %s, array['work'], array['{}'], array['default'], array[5]::smallint[],"
        " null, null, array[0], null, %s, %s)",
        ([new_id()], [key], [request]),
    ).fetchall()
    return str(outcome)


@pytest.fixture
def cell(bare_cell: PostgresCell) -> PostgresCell:
    bare_cell.add_company("acme")
    return bare_cell


@pytest.mark.parametrize(("ends", "outcome"), [("commit", "replayed"), ("rollback", "created")])
def test_a_second_request_waits_for_the_first_to_end(cell: PostgresCell, ends: str, outcome: str) -> None:
    with other_connection(cell) as first, other_connection(cell) as second, ThreadPoolExecutor(1) as thread:
        first.execute("begin")
        assert submit_keyed(first, "k") == "created"
        late = thread.submit(submit_keyed, second, "k")
        wait_until(lambda: is_waiting(cell, second))
        first.execute(ends.encode())
        assert late.result() == outcome
    assert cell.rows("select count(*) from tasks") == [(1,)]
    assert cell.contradictions() == []


# Fault 030.
def test_a_connection_that_is_cut_leaves_no_key_behind(cell: PostgresCell) -> None:
    keys = [f"k{place}" for place in range(2_000)]

    def submit_all(connection: psycopg.Connection[Row]) -> None:
        with suppress(psycopg.OperationalError):
            for key in keys:
                submit_keyed(connection, key)

    with other_connection(cell) as cut, ThreadPoolExecutor(1) as thread:
        lost = thread.submit(submit_all, cut)
        wait_until(lambda: cell.rows("select count(*) > 20 from tasks") == [(True,)])
        cell.rows("select pg_terminate_backend(%s, 10000)", cut.info.backend_pid)
        lost.result()
    stored = cell.rows("select count(*) from tasks")[0][0]
    assert stored == cell.rows("select count(*) from idempotency_keys")[0][0] < 2_000
    outcomes = [submit_keyed(cell.connection, key) for key in keys]
    assert outcomes.count("replayed") == stored
    assert cell.rows("select count(*) from tasks") == [(2_000,)]


# Fault 027.
def test_a_slow_database_makes_the_others_wait_and_nobody_fail(cell: PostgresCell) -> None:
    cell.connection.execute(
        "create function be_slow() returns trigger language plpgsql as"
        " $$ begin perform pg_sleep(0.2); return new; end $$;"
        "create trigger slow before insert on tasks for each row execute function be_slow()"
    )
    try:

        def submit(_: int) -> str:
            with other_connection(cell) as connection:
                return submit_keyed(connection, "k")

        with ThreadPoolExecutor(20) as threads:
            outcomes = list(threads.map(submit, range(20)))
    finally:
        cell.connection.execute("drop trigger slow on tasks; drop function be_slow()")
    assert sorted(outcomes) == ["created"] + ["replayed"] * 19


# Fault 035.
def test_a_key_that_is_pruned_while_it_is_used_makes_one_task(cell: PostgresCell) -> None:
    submit_keyed(cell.connection, "k")
    cell.connection.execute("update idempotency_keys set expires_at = clock_timestamp()")
    with other_connection(cell) as pruning, other_connection(cell) as using, ThreadPoolExecutor(1) as thread:
        with pruning.transaction():
            assert pruning.execute("select keys from prune('1 day', '1 day', '1 day', 10)").fetchall() == [(1,)]
            late = thread.submit(submit_keyed, using, "k", request=b"other")
            wait_until(lambda: is_waiting(cell, using))
        assert late.result() == "created"
    assert cell.rows("select count(*) from idempotency_keys") == [(1,)]
