"""A handler's use of a budget: `async with ctx.budget(...)`, or `with` in a handler that cannot await."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar
from uuid import UUID

from taketurns.engine import budget as rules
from taketurns.engine.budget import Budget, Budgets, RetryAfter
from taketurns.engine.errors import OverBudget, Unavailable

Answer = TypeVar("Answer")


class BudgetUse:
    """One call out of a budget, taken on entering. Entering raises OverBudget when there is none to be had."""

    def __init__(self, budget: Budget, *, company_id: UUID, budgets: Budgets, loop: asyncio.AbstractEventLoop) -> None:
        self._budget = budget
        self._company_id = company_id
        self._budgets = budgets
        self._loop = loop
        self._refusal: OverBudget | None = None
        self._wait: rules.Wait = budget.cooldown_seconds

    def cool_down(self, retry_after: RetryAfter = None) -> OverBudget:
        """The provider refused: let nobody spend for as long as it asks, and `raise` what this returns to come back.

        Takes a Retry-After header as it came (seconds or an HTTP date), a number, a timedelta or a datetime; what
        cannot be understood counts as the budget's `cooldown`. Between 1 second and a day.
        """
        wait = rules.asked(retry_after)
        self._wait = self._budget.cooldown_seconds if wait is None else wait
        self._refusal = OverBudget(self._budget.name, after_seconds=self._budget.cooldown_seconds)
        return self._refusal

    async def __aenter__(self) -> Self:
        await self._where_budgets_are(self._enter())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._where_budgets_are(self._leave())

    def __enter__(self) -> Self:
        self._wait_for(self._enter())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wait_for(self._leave())

    async def _enter(self) -> None:
        seconds = await self._budgets.spend(self._budget, company_id=self._company_id)
        if seconds is not None:
            raise OverBudget(self._budget.name, after_seconds=seconds)

    async def _leave(self) -> None:
        """A cooldown that cannot be stored is the task's own."""
        if self._refusal is None:
            return
        try:
            self._refusal.after_seconds = await self._budgets.cool_down(
                self._budget, self._wait, company_id=self._company_id
            )
        except Unavailable:
            if not isinstance(self._wait, float):
                return
            self._refusal.after_seconds = rules.bounded(self._wait)

    async def _where_budgets_are(self, asking: Coroutine[Any, Any, Answer]) -> Answer:
        """The connections belong to the worker's loop, and a handler may have one of its own."""
        if asyncio.get_running_loop() is self._loop:
            return await asking
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asking, self._loop))

    def _wait_for(self, asking: Coroutine[Any, Any, Answer]) -> Answer:
        try:
            is_here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            is_here = False
        if is_here:
            asking.close()
            raise RuntimeError("an async handler must write `async with` for a budget")
        return asyncio.run_coroutine_threadsafe(asking, self._loop).result()
