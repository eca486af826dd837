"""A cell with companies and schedules, the means to let their time come, and to see which tasks that made."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg

from taketurns.engine import schedule
from taketurns.engine.schedule import Missed
from taketurns.schedules import timetable
from taketurns.schedules.ticking import Ticking
from taketurns.schedules.timetable import NewSchedule, Schedule
from taketurns.storage.database import Database

START = datetime(2027, 3, 1, 12, 0, 30, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


class Calendar:
    """`acme` and `zeta` are its companies."""

    def __init__(self, url: str, database: Database) -> None:
        self.url = url
        self.database = database
        self.announced: list[str] = []
        self.ticking = Ticking(database, announce=self._announce)
        self._connection = psycopg.connect(url, autocommit=True)
        for slug in ("acme", "zeta"):
            self.execute(
                "insert into taketurns.companies (id, slug, name) values (%s, %s, %s)", uuid.uuid4(), slug, slug
            )

    def execute(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        cursor = self._connection.execute(statement.encode(), values or None)
        return cursor.fetchall() if cursor.description else []

    def value(self, statement: str, *values: object) -> Any:
        return self.execute(statement, *values)[0][0]

    async def add(
        self, name: str = "minutely", *, company: str = "acme", at: datetime = START, **given: Any
    ) -> Schedule:
        """A schedule, of each minute unless said otherwise."""
        return await timetable.create(self.database, company, new(name, **given), at=at)

    async def schedule(self, schedule_id: UUID, *, company: str = "acme", at: datetime = START) -> Schedule:
        found = await timetable.find(self.database, company, schedule_id, at=at)
        assert found is not None
        return found

    async def change(self, of: Schedule, *, at: datetime = START, **changes: Any) -> Schedule:
        changed = await timetable.change(self.database, of.company_id, of.id, changes, at=at)
        assert changed is not None
        return changed

    def ticks(self, of: Schedule | UUID) -> list[datetime]:
        """The ticks that made a task, in order, as often as they did."""
        schedule_id = of.id if isinstance(of, Schedule) else of
        rows = self.execute(
            "select run_after at time zone 'UTC' from taketurns.tasks where schedule_id = %s order by run_after, id",
            schedule_id,
        )
        return [tick.replace(tzinfo=UTC) for (tick,) in rows]

    def tasks(self) -> Counter[str]:
        """How many tasks stand in which queue."""
        return Counter(queue for (queue,) in self.execute("select queue from taketurns.pending_tasks"))

    def close(self) -> None:
        self._connection.close()

    def _announce(self, queues: Iterable[str]) -> None:
        self.announced.extend(queues)


def new(
    name: str,
    *,
    expression: str = "* * * * *",
    time_zone: str = "UTC",
    missed: Missed = Missed.LAST,
    type: str = "work",
    queue: str = "default",
    payload: dict[str, Any] | None = None,
    **options: Any,
) -> NewSchedule:
    given: dict[str, Any] = {"priority": 5, "max_retries": 5, "timeout_seconds": None, **options}
    return NewSchedule(
        name=name,
        type=type,
        payload=json.dumps(payload or {}),
        queue=queue,
        cron=schedule.read(expression, time_zone),
        missed=missed,
        **given,
    )


def minutes(first: int, last: int) -> list[datetime]:
    """The full minutes after the start, by number, bounds included."""
    beginning = START.replace(second=0)
    return [beginning + number * MINUTE for number in range(first, last + 1)]
