"""What every hand of the fleet does now and did a moment ago: see live.sql."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib import resources
from typing import Final
from uuid import UUID

from sqlalchemy import func, select

from taketurns.storage.database import Database
from taketurns.storage.models import Company, Worker

MOST: Final = 2_000
EACH: Final = 200
COMPANIES_MOST: Final = 50
STATEMENT_MILLISECONDS: Final = 700

_QUERY: Final = resources.files("taketurns.history").joinpath("live.sql").read_bytes()


@dataclass(frozen=True, slots=True)
class Attempt:
    """A task in a hand: from when, to when if it has ended, and how that was."""

    company_id: UUID
    task_id: UUID
    type: str
    worker_id: UUID
    started_at: datetime
    finished_at: datetime | None
    status: str


@dataclass(frozen=True, slots=True)
class Hands:
    """A living worker and how many hands it has."""

    worker_id: UUID
    name: str
    count: int


@dataclass(frozen=True, slots=True)
class Moment:
    """Everything at one time. `slugs` are those of the companies that have a part in it."""

    at: datetime
    workers: list[Hands]
    attempts: list[Attempt]
    slugs: dict[UUID, str]


async def read(database: Database, *, lately: timedelta, most: int = MOST) -> Moment:
    """What runs, and what ended within `lately`. Raises Unavailable, also when that would take too long."""
    settings = {
        "search_path": f'"{database.schema}"',
        "statement_timeout": str(STATEMENT_MILLISECONDS),
        "enable_seqscan": "off",
        "jit": "off",
    }
    bounds = {"lately": lately, "most": most, "each": EACH, "companies": COMPANIES_MOST}
    rows = await database.run(_QUERY, bounds, settings=settings)
    attempts = [Attempt(*row) for row in rows]
    workers = select(Worker.id, Worker.name, Worker.concurrency, func.clock_timestamp()).order_by(
        Worker.name, Worker.started_at
    )
    living = await database.fetch(workers)
    of = {attempt.company_id for attempt in attempts}
    names = select(Company.id, Company.slug).where(Company.id.in_(list(of)))
    return Moment(
        living[0][3] if living else datetime.now(UTC),
        [Hands(worker_id, name, count) for worker_id, name, count, _ in living],
        attempts,
        dict(await database.fetch(names)) if of else {},
    )
