"""What our own SQL does in a loop, and what enqueueing costs beside a bare COPY into the same tables."""

from __future__ import annotations

import math
import time
import uuid
from typing import Any, LiteralString

import psycopg

from bench import results
from bench.server import connect, described, measured_server
from scripts import perf_seed
from scripts.perf_seed import Backlog
from taketurns.storage import schema
from taketurns.storage.embedded import PostgresServer
from taketurns.storage.ids import new_id

Connection = psycopg.Connection[tuple[Any, ...]]

TASKS = 60_000
WORKER = uuid.UUID(int=1)

_COPIES: tuple[tuple[LiteralString, str], ...] = (
    (
        "copy tasks (company_id, id, type, queue, priority, run_after, max_retries, payload, created_at) from stdin",
        '{company}\t{id}\twork\tdefault\t5\tnow\t5\t{{"to": "somebody@example.com"}}\tnow\n',
    ),
    (
        "copy pending_tasks (queue, company_id, priority, run_after, task_id, type) from stdin",
        "default\t{company}\t5\tnow\t{id}\twork\n",
    ),
)


def drained_per_second(connection: Connection, *, batch: int, most: float = math.inf) -> tuple[float, float, float]:
    """Claim and settle `most` tasks, or until nothing is left: tasks a second, and µs a task of either."""
    claiming = settling = 0.0
    count = 0
    while count < most:
        token = uuid.uuid4()
        began = time.perf_counter()
        taken = connection.execute(
            "select company_id, task_id from claim(%s, '{default}', %s, %s)", (WORKER, batch, token)
        ).fetchall()
        claimed_at = time.perf_counter()
        claiming += claimed_at - began
        if not taken:
            break
        taken.sort()
        connection.execute(
            "select from settle(%s, %s, %s, %s, null, null, null)",
            (
                [row[0] for row in taken],
                [row[1] for row in taken],
                [token] * len(taken),
                ["completed"] * len(taken),
            ),
        )
        settling += time.perf_counter() - claimed_at
        count += len(taken)
    return count / (claiming + settling), claiming / count * 1e6, settling / count * 1e6


def drain(server: PostgresServer, *, command: str) -> None:
    """Claim + settle by SQL, one connection."""
    url = server.create_database("drain")
    schema.upgrade(url)
    rows = []
    for companies in (50, 10_000):
        for batch in (100, 500):
            with connect(url) as connection:
                perf_seed.seed_cell(connection, Backlog(TASKS, companies))
                connection.execute("checkpoint")
                per_second, claiming, settling = drained_per_second(connection, batch=batch)
            rows.append([f"{companies:,}", str(batch), f"{per_second:,.0f}", f"{claiming:.1f}", f"{settling:.1f}"])
    results.record(
        f"Claim and settle by SQL, {TASKS:,} tasks, one connection",
        command=command,
        machine=described(server),
        body=results.table(["companies", "batch", "tasks/s", "claim µs a task", "settle µs a task"], rows),
    )


def under_an_old_snapshot(server: PostgresServer, *, command: str) -> None:
    """Claim + settle by SQL while a transaction elsewhere keeps every row that was ever claimed."""
    url = server.create_database("old_snapshot")
    schema.upgrade(url)
    with connect(url) as connection, psycopg.connect(url) as holder:
        perf_seed.seed_cell(connection, Backlog(290_000, 50, flood=0))
        holder.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        holder.execute("select from taketurns.companies")
        rates = [drained_per_second(connection, batch=200, most=20_000)[0] for _ in range(11)]
    results.record(
        "Claim and settle by SQL under an old snapshot, batch 200, 50 companies, one connection",
        command=command,
        machine=described(server),
        body=results.table(
            ["the first 20,000, tasks/s", "after 100,000", "after 200,000", "the last to the first"],
            [[f"{rates[0]:,.0f}", f"{rates[5]:,.0f}", f"{rates[10]:,.0f}", f"{rates[10] / rates[0]:.2f}"]],
        )
        + "\n\nBar: ≥ 0.8 of the first.",
    )


def enqueue(server: PostgresServer, *, command: str) -> None:
    """One by one, a thousand at a time, and a bare COPY into the same tables."""
    url = server.create_database("enqueue")
    schema.upgrade(url)
    with connect(url) as connection:
        perf_seed.seed_cell(connection, Backlog(1_000, 50))
        single = _singles_per_second(connection, 3_000)
        rates: dict[str, list[float]] = {"enqueue": [], "COPY": []}
        for _ in range(5):
            rates["enqueue"].append(bulk_per_second(connection, 20_000))
            rates["COPY"].append(_copied_per_second(connection, 20_000))
    bulk, copy = (sorted(rates[name])[2] for name in ("enqueue", "COPY"))
    results.record(
        "Enqueue by SQL, one connection",
        command=command,
        machine=described(server),
        body=results.table(
            ["one by one, tasks/s", "1,000 at a time, tasks/s", "COPY into the same tables, tasks/s", "ratio"],
            [[f"{single:,.0f}", f"{bulk:,.0f}", f"{copy:,.0f}", f"{bulk / copy:.2f}"]],
        )
        + "\n\nMedians of 5 runs in turn of 20,000 tasks. Bar: ≥ 0.6 of COPY.",
    )


def _enqueue(connection: Connection, count: int) -> None:
    connection.execute(
        "select from enqueue('company-1', %s, %s, %s, %s, %s, null, null, %s, null)",
        (
            [new_id() for _ in range(count)],
            ["work"] * count,
            ['{"to": "somebody@example.com"}'] * count,
            ["default"] * count,
            [5] * count,
            [5] * count,
        ),
    )


def _singles_per_second(connection: Connection, count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        _enqueue(connection, 1)
    return count / (time.perf_counter() - began)


def bulk_per_second(connection: Connection, count: int) -> float:
    began = time.perf_counter()
    for _ in range(count // 1_000):
        _enqueue(connection, 1_000)
    return count / (time.perf_counter() - began)


def _copied_per_second(connection: Connection, count: int) -> float:
    ((company,),) = connection.execute("select company_id('company-1')").fetchall()
    began = time.perf_counter()
    for _ in range(count // 1_000):
        ids = [new_id() for _ in range(1_000)]
        with connection.transaction():
            for statement, line in _COPIES:
                with connection.cursor().copy(statement) as copy:
                    copy.write("".join(line.format(company=company, id=id) for id in ids))
    return count / (time.perf_counter() - began)


def run(*, command: str) -> None:
    """All of it, on one server."""
    with measured_server() as server:
        drain(server, command=command)
        under_an_old_snapshot(server, command=command)
        enqueue(server, command=command)
