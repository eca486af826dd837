"""What is done a second against what was done before: the finished tasks that are kept, and rows that an old snapshot
keeps."""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from typing import Final

import psycopg

from bench.growth.curve import Curve, powers_of_ten
from bench.server import connect
from bench.throughput import bulk_per_second, drained_per_second
from scripts import perf_seed
from scripts.perf_seed import Backlog
from taketurns.storage import schema
from taketurns.storage.embedded import PostgresServer

COMPANIES: Final = 50
BATCH: Final = 200
ROUNDS: Final = 5
MOST_IN_A_ROUND: Final = 5_000
MOST_UNDER_A_SNAPSHOT: Final = 300_000
STEPS: Final = 15
LEAST_IN_A_STEP: Final = 1_000


def against_history(server: PostgresServer, most: int) -> list[Curve]:
    """In rounds, all in turn; a history of 10,000,000 takes four of some six minutes."""
    sizes = [0, *powers_of_ten(min(10_000, most), most)]
    tasks = min(MOST_IN_A_ROUND, most)
    rates: dict[str, dict[int, list[float]]] = {
        name: {size: [] for size in sizes} for name in ("claim and settle", "enqueue, 1,000 at a time")
    }
    with ExitStack() as stack:
        connections = {}
        for size in reversed(sizes):
            connections[size] = stack.enter_context(_cell(server, f"history_{size}", Backlog(10_000, COMPANIES)))
            perf_seed.seed_history(connections[size], size)
            connections[size].execute("checkpoint")
        for _ in range(ROUNDS):
            for size in sizes:
                enqueued = bulk_per_second(connections[size], max(1_000, tasks))
                drained, _, _ = drained_per_second(connections[size], batch=BATCH, most=tasks)
                for name, rate in zip(rates, (drained, enqueued), strict=True):
                    rates[name][size].append(rate)
    return [
        Curve(
            title="Done a second, against the history",
            against="finished tasks",
            at=sizes,
            values={name: [statistics.median(by_size[size]) for size in sizes] for name, by_size in rates.items()},
            unit="tasks/s",
            note=f"Medians of {ROUNDS} rounds in turn of {tasks:,} tasks by SQL, batch {BATCH}, {COMPANIES} companies,"
            " one connection.",
        )
    ]


def against_old_snapshot(server: PostgresServer, most: int) -> list[Curve]:
    """Two cells in turn, one of which has a transaction that keeps every row that was ever claimed; three minutes."""
    step = max(LEAST_IN_A_STEP, min(MOST_UNDER_A_SNAPSHOT, most) // STEPS)
    backlog = Backlog(step * (STEPS + 2) * 5 // 4, COMPANIES, flood=0)
    rates: dict[str, list[float]] = {"an old snapshot held": [], "none held": []}
    with ExitStack() as stack:
        connections = [stack.enter_context(_cell(server, f"snapshot_{number}", backlog)) for number in range(2)]
        holder = stack.enter_context(psycopg.connect(server.url("snapshot_0")))
        holder.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        holder.execute("select from taketurns.companies")
        for _ in range(STEPS + 1):
            for measured, connection in zip(rates.values(), connections, strict=True):
                measured.append(drained_per_second(connection, batch=BATCH, most=step)[0])
    return [
        Curve(
            title="Claim and settle under an old snapshot",
            against="tasks before",
            at=[number * step for number in range(STEPS + 1)],
            values=rates,
            unit="tasks/s",
            note=f"By SQL, batch {BATCH}, {COMPANIES} companies, one connection; each figure is of {step:,} tasks. Bar"
            " after 200,000: ≥ 0.8 of the first.",
        )
    ]


def _cell(server: PostgresServer, name: str, backlog: Backlog) -> psycopg.Connection[tuple[object, ...]]:
    url = server.create_database(name)
    schema.upgrade(url)
    connection = connect(url)
    perf_seed.seed_cell(connection, backlog)
    connection.execute("checkpoint")
    return connection
