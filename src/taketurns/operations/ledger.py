"""The operations of companies: taken in, looked at and aborted. Who carries them on is told by `carrying`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

import psycopg
from sqlalchemy import ColumnElement, Select, select

from taketurns.engine import limits
from taketurns.engine.errors import IdempotencyConflict, TooManyOperations, UnknownCompany
from taketurns.engine.task import TERMINAL, Status
from taketurns.history import tasks
from taketurns.history.tasks import Filter
from taketurns.storage import audit
from taketurns.storage.audit import Action, Actor
from taketurns.storage.database import Database, Row, call, fetch
from taketurns.storage.ids import new_id
from taketurns.storage.models import Company
from taketurns.storage.models import Operation as OperationTable

TOO_MANY: Final = "TQ004"


class Kind(StrEnum):
    """What becomes of each task: the verb that changes a single one."""

    CANCEL = "cancel"
    RETRY = "retry"
    RESCHEDULE = "reschedule"
    DELETE = "delete"


class Stage(StrEnum):
    """How far an operation is: it looks for its tasks, changes them, and is over."""

    MATCHING = "matching"
    RUNNING = "running"
    COMPLETED = "completed"
    ABORTED = "aborted"


# The statuses in which a verb has something to do; those of a filter that names none.
STATUSES: Final[Mapping[Kind, frozenset[Status]]] = {
    Kind.CANCEL: frozenset(Status) - TERMINAL,
    Kind.RETRY: frozenset({Status.FAILED}),
    Kind.RESCHEDULE: frozenset({Status.SCHEDULED, Status.PENDING}),
    Kind.DELETE: TERMINAL,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NewOperation:
    """An operation as it is submitted: on these tasks, or on what a filter names.

    `rate` is how many tasks are changed in a second, at most; None: as many as can be.
    """

    kind: Kind
    task_ids: Sequence[UUID] | None = None
    wanted: Filter | None = None
    run_after: datetime | None = None
    rate: float | None = None
    idempotency_key: str | None = None

    @property
    def statuses(self) -> frozenset[Status] | None:
        """Those that a task must have when its turn comes; None for tasks that were named."""
        return None if self.wanted is None else self.wanted.statuses or STATUSES[self.kind]

    @property
    def filter(self) -> dict[str, Any]:
        """What the operation was asked for, as JSON has it."""
        if self.wanted is None:
            return {"taskIds": len(self.task_ids or ())}
        named = {
            "status": sorted(self.statuses or ()),
            "type": sorted(self.wanted.types),
            "tag": sorted(self.wanted.tags),
            "createdAfter": self.wanted.created_after and self.wanted.created_after.isoformat(),
            "createdBefore": self.wanted.created_before and self.wanted.created_before.isoformat(),
            "errorFingerprint": self.wanted.error_fingerprint,
        }
        return {name: value for name, value in named.items() if value}

    def fingerprint(self) -> bytes:
        """What tells two requests under one idempotency key apart."""
        request = [self.kind, self.filter, sorted(map(str, self.task_ids or ())), str(self.run_after), self.rate]
        return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).digest()


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation as it stands. `skipped` counts by reason: a task's status, `notFound`, `quotaExceeded` or
    `uniqueKeyTaken`."""

    company_id: UUID
    id: UUID
    kind: str
    filter: dict[str, Any]
    run_after: datetime | None
    rate: float | None
    is_matched: bool
    matched: int
    done: int
    skipped: dict[str, int]
    created_at: datetime
    aborted_at: datetime | None
    finished_at: datetime | None

    @property
    def stage(self) -> Stage:
        if self.aborted_at is not None:
            return Stage.ABORTED
        if self.finished_at is not None:
            return Stage.COMPLETED
        return Stage.RUNNING if self.is_matched else Stage.MATCHING


@dataclass(frozen=True, slots=True)
class Page:
    """Some operations, and the id to go on after when there are more."""

    operations: list[Operation]
    next_after: UUID | None


_COLUMNS: Final = (
    OperationTable.company_id,
    OperationTable.id,
    OperationTable.kind,
    OperationTable.filter,
    OperationTable.run_after,
    OperationTable.rate,
    OperationTable.is_matched,
    OperationTable.matched,
    OperationTable.done,
    OperationTable.skipped,
    OperationTable.created_at,
    OperationTable.aborted_at,
    OperationTable.finished_at,
)


async def create(
    database: Database,
    company: UUID | str,
    new: NewOperation,
    *,
    by: Actor | None = None,
    at: datetime | None = None,
) -> tuple[Operation, bool]:
    """Take in an operation; with it, whether an earlier request with its key had made it.

    Raises UnknownCompany, IdempotencyConflict and TooManyOperations.
    """
    operation_id, bound = new_id(), database.of(company)
    arguments = (
        str(company),
        operation_id,
        new.kind.value,
        json.dumps(new.filter),
        None if new.statuses is None else sorted(new.statuses),
        new.run_after,
        new.rate,
        None if new.task_ids is None else sorted(set(new.task_ids)),
        new.idempotency_key,
        None if new.idempotency_key is None else new.fingerprint(),
        limits.OPERATIONS_MAX,
        at,
    )
    try:
        async with bound.transaction() as connection:
            ((is_new,),) = await call(connection, bound.schema, "create_operation", *arguments)
            is_it = (
                OperationTable.id == operation_id if is_new else OperationTable.idempotency_key == new.idempotency_key
            )
            statement = select(*_COLUMNS, OperationTable.fingerprint).where(
                OperationTable.company_id == _owner(company)
            )
            for *told, fingerprint in await fetch(connection, bound.schema, statement.where(is_it)):
                if not is_new and fingerprint != new.fingerprint():
                    raise IdempotencyConflict([0], of=1)
                made = Operation(*told)
                if is_new:
                    await audit.write(
                        connection,
                        bound.schema,
                        by,
                        Action.CREATE_OPERATION,
                        target=made.id,
                        company_id=made.company_id,
                        details={"kind": made.kind, "filter": made.filter, **_when(new)},
                    )
                return made, not is_new
    except psycopg.errors.NoDataFound as error:
        raise UnknownCompany(str(company)) from error
    except psycopg.Error as error:
        if error.sqlstate != TOO_MANY:
            raise
        raise TooManyOperations(limits.OPERATIONS_MAX) from None
    raise UnknownCompany(str(company))


def _when(new: NewOperation) -> dict[str, Any]:
    told = {"run_after": new.run_after, "rate": new.rate}
    return {name: value for name, value in told.items() if value is not None}


async def count(database: Database, company: UUID | str, new: NewOperation) -> tasks.Total | None:
    """How many tasks the operation would find now; None when there is no such company."""
    if not await database.of(company).fetch(select(Company.id).where(_is(company))):
        return None
    if new.wanted is None:
        known = await tasks.find_all(database, company, list(new.task_ids or ()))
        return tasks.Total(len(known), True)
    return await tasks.total(database, company, matching(new.kind, new.wanted), exactly=True)


def matching(kind: Kind, wanted: Filter, *, created_before: datetime | None = None) -> Filter:
    """The filter of an operation in full: with the statuses that it means, and without what came after it."""
    bounds = [bound for bound in (wanted.created_before, created_before) if bound is not None]
    return Filter(
        statuses=wanted.statuses or STATUSES[kind],
        types=wanted.types,
        tags=wanted.tags,
        error_fingerprint=wanted.error_fingerprint,
        created_after=wanted.created_after,
        created_before=min(bounds, default=None),
        oldest_first=True,
    )


async def find(database: Database, company: UUID | str, operation_id: UUID) -> Operation | None:
    """The operation, or None when the company has none of this id."""
    rows = await database.of(company).fetch(_of_id(company, operation_id))
    return _operation(rows[0]) if rows else None


async def page(
    database: Database, company: UUID | str, *, limit: int, offset: int = 0, after: UUID | None = None
) -> Page | None:
    """A company's operations, the newest first; None when there is no such company."""
    statement = (
        select(*_COLUMNS)
        .where(OperationTable.company_id == _owner(company))
        .order_by(OperationTable.id.desc())
        .limit(limit + 1)
        .offset(offset)
    )
    if after is not None:
        statement = statement.where(OperationTable.id < after)
    found = [_operation(row) for row in await database.of(company).fetch(statement)]
    if not found and not await database.of(company).fetch(select(Company.id).where(_is(company))):
        return None
    return Page(found[:limit], found[limit - 1].id if len(found) > limit else None)


async def latest(database: Database, *, limit: int) -> list[Operation]:
    """The newest operations of all companies."""
    statement = select(*_COLUMNS).order_by(OperationTable.id.desc()).limit(limit)
    return [_operation(row) for row in await database.fetch(statement)]


async def abort(
    database: Database, company: UUID | str, operation_id: UUID, *, by: Actor | None = None
) -> Operation | None:
    """End an operation early: what was changed stays so. None when the company has none of this id."""
    bound = database.of(company)
    async with bound.transaction() as connection:
        ((is_ended,),) = await call(connection, bound.schema, "abort_operation", str(company), operation_id)
        for row in await fetch(connection, bound.schema, _of_id(company, operation_id)):
            aborted = _operation(row)
            if is_ended:
                action, of = Action.ABORT_OPERATION, aborted.company_id
                await audit.write(connection, bound.schema, by, action, target=aborted.id, company_id=of)
            return aborted
    return None


def read_filter(told: Mapping[str, Any]) -> Filter:
    """The filter of an operation as its row has it."""
    bounds = {name: told.get(name) and datetime.fromisoformat(told[name]) for name in ("createdAfter", "createdBefore")}
    return Filter(
        statuses=frozenset(map(Status, told.get("status", ()))),
        types=frozenset(told.get("type", ())),
        tags=frozenset(told.get("tag", ())),
        error_fingerprint=told.get("errorFingerprint"),
        created_after=bounds["createdAfter"] or None,
        created_before=bounds["createdBefore"] or None,
    )


def _operation(row: Row) -> Operation:
    return Operation(*row)


def _of_id(company: UUID | str, operation_id: UUID) -> Select[Any]:
    return select(*_COLUMNS).where(OperationTable.company_id == _owner(company), OperationTable.id == operation_id)


def _is(company: UUID | str) -> ColumnElement[bool]:
    return Company.id == company if isinstance(company, UUID) else Company.slug == company


def _owner(company: UUID | str) -> Any:
    return select(Company.id).where(_is(company)).scalar_subquery()
