"""Which tasks of a company have failed for good, grouped by what they have in common: see failures.sql."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from taketurns.storage.database import Database

REACH: Final = 10_000


@dataclass(frozen=True, slots=True)
class Failure:
    """Failed tasks of one type with one fingerprint. Where `count` is not exact, the newest tasks tell of all else."""

    type: str
    fingerprint: str
    count: int
    first_failed_at: datetime
    last_failed_at: datetime
    example_id: UUID
    example_error: str | None
    count_is_exact: bool

    @property
    def id(self) -> str:
        """What a list goes on after."""
        return f"{self.type}~{self.fingerprint}"


async def page(
    database: Database, company: UUID | str, *, limit: int, after: str | None = None
) -> tuple[list[Failure], bool] | None:
    """At most `limit` groups after one of this id, and whether there are more; None when there is no such company."""
    ((owner,),) = await database.of(company).call("company_id", str(company))
    if owner is None:
        return None
    type, _, fingerprint = (after or "").rpartition("~")
    rows = await database.of(company).call("failures", owner, type, fingerprint, limit + 1, REACH)
    groups = [
        Failure(type, fingerprint, min(count, REACH), first, last, example, error, count <= REACH)
        for type, fingerprint, count, first, last, example, error in rows
    ]
    return groups[:limit], len(groups) > limit
