"""The schedules of companies: made, looked at, changed, paused and deleted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg import AsyncConnection, sql
from sqlalchemy import ColumnElement, DateTime, Text, func, literal, select, update
from sqlalchemy import cast as cast_to
from sqlalchemy import delete as delete_from
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.sql.elements import SQLCoreOperations

from taketurns.engine import schedule
from taketurns.engine.errors import InvalidOption, UnknownCompany
from taketurns.engine.schedule import Cron, Missed
from taketurns.schedules.errors import NameTaken, TooManySchedules
from taketurns.storage import audit
from taketurns.storage.audit import Action, Actor
from taketurns.storage.database import Database, Row, fetch
from taketurns.storage.ids import new_id
from taketurns.storage.models import Company
from taketurns.storage.models import Schedule as ScheduleTable

LOCK_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSchedule:
    """A schedule as it is submitted. `payload` is JSON text that PostgreSQL takes."""

    name: str
    type: str
    payload: str
    queue: str
    priority: int
    max_retries: int
    timeout_seconds: float | None
    cron: Cron
    missed: Missed = Missed.LAST
    paused: bool = False
    declaration: str | None = None


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule as it stood at `read_at`. `payload` is JSON text; `error` is why it is paused, or its tick late."""

    company_id: UUID
    id: UUID
    name: str
    type: str
    payload: str
    queue: str
    priority: int
    max_retries: int
    timeout_seconds: float | None
    expression: str
    time_zone: str
    missed: str
    paused: bool
    declared: bool
    next_tick_at: datetime | None
    last_tick_at: datetime | None
    error: str | None
    created_at: datetime
    updated_at: datetime
    read_at: datetime

    def next_ticks(self, count: int) -> list[datetime]:
        """When it will tick next; never while it is paused."""
        if self.paused:
            return []
        try:
            cron = schedule.read(self.expression, self.time_zone)
        except InvalidOption:  # of a row that was changed by hand
            return []
        return cron.next_ticks(count, after=_not_before(self.read_at, self.last_tick_at))


@dataclass(frozen=True, slots=True)
class Page:
    """Some schedules, and the id to go on after when there are more."""

    schedules: list[Schedule]
    next_after: UUID | None


def clock(at: datetime | None) -> ColumnElement[datetime]:
    """The database's time, or what stands in for it."""
    zoned = DateTime(timezone=True)
    return func.coalesce(cast_to(literal(at, zoned), zoned), func.clock_timestamp(), type_=zoned)


def _columns(at: datetime | None) -> tuple[SQLCoreOperations[Any], ...]:
    table = ScheduleTable
    return (
        table.company_id,
        table.id,
        table.name,
        table.type,
        cast_to(table.payload, Text),
        table.queue,
        table.priority,
        table.max_retries,
        table.timeout_seconds,
        table.expression,
        table.time_zone,
        table.missed,
        table.paused,
        table.declaration.is_not(None),
        table.next_tick_at,
        table.last_tick_at,
        table.error,
        table.created_at,
        table.updated_at,
        clock(at),
    )


async def create(
    database: Database,
    company: UUID | str,
    new: NewSchedule,
    *,
    most: int | None = None,
    by: Actor | None = None,
    at: datetime | None = None,
) -> Schedule:
    """Take in a schedule, one of `most` that the company may have. Raises UnknownCompany, NameTaken, TooManySchedules,
    and InvalidOption when it would never tick."""
    async with database.transaction() as connection:
        company_id, now = await _lock_company(connection, database.schema, company, at=at)
        if most is not None:
            await _hold_count(connection, database.schema, company_id)
        statement = (
            insert(ScheduleTable)
            .values(company_id=company_id, id=new_id(), next_tick_at=_first_of(new, now=now), **columns(new))
            .on_conflict_do_nothing()
            .returning(*_columns(at))
        )
        for row in await fetch(connection, database.schema, statement):
            made = Schedule(*row)
            if most is not None and await _count(connection, database.schema, company_id) > most:
                raise TooManySchedules(most)
            await audit.write(
                connection,
                database.schema,
                by,
                Action.CREATE_SCHEDULE,
                target=made.id,
                company_id=made.company_id,
                details=_told(columns(new)),
            )
            return made
    raise NameTaken(new.name)


async def find(
    database: Database, company: UUID | str, schedule_id: UUID, *, at: datetime | None = None
) -> Schedule | None:
    """The schedule, or None when the company has none of this id."""
    rows = await database.fetch(select(*_columns(at)).where(*_is(company, schedule_id)))
    return Schedule(*rows[0]) if rows else None


async def page(
    database: Database,
    company: UUID | str,
    *,
    limit: int,
    offset: int = 0,
    after: UUID | None = None,
    at: datetime | None = None,
) -> Page | None:
    """A company's schedules, the newest first; None when there is no such company."""
    statement = (
        select(*_columns(at))
        .where(ScheduleTable.company_id == owner(company))
        .order_by(ScheduleTable.id.desc())
        .limit(limit + 1)
        .offset(offset)
    )
    if after is not None:
        statement = statement.where(ScheduleTable.id < after)
    schedules = [Schedule(*row) for row in await database.fetch(statement)]
    if not schedules and not await database.fetch(select(owner(company)).where(owner(company).is_not(None))):
        return None
    more = len(schedules) > limit
    return Page(schedules[:limit], schedules[limit - 1].id if more else None)


async def of_all(database: Database, *, limit: int, offset: int = 0) -> list[Schedule]:
    """The schedules of all companies: those that tick next come first, those that do not at all last."""
    statement = (
        select(*_columns(None))
        .order_by(ScheduleTable.next_tick_at.asc().nulls_last(), ScheduleTable.company_id, ScheduleTable.id)
        .limit(limit)
        .offset(offset)
    )
    return [Schedule(*row) for row in await database.fetch(statement)]


async def change(
    database: Database,
    company: UUID | str,
    schedule_id: UUID,
    changes: Mapping[str, Any],
    *,
    by: Actor | None = None,
    at: datetime | None = None,
) -> Schedule | None:
    """Change what a schedule is but its type; None when the company has none of this id.

    With another expression or time zone, and when it is no longer paused, it begins anew at its next tick: nothing is
    made up for. Raises NameTaken, and InvalidOption of `expression` or `time_zone`.
    """
    if not changes:
        return await find(database, company, schedule_id, at=at)
    try:
        async with database.transaction() as connection:
            statement = select(*_columns(at)).where(*_is(company, schedule_id)).with_for_update()
            rows = await fetch(connection, database.schema, statement)
            if not rows:
                return None
            before = Schedule(*rows[0])
            moved = (
                update(ScheduleTable)
                .where(ScheduleTable.company_id == before.company_id, ScheduleTable.id == before.id)
                .values(_changed(before, changes) | {"error": None, "updated_at": func.clock_timestamp()})
                .returning(*_columns(at))
            )
            (row,) = await fetch(connection, database.schema, moved)
            await audit.write(
                connection,
                database.schema,
                by,
                Action.CHANGE_SCHEDULE,
                target=before.id,
                company_id=before.company_id,
                details=_told(changes),
            )
    except psycopg.errors.UniqueViolation:
        raise NameTaken(str(changes["name"])) from None
    return Schedule(*row)


async def delete(database: Database, company: UUID | str, schedule_id: UUID, *, by: Actor | None = None) -> bool:
    """Delete a schedule; the tasks that it has made stay. False when the company has none of this id."""
    statement = delete_from(ScheduleTable).where(*_is(company, schedule_id)).returning(*_columns(None))
    async with database.transaction() as connection:
        for row in await fetch(connection, database.schema, statement):
            gone = Schedule(*row)
            await audit.write(
                connection,
                database.schema,
                by,
                Action.DELETE_SCHEDULE,
                target=gone.id,
                company_id=gone.company_id,
                details={"name": gone.name},
            )
            return True
    return False


def _told(details: Mapping[str, Any]) -> dict[str, Any]:
    """What the audit keeps of a change: payloads are none of its business."""
    return {name: value for name, value in details.items() if name not in {"payload", "declaration"}}


def owner(company: UUID | str) -> Any:
    """The id of the company that an id or a slug names, within a statement."""
    is_named = Company.id == company if isinstance(company, UUID) else Company.slug == company
    return select(Company.id).where(is_named).scalar_subquery()


def columns(new: NewSchedule) -> dict[str, Any]:
    """What is submitted of a schedule, by column."""
    return {
        "name": new.name,
        "type": new.type,
        "payload": new.payload,
        "queue": new.queue,
        "priority": new.priority,
        "max_retries": new.max_retries,
        "timeout_seconds": new.timeout_seconds,
        "expression": new.cron.expression,
        "time_zone": new.cron.time_zone,
        "missed": new.missed.value,
        "paused": new.paused,
        "declaration": new.declaration,
    }


def _first_of(new: NewSchedule, *, now: datetime) -> datetime | None:
    return None if new.paused else _first_tick(new.cron, after=now)


def _changed(before: Schedule, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that change, with the tick that follows from them."""
    expression = changes.get("expression", before.expression)
    time_zone = changes.get("time_zone", before.time_zone)
    if changes.get("paused", before.paused):
        if {"expression", "time_zone"} & changes.keys():
            schedule.read(expression, time_zone)
        return {**changes, "next_tick_at": None}
    cron = schedule.read(expression, time_zone)
    is_new = (cron.expression, time_zone) != (before.expression, before.time_zone)
    if not (is_new or before.paused or before.next_tick_at is None):
        return dict(changes)
    first = _first_tick(cron, after=_not_before(before.read_at, before.last_tick_at))
    return {**changes, "expression": cron.expression, "next_tick_at": first}


def _first_tick(cron: Cron, *, after: datetime) -> datetime:
    first = cron.next_tick(after=after)
    if first is None:
        raise InvalidOption("expression", "names days that do not come within fifty years: correct its days or months")
    return first


def _not_before(now: datetime, last_tick_at: datetime | None) -> datetime:
    """A tick that was made is over, though the clock was put back since."""
    return now if last_tick_at is None else max(now, last_tick_at)


def _is(company: UUID | str, schedule_id: UUID) -> tuple[ColumnElement[bool], ...]:
    return ScheduleTable.company_id == owner(company), ScheduleTable.id == schedule_id


async def _hold_count(connection: AsyncConnection[Row], schema: str, company_id: UUID) -> None:
    """Let nobody else count the company's schedules until the end of the transaction."""
    lock = "select pg_advisory_xact_lock(hashtextextended(%s, 0))"
    await connection.execute(lock, (f"schedules{schema}{company_id}",))


async def _count(connection: AsyncConnection[Row], schema: str, company_id: UUID) -> int:
    counted = select(func.count()).where(ScheduleTable.company_id == company_id)
    return int((await fetch(connection, schema, counted))[0][0])


async def _lock_company(
    connection: AsyncConnection[Row], schema: str, company: UUID | str, *, at: datetime | None
) -> tuple[UUID, datetime]:
    """Keep the company from being deleted until the end of the transaction; its id, and the time."""
    await connection.execute("select set_config('lock_timeout', %s, true)", (str(int(LOCK_SECONDS * 1000)),))
    for (company_id,) in await fetch(connection, schema, select(owner(company)).where(owner(company).is_not(None))):
        lock = sql.SQL("select pg_advisory_xact_lock_shared({}(%s))").format(sql.Identifier(schema, "company_lock"))
        await connection.execute(lock, (company_id,))
        for (now,) in await fetch(connection, schema, select(clock(at)).where(Company.id == company_id)):
            return company_id, now
    raise UnknownCompany(str(company))
