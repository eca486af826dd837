"""The tasks of all companies in one list, the newest first: what each company has newest, merged.

A company's tasks lie together and nowhere else, so the list is of up to `COMPANIES_MOST` companies: those that wait or
run, then the newest of the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from sqlalchemy import select, true

from taketurns.history import tasks
from taketurns.history.board import read as read_board
from taketurns.history.tasks import Filter, TaskRecord
from taketurns.storage.database import Database
from taketurns.storage.models import Company, Task

COMPANIES_MOST: Final = 100


@dataclass(frozen=True, slots=True)
class Page:
    """Some tasks, and the id to go on after. `slugs` are those of the companies that were looked at; `is_whole` says
    that there are no others."""

    tasks: list[TaskRecord] = field(default_factory=list)
    next_after: UUID | None = None
    slugs: dict[UUID, str] = field(default_factory=dict)
    is_whole: bool = True


async def page(database: Database, wanted: Filter, *, limit: int, after: UUID | None = None) -> Page:
    """At most `limit` tasks of any company, older than the id `after`. Raises Unavailable."""
    standings = await read_board(database, limit=COMPANIES_MOST + 1)
    slugs = {one.id: one.slug for one in standings[:COMPANIES_MOST]}
    found = await tasks.ids_of_each(database, list(slugs), wanted, limit=limit, after=after)
    complete_from = max((some.next_after for some in found.values() if some.next_after is not None), default=None)
    merged = sorted(
        ((id, company_id) for company_id, some in found.items() for id in some.ids),
        key=lambda pair: pair[0],
        reverse=True,
    )
    if complete_from is not None:
        merged = [pair for pair in merged if pair[0] >= complete_from]
    shown = merged[:limit]
    records: dict[UUID, TaskRecord] = {}
    for company_id in {company_id for _, company_id in shown}:
        of_company = [id for id, owner in shown if owner == company_id]
        records |= {record.id: record for record in await tasks.find_all(database, company_id, of_company)}
    next_after = shown[-1][0] if len(merged) > limit else complete_from
    return Page(
        [records[id] for id, _ in shown if id in records], next_after, slugs, is_whole=len(standings) <= COMPANIES_MOST
    )


async def owner_of(database: Database, task_id: UUID) -> str | None:
    """The slug of the company that has this task: each of them is asked, by key."""
    kept = select(Task.id).where(Task.company_id == Company.id, Task.id == task_id).limit(1).lateral()
    rows = await database.fetch(select(Company.slug).join(kept, true()).limit(1))
    return rows[0][0] if rows else None
