"""What the audit says: who changed what, the newest first."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from sqlalchemy import Text, cast, select

from taketurns.storage.audit import Action
from taketurns.storage.database import Database
from taketurns.storage.ids import id_at
from taketurns.storage.models import AuditEntry as AuditEntryTable

CLOCK_SLACK: Final = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class Entry:
    """One change. `details` is a JSON object in text."""

    id: UUID
    at: datetime
    actor_kind: str
    actor_name: str
    key_id: UUID | None
    issuer: str | None
    action: str
    company_id: UUID | None
    target: str
    details: str
    address: str | None
    request_id: str | None


@dataclass(frozen=True, slots=True)
class Page:
    """Some entries, and the id to go on after when there are more."""

    entries: list[Entry]
    next_after: UUID | None


async def page(
    database: Database,
    *,
    company_id: UUID | None = None,
    actions: Collection[Action] = (),
    since: datetime | None = None,
    limit: int,
    offset: int = 0,
    after: UUID | None = None,
) -> Page:
    """Entries, the newest first: of a company that is or was, of some actions, not older than a time."""
    table = AuditEntryTable
    statement = select(
        table.id,
        table.at,
        table.actor_kind,
        table.actor_name,
        table.key_id,
        table.issuer,
        table.action,
        table.company_id,
        table.target,
        cast(table.details, Text),
        table.address,
        table.request_id,
    )
    if company_id is not None:
        statement = statement.where(table.company_id == company_id)
    if actions:
        statement = statement.where(table.action.in_([action.value for action in actions]))
    if since is not None:  # ids rise with the clocks of those who made them
        statement = statement.where(table.at >= since, table.id >= id_at(since - CLOCK_SLACK))
    if after is not None:
        statement = statement.where(table.id < after)
    statement = statement.order_by(table.id.desc()).limit(limit + 1).offset(offset)
    entries = [Entry(*row) for row in await database.fetch(statement)]
    return Page(entries[:limit], entries[limit - 1].id if len(entries) > limit else None)
