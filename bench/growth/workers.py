"""What the fleet gets done against its worker processes, and against the hands of one."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, Final

import psycopg

from bench import processes
from bench.growth.curve import Curve
from bench.server import connect
from scripts import perf_seed
from scripts.perf_seed import Backlog
from taketurns.storage import schema
from taketurns.storage.embedded import PostgresServer

COMPANIES: Final = 20
MOST_TASKS: Final = 60_000
TASKS_A_HAND: Final = 300
PROCESSES: Final = (1, 2, 4)
CONCURRENCIES: Final = (1, 10, 100, 1_000)
USUAL_CONCURRENCY: Final = 100
MOST_BATCH: Final = 1_000
ROUNDS: Final = 3
START_SECONDS: Final = 60.0
DRAIN_SECONDS: Final = 300.0

_GO: Final = (
    "select pg_advisory_xact_lock_shared(company_lock(id)) from companies",
    "update companies set paused = false",
    "select heal_rotation(id) from companies",
)


def drained_per_second(url: str, tasks: int, *, workers: int, concurrency: int) -> float:
    """Tasks a second, from the first claim to the last settlement, by worker processes that were there before."""
    with connect(url) as connection:
        perf_seed.seed_cell(connection, Backlog(tasks, COMPANIES, flood=0))
        connection.execute("update companies set paused = true")
        with processes.running(
            url, "worker", count=workers, concurrency=concurrency, batch=min(concurrency * 2, MOST_BATCH)
        ):
            processes.wait_until(
                lambda: _one(connection, "select count(*) from workers") == workers,
                seconds=START_SECONDS,
                what="the start of the workers",
            )
            with connection.transaction():
                for statement in _GO:
                    connection.execute(statement)
            connection.execute("select wake(id) from companies")
            processes.wait_until(
                lambda: (
                    not _one(
                        connection, "select exists (select from pending_tasks) or exists (select from processing_tasks)"
                    )
                ),
                seconds=DRAIN_SECONDS,
                what=f"{tasks:,} tasks of {workers} workers",
            )
        return float(
            _one(
                connection,
                "select count(*) / extract(epoch from max(finished_at) - min(started_at))"
                " from tasks where finished_at is not null",
            )
        )


def measured(server: PostgresServer, most: int) -> list[Curve]:
    """Both, in three rounds; some five minutes. In one, with a few tasks, for a trial."""
    url = server.create_database("workers")
    schema.upgrade(url)
    rounds = ROUNDS if most >= MOST_TASKS else 1
    cases = [(workers, USUAL_CONCURRENCY) for workers in PROCESSES]
    cases += [(1, concurrency) for concurrency in CONCURRENCIES if concurrency != USUAL_CONCURRENCY]
    rates: dict[tuple[int, int], list[float]] = {case: [] for case in cases}
    for _ in range(rounds):
        for workers, concurrency in cases:
            tasks = min(MOST_TASKS, most, TASKS_A_HAND * concurrency * workers)
            rates[workers, concurrency].append(drained_per_second(url, tasks, workers=workers, concurrency=concurrency))
    medians = {case: statistics.median(measured) for case, measured in rates.items()}
    note = f"Medians of {rounds} rounds in turn. {COMPANIES} companies, handlers that do nothing, claims of up to"
    return [
        _curve(
            "Drained, against the worker processes",
            "worker processes",
            PROCESSES,
            {f"concurrency {USUAL_CONCURRENCY}": [medians[workers, USUAL_CONCURRENCY] for workers in PROCESSES]},
            f"{note} {USUAL_CONCURRENCY * 2}. Server and workers share the cores.",
        ),
        _curve(
            "Drained, against the concurrency",
            "concurrency",
            CONCURRENCIES,
            {"one process": [medians[1, concurrency] for concurrency in CONCURRENCIES]},
            f"{note} twice the concurrency, or {MOST_BATCH:,}.",
        ),
    ]


def _curve(title: str, against: str, at: Sequence[int], values: dict[str, list[float]], note: str) -> Curve:
    return Curve(title=title, against=against, at=at, values=values, unit="tasks/s", note=note)


def _one(connection: psycopg.Connection[Any], query: str) -> Any:
    ((value,),) = connection.execute(query.encode()).fetchall()
    return value
