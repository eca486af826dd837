"""No library at all: the least SQL that does the work, to show what the server allows.

A worker deletes so many rows at a time with SKIP LOCKED, runs them and commits, so that a crash has them run again. It
knows no states, no retries, no schedules and no companies.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
from psycopg.types.json import Json

from bench.peers import adapter
from bench.peers.adapter import ORDERS, Adapter, Producer, Task

SCHEMA = """
    create table task (id bigint generated always as identity primary key, payload jsonb not null);
    create function wake() returns trigger language plpgsql as 'begin notify task; return null; end';
    create trigger wake after insert on task for each statement execute function wake();
"""
TAKE = """
    delete from task where id in (select id from task order by id limit %s for update skip locked) returning payload
"""


class Rows(Producer):
    batch = 5_000

    def __init__(self, connection: psycopg.Connection[tuple[object, ...]]) -> None:
        self._connection = connection

    async def send(self, task: Task) -> None:
        self._connection.execute("insert into task (payload) values (%s)", (Json(task),))

    async def send_many(self, tasks: list[Task]) -> None:
        rows = [Json(task) for task in tasks]
        self._connection.execute("insert into task (payload) select unnest(%s::jsonb[])", (rows,))


class BareSql(Adapter):
    def install(self) -> None:
        with psycopg.connect(ORDERS.postgres) as connection:
            connection.execute(SCHEMA)

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[Producer]:
        with psycopg.connect(ORDERS.postgres, autocommit=True) as connection:
            yield Rows(connection)

    def work(self) -> None:
        connection = psycopg.connect(ORDERS.postgres, autocommit=True)
        listener = psycopg.connect(ORDERS.postgres, autocommit=True)
        listener.execute("listen task")
        while True:
            with connection.transaction():
                rows = connection.execute(TAKE, (ORDERS.concurrency,), prepare=True).fetchall()
                for (task,) in rows:
                    adapter.run(task["number"])
            if not rows:
                for _ in listener.notifies(timeout=1, stop_after=1):
                    pass

    def left(self) -> int:
        return adapter.count("select count(*) from task")


if __name__ == "__main__":
    adapter.main(BareSql())
