"""Making the tasks of ticks that have come, each once, whoever else is at it.

What is due is read and decided here; `tick.sql` moves a schedule only if it still stands as it was read. So nothing is
locked between the two, and a process that stops or dies there holds nobody up.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, cast
from uuid import UUID

import psycopg
from sqlalchemy import ColumnElement, func, select, tuple_, update
from structlog.typing import FilteringBoundLogger

from taketurns import telemetry
from taketurns.engine import registry, schedule
from taketurns.engine.errors import InvalidOption
from taketurns.engine.schedule import Missed
from taketurns.schedules.timetable import clock
from taketurns.storage.database import Database
from taketurns.storage.ids import new_id
from taketurns.storage.models import Schedule as ScheduleTable
from taketurns.telemetry import Event

BATCH: Final = 100

_NEXT: Final = select(
    func.clock_timestamp(),
    select(func.min(ScheduleTable.next_tick_at)).where(~ScheduleTable.paused, ~ScheduleTable.held).scalar_subquery(),
)
ERROR_LENGTH: Final = 500


@dataclass(slots=True)
class Ticked:
    """How many tasks were made, of how many schedules that failed, and when the next tick is due."""

    made: int = 0
    failed: int = 0
    next_due: datetime | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A schedule whose tick has come."""

    company_id: UUID
    id: UUID
    due: datetime
    seen: datetime
    type: str
    queue: str
    priority: int
    max_retries: int
    timeout_seconds: float | None
    payload_kind: str
    expression: str
    time_zone: str
    missed: str


class Ticking:
    """`announce` is told the queues that got work."""

    def __init__(self, database: Database, *, announce: Callable[[Iterable[str]], None]) -> None:
        self._database = database
        self._announce = announce
        self._log: FilteringBoundLogger = telemetry.logger("schedules").bind()

    async def make_due(self, *, at: datetime | None = None) -> Ticked:
        """Make the tasks of every tick that has come, in batches. Raises Unavailable; what was made by then stays."""
        ticked = Ticked()
        if at is None:
            ((now, ticked.next_due),) = await self._database.fetch(_NEXT)
            if ticked.next_due is None or ticked.next_due > now:
                return ticked
        else:
            ((now,),) = await self._database.fetch(select(clock(at)))
        after: Waiting | None = None
        while due := await self._due(now, after):
            after = due[-1]
            random.shuffle(due)  # so that those who begin together do not go on together
            for waiting in due:
                await self._make(waiting, now, ticked, at=at)
        ticked.next_due = await self.next_due(after=now)
        if ticked.made:
            telemetry.TICKS_MADE.inc(ticked.made)
            self._log.debug(Event.TICKS_MADE, count=ticked.made)
        return ticked

    async def next_due(self, *, after: datetime | None = None) -> datetime | None:
        """When the next tick is due, of those later than a moment."""
        later = [] if after is None else [ScheduleTable.next_tick_at > after]
        statement = select(func.min(ScheduleTable.next_tick_at)).where(
            ~ScheduleTable.paused, ~ScheduleTable.held, *later
        )
        return cast("datetime | None", (await self._database.fetch(statement))[0][0])

    async def _due(self, now: datetime, after: Waiting | None) -> list[Waiting]:
        order = (ScheduleTable.next_tick_at, ScheduleTable.company_id, ScheduleTable.id)
        statement = (
            select(*_COLUMNS)
            .where(~ScheduleTable.paused, ~ScheduleTable.held, ScheduleTable.next_tick_at <= now)
            .order_by(*order)
            .limit(BATCH)
        )
        if after is not None:
            statement = statement.where(tuple_(*order) > (after.due, after.company_id, after.id))
        return [Waiting(*row) for row in await self._database.fetch(statement)]

    async def _make(self, waiting: Waiting, now: datetime, ticked: Ticked, *, at: datetime | None) -> None:
        """Faults 127 and 135: whatever is wrong with one schedule is its own matter."""
        try:
            cron = _checked(waiting)
        except InvalidOption as error:
            await self._pause(waiting, str(error))
            return
        ticks: list[datetime | None] = [*cron.due(since=waiting.due, now=now, missed=Missed(waiting.missed))]
        last = cron.next_tick(after=now)
        for tick, next_due in zip(ticks or [None], [*ticks[1:], last], strict=True):
            try:
                queue = await self._move(waiting, tick, next_due, at=at)
            except psycopg.errors.NoDataFound:
                await self._pause(waiting, "the company is no more")
                return
            except psycopg.Error as error:
                ticked.failed += 1
                await self._note(waiting, error)
                return
            if queue is None or tick is None:
                return
            ticked.made += 1
            self._announce((queue,))
            if next_due is not None:
                waiting = replace(waiting, due=next_due)

    async def _move(
        self, waiting: Waiting, tick: datetime | None, next_due: datetime | None, *, at: datetime | None
    ) -> str | None:
        ((queue,),) = await self._database.call(
            "tick", waiting.company_id, waiting.id, waiting.due, waiting.seen, new_id(), tick, next_due, at
        )
        return cast("str | None", queue)

    async def _pause(self, waiting: Waiting, reason: str) -> None:
        await self._database.fetch(
            update(ScheduleTable)
            .where(*_as_seen(waiting))
            .values(paused=True, next_tick_at=None, error=reason[:ERROR_LENGTH], updated_at=func.clock_timestamp())
        )
        self._log.error(
            Event.SCHEDULE_PAUSED, company_id=str(waiting.company_id), schedule_id=str(waiting.id), error=reason
        )

    async def _note(self, waiting: Waiting, error: psycopg.Error) -> None:
        """Told once for each reason, though a tick may wait for hours and be tried every second."""
        telemetry.TICKS_FAILED.inc()
        reason = str(error).partition("\n")[0][:ERROR_LENGTH]
        is_news = await self._database.fetch(
            update(ScheduleTable)
            .where(*_as_seen(waiting), ScheduleTable.error.is_distinct_from(reason))
            .values(error=reason)
            .returning(ScheduleTable.id)
        )
        if is_news:
            self._log.warning(
                Event.SCHEDULE_FAILED, company_id=str(waiting.company_id), schedule_id=str(waiting.id), error=reason
            )


_COLUMNS: Final = (
    ScheduleTable.company_id,
    ScheduleTable.id,
    ScheduleTable.next_tick_at,
    ScheduleTable.updated_at,
    ScheduleTable.type,
    ScheduleTable.queue,
    ScheduleTable.priority,
    ScheduleTable.max_retries,
    ScheduleTable.timeout_seconds,
    func.jsonb_typeof(ScheduleTable.payload),
    ScheduleTable.expression,
    ScheduleTable.time_zone,
    ScheduleTable.missed,
)


def _checked(waiting: Waiting) -> schedule.Cron:
    """Raises InvalidOption for what only a change by hand can have put into the row."""
    if waiting.payload_kind != "object":
        raise InvalidOption("payload", f"must be an object, not {waiting.payload_kind}")
    complaints = registry.check_options(
        type=waiting.type,
        queue=waiting.queue,
        priority=waiting.priority,
        max_retries=waiting.max_retries,
        timeout_seconds=waiting.timeout_seconds,
    )
    for field, message in complaints:
        raise InvalidOption(field, message)
    return schedule.read(waiting.expression, waiting.time_zone)


def _as_seen(waiting: Waiting) -> tuple[ColumnElement[bool], ...]:
    return (
        ScheduleTable.company_id == waiting.company_id,
        ScheduleTable.id == waiting.id,
        ScheduleTable.next_tick_at == waiting.due,
        ScheduleTable.updated_at == waiting.seen,
    )
