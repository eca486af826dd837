"""Enqueue in a transaction of the caller's: the tasks and the notice of them commit, or vanish, with the rest of it.

Takes what Python programs hold a transaction in: a psycopg connection, or a session or connection of SQLAlchemy over
any driver, each of them for sync or async code. The caller's search path does not matter.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Final, cast

from psycopg import AsyncConnection, Connection, errors
from psycopg.rows import tuple_row
from sqlalchemy import Connection as SqlConnection
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, scoped_session

from taketurns.brokers.postgres.broker import enqueue_arguments, enqueued_tasks
from taketurns.brokers.postgres.wakeups import channel
from taketurns.engine.errors import Busy, InvalidOption, UnknownCompany
from taketurns.engine.task import Enqueued, NewTask, OnConflict
from taketurns.storage.database import Row

# The parameters of enqueue.sql after the company, in order.
PARAMETERS: Final = {
    "task_ids": "uuid[]",
    "types": "text[]",
    "payloads": "text[]",
    "queues": "text[]",
    "priorities": "smallint[]",
    "run_afters": "timestamptz[]",
    "delays": "double precision[]",
    "max_retries": "integer[]",
    "timeouts": "double precision[]",
    "keys": "text[]",
    "fingerprints": "bytea[]",
    "key_lifetime": "interval",
    "requests": "text[]",
    "at": "timestamptz",
    "traces": "text[]",
    "tag_lists": "text[]",
    "uniques": "text[]",
    "unique_seconds": "double precision[]",
    "on_conflicts": "text[]",
}

# An unknown company gives no row: an error would abort a transaction that is not ours.
STATEMENT: Final = """
select e.number, e.outcome, e.company_id, e.task_id, e.status, e.run_after, e.created_at, e.told,
    case when e.status = 'pending' then pg_notify({channel}, ({queues})[e.number]) end
from "{schema}".companies c
cross join lateral "{schema}".enqueue(c.id::text, {arguments}) e
where c.id = "{schema}".company_id({company})
order by e.number
"""


def is_sync(holder: object) -> bool:
    """Whether a transaction can be open on this, for sync code."""
    return isinstance(holder, Connection | Session | scoped_session | SqlConnection)


def is_async(holder: object) -> bool:
    """Whether a transaction can be open on this, for async code."""
    if isinstance(holder, AsyncConnection):
        return True
    # Not imported here: it cannot be without greenlet, which only those have who use it.
    if (module := sys.modules.get("sqlalchemy.ext.asyncio")) is None:
        return False
    return isinstance(holder, module.AsyncSession | module.async_scoped_session | module.AsyncConnection)


async def enqueue_in(
    transaction: object,
    schema: str,
    company: str,
    tasks: Sequence[NewTask],
    *,
    key_lifetime: timedelta,
    request_id: str | None = None,
    traceparent: str | None = None,
    at: datetime | None = None,
) -> list[Enqueued]:
    """Enqueue in the transaction that is open on `transaction`; nothing is awaited when that `is_sync`.

    Raises UnknownCompany, IdempotencyConflict, UniqueKeyTaken, QueueFull, QuotaExceeded and QuotaBusy: each leaves the
    transaction as it was; Busy when another one keeps what this one needs for too long: then this one can only be
    rolled back; and InvalidOption for a task that would replace another, whose place would be locked until the end.
    """
    if any(task.unique is not None and task.unique.on_conflict is OnConflict.REPLACE for task in tasks):
        raise InvalidOption("on_conflict", "cannot be replace in a transaction of yours: enqueue it by itself")
    arguments = enqueue_arguments(
        company, tasks, key_lifetime=key_lifetime, request_id=request_id, traceparent=traceparent, at=at
    )
    values = dict(zip(("company", *PARAMETERS), arguments, strict=True)) | {"channel": channel(schema)}
    try:
        if isinstance(transaction, Connection | AsyncConnection):
            rows = await _run_on_psycopg(transaction, schema, values)
        else:
            rows = await _run_on_sqlalchemy(transaction, schema, values)
    except (errors.LockNotAvailable, DBAPIError) as error:
        if _sqlstate(error) != errors.LockNotAvailable.sqlstate:
            raise
        raise Busy("another transaction kept what this one needs too long: roll back and try again later") from error
    if not rows:
        raise UnknownCompany(company)
    return enqueued_tasks([row[:-1] for row in rows], of=len(tasks))


async def _run_on_psycopg(
    connection: Connection[Any] | AsyncConnection[Any], schema: str, values: Mapping[str, Any]
) -> list[Row]:
    cursor = connection.cursor(row_factory=tuple_row)
    statement = _statement(schema, placeholder="%({})s")
    await _awaited(cursor.execute(statement.encode(), values))
    return cast(list[Row], await _awaited(cursor.fetchall()))


async def _run_on_sqlalchemy(holder: Any, schema: str, values: Mapping[str, Any]) -> list[Row]:
    result = await _awaited(holder.execute(text(_statement(schema, placeholder=":{}")), values))
    return [tuple(row) for row in result]


def _sqlstate(error: errors.Error | DBAPIError) -> str | None:
    """The server's code for an error, as each driver keeps it."""
    origin = error.orig if isinstance(error, DBAPIError) else error
    return getattr(origin, "sqlstate", None) or getattr(origin, "pgcode", None)


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


@cache
def _statement(schema: str, *, placeholder: str) -> str:
    named = {
        name: f"cast({placeholder.format(name)} as {kind})"
        for name, kind in {"company": "text", "channel": "text", **PARAMETERS}.items()
    }
    return STATEMENT.format(schema=schema, arguments=", ".join(named[name] for name in PARAMETERS), **named)
