"""When workers and passes were last heard of, by the database's clock, which of them are late, and what is wanted of
workers and what they do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Double, case, cast, func, select
from sqlalchemy.orm import InstrumentedAttribute

from taketurns.engine.lease import Kind
from taketurns.engine.orders import Wanted, WorkerState
from taketurns.history.places import AnySelect
from taketurns.storage.database import Database, Row
from taketurns.storage.models import Heartbeat as HeartbeatTable
from taketurns.storage.models import Worker


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Of a name. `id` is of the latest who had it, `processes` is how many hold a lease under it.

    Of several processes `wanted` and `state` tell the one that is least far from its end; of passes they are None.
    """

    name: str
    id: UUID
    kind: str
    host: str
    version: str
    queues: list[str]
    types: int
    concurrency: int
    started_at: datetime
    beat_at: datetime
    last_claim_at: datetime | None
    left_at: datetime | None
    processes: int
    wanted: str | None
    state: str | None
    age_seconds: float

    def is_late(self, *, max_age_seconds: float, is_asked_for: bool = False) -> bool:
        """Whether it was not heard of for too long; who left in good order is only missed when `is_asked_for`."""
        return self.age_seconds > max_age_seconds and (is_asked_for or self.left_at is None)


@dataclass(frozen=True, slots=True)
class Page:
    """Some heartbeats, those that began last first; `next_after` is the id to go on after, if there are more."""

    heartbeats: list[Heartbeat]
    next_after: UUID | None


def statement(*, name: str | None = None) -> AnySelect:
    """Rows for `read`, those that began last first."""
    age = func.extract("epoch", func.clock_timestamp() - HeartbeatTable.beat_at)
    processes = select(func.count()).where(Worker.name == HeartbeatTable.name).scalar_subquery()
    found: AnySelect = select(
        HeartbeatTable.name,
        HeartbeatTable.id,
        HeartbeatTable.kind,
        HeartbeatTable.host,
        HeartbeatTable.version,
        HeartbeatTable.queues,
        HeartbeatTable.types,
        HeartbeatTable.concurrency,
        HeartbeatTable.started_at,
        HeartbeatTable.beat_at,
        HeartbeatTable.last_claim_at,
        HeartbeatTable.left_at,
        processes,
        func.coalesce(_least(Worker.wanted, Wanted), HeartbeatTable.wanted).label("wanted"),
        func.coalesce(_least(Worker.state, WorkerState), HeartbeatTable.state).label("state"),
        cast(func.greatest(age, 0), Double).label("age_seconds"),
    ).order_by(HeartbeatTable.id.desc())
    return found if name is None else found.where(HeartbeatTable.name == name)


def _least(column: InstrumentedAttribute[str], words: type[StrEnum]) -> ColumnElement[Any]:
    """The first of the words that a worker of the name has."""
    found = case(*((func.bool_or(column == word.value), word.value) for word in words))
    return select(found).where(Worker.name == HeartbeatTable.name, Worker.kind == Kind.WORKER.value).scalar_subquery()


def read(rows: Sequence[Row]) -> list[Heartbeat]:
    return [Heartbeat(*row) for row in rows]


async def find(database: Database, worker: UUID | str) -> Heartbeat | None:
    """The heartbeat of a worker or a pass, by the id of its latest process or by its name."""
    is_named = (HeartbeatTable.id if isinstance(worker, UUID) else HeartbeatTable.name) == worker
    found = read(await database.fetch(statement().where(is_named)))
    return found[0] if found else None


async def page(database: Database, *, limit: int, offset: int = 0, after: UUID | None = None) -> Page:
    """Heartbeats, those that began last first."""
    wanted = statement().limit(limit + 1).offset(offset)
    if after is not None:
        wanted = wanted.where(HeartbeatTable.id < after)
    found = read(await database.fetch(wanted))
    return Page(found[:limit], found[limit - 1].id if len(found) > limit else None)


def ages(*, most: int) -> AnySelect:
    """Rows of (name, seconds since its last beat) of who did not leave; of those that began last, if there are many."""
    expected = statement().where(HeartbeatTable.left_at.is_(None)).limit(most).subquery("expected")
    return select(expected.c.name, expected.c.age_seconds)
