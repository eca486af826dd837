"""How the history is read: by index, in order, whatever the statistics say about tables that fill and empty by the
minute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from taketurns.storage.database import Database, Row

_BY_INDEX: Final = dict.fromkeys(
    ("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin", "jit"), "off"
)


async def rows(database: Database, query: str, parameters: Mapping[str, Any]) -> list[Row]:
    """What a statement answers, in one round trip. Raises Unavailable."""
    return await database.run(query.encode(), parameters, settings=_BY_INDEX)
