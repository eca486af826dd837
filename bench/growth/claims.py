"""What a claim takes against the tasks that wait, the companies, and the tasks that run.

A task that was claimed is settled, and another of its company takes its place, both outside the measured time: a cell
stays as large as it is. All cells are measured in turn, a few claims in a row, as a worker's follow each other.
"""

from __future__ import annotations

import statistics
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

import psycopg

from bench.claim import IN_A_ROW, Case, Claim, measure, ours, seeded
from bench.growth.curve import Curve, powers_of_ten
from bench.server import connect
from scripts.perf_seed import Backlog
from taketurns.storage.embedded import PostgresServer

COMPANIES: Final = 50
BATCHES: Final = (10, 100)
ROUNDS: Final = 12
RUNS_ELSEWHERE: Final = uuid.UUID(int=2)
AT_ONCE: Final = 1_000

_REFILL: Final = """
    with task as (
        insert into tasks (company_id, id, type, queue, priority, run_after, max_retries, payload, created_at)
        select company_id, gen_random_uuid(), 'work', 'default', 5, clock_timestamp(), 5, '{}', clock_timestamp()
        from unnest(%s::uuid[]) as company_id returning *
    ), pending as (
        insert into pending_tasks (queue, company_id, priority, run_after, task_id, type)
        select queue, company_id, priority, run_after, id, type from task
    )
    select join_rotation(company_id, '{default}') from (select distinct company_id from task) company
"""


def kept_full(connection: psycopg.Connection[Any]) -> Claim:
    """Our claim on a cell where each company gets a task for each that was done."""
    return ours(connection, settled=lambda company_ids: connection.execute(_REFILL, (list(company_ids),)))


def with_running(connection: psycopg.Connection[Any], count: int) -> psycopg.Connection[Any]:
    """The same cell, with so many of its tasks in the hands of another worker."""
    for start in range(0, count, AT_ONCE):
        connection.execute(
            "select from claim(%s, '{default}', %s, gen_random_uuid())", (RUNS_ELSEWHERE, min(AT_ONCE, count - start))
        )
    connection.execute("vacuum (analyze)")
    return connection


def against_backlog(server: PostgresServer, most: int) -> Curve:
    sizes = powers_of_ten(1_000, most)
    cells = {size: _cell(server, Backlog(size, COMPANIES)) for size in reversed(sizes)}
    return Curve(
        title="Claim, against the backlog",
        against="tasks",
        at=sizes,
        values=_measured(cells, sizes),
        unit="ms",
        note=f"{COMPANIES} companies, one has 80 %. Bar for a claim of 10: ≤ 1.5 × from 100,000 to 10,000,000.",
    )


def against_companies(server: PostgresServer, most: int) -> Curve:
    sizes = powers_of_ten(1, min(100_000, most // 10))
    tasks = min(500_000, most)
    cells = {size: _cell(server, Backlog(tasks, size, flood=0)) for size in reversed(sizes)}
    return Curve(
        title="Claim, against the companies",
        against="companies",
        at=sizes,
        values=_measured(cells, sizes),
        unit="ms",
        note=f"{tasks:,} tasks, spread evenly. Bar for a claim of 10: ≤ 1.5 × from 50 to 10,000.",
    )


def against_in_flight(server: PostgresServer, most: int) -> Curve:
    sizes = [0, *powers_of_ten(10, min(10_000, most // 10))]
    tasks = min(100_000, most)
    cells = {
        size: with_running(_cell(server, Backlog(tasks, COMPANIES, seed=number, flood=0)), size)
        for number, size in enumerate(sizes)
    }
    return Curve(
        title="Claim, against the tasks that run",
        against="tasks that run",
        at=sizes,
        values=_measured(cells, sizes),
        unit="ms",
        note=f"{tasks:,} tasks of {COMPANIES} companies. A claim counts what runs: this alone it may grow with.",
    )


def measured(server: PostgresServer, most: int) -> list[Curve]:
    """All three; a backlog of 10,000,000 takes five of some eight minutes."""
    return [against_backlog(server, most), against_companies(server, most), against_in_flight(server, most)]


def _cell(server: PostgresServer, backlog: Backlog) -> psycopg.Connection[Any]:
    return connect(seeded(server, backlog, with_usual=False))


def _measured(cells: Mapping[int, psycopg.Connection[Any]], sizes: Sequence[int]) -> dict[str, list[float]]:
    """Milliseconds, by the size of the batch."""
    claims = {size: kept_full(cells[size]) for size in sizes}
    values = {}
    for batch in BATCHES:
        cases = [Case(f"{size}", Backlog(size, 1), batch, claim) for size, claim in claims.items()]
        took = measure(cases, rounds=ROUNDS, in_a_row=IN_A_ROW)
        values[f"of {batch}"] = [statistics.median(seconds) * 1000 for seconds in took.values()]
    for connection in cells.values():
        connection.close()
    return values
