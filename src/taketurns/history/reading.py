"""How the history is read: by index, in order, whatever the statistics say about tables that fill and empty by the
minute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from taketurns.storage.database import Database, Row

_BY_INDEX: Final = dict.fromkeys(
    ("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin", "enable_material", "jit"), "off"
)
_ONCE_BY_INDEX: Final = {**_BY_INDEX, "plan_cache_mode": "force_generic_plan"}


async def rows(
    database: Database, query: str, parameters: Mapping[str, Any], *, is_planned_once: bool = False
) -> list[Row]:
    """What a statement answers, in one round trip. Raises Unavailable.

    `is_planned_once`: whatever the parameters, there is one way to it, and planning takes longer than to go there.
    """
    settings = _ONCE_BY_INDEX if is_planned_once else _BY_INDEX
    return await database.run(query.encode(), parameters, settings=settings)


async def rows_of_each(database: Database, query: str, parameters: Sequence[Mapping[str, Any]]) -> list[list[Row]]:
    """What a statement answers for each of these, in one round trip. Raises Unavailable."""
    async with database.transaction() as connection, connection.pipeline():
        for name, value in _BY_INDEX.items():
            await connection.execute("select set_config(%s, %s, true)", (name, value))
        cursors = [await connection.execute(query.encode(), each) for each in parameters]
        return [await cursor.fetchall() for cursor in cursors]
