"""The schedules that code declares, brought into the timetable: by their names, and without undoing what people did.

What people changed stays until the code says something else, and a pause stays even then. A declared schedule that the
code says no more goes, if it is of a type that the code has a handler for: others may be another program's.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Final
from uuid import UUID

from sqlalchemy import Executable, select

from taketurns.engine.errors import UnknownCompany
from taketurns.schedules import timetable
from taketurns.schedules.errors import NameTaken
from taketurns.schedules.timetable import NewSchedule
from taketurns.storage.database import Database, Row
from taketurns.storage.models import Company
from taketurns.storage.models import Schedule as ScheduleTable

PAGE: Final = 500


@dataclass(frozen=True, slots=True)
class Declaration:
    """A schedule of each of these companies, named by id or slug; None: of every one."""

    new: NewSchedule
    companies: frozenset[str] | None


async def apply(
    database: Database, declarations: Sequence[Declaration], *, types: Collection[str], at: datetime | None = None
) -> None:
    """Bring the timetable up to what code declares. Raises UnknownCompany, once all others have theirs."""
    signed = [replace(one, new=replace(one.new, declaration=_signature(one.new))) for one in declarations]
    missing = {name for one in signed for name in one.companies or ()}
    async for page in _companies(database):
        before: dict[UUID, list[Row]] = {}
        for row in await database.fetch(_declared([company_id for company_id, _ in page])):
            before.setdefault(row[0], []).append(row)
        for company_id, slug in page:
            names = {str(company_id), slug}
            missing -= names
            wanted = [one.new for one in signed if one.companies is None or one.companies & names]
            await _apply_to(database, company_id, wanted, before.get(company_id, []), types=types, at=at)
    if missing:
        raise UnknownCompany(min(missing))


async def _apply_to(
    database: Database,
    company_id: UUID,
    wanted: Sequence[NewSchedule],
    before: Sequence[Row],
    *,
    types: Collection[str],
    at: datetime | None,
) -> None:
    known = {name: (schedule_id, declaration) for _, schedule_id, name, _, declaration in before}
    for new in wanted:
        if new.name not in known:
            with suppress(NameTaken, UnknownCompany):  # of the API, or made or gone meanwhile
                await timetable.create(database, company_id, new, at=at)
        elif known[new.name][1] != new.declaration:
            changes = timetable.columns(new)
            del changes["paused"]
            await timetable.change(database, company_id, known[new.name][0], changes, at=at)
    for _, schedule_id, name, type, _ in before:
        if type in types and name not in {new.name for new in wanted}:
            await timetable.delete(database, company_id, schedule_id)


async def _companies(database: Database) -> AsyncIterator[list[Row]]:
    statement = select(Company.id, Company.slug).order_by(Company.id).limit(PAGE)
    page = await database.fetch(statement)
    while page:
        yield page
        page = await database.fetch(statement.where(Company.id > page[-1][0]))


def _declared(company_ids: Sequence[UUID]) -> Executable:
    table = ScheduleTable
    return select(table.company_id, table.id, table.name, table.type, table.declaration).where(
        table.company_id.in_(company_ids), table.declaration.is_not(None)
    )


def _signature(new: NewSchedule) -> str:
    told = [repr(getattr(new, field.name)) for field in fields(new) if field.name != "declaration"]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()
