"""`taketurns demo`: what `taketurns up` runs, with three companies that are as different as customers are.

Acme floods, Globex asks for little, and the tasks of Initech are slow. Each is fed up to a backlog of its own.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from taketurns.assembly import Handler, Taketurns
from taketurns.engine.errors import Unavailable, UnknownCompany
from taketurns.engine.retry import Backoff
from taketurns.history import board
from taketurns.settings import Settings
from taketurns.storage.database import Database

APP: Final = "taketurns.cli.demo:tt"
FEED_SECONDS: Final = 0.5
COMPANIES_MOST: Final = 100
_chance = random.Random()  # noqa: S311  no secret: how long a task takes, and whether it fails

tt = Taketurns()


@tt.task(retries=1, backoff=Backoff(first_seconds=2.0))
async def import_row(row: int) -> str:
    """Takes a moment, and fails now and then."""
    await _work(0.3, 1.2)
    if _chance.random() < 0.06:
        raise ValueError("the row has no price")
    return f"row {row} is in"


@tt.task
async def send_receipt(order: int) -> str:
    """Takes a moment, and somebody waits for it."""
    await _work(0.4, 0.9)
    return f"receipt of order {order} is sent"


@tt.task(retries=1, backoff=Backoff(first_seconds=3.0))
async def render_report(report: int) -> str:
    """Takes long, and fails now and then."""
    await _work(4.0, 11.0)
    if _chance.random() < 0.12:
        raise TimeoutError("the data warehouse did not answer")
    return f"report {report} has {_chance.randint(3, 40)} pages"


async def _work(at_least: float, at_most: float) -> None:
    await asyncio.sleep(_chance.uniform(at_least, at_most))


@dataclass(frozen=True, slots=True)
class Habit:
    """How a company asks for work: `at_once` tasks each time that it is fed, but none over `most` that wait."""

    task: Handler[..., ..., Any]
    argument: str
    at_once: int
    most: int
    chance: float = 1.0

    def payloads(self, backlog: int) -> Iterator[dict[str, int]]:
        """Those of the tasks to add to what waits."""
        wanted = min(self.at_once, self.most - backlog) if _chance.random() < self.chance else 0
        for _ in range(wanted):
            yield {self.argument: _chance.randint(1000, 9999)}


HABITS: Final = {
    "acme": Habit(import_row, "row", at_once=40, most=400),
    "globex": Habit(send_receipt, "order", at_once=1, most=5, chance=0.5),
    "initech": Habit(render_report, "report", at_once=3, most=12),
}


async def feed(settings: Settings) -> None:
    """Give the companies work for as long as this runs; what the database cannot take now, it is given later."""
    tt.adopt(settings)
    database = Database(settings.database_url, schema=settings.schema_name, pool_size=1)
    await database.open()
    try:
        async with tt:
            while True:
                with suppress(Unavailable, UnknownCompany):
                    await feed_once(database)
                await asyncio.sleep(FEED_SECONDS)
    finally:
        await database.close()


async def feed_once(database: Database) -> None:
    """Fill up what waits, by the habits of those that are there."""
    for company in await board.read(database, limit=COMPANIES_MOST):
        if habit := HABITS.get(company.slug):
            await habit.task.enqueue_many(company.slug, habit.payloads(company.backlog))
