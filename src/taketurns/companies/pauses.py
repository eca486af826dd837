"""Pauses: tasks of a queue, of a type, or of both that are given no turn, of one company or of all.

What runs goes on, and what is submitted waits. A company as a whole is paused in `directory`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from sqlalchemy import func, or_, select

from taketurns.companies import directory
from taketurns.engine.errors import InvalidOption
from taketurns.engine.job import JobPause
from taketurns.storage import audit
from taketurns.storage.audit import Action, Actor
from taketurns.storage.database import Database, call
from taketurns.storage.models import Pause as PauseTable

EVERY_SECONDS: Final = 2.0
EVERYBODY: Final = UUID(int=0)
FOR_EVER: Final = datetime(2200, 1, 1, tzinfo=UTC)  # brokers need not count further


@dataclass(frozen=True, slots=True)
class Pause:
    """Which tasks wait, and how long. `company_id` None: of every company; `queue` or `type` None: of any."""

    company_id: UUID | None
    queue: str | None
    type: str | None
    until: datetime | None
    set_by: str | None
    set_at: datetime


async def put(
    database: Database,
    company: UUID | str | None,
    *,
    queue: str | None,
    type: str | None,
    until: datetime | None = None,
    by: Actor | None = None,
) -> Pause | None:
    """Pause tasks of a company, or without one of all, in place of such a pause before; None when there is no such
    company. Names a queue, a type, or both. Raises InvalidOption of `until` when that is over."""
    set_by = None if by is None else by.name
    async with database.transaction() as connection:
        arguments = (_named(company), queue or "", type or "", until, set_by)
        ((owner, set_at),) = await call(connection, database.schema, "pause", *arguments)
        if owner is None:
            return None
        if until is not None and until <= set_at:
            raise InvalidOption("until", "must be a time to come")
        paused = None if company is None else owner
        details = {"queue": queue, "type": type, "until": until}
        await audit.write(
            connection, database.schema, by, Action.PUT_PAUSE, target=owner, company_id=paused, details=details
        )
    await database.call("let_lines_return", owner, queue or "")  # to rest as long as they are to now
    return Pause(paused, queue, type, until, set_by, set_at)


async def lift(
    database: Database,
    company: UUID | str | None,
    *,
    queue: str | None,
    type: str | None,
    by: Actor | None = None,
) -> bool:
    """Let these tasks be given turns again; False when there was no such pause."""
    async with database.transaction() as connection:
        ((owner,),) = await call(connection, database.schema, "resume", _named(company), queue or "", type or "")
        if owner is not None:
            paused = None if company is None else owner
            details = {"queue": queue, "type": type}
            await audit.write(
                connection, database.schema, by, Action.LIFT_PAUSE, target=owner, company_id=paused, details=details
            )
    if owner is not None:
        await database.call("let_lines_return", owner, queue or "")
    return owner is not None


def _named(company: UUID | str | None) -> str | None:
    return None if company is None else str(company)


async def standing(database: Database, company: UUID | str | None) -> Sequence[Pause] | None:
    """The pauses of a company, or without one those of all, by queue and type; None when there is no such company."""
    company_id = EVERYBODY
    if company is not None:
        found = await directory.find(database, company)
        if found is None:
            return None
        company_id = found.id
    statement = (
        select(
            PauseTable.queue,
            PauseTable.type,
            PauseTable.until,
            PauseTable.set_by,
            PauseTable.set_at,
        )
        .where(PauseTable.company_id == company_id)
        .where(or_(PauseTable.until.is_(None), PauseTable.until > func.clock_timestamp()))
        .order_by(PauseTable.queue, PauseTable.type)
    )
    return [
        Pause(None if company is None else company_id, queue or None, type or None, until, set_by, set_at)
        for queue, type, until, set_by, set_at in await database.fetch(statement)
    ]


async def of_jobs(database: Database) -> Mapping[UUID | None, frozenset[JobPause]]:
    """All pauses that stand, by company, as the jobs' broker is to know them."""
    found = defaultdict[UUID | None, set[JobPause]](set)
    statement = select(PauseTable.company_id, PauseTable.queue, PauseTable.type, PauseTable.until).where(
        or_(PauseTable.until.is_(None), PauseTable.until > func.clock_timestamp())
    )
    for company_id, queue, type, until in await database.fetch(statement):
        ends = until if until is not None and until < FOR_EVER else None
        found[None if company_id == EVERYBODY else company_id].add(JobPause(queue or None, type or None, ends))
    return {company_id: frozenset(some) for company_id, some in found.items()}


class EndPauses:
    """A duty: ends the pauses whose time is over, at that time, by the database's clock."""

    name = "pauses"

    def __init__(self, database: Database, *, every_seconds: float = EVERY_SECONDS) -> None:
        self._database = database
        self._every_seconds = every_seconds

    async def step(self) -> float:
        ((seconds,),) = await self._database.call("end_pauses")
        return self._every_seconds if seconds is None else min(max(seconds, 0.005), self._every_seconds)
