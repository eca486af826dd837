"""Who waits for whom: what a claim holds while it decides, and what others may do meanwhile."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import psycopg
import pytest
from psycopg.errors import DeadlockDetected, LockNotAvailable, UniqueViolation

from taketurns.storage.schema import function_source
from tests.brokers.postgres.cell import WORKER, PostgresCell, Turn
from tests.brokers.postgres.connections import advisory_locks, is_waiting, other_connection, wait_until

TAKES_THE_LOCK = "    perform pg_advisory_xact_lock(cell_lock(current_schema()::text));\n"


def claim_without_the_lock(cell: PostgresCell) -> None:
    """A copy of the claim, `claim_unlocked`, that decides without the cell's lock."""
    source = function_source("claim")
    assert source.count(TAKES_THE_LOCK) == 1
    cell.connection.execute(
        source.replace(TAKES_THE_LOCK, "").replace("function claim(", "function claim_unlocked(", 1).encode()
    )


@pytest.mark.parametrize("round_", range(10))
def test_without_the_lock_no_task_is_claimed_twice_either(bare_cell: PostgresCell, round_: int) -> None:
    """Must 5: the move alone decides who has a task. Ten connections at once; claims that get in each other's way are
    undone as a whole."""
    claim_without_the_lock(bare_cell)
    for slug in ("a", "b", "c"):
        bare_cell.add_company(slug)
        bare_cell.submit(slug, 40)
    start = threading.Barrier(10)

    def claim_all() -> list[uuid.UUID]:
        mine: list[Turn] = []
        with other_connection(bare_cell) as connection:
            start.wait()
            for _ in range(6):
                with suppress(UniqueViolation, DeadlockDetected, LockNotAvailable):
                    mine += bare_cell.take(5, on=connection, function="claim_unlocked")
        return [turn.task_id for turn in mine]

    with ThreadPoolExecutor(10) as threads:
        claimed = [task_id for mine in threads.map(lambda _: claim_all(), range(10)) for task_id in mine]
    assert len(claimed) == len(set(claimed)) > 5
    assert sorted(claimed) == sorted(row[0] for row in bare_cell.rows("select task_id from processing_tasks"))
    assert bare_cell.rows("select count(*) from pending_tasks") == [(120 - len(claimed),)]


def test_two_claims_that_chose_the_same_task_without_the_lock_leave_it_to_one(bare_cell: PostgresCell) -> None:
    claim_without_the_lock(bare_cell)
    bare_cell.add_company("acme")
    bare_cell.submit("acme", 1)
    with other_connection(bare_cell) as first, other_connection(bare_cell) as second, ThreadPoolExecutor(1) as thread:
        with first.transaction():
            assert len(bare_cell.take(1, on=first, function="claim_unlocked")) == 1
            late = thread.submit(bare_cell.take, 1, on=second, function="claim_unlocked")
            wait_until(lambda: is_waiting(bare_cell, second))
        assert late.result() == []


def test_claims_decide_one_at_a_time(bare_cell: PostgresCell) -> None:
    bare_cell.add_company("acme")
    bare_cell.submit("acme", 2)
    with other_connection(bare_cell) as first, other_connection(bare_cell) as second, ThreadPoolExecutor(1) as thread:
        with first.transaction():
            bare_cell.take(1, on=first)
            late = thread.submit(bare_cell.take, 1, on=second)
            wait_until(lambda: is_waiting(bare_cell, second))
        assert len(late.result()) == 1
    claimed = bare_cell.rows("select claimed_at from processing_tasks order by claimed_at")
    assert len(claimed) == 2


def test_a_claim_that_waited_for_the_lock_is_dated_after_the_one_before(bare_cell: PostgresCell) -> None:
    for slug in ("a", "b"):
        bare_cell.add_company(slug)
        bare_cell.submit(slug)
    with other_connection(bare_cell) as first, other_connection(bare_cell) as second, ThreadPoolExecutor(1) as thread:
        with first.transaction():
            first.execute("select pg_advisory_xact_lock(cell_lock())")
            late = thread.submit(bare_cell.take, 1, on=second)
            wait_until(lambda: is_waiting(bare_cell, second))
            (early,) = bare_cell.take(1, on=first)
        (after,) = late.result()
    order = bare_cell.rows("select task_id from processing_tasks order by claimed_at")
    assert [task_id for (task_id,) in order] == [early.task_id, after.task_id]


def test_a_claim_in_autocommit_leaves_no_lock_behind(bare_cell: PostgresCell) -> None:
    bare_cell.add_company("acme")
    bare_cell.submit("acme", 1)
    assert len(bare_cell.take(5)) == 1
    assert bare_cell.take(5) == []
    assert advisory_locks(bare_cell) == 0


def test_a_client_that_dies_in_mid_claim_holds_nothing(bare_cell: PostgresCell) -> None:
    """Must 4: its backend is ended while it waits inside the claim, with the cell's lock in its hand."""
    bare_cell.add_company("acme")
    bare_cell.submit("acme", 3)
    with (
        other_connection(bare_cell) as dying,
        other_connection(bare_cell) as blocking,
        ThreadPoolExecutor(1) as thread,
        blocking.transaction(),
    ):
        blocking.execute("select from pending_tasks for update")
        lost = thread.submit(bare_cell.take, 3, on=dying)
        wait_until(lambda: is_waiting(bare_cell, dying))
        assert advisory_locks(bare_cell) > 0
        bare_cell.rows("select pg_terminate_backend(%s, 10000)", dying.info.backend_pid)
        with pytest.raises(psycopg.OperationalError):
            lost.result()
        assert advisory_locks(bare_cell) == 0
    assert len(bare_cell.take(3)) == 3
    assert bare_cell.contradictions() == []


def test_a_claim_needs_a_fresh_snapshot_for_each_statement(bare_cell: PostgresCell) -> None:
    with other_connection(bare_cell) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with pytest.raises(psycopg.errors.InvalidTransactionState), connection.transaction():
            bare_cell.take(1, on=connection)


def test_a_cell_of_the_same_database_has_a_lock_of_its_own(bare_cell: PostgresCell) -> None:
    assert bare_cell.rows("select cell_lock() <> hashtextextended('another', 0)") == [(True,)]


# The race told at company_lock in locks.sql.


def test_work_that_comes_in_while_its_company_leaves_the_rotation_is_not_forgotten(bare_cell: PostgresCell) -> None:
    """An enqueue has not committed yet when a claim finds the company empty."""
    bare_cell.add_company("acme")
    bare_cell.submit("acme", 1)
    bare_cell.finish(bare_cell.take(1))
    with other_connection(bare_cell) as enqueuing, enqueuing.transaction():
        (task_id,) = bare_cell.submit("acme", 1, on=enqueuing)
        assert bare_cell.take(5) == []
        assert bare_cell.take(5) == []
    assert [turn.task_id for turn in bare_cell.take(5)] == [task_id]
    assert bare_cell.contradictions() == []


def test_what_is_under_way_for_a_company_keeps_nobody_else_of_it_waiting(bare_cell: PostgresCell) -> None:  # fault 080
    """There is no row that all of a company's tasks write: who creates some, and who ends some, may take its time."""
    bare_cell.add_company("acme")
    bare_cell.submit("acme", 6)
    slow, quick = bare_cell.take(2), bare_cell.take(2)
    with (
        other_connection(bare_cell) as enqueuing,
        other_connection(bare_cell) as settling,
        enqueuing.transaction(),
        settling.transaction(),
    ):
        bare_cell.submit("acme", 2, on=enqueuing)
        assert bare_cell.finish(slow, on=settling) == 2
        bare_cell.connection.execute("set lock_timeout = '100ms'")
        bare_cell.submit("acme", 2)
        assert bare_cell.finish(quick) == 2
        assert bare_cell.finish(bare_cell.take(9)) == 4
    assert bare_cell.finish(bare_cell.take(9)) == 2
    assert bare_cell.standing() == {"completed": 10}


def test_work_that_comes_in_after_its_company_left_waits_for_the_claim_to_commit(bare_cell: PostgresCell) -> None:
    """A claim has taken the company out, and has not committed yet, when an enqueue begins."""
    bare_cell.add_company("acme")
    bare_cell.submit("acme", 1)
    bare_cell.finish(bare_cell.take(1))
    with (
        other_connection(bare_cell) as claiming,
        other_connection(bare_cell) as enqueuing,
        ThreadPoolExecutor(1) as thread,
    ):
        with claiming.transaction():
            assert bare_cell.take(5, on=claiming) == []
            late = thread.submit(bare_cell.submit, "acme", 1, on=enqueuing)
            wait_until(lambda: is_waiting(bare_cell, enqueuing))
        (task_id,) = late.result()
    assert [turn.task_id for turn in bare_cell.take(5)] == [task_id]
    assert bare_cell.contradictions() == []


@pytest.mark.parametrize("verb", ["enqueue", "release", "promote", "retry", "rescue"])
def test_no_way_into_the_line_is_forgotten_by_a_claim_that_does_not_see_it_yet(
    bare_cell: PostgresCell, verb: str
) -> None:
    bare_cell.add_company("acme")
    (task_id,) = bare_cell.submit("acme", 1)
    taken = bare_cell.take(1)
    if verb in {"promote", "retry"}:
        bare_cell.finish(taken)
    if verb == "promote":
        bare_cell.submit("acme", 1, delay_seconds=0.000001)
    with other_connection(bare_cell) as moving:
        with moving.transaction():
            match verb:
                case "enqueue":
                    bare_cell.submit("acme", 1, on=moving)
                case "release":
                    moving.execute(
                        "select * from release(%s, %s, %s)", ([taken[0].company_id], [task_id], [taken[0].token])
                    )
                case "promote":
                    moving.execute("select * from promote(10, now() + interval '1 day')")
                case "retry":
                    moving.execute("select * from retry('acme', %s)", (task_id,))
                case _:
                    moving.execute("select * from rescue(%s, null, 3)", (WORKER,))
            assert bare_cell.take(5) == []
        assert len(bare_cell.take(5)) == 1
    assert bare_cell.contradictions() == []


def test_a_claim_takes_few_locks_however_many_companies_leave(bare_cell: PostgresCell) -> None:
    """The server's table of locks is shared by everybody and small."""
    bare_cell.add_companies(3_000)
    bare_cell.take(3_000)
    bare_cell.connection.execute("delete from processing_tasks")
    with bare_cell.connection.transaction():
        assert bare_cell.take(10) == []
        assert advisory_locks(bare_cell) <= 1_001
    while bare_cell.rows("select from turns limit 1"):
        assert bare_cell.take(10) == []
    assert bare_cell.rows("select from lines limit 1") == []


def test_what_is_claimed_while_its_worker_is_rescued_leaves_nobody_without_a_turn(bare_cell: PostgresCell) -> None:
    for slug in ("acme", "zeta"):
        bare_cell.add_company(slug)
    bare_cell.submit("acme", 1)
    bare_cell.take(1)
    bare_cell.submit("zeta", 1)
    with (
        other_connection(bare_cell) as claimer,
        other_connection(bare_cell) as rescuer,
        ThreadPoolExecutor(1) as thread,
    ):
        with claimer.transaction():
            claimer.execute("select pg_advisory_xact_lock(company_lock(company_id('acme')))")
            rescue = thread.submit(rescuer.execute, "select * from rescue(%s, null, 3)", (WORKER,))
            wait_until(lambda: is_waiting(bare_cell, rescuer))
            bare_cell.take(1)
            bare_cell.rows("delete from turns returning 1")
            bare_cell.rows("delete from lines returning 1")
        assert len(rescue.result().fetchall()) == 1
    assert [what for what in bare_cell.contradictions() if "no turn" in what] == []
    assert len(bare_cell.rows("select from processing_tasks")) == 1
