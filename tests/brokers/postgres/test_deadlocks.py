"""Nobody waits in a circle: the moves lock rows in one order."""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg

from taketurns.storage.database import Row
from tests.brokers.postgres.cell import WORKER, PostgresCell, connect
from tests.brokers.postgres.connections import is_waiting, other_connection, wait_until

Connection = psycopg.Connection[Row]
Act = Callable[[PostgresCell, Connection, random.Random], None]

SLUGS = [f"company-{place}" for place in range(8)]
WITH_QUOTAS = SLUGS[::2]
WORKERS = [uuid.UUID(int=place) for place in range(1, 4)]


@contextmanager
def held_row(cell: PostgresCell, statement: str, *arguments: object) -> Iterator[None]:
    """Somebody else holds a row meanwhile."""
    with other_connection(cell) as connection, connection.transaction():
        connection.execute(statement.encode(), arguments)
        yield


def test_a_cancel_and_a_retry_of_a_scheduled_task_do_not_wait_for_each_other(bare_cell: PostgresCell) -> None:
    bare_cell.add_company("acme")
    (task_id,) = bare_cell.submit("acme", delay_seconds=60)
    with (
        other_connection(bare_cell) as cancelling,
        other_connection(bare_cell) as retrying,
        ThreadPoolExecutor(2) as threads,
    ):
        with held_row(bare_cell, "select from scheduled_tasks for update"):
            cancel = threads.submit(cancelling.execute, "select cancel('acme', %s)", (task_id,))
            wait_until(lambda: is_waiting(bare_cell, cancelling))
            retry = threads.submit(retrying.execute, "select status from retry('acme', %s)", (task_id,))
            wait_until(lambda: is_waiting(bare_cell, retrying))
        assert cancel.result().fetchall() == [("cancelled",)]
        assert retry.result().fetchall() == [("cancelled",)]
    assert bare_cell.standing() == {"pending": 1}
    assert bare_cell.contradictions() == []


def test_a_settlement_and_a_rescue_of_the_same_tasks_do_not_wait_for_each_other(bare_cell: PostgresCell) -> None:
    """Taken in one order, settled in the other."""
    bare_cell.add_company("acme")
    first, second = bare_cell.submit("acme", 2)
    bare_cell.connection.execute("update pending_tasks set priority = 0 where task_id = %s", (second,))
    taken = bare_cell.take(1) + bare_cell.take(1)
    assert [turn.task_id for turn in taken] == [second, first]
    with (
        other_connection(bare_cell) as settling,
        other_connection(bare_cell) as rescuing,
        ThreadPoolExecutor(2) as threads,
    ):
        with held_row(bare_cell, "select from processing_tasks where task_id = %s for update", first):
            settled = threads.submit(bare_cell.finish, taken, on=settling)
            wait_until(lambda: is_waiting(bare_cell, settling))
            rescued = threads.submit(rescuing.execute, "select * from rescue(%s, null, 3)", (WORKER,))
            wait_until(lambda: is_waiting(bare_cell, rescuing))
        assert settled.result() == 2
        assert rescued.result().rowcount == 0
    assert bare_cell.standing() == {"completed": 2}


# Fault 065.
def test_everything_at_once_for_a_few_seconds_without_a_deadlock(bare_cell: PostgresCell) -> None:
    for slug in SLUGS:
        bare_cell.add_company(slug)
        if slug in WITH_QUOTAS:
            bare_cell.set_quotas(slug, hour=10**9, day=10**9)
        bare_cell.submit(slug, 200)
    before = deadlocks(bare_cell)
    stop = threading.Event()
    failures: list[Exception] = []

    def keep_on(act: Act, seed: int) -> None:
        chance = random.Random(seed)
        with other_connection(bare_cell) as connection:
            while not stop.is_set():
                try:
                    act(bare_cell, connection, chance)
                except Exception as error:
                    failures.append(error)
                    stop.set()

    with ThreadPoolExecutor(len(ACTS)) as threads:
        timer = threading.Timer(4, stop.set)
        timer.start()
        for seed, act in enumerate(ACTS):
            threads.submit(keep_on, act, seed)
    timer.cancel()
    assert failures == []
    assert deadlocks(bare_cell) == before
    assert bare_cell.contradictions() == []


def claim_and_report(cell: PostgresCell, connection: Connection, chance: random.Random) -> None:
    taken = cell.take(chance.randint(1, 30), worker=chance.choice(WORKERS), on=connection)
    if chance.random() < 0.3:
        cell.give_back(taken, on=connection)
    else:
        cell.finish(taken, chance.choice(["completed", "failed", "retry"]), on=connection)


def enqueue(cell: PostgresCell, connection: Connection, chance: random.Random) -> None:
    cell.submit(chance.choice(SLUGS), chance.randint(1, 40), on=connection)


def cancel_and_retry(cell: PostgresCell, connection: Connection, chance: random.Random) -> None:
    rows = connection.execute("select company_id::text, id from tasks order by random() limit 20").fetchall()
    for company, task_id in rows:
        connection.execute("select cancel(%s, %s)", (company, task_id))
        if chance.random() < 0.7:
            connection.execute("select retry(%s, %s)", (company, task_id))


def rescue(cell: PostgresCell, connection: Connection, chance: random.Random) -> None:
    connection.execute("select rescue(%s, null, 2)", (chance.choice(WORKERS),))


def keep_up(cell: PostgresCell, connection: Connection, chance: random.Random) -> None:
    connection.execute("select promote(100)")
    connection.execute("select prune('1 ms', '1 ms', '1 ms', 50)")
    connection.execute("select heal_rotation()")
    connection.execute("select tally(10)")
    connection.execute("select prune_quotas(10)")
    ((_, corrected),) = connection.execute("select * from audit_quotas(null, 10)").fetchall()
    assert corrected == 0


def pause_and_go_on(cell: PostgresCell, connection: Connection, chance: random.Random) -> None:
    slug = chance.choice(SLUGS)
    connection.execute("update companies set paused = true where slug = %s", (slug,))
    with connection.transaction():
        connection.execute("select pg_advisory_xact_lock_shared(company_lock(company_id(%s)))", (slug,))
        connection.execute("update companies set paused = false where slug = %s", (slug,))
        connection.execute("select heal_rotation(company_id(%s))", (slug,))


ACTS: list[Act] = [
    *[claim_and_report] * 4,
    *[cancel_and_retry] * 2,
    *[keep_up] * 2,
    enqueue,
    rescue,
    pause_and_go_on,
]


def deadlocks(cell: PostgresCell) -> int:
    """How many the server has seen in this database."""
    with connect(cell.url) as connection:
        connection.execute("select pg_stat_force_next_flush()")
        ((count,),) = connection.execute(
            "select deadlocks from pg_stat_database where datname = current_database()"
        ).fetchall()
    return int(count)
