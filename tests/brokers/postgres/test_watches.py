"""Watches: what is told of, when, and what that costs when nobody watches."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from taketurns.storage.database import Row
from tests.brokers.postgres.cell import PostgresCell
from tests.brokers.postgres.connections import is_waiting, other_connection, wait_until
from tests.brokers.postgres.test_old_snapshots import old_snapshot

Connection = psycopg.Connection[Row]
Move = Callable[[PostgresCell, Connection, UUID], object]


def claim(cell: PostgresCell, on: Connection, _: UUID) -> None:
    cell.take(1, on=on)


def settle(cell: PostgresCell, on: Connection, _: UUID) -> None:
    on.execute(
        "select settle(array[company_id], array[task_id], array[claim_token], '{completed}', '{null}',"
        " '{null}', '{null}') from processing_tasks"
    )


def cancel(cell: PostgresCell, on: Connection, task_id: UUID) -> None:
    on.execute("select cancel('acme', %s)", (task_id,))


def retry(cell: PostgresCell, on: Connection, task_id: UUID) -> None:
    on.execute("select retry('acme', %s)", (task_id,))


def heard(connection: Connection) -> set[str]:
    """What was told by now."""
    connection.execute("select")
    return {notice.payload for notice in connection.notifies(timeout=0)}


@pytest.mark.parametrize("move", [claim, settle, cancel, retry])
def test_a_watch_waits_for_a_move_that_began_before_it(bare_cell: PostgresCell, move: Move) -> None:
    company = bare_cell.add_company("acme")
    (task_id,) = bare_cell.submit("acme")
    if move in (settle, retry):
        bare_cell.take(1)
    if move is retry:
        bare_cell.finish_all()
    with other_connection(bare_cell) as mover, other_connection(bare_cell) as watcher:
        with mover.transaction():
            move(bare_cell, mover, task_id)
            watcher.execute("select watch(%s, %s, 60)", (company, task_id))
            waiting = threading.Thread(
                target=watcher.execute, args=("select wait_for_move(%s, %s)", (company, task_id))
            )
            waiting.start()
            wait_until(lambda: is_waiting(bare_cell, watcher))
        waiting.join()


def test_a_settlement_tells_of_a_watch_that_is_younger_than_itself(bare_cell: PostgresCell) -> None:
    company = bare_cell.add_company("acme")
    (task_id,) = bare_cell.submit("acme")
    bare_cell.take(1)
    with other_connection(bare_cell) as blocker, other_connection(bare_cell) as settler:
        settler.execute('listen "taketurns.moves"')
        with blocker.transaction():
            blocker.execute("select from processing_tasks for update")
            settling = threading.Thread(target=settle, args=(bare_cell, settler, task_id))
            settling.start()
            wait_until(lambda: is_waiting(bare_cell, settler))
            bare_cell.connection.execute("select watch(%s, %s, 60)", (company, task_id))
        settling.join()
        assert heard(settler) == {str(task_id)}


def test_a_watch_that_is_over_tells_nothing_and_is_forgotten(bare_cell: PostgresCell) -> None:
    company = bare_cell.add_company("acme")
    old, new = bare_cell.submit("acme", 2)
    bare_cell.connection.execute('listen "taketurns.moves"')
    bare_cell.connection.execute("select watch(%s, %s, -1), watch(%s, %s, 60)", (company, old, company, new))
    bare_cell.take(2)
    assert heard(bare_cell.connection) == {str(new)}
    bare_cell.connection.execute("select prune(%(keep)s, %(keep)s, %(keep)s, 10)", {"keep": timedelta(days=1)})
    assert bare_cell.rows("select task_id from watches") == [(new,)]


def test_many_watches_that_are_over_cost_a_move_nothing(new_cell: PostgresCell) -> None:
    company = new_cell.add_company("acme")
    new_cell.submit("acme", 1)
    tell = "select tell_moves(array_fill(%s::uuid, '{50}'), array_fill(gen_random_uuid(), '{50}'))"
    fresh = pages(new_cell, tell, company)
    with old_snapshot(new_cell):
        new_cell.connection.execute("select watch(%s, gen_random_uuid(), -1) from generate_series(1, 5000)", (company,))
        assert pages(new_cell, tell, company) <= fresh + 5
        new_cell.connection.execute("delete from watches")
        assert pages(new_cell, tell, company) <= fresh + 5
        new_cell.connection.execute("select watch(%s, gen_random_uuid(), 60)", (company,))
        assert pages(new_cell, tell, company) <= fresh + 5 * 50


def pages(cell: PostgresCell, statement: str, *arguments: object) -> int:
    cell.connection.execute(statement.encode(), arguments)
    ((plans,),) = cell.rows(f"explain (analyze, buffers, format json) {statement}", *arguments)
    plan: dict[str, Any] = plans[0]["Plan"]
    return sum(int(plan[f"{kind} Blocks"]) for kind in ("Shared Hit", "Shared Read"))
