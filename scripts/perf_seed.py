"""Fill a database for measurements: a cell with a backlog, and the same backlog in one plain table.

One company has 80 % of the tasks, the others share the rest; 20 % of the tasks are delayed. The same seed makes the
same rows, save that times are counted from the moment of seeding. The plain table, `usual.tasks`, is what the two
usual claims run on (perf_explain_window.sql, perf_explain_lateral.sql).
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, LiteralString
from uuid import UUID

import psycopg
from psycopg import sql

from taketurns.storage import schema as cell
from taketurns.storage.database import conninfo

SEED = 42
FLOOD = 0.8
DELAYED = 0.2
BLOCK = 20_000

CELL_TABLES = (
    "companies, tasks, scheduled_tasks, pending_tasks, processing_tasks, lines, turns, rotations, looks, task_events,"
    " idempotency_keys, buckets, pauses, workers"
)

USUAL = """
drop schema if exists usual cascade;
create schema usual;
create table usual.companies (id uuid primary key);
create table usual.tasks (
    id uuid primary key,
    company_id uuid not null,
    type text not null,
    status text not null,
    priority smallint not null,
    payload jsonb not null,
    run_after timestamptz not null,
    created_at timestamptz not null,
    started_at timestamptz,
    worker_id uuid
);
"""
USUAL_INDEX: LiteralString = "create index tasks_company_id_created_at_idx on usual.tasks (company_id, created_at)"
USUAL_FIFO_INDEX: LiteralString = (
    "create index tasks_created_at_idx on usual.tasks (created_at, id) where status = 'pending'"
)


@dataclass(frozen=True, slots=True)
class Backlog:
    """What is seeded. Weights are from 1 to `heaviest`, at random; `flood` is the part that the first company has."""

    tasks: int
    companies: int
    heaviest: int = 1
    seed: int = SEED
    flood: float = FLOOD


@dataclass(frozen=True, slots=True)
class SeededTask:
    company_id: UUID
    task_id: UUID
    created_at: datetime
    run_after: datetime
    is_delayed: bool


def companies_of(backlog: Backlog) -> list[tuple[UUID, str, int]]:
    """The id, slug and weight of each company; the first one floods."""
    chance = random.Random(f"{backlog.seed} companies")
    return [
        (_uuid7(place, chance), f"company-{place}", chance.randint(1, backlog.heaviest))
        for place in range(backlog.companies)
    ]


def tasks_of(backlog: Backlog, *, now: datetime) -> Iterator[SeededTask]:
    """The tasks in order of their creation, one a millisecond, the last of them now."""
    chance = random.Random(f"{backlog.seed} tasks")
    flooder, *others = [company_id for company_id, _, _ in companies_of(backlog)]
    for place in range(backlog.tasks):
        company_id = flooder if not others or chance.random() < backlog.flood else chance.choice(others)
        created_at = now - timedelta(milliseconds=backlog.tasks - place)
        is_delayed = chance.random() < DELAYED
        run_after = now + timedelta(seconds=chance.randint(1, 30) * 86_400) if is_delayed else created_at
        yield SeededTask(company_id, _uuid7(place, chance), created_at, run_after, is_delayed)


def _uuid7(place: int, chance: random.Random) -> UUID:
    """The UUIDv7 of a millisecond of an epoch of its own."""
    return UUID(int=(1_700_000_000_000 + place) << 80 | 7 << 76 | chance.getrandbits(12) << 64 | 2 << 62 | place)


def seed_cell(connection: psycopg.Connection[Any], backlog: Backlog, *, schema: str = "taketurns") -> None:
    """Fill a cell that migrations have built, in place of what is in it."""
    connection.execute(sql.SQL("set search_path to {}").format(sql.Identifier(schema)))
    connection.execute(f"truncate {CELL_TABLES}".encode())
    with connection.cursor().copy("copy companies (id, slug, name, weight) from stdin") as copy:
        for company_id, slug, weight in companies_of(backlog):
            copy.write_row((company_id, slug, slug, weight))
    for block in _blocks(backlog):
        _copy(connection, _RECORDS, block, _record)
        _copy(connection, _SCHEDULED, [task for task in block if task.is_delayed], _scheduled)
        _copy(connection, _PENDING, [task for task in block if not task.is_delayed], _pending)
    for (company_id,) in connection.execute("select distinct company_id from pending_tasks").fetchall():
        connection.execute("select join_rotation(%s, '{default}')", (company_id,))
    connection.execute("vacuum (analyze)")


def seed_usual(connection: psycopg.Connection[Any], backlog: Backlog) -> None:
    """Fill the plain table with the same tasks."""
    connection.execute(USUAL)
    with connection.cursor().copy("copy usual.companies (id) from stdin") as copy:
        for company_id, _, _ in companies_of(backlog):
            copy.write_row((company_id,))
    for block in _blocks(backlog):
        _copy(connection, _USUAL, block, _usual)
    connection.execute(USUAL_INDEX)
    connection.execute("vacuum (analyze)")


_RECORDS: LiteralString = (
    "copy tasks (company_id, id, type, queue, priority, run_after, max_retries, payload, created_at) from stdin"
)
_SCHEDULED: LiteralString = "copy scheduled_tasks (company_id, task_id, queue, run_after, priority, type) from stdin"
_PENDING: LiteralString = "copy pending_tasks (queue, company_id, priority, run_after, task_id, type) from stdin"
_USUAL: LiteralString = (
    "copy usual.tasks (id, company_id, type, status, priority, payload, run_after, created_at) from stdin"
)
_PAYLOAD = '{"to": "somebody@example.com"}'


def _record(task: SeededTask) -> str:
    return f"{task.company_id}\t{task.task_id}\twork\tdefault\t5\t{task.run_after}\t5\t{_PAYLOAD}\t{task.created_at}\n"


def _scheduled(task: SeededTask) -> str:
    return f"{task.company_id}\t{task.task_id}\tdefault\t{task.run_after}\t5\twork\n"


def _pending(task: SeededTask) -> str:
    return f"default\t{task.company_id}\t5\t{task.run_after}\t{task.task_id}\twork\n"


def _usual(task: SeededTask) -> str:
    return f"{task.task_id}\t{task.company_id}\twork\tpending\t5\t{_PAYLOAD}\t{task.run_after}\t{task.created_at}\n"


def _blocks(backlog: Backlog) -> Iterator[list[SeededTask]]:
    tasks = tasks_of(backlog, now=datetime.now(UTC))
    while block := list(islice(tasks, BLOCK)):
        yield block


def _copy(
    connection: psycopg.Connection[Any],
    statement: LiteralString,
    tasks: Iterable[SeededTask],
    line: Callable[[SeededTask], str],
) -> None:
    with connection.cursor().copy(statement) as copy:
        copy.write("".join(map(line, tasks)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True, help="the database to fill; its cell is migrated, then emptied")
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--companies", type=int, default=50)
    parser.add_argument("--heaviest", type=int, default=1, help="weights are from 1 to this, at random")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--schema", default="taketurns", help="the cell's schema")
    options = parser.parse_args()
    backlog = Backlog(options.tasks, options.companies, options.heaviest, options.seed)

    began = time.monotonic()
    cell.upgrade(options.url, schema=options.schema)
    with psycopg.connect(conninfo(options.url), autocommit=True) as connection:
        seed_cell(connection, backlog, schema=options.schema)
        seed_usual(connection, backlog)
    print(f"{backlog.tasks:,} tasks of {backlog.companies:,} companies in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
