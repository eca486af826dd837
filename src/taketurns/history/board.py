"""How it stands with all companies side by side: who waits, who runs, and who has which share of the hands.

See board.sql.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from importlib import resources
from typing import Final
from uuid import UUID

from taketurns.storage.database import Database

CAP: Final = 10_000
COMPANIES_MOST: Final = 1_000
FEW: Final = 100
MANY: Final = 100_000
STATEMENT_MILLISECONDS: Final = 2_000

_QUERY: Final = resources.files("taketurns.history").joinpath("board.sql").read_bytes()


@dataclass(frozen=True, slots=True)
class Standing:
    """A company at this moment. `backlog` is counted up to `CAP`, or less where many have that many; `fair_share` is
    how many hands are its own of those that companies which want no more leave, and None for one that has no work or is
    paused."""

    id: UUID
    slug: str
    name: str
    weight: int
    paused: bool
    paused_until: datetime | None
    max_in_flight: int | None
    max_queued: int | None
    backlog: int
    backlog_is_exact: bool
    oldest_seconds: float | None
    in_flight: int
    fair_share: float | None

    @property
    def state(self) -> str:
        """In a word."""
        if self.paused:
            return "paused"
        if self.max_in_flight is not None and self.in_flight >= self.max_in_flight and self.backlog:
            return "at its limit"
        if self.in_flight:
            return "active"
        return "waiting" if self.backlog else "idle"


async def read(database: Database, *, limit: int, offset: int = 0, like: str = "") -> list[Standing]:
    """Companies, those who wait longest first; whose slug or name has `like` in it. Raises Unavailable."""
    pattern = like.lower().replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    parameters = {
        "companies": COMPANIES_MOST,
        "few": FEW,
        "many": MANY,
        "most": CAP,
        "like": f"%{pattern}%" if pattern else "",
        "limit": limit,
        "skip": offset,
    }
    settings = {
        "search_path": f'"{database.schema}"',
        "statement_timeout": str(STATEMENT_MILLISECONDS),
        "enable_bitmapscan": "off",
        "jit": "off",
    }
    rows = await database.run(_QUERY, parameters, settings=settings)
    return [Standing(*row) for row in rows]
