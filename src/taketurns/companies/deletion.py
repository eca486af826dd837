"""What a deleted company leaves: forgotten in batches, by whoever deleted it for a few seconds and by the workers then.

The company's row goes first, with its line, its turns, its schedules and its keys (`delete_company.sql`), so that
nothing of it moves from then on, and what is done here may be interrupted anywhere. The audit's entries stay.
"""

from __future__ import annotations

import time
from typing import Final
from uuid import UUID

from psycopg import AsyncConnection, sql
from sqlalchemy import select

from taketurns import telemetry
from taketurns.storage.database import Database, Row, fetch
from taketurns.storage.models import Base, Deletion
from taketurns.telemetry import Event

MOST: Final = 5_000
STEP_SECONDS: Final = 4.0
IDLE_SECONDS: Final = 15.0

# In the order in which tasks move, so that one on its way is seen in the next of them; and before what moves write.
_PLACES: Final = ("processing_tasks", "scheduled_tasks", "pending_tasks")
# The turns went with the company; nothing looks them up by it.
_ELSEWHERE: Final = frozenset({"audit_entries", "deletions", "turns", *_PLACES})
TABLES: Final = (
    *_PLACES,
    *(
        table.name
        for table in Base.metadata.sorted_tables
        if "company_id" in table.columns and table.name not in _ELSEWHERE
    ),
)


async def forget(database: Database, company_id: UUID, *, seconds: float = STEP_SECONDS, most: int = MOST) -> bool:
    """Forget what a deleted company left, for so long; whether nothing is left, or somebody else is at it.

    Who changes a row that is waited for here may have written to a table that was empty before. So it is over only when
    all of them were found empty, one after the other.
    """
    until = time.monotonic() + seconds
    is_empty = False
    while not is_empty:
        is_empty = True
        for table in TABLES:
            while forgotten := await _forget_some(database, company_id, table, most):
                is_empty = False
                if time.monotonic() >= until:
                    return False
            if forgotten is None:
                return True
    async with database.transaction() as connection:
        if await _take(connection, database.schema, company_id):
            ended = sql.SQL("delete from {} where company_id = %s").format(sql.Identifier(database.schema, "deletions"))
            await connection.execute(ended, (company_id,))
            telemetry.logger("companies").info(Event.COMPANY_FORGOTTEN, company_id=str(company_id))
    return True


class Forgetting:
    """A worker's duty: goes on with what deletions have left to do, also after a crash."""

    name = "deletions"

    def __init__(self, database: Database, *, every_seconds: float = IDLE_SECONDS, most: int = MOST) -> None:
        self._database = database
        self._every_seconds = every_seconds
        self._most = most

    async def step(self) -> float:
        oldest = select(Deletion.company_id).order_by(Deletion.deleted_at).limit(10)
        is_over = True
        for (company_id,) in await self._database.fetch(oldest):
            is_over &= await forget(self._database, company_id, most=self._most)
        return self._every_seconds if is_over else 0.1


async def _forget_some(database: Database, company_id: UUID, table: str, most: int) -> int | None:
    """Delete some of a company's rows; how many were found, or None when somebody else is at it.

    One that was changed while it was waited for is found, but deleted only by who sees it as it is by then.
    """
    some = sql.SQL(
        "with found as materialized ("
        "select ctid from {table} where company_id = %(company)s limit %(most)s for update)"
        ", deleted as (delete from {table} where ctid = any (array(select f.ctid from found f)))"
        " select count(*) from found"
    ).format(table=sql.Identifier(database.schema, table))
    async with database.transaction() as connection:
        if not await _take(connection, database.schema, company_id):
            return None
        await connection.execute("select set_config('enable_seqscan', 'off', true)")
        cursor = await connection.execute(some, {"company": company_id, "most": most})
        ((found,),) = await cursor.fetchall()
        return int(found)


async def _take(connection: AsyncConnection[Row], schema: str, company_id: UUID) -> bool:
    """Keep a deletion to this transaction, unless it is another one's."""
    statement = select(Deletion.company_id).where(Deletion.company_id == company_id)
    return bool(await fetch(connection, schema, statement.with_for_update(skip_locked=True)))
