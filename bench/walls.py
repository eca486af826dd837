"""What the wall around each company costs: a task created and got, with and without it, in turn."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Final
from uuid import UUID

from bench import results
from bench.server import connect, described, measured_server
from scripts import perf_seed
from scripts.perf_seed import Backlog
from taketurns.brokers.postgres import PostgresBroker
from taketurns.engine.task import NewTask
from taketurns.history import tasks
from taketurns.storage import schema, walls
from taketurns.storage.database import Database

BACKLOG: Final = Backlog(100_000, 50)
ROUNDS: Final = 20
OPERATIONS: Final = 50
ROLE: Final = "bench_company"
SLUG: Final = "company-1"
NOTHING: Final = NewTask(type="nothing", payload="{}")
SIDES: Final = ("without", "with")

Operation = Callable[[], Awaitable[object]]


async def measure(url: str, company_url: str) -> dict[str, dict[str, list[float]]]:
    """Seconds of each operation on either side, one connection each; the median of every round."""
    databases = {
        "without": Database(url, pool_size=1),
        "with": Database(url, pool_size=2, companies=Database(company_url, pool_size=1)),
    }
    measured: dict[str, dict[str, list[float]]] = {}
    for database in databases.values():
        await database.open()
    ((company_id,),) = await databases["without"].call("company_id", SLUG)
    for named in (SLUG, str(company_id)):
        for name in ("create", "get"):
            what = f"{name}, the company by its {'slug' if named == SLUG else 'id'}"
            sides = {side: await _operation(name, databases[side], named) for side in SIDES}
            measured[what] = await _in_turn(sides)
    for database in databases.values():
        await database.close()
    return measured


async def _operation(name: str, database: Database, company: str) -> Operation:
    broker = PostgresBroker(database)
    (made,) = await broker.enqueue(company, [NOTHING])
    reference = company if company == SLUG else UUID(company)
    if name == "create":
        return lambda: broker.enqueue(company, [NOTHING])
    return lambda: tasks.find(database.of(reference), reference, made.task_id)


async def _in_turn(sides: dict[str, Operation]) -> dict[str, list[float]]:
    medians: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(ROUNDS):
        for side, operation in sides.items():
            medians[side].append(statistics.median([await _took(operation) for _ in range(OPERATIONS)]))
    return medians


async def _took(operation: Operation) -> float:
    began = perf_counter()
    await operation()
    return perf_counter() - began


def run(*, command: str) -> None:
    """Round by round, one side after the other."""
    with measured_server() as server:
        url = server.create_database("walls")
        schema.upgrade(url)
        with connect(url) as connection:
            perf_seed.seed_cell(connection, BACKLOG)
            walls.grant(connection, ROLE, schema="taketurns")
        measured = asyncio.run(measure(url, server.url("walls", role=ROLE)))
        results.record(
            "The wall around each company: one task created, one got, one connection",
            command=command,
            machine=described(server),
            body=_table(measured),
        )


def _table(measured: dict[str, dict[str, list[float]]]) -> str:
    rows = []
    for what, sides in measured.items():
        without, behind = (statistics.median(sides[side]) * 1_000 for side in SIDES)
        rows.append([what, f"{without:.3f}", f"{behind:.3f}", f"{behind / without:.2f}"])
    return results.table(["", "without, ms", "with, ms", "ratio"], rows) + (
        f"\n\nMedians of {ROUNDS} rounds in turn of {OPERATIONS} operations, beside {BACKLOG.tasks:,} tasks of"
        f" {BACKLOG.companies} companies. Bar: ≤ 1.10."
    )
