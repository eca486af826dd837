"""Rows that a crash, an operator or a restored backup left behind stop nobody else's work. Faults 063 and 078."""

from __future__ import annotations

import pytest
from psycopg.types.json import Jsonb

from taketurns.engine.task import Status
from tests.brokers.postgres.cell import PostgresCell


@pytest.fixture
def cell(bare_cell: PostgresCell) -> PostgresCell:
    for slug in ("odd", "good"):
        bare_cell.add_company(slug)
    return bare_cell


@pytest.mark.parametrize("payload", [None, [], "text", 7, {"a": [None]}])
def test_a_payload_of_any_shape_is_claimed(cell: PostgresCell, payload: object) -> None:
    (task_id,) = cell.submit("odd")
    cell.connection.execute("update tasks set payload = %s where id = %s", (Jsonb(payload), task_id))
    cell.submit("good", 10)
    assert len(cell.take(20)) == 11


@pytest.mark.parametrize("change", ["retry_count = 1000", "rescue_count = 1000", "priority = -32768", "type = ''"])
def test_values_beyond_their_bounds_are_claimed(cell: PostgresCell, change: str) -> None:
    cell.submit("odd")
    cell.connection.execute(f"update pending_tasks set {change}".encode())
    cell.submit("odd", 5)
    cell.submit("good", 5)
    taken = cell.take(20)
    assert len(taken) == 11
    assert cell.finish(taken) == 11


def test_a_pending_task_without_a_record_stops_nobody(cell: PostgresCell) -> None:
    (task_id,) = cell.submit("odd")
    cell.connection.execute("delete from tasks where id = %s", (task_id,))
    cell.submit("odd", 2)
    cell.submit("good", 2)
    assert len(cell.take(10)) == 4
    assert cell.take(10) == []
    assert cell.rows("select count(*) from processing_tasks") == [(4,)]


def test_companies_that_lost_their_lines_are_healed(cell: PostgresCell) -> None:
    for slug in ("odd", "good"):
        cell.submit(slug, 3, queue="one")
        cell.submit(slug, 3, queue="two")
    cell.connection.execute("delete from lines")
    cell.connection.execute("delete from turns")
    assert cell.take(20, queues=["one", "two"]) == []
    assert cell.heal() == 4
    assert len(cell.take(20, queues=["one", "two"])) == 12
    assert cell.heal() == 0


@pytest.mark.parametrize("lost", ["lines", "turns"])
def test_lines_and_turns_that_differ_are_healed(cell: PostgresCell, lost: str) -> None:
    cell.submit("odd", 3)
    cell.submit("good", 3)
    cell.connection.execute(f"delete from {lost}".encode())
    cell.heal()
    assert cell.contradictions() == []
    assert len(cell.take(20)) == 6


def test_a_company_that_stands_in_the_rotation_twice_is_healed(cell: PostgresCell) -> None:
    cell.submit("odd", 3)
    cell.connection.execute("insert into turns (queue, place, company_id) select queue, 7, company_id from turns")
    cell.heal()
    assert cell.contradictions() == []
    assert len(cell.take(20)) == 3


def test_a_paused_company_is_not_put_back_by_healing(cell: PostgresCell) -> None:
    cell.submit("odd", 3)
    cell.set_paused("odd", True)
    assert cell.take(5) == []
    assert cell.heal() == 0
    cell.set_paused("odd", False)
    assert len(cell.take(5)) == 3


def test_a_task_that_stands_nowhere_can_be_cancelled_and_run_again(cell: PostgresCell) -> None:
    (task_id,) = cell.submit("odd")
    cell.connection.execute("delete from pending_tasks")
    assert cell.rows("select status from retry('odd', %s)", task_id) == [("pending",)]
    assert cell.rows("select cancel('odd', %s)", task_id) == [("cancelled",)]
    assert cell.status(task_id) is Status.CANCELLED
    assert cell.rows("select status from retry('odd', %s)", task_id) == [("cancelled",)]
    assert [turn.task_id for turn in cell.take(5)] == [task_id]
    assert cell.contradictions() == []
