"""How many tasks are in each status, for how long the oldest that may run has waited, and whose most of them are: for
graphs.

Never a count of the history or of a backlog: see `figures.sql` and `loads.sql`.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from typing import Final

from taketurns.engine.task import Status
from taketurns.history import heartbeats
from taketurns.storage.database import Database, compile_statement

CAP: Final = 10_000
NAMES_MOST: Final = 100
COMPANIES_TOLD: Final = 10
COMPANIES_MOST: Final = 1_000
FEW: Final = 100
MANY: Final = 100_000
STATEMENT_MILLISECONDS: Final = 700

_QUERY: Final = resources.files("taketurns.history").joinpath("figures.sql").read_bytes()
_LOADS: Final = resources.files("taketurns.history").joinpath("loads.sql").read_bytes()
_SETTINGS: Final = """
    select set_config('search_path', %s, true), set_config('statement_timeout', %s, true),
        set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
        set_config('jit', 'off', true)
"""


@dataclass(frozen=True, slots=True)
class Figures:
    """Waiting tasks are counted up to `CAP`; finished ones are estimated once there are more records than that.

    `oldest_eligible_seconds` is how long the oldest pending task has been due; 0 when none is pending, and those of
    paused companies do not count. `heartbeat_ages` are seconds since the last beat, by name, of `NAMES_MOST` names.
    `waiting` and `in_flight` are the tasks of the `COMPANIES_TOLD` companies that have the most, by slug, and of all
    others under None; waiting ones of `COMPANIES_MOST` companies, counted up to `CAP`, or less if many have that many.
    """

    tasks_by_status: dict[Status, int]
    oldest_eligible_seconds: float
    heartbeat_ages: dict[str, float]
    waiting: dict[str | None, int]
    in_flight: dict[str | None, int]


async def read(database: Database) -> Figures:
    """The figures of this moment. Raises Unavailable, also when they would take longer than a scrape should."""
    async with database.transaction() as connection, connection.pipeline():
        await connection.execute(_SETTINGS, (f'"{database.schema}"', str(STATEMENT_MILLISECONDS)))
        cursor = await connection.execute(_QUERY, {"most": CAP})
        row = await cursor.fetchone()
        cursor = await connection.execute(*compile_statement(database.schema, heartbeats.ages(most=NAMES_MOST)))
        ages = dict(await cursor.fetchall())
        bounds = {"top": COMPANIES_TOLD, "companies": COMPANIES_MOST, "few": FEW, "many": MANY, "most": CAP}
        loads = await (await connection.execute(_LOADS, bounds)).fetchall()
    assert row is not None  # noqa: S101  an aggregate answers one row
    *counts, oldest = row
    return Figures(
        tasks_by_status=dict(zip(Status, map(round, counts), strict=True)),
        oldest_eligible_seconds=max(oldest or 0.0, 0.0),
        heartbeat_ages=ages,
        waiting={slug: tasks for kind, slug, tasks in loads if kind == "waiting"},
        in_flight={slug: tasks for kind, slug, tasks in loads if kind == "in flight"},
    )
