"""How it stands with a company: what it has waiting and running, its share of the hands, and what its attempts came to.

What is now is read from the rows that wait and run, and what was from roll-ups: see stats.sql.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from taketurns.engine import durations, waits
from taketurns.history.rollups import KEEP_MINUTES, KEEP_TENS
from taketurns.storage.database import Database

COUNT_MOST: Final = 10_000
WINDOW_SECONDS_MIN: Final = 10.0
WINDOW_SECONDS_MAX: Final = KEEP_MINUTES.total_seconds()


@dataclass(frozen=True, slots=True)
class Attempts:
    """What attempts came to. Waits are None when there was none."""

    completed: int = 0
    retried: int = 0
    failed: int = 0
    wait_p50_seconds: float | None = None
    wait_p95_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Stats:
    """A company's figures at a moment, and of the window before it.

    `backlog` and `scheduled` are counted up to `COUNT_MOST`, and `oldest_age_seconds` is for how long one of those
    pending tasks has been due. `fair_share` is how many of the living workers' hands are the company's, of what those
    leave who want no more, among those who wait.
    """

    company_id: UUID
    at: datetime
    backlog: int
    oldest_age_seconds: float | None
    scheduled: int
    in_flight: int
    fair_share: int
    since: datetime
    seconds: float
    tasks: Attempts
    jobs: Attempts

    @property
    def backlog_is_exact(self) -> bool:
        return self.backlog < COUNT_MOST

    @property
    def scheduled_is_exact(self) -> bool:
        return self.scheduled < COUNT_MOST


def window_seconds(window: str) -> float:
    """A window as people write it. Raises ValueError for what is none."""
    seconds = durations.seconds(window)
    if not WINDOW_SECONDS_MIN <= seconds <= WINDOW_SECONDS_MAX:
        low, high = durations.told(WINDOW_SECONDS_MIN), durations.told(WINDOW_SECONDS_MAX)
        raise ValueError(f"must be from {low} to {high}")
    return seconds


async def read(
    database: Database, company: UUID | str, *, window_seconds: float = 600.0, at: datetime | None = None
) -> Stats | None:
    """The figures of a company, an id or a slug; None when there is no such company. Raises Unavailable."""
    period_seconds = 10 if window_seconds <= KEEP_TENS.total_seconds() else 60
    rows = await database.call("stats", str(company), window_seconds, period_seconds, COUNT_MOST, at)
    if not rows:
        return None
    company_id, now, backlog, oldest_age, scheduled, in_flight, fair_share, since, seconds, *_ = rows[0]
    lanes = {row[9]: _attempts(*row[10:]) for row in rows}
    return Stats(
        company_id=company_id,
        at=now,
        backlog=min(backlog, COUNT_MOST),
        oldest_age_seconds=oldest_age,
        scheduled=min(scheduled, COUNT_MOST),
        in_flight=in_flight,
        fair_share=fair_share,
        since=since,
        seconds=seconds,
        tasks=lanes.get("tasks", Attempts()),
        jobs=lanes.get("jobs", Attempts()),
    )


def _attempts(completed: int | None, retried: int | None, failed: int | None, counts: list[int] | None) -> Attempts:
    waited = [int(count) for count in counts or []]
    return Attempts(
        completed=int(completed or 0),
        retried=int(retried or 0),
        failed=int(failed or 0),
        wait_p50_seconds=waits.quantile(waited, 0.5),
        wait_p95_seconds=waits.quantile(waited, 0.95),
    )
