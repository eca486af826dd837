"""What a handler can learn of the attempt that it is."""

from __future__ import annotations

import asyncio
import threading
import time
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from uuid import UUID

from structlog.typing import FilteringBoundLogger

from taketurns import telemetry
from taketurns.engine import budget
from taketurns.engine.budget import Budgets
from taketurns.engine.task import ClaimedTask
from taketurns.execution.budget import BudgetUse

_making_an_event = threading.Lock()


class Context:
    """One attempt at one task. Made for every attempt, so what few handlers ask for is made when they ask."""

    __slots__ = ("__weakref__", "_budgets", "_cancelled", "_log", "_loop", "_task", "began_at", "is_cancelled")

    def __init__(
        self, task: ClaimedTask, budgets: Budgets | None = None, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        self._task = task
        self._budgets = budgets
        self._loop = loop
        self.began_at = time.monotonic()
        self.is_cancelled = False
        self._cancelled: threading.Event | None = None
        self._log: FilteringBoundLogger | None = None

    @property
    def task_id(self) -> UUID:
        """The same for every attempt: pass it on as an idempotency key."""
        return self._task.task_id

    @property
    def company_id(self) -> UUID:
        return self._task.company_id

    @property
    def type(self) -> str:
        return self._task.type

    @property
    def queue(self) -> str:
        return self._task.queue

    @property
    def attempt(self) -> int:
        """From 1; attempts that were released or rescued do not count."""
        return self._task.attempt

    @property
    def retry_count(self) -> int:
        return self._task.retry_count

    @property
    def max_retries(self) -> int:
        return self._task.max_retries

    @property
    def is_last_attempt(self) -> bool:
        """Whether the task fails if this attempt does."""
        return self._task.retry_count >= self._task.max_retries

    @property
    def request_id(self) -> str | None:
        """The id of the request that created the task."""
        return self._task.request_id

    @property
    def traceparent(self) -> str | None:
        """The W3C trace context of the request that created the task: make it the parent of spans of your own."""
        return self._task.traceparent

    @property
    def created_at(self) -> datetime:
        return self._task.created_at

    @property
    def deadline(self) -> datetime | None:
        """When the timeout strikes, by this machine's clock; None without a timeout."""
        remaining = self.remaining_seconds
        return None if remaining is None else datetime.now(UTC) + timedelta(seconds=remaining)

    @property
    def remaining_seconds(self) -> float | None:
        """Seconds until the timeout strikes, below 0 once it has; None without a timeout."""
        timeout_seconds = self._task.timeout_seconds
        return None if timeout_seconds is None else self.began_at + timeout_seconds - time.monotonic()

    @property
    def cancelled(self) -> threading.Event:
        """Set once nobody waits for this attempt any more: it was cancelled, timed out, or its worker must leave.

        An async handler is cancelled besides; a sync one should look here now and then, and return.
        """
        if self._cancelled is None:
            with _making_an_event:
                if self._cancelled is None:
                    event = threading.Event()
                    if self.is_cancelled:
                        event.set()
                    self._cancelled = event
        return self._cancelled

    @property
    def log(self) -> FilteringBoundLogger:
        """A logger whose lines carry the company, the task and the attempt."""
        if self._log is None:
            self._log = telemetry.logger("task").bind(**self.log_fields())
        return self._log

    def budget(
        self,
        name: str,
        *,
        limit: int,
        per: str | float | timedelta,
        cooldown: str | float | timedelta = "1m",
        per_company: bool = False,
    ) -> BudgetUse:
        """Take one of the `limit` calls that may be made in any `per` (90s, 10m, 1h, seconds or a timedelta).

        For `async with`, or `with` in a sync handler. Without room OverBudget is raised, and the task is put off until
        there is some, with no penalty: not an attempt, not a retry. One budget serves the cell, or each company its
        own; the newest `limit` and `per` count. `cooldown` is how long all wait after `cool_down` when the provider
        does not say. Raises ConfigurationError.
        """
        if self._budgets is None or self._loop is None:
            raise LookupError("budgets are kept by a worker: there is none here")
        described = budget.new(name, limit=limit, per=per, cooldown=cooldown, is_per_company=per_company)
        return BudgetUse(described, company_id=self.company_id, budgets=self._budgets, loop=self._loop)

    def log_fields(self) -> dict[str, object]:
        """What says in a log line which attempt it is of."""
        fields: dict[str, object] = {
            "company_id": str(self.company_id),
            "task_id": str(self.task_id),
            "type": self.type,
            "attempt": self.attempt,
        }
        if self.request_id is not None:
            fields["request_id"] = self.request_id
        return fields

    def cancel(self) -> None:
        """Set `cancelled`. From any thread."""
        with _making_an_event:
            self.is_cancelled = True
            if self._cancelled is not None:
                self._cancelled.set()


_current: ContextVar[Context] = ContextVar("attempt")


def current() -> Context:
    """The context of the attempt that this code runs in. Raises LookupError outside of a handler."""
    try:
        return _current.get()
    except LookupError:
        raise LookupError("current() was called outside of a handler: no attempt is under way here") from None


def enter(context: Context) -> None:
    """Make it the current one, for the rest of this asyncio task or thread's call: its handler begins."""
    context.began_at = time.monotonic()
    _current.set(context)
    telemetry.about.set(context.log_fields)
