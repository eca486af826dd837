"""Budgets in PostgreSQL: one row each, spent and cooled down by the functions of `budget.sql`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final
from uuid import UUID

from taketurns.engine import budget as rules
from taketurns.engine.budget import Budget, Wait
from taketurns.storage.database import Database

OF_THE_CELL: Final = UUID(int=0)


class PostgresBudgets:
    """See taketurns.engine.budget.Budgets. `now` stands in for the database's clock."""

    def __init__(self, database: Database, *, now: Callable[[], datetime | None] = lambda: None) -> None:
        self._database = database
        self._now = now

    async def spend(self, budget: Budget, *, company_id: UUID) -> float | None:
        ((seconds,),) = await self._database.call("spend", *_place(budget, company_id), self._now())
        return None if seconds is None else float(seconds)

    async def cool_down(self, budget: Budget, wait: Wait, *, company_id: UUID) -> float:
        seconds, until = (None, wait) if isinstance(wait, datetime) else (wait, None)
        ((answer,),) = await self._database.call(
            "cool_down",
            *_place(budget, company_id),
            seconds,
            until,
            rules.COOLDOWN_SECONDS_LEAST,
            rules.COOLDOWN_SECONDS_MOST,
            self._now(),
        )
        return float(answer)


def _place(budget: Budget, company_id: UUID) -> tuple[str, UUID, UUID, int, float]:
    owner = company_id if budget.is_per_company else OF_THE_CELL
    return budget.name, owner, company_id, budget.limit, budget.per_seconds
