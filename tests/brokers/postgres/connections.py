"""Several connections to one cell, and which of them wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg

from taketurns.storage.database import Row
from tests.brokers.postgres.cell import PostgresCell, connect


@contextmanager
def other_connection(cell: PostgresCell) -> Iterator[psycopg.Connection[Row]]:
    with connect(cell.url) as connection:
        yield connection


def wait_until(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def is_waiting(cell: PostgresCell, connection: psycopg.Connection[Row]) -> bool:
    """Whether this connection waits for a lock."""
    return bool(
        cell.rows(
            "select from pg_stat_activity where pid = %s and wait_event_type = 'Lock'", connection.info.backend_pid
        )
    )


def advisory_locks(cell: PostgresCell) -> int:
    ((count,),) = cell.rows(
        "select count(*) from pg_locks where locktype = 'advisory'"
        " and database = (select oid from pg_database where datname = current_database())"
    )
    return int(count)
