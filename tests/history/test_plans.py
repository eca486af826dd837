"""What pages of all companies are made of costs as much with a long history as with none: no plan reads it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Final

import pytest

from taketurns.engine.task import Outcome
from taketurns.history import board, live, series
from taketurns.history.series import EVERYBODY, SPANS
from taketurns.storage.database import NO_SETTINGS, Database, Row
from tests.history.conftest import Life

HISTORY: Final = 20_000
READS: Final[Mapping[str, Callable[[Database], Awaitable[object]]]] = {
    "board": lambda database: board.read(database, limit=100),
    "live": lambda database: live.read(database, lately=timedelta(minutes=1), most=200),
    **{
        f"{what} {name}": read
        for name, span in SPANS.items()
        for what, read in {
            "series": lambda database, span=span: series.read(database, span, [EVERYBODY]),
            "busiest": lambda database, span=span: series.busiest(database, span),
        }.items()
    },
}
GROWING: Final = frozenset({"tasks", "task_events", "rollups"})


class Explaining(Database):
    """Keeps the plan of every statement that it runs."""

    async def run(
        self, query: bytes, parameters: Any = None, *, settings: Mapping[str, str] = NO_SETTINGS, binary: bool = False
    ) -> list[Row]:
        told = await super().run(b"explain (analyze, format json) " + query, parameters, settings=settings)
        self.plan: dict[str, Any] = told[0][0][0]["Plan"]
        return await super().run(query, parameters, settings=settings)


def scans(plan: dict[str, Any]) -> Iterator[tuple[str, str, float]]:
    """Of what reads tables: how, which, and how many rows of them."""
    if "Relation Name" in plan:
        rows = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)
        yield plan["Node Type"], plan["Relation Name"], rows * plan["Actual Loops"]
    for part in plan.get("Plans", []):
        yield from scans(part)


async def seed(life: Life) -> None:
    """Some tasks that wait and run, some that ended, and what they came to."""
    await life.create(200)
    claimed = await life.claim(150)
    await life.end(claimed[:100])
    await life.end(claimed[100:120], Outcome.FAILED)


async def add_history(life: Life) -> None:
    """Tasks that ended a week ago, and the periods of a company that had them, older than any window."""
    await life.execute(
        """
        insert into tasks (company_id, id, type, queue, priority, run_after, max_retries, payload, created_at,
            started_at, finished_at)
        select %s, (lpad(to_hex(1600000000000 + n), 12, '0') || '70008000000000000000')::uuid, 'work', 'default', 5,
            now(), 5, '{}', now() - interval '8 days', now() - interval '8 days', now() - interval '8 days'
        from generate_series(1, %s) n
        """,
        life.company_id,
        HISTORY,
    )
    await life.execute(
        """
        insert into rollups (company_id, lane, seconds, starts_at, completed, retried, failed, waits)
        select %s, 'tasks', s.seconds, date_bin('1 hour', now(), 'epoch') - interval '8 days' - n * interval '1 hour',
            1, 0, 1, '{1}'
        from generate_series(1, %s / 3) n, unnest(array[10, 60, 3600]) s(seconds)
        """,
        life.company_id,
        HISTORY,
    )


@pytest.fixture
async def explaining(database_url: str) -> Any:
    database = Explaining(database_url, pool_size=2)
    await database.open()
    yield database
    await database.close()


async def test_no_page_of_all_companies_reads_the_history(life: Life, explaining: Explaining) -> None:
    await seed(life)
    few: dict[str, float] = {}
    for name, read in READS.items():
        await read(explaining)
        few[name] = sum(rows for _, table, rows in scans(explaining.plan) if table in GROWING)
    await add_history(life)
    async with life.database.connection() as connection:
        await connection.execute("vacuum analyze")
    for name, read in READS.items():
        await read(explaining)
        found = [scan for scan in scans(explaining.plan) if scan[1] in GROWING]
        assert not [scan for scan in found if scan[0] == "Seq Scan"], name
        assert sum(rows for _, _, rows in found) <= few[name] + 500, (name, found)
