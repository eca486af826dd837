"""Fill a database for measurements: a cell with a backlog, and the same backlog in one plain table; or a long history.

One company has 80 % of the tasks, the others share the rest; 20 % of the tasks are delayed. The same seed makes the
same rows, save that times are counted from the moment of seeding. The server makes the rows itself, a million in about
half a minute. The plain table, `usual.tasks`, is what the two usual claims run on (perf_explain_window.sql,
perf_explain_lateral.sql).
"""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import asdict, dataclass
from typing import Any, LiteralString
from uuid import UUID

import psycopg
from psycopg import sql

from taketurns.storage import schema as cell
from taketurns.storage.database import conninfo

SEED = 42
FLOOD = 0.8
DELAYED = 0.2
LOCKS = 1_000  # that one statement takes: the server's table of them is small

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


def companies_of(backlog: Backlog) -> list[tuple[UUID, str, int]]:
    """The id, slug and weight of each company; the first one floods."""
    chance = random.Random(f"{backlog.seed} companies")
    return [
        (_uuid7(place, chance), f"company-{place}", chance.randint(1, backlog.heaviest))
        for place in range(backlog.companies)
    ]


def _uuid7(place: int, chance: random.Random) -> UUID:
    """The UUIDv7 of a millisecond of an epoch of its own."""
    return UUID(int=(1_700_000_000_000 + place) << 80 | 7 << 76 | chance.getrandbits(12) << 64 | 2 << 62 | place)


def seed_cell(connection: psycopg.Connection[Any], backlog: Backlog, *, schema: str = "taketurns") -> None:
    """Fill a cell that migrations have built, in place of what is in it. The connection's names are the cell's then."""
    connection.execute(sql.SQL("set search_path to {}").format(sql.Identifier(schema)))
    connection.execute(f"truncate {CELL_TABLES}".encode())
    companies = companies_of(backlog)
    with connection.cursor().copy("copy companies (id, slug, name, weight) from stdin") as copy:
        for company_id, slug, weight in companies:
            copy.write_row((company_id, slug, slug, weight))
    connection.execute(_RECORDS, {**asdict(backlog), "delayed": DELAYED, "ids": [company[0] for company in companies]})
    connection.execute(_SCHEDULED)
    connection.execute(_PENDING)
    waiting = [row[0] for row in connection.execute("select distinct company_id from pending_tasks").fetchall()]
    for start in range(0, len(waiting), LOCKS):
        some = waiting[start : start + LOCKS]
        connection.execute("select join_rotation(id, '{default}') from unnest(%s::uuid[]) as id", (some,))
    connection.execute("vacuum (analyze)")


def seed_history(connection: psycopg.Connection[Any], tasks: int) -> None:
    """Add tasks that are completed to the companies of a cell, in turn: what `claim` and `settle` leave of each."""
    connection.execute(_HISTORY, (tasks,))
    connection.execute("vacuum (analyze) tasks")


def seed_usual(connection: psycopg.Connection[Any]) -> None:
    """Fill the plain table with the tasks of the cell that was seeded on this connection."""
    connection.execute(USUAL)
    connection.execute(_USUAL)
    connection.execute(USUAL_INDEX)
    connection.execute("vacuum (analyze)")


_RECORDS: LiteralString = """
    insert into tasks (company_id, id, type, queue, priority, run_after, max_retries, payload, created_at)
    select
        (%(ids)s::uuid[])[1 + case when chance < %(flood)s or %(companies)s = 1 then 0
            else 1 + floor(other * (%(companies)s - 1))::integer end],
        (lpad(to_hex(1700000000000 + place), 12, '0') || '7000' || '8000' || lpad(to_hex(place), 12, '0'))::uuid,
        'work', 'default', 5,
        case when late < %(delayed)s then moment + make_interval(days => 1 + floor(late / %(delayed)s * 30)::integer)
            else created_at end,
        5, '{"to": "somebody@example.com"}', created_at
    from (
        select place, moment, moment - make_interval(secs => (%(tasks)s - place) * 0.001) as created_at,
            (hashint8extended(place, %(seed)s * 10) & 1048575) / 1048576.0 as chance,
            (hashint8extended(place, %(seed)s * 10 + 1) & 1048575) / 1048576.0 as other,
            (hashint8extended(place, %(seed)s * 10 + 2) & 1048575) / 1048576.0 as late
        from generate_series(0, %(tasks)s - 1) place, (select clock_timestamp() as moment offset 0) clock
    ) task
"""
_SCHEDULED: LiteralString = """
    insert into scheduled_tasks (company_id, task_id, queue, run_after, priority, type)
    select company_id, id, queue, run_after, priority, type from tasks where run_after > created_at
"""
_PENDING: LiteralString = """
    insert into pending_tasks (queue, company_id, priority, run_after, task_id, type)
    select queue, company_id, priority, run_after, id, type from tasks where run_after = created_at
"""
_HISTORY: LiteralString = """
    insert into tasks (company_id, id, type, queue, priority, run_after, max_retries, payload, created_at, started_at,
        finished_at, event_number, worker_id)
    select ids[1 + place %% cardinality(ids)],
        (lpad(to_hex(1600000000000 + place), 12, '0') || '7000' || '8000' || lpad(to_hex(place), 12, '0'))::uuid,
        'work', 'default', 5, past, 5, '{"to": "somebody@example.com"}', past, past, past, 3, gen_random_uuid()
    from (select array_agg(id) as ids, clock_timestamp() - interval '1 hour' as past from companies offset 0) c,
        generate_series(0, %s - 1) place
"""
_USUAL: LiteralString = """
    insert into usual.tasks (id, company_id, type, status, priority, payload, run_after, created_at)
    select id, company_id, type, 'pending', priority, payload, run_after, created_at from tasks
"""


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
        seed_usual(connection)
    print(f"{backlog.tasks:,} tasks of {backlog.companies:,} companies in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
