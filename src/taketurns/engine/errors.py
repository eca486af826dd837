"""The errors of Taketurns.

TaketurnsError
├── UnknownCompany          no company has this id or slug
├── UnknownType             no handler is known for this type
├── InvalidPayload          the payload does not fit the handler's signature
├── InvalidOption           an option of a task or a schedule is out of its bounds
├── IdempotencyConflict     the key was used before, for another request
├── UniqueKeyTaken          another task of the company has the unique key
├── QuotaExceeded           the company may submit no more tasks in this period
├── QueueFull               the company has as many tasks waiting as it may have
├── TooManyOperations       the company has as many operations that go on as it may have
├── WorkerIsGone            no process of this worker takes orders: it has left, or never takes any
├── WorkerStops             the worker was told to stop, and does nothing else any more
├── NotCompleted            the result of a task was asked for, and the task has not completed
├── Unavailable             the server behind a broker cannot be reached, or did not answer in time
│   ├── Busy                a transaction of somebody else keeps what this one needs
│   │   ├── QuotaBusy       it keeps the company's quotas
│   │   └── BeingDeleted    it deletes the company
│   └── Unconfirmed         it is done, but it is not known to outlive a crash of that server
├── InvalidData             that server refuses a value, or holds one that cannot be read
└── ConfigurationError      a setting or a handler's definition is wrong

What a handler raises to say how its attempt ends:

Retry                       try again, after a time of the handler's choosing
Fail                        do not try again
OverBudget                  come back, with no penalty, when a budget has room again
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from taketurns.engine.quota import Allowance, exceeded
from taketurns.engine.task import Status


class TaketurnsError(Exception):
    """Anything that Taketurns itself raises."""


class UnknownCompany(TaketurnsError):
    """No company has this id or slug."""

    def __init__(self, company: str) -> None:
        super().__init__(f"there is no company {company!r}: create it first, or check its id or slug")
        self.company = company


class UnknownType(TaketurnsError):
    """No handler is known for this type."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        self.name = name
        self.known = tuple(sorted(set(known)))
        super().__init__(f"no handler is known for type {name!r}; known types: {', '.join(self.known) or 'none'}")


class InvalidPayload(TaketurnsError):
    """The payload does not fit the handler's signature; `errors` names each field by its path."""

    def __init__(self, name: str, errors: Sequence[Mapping[str, Any]]) -> None:
        told = "; ".join(f"{'.'.join(map(str, error['loc'])) or 'payload'}: {error['msg']}" for error in errors)
        super().__init__(f"the payload does not fit {name!r}: {told}")
        self.name = name
        self.errors = tuple(errors)


class InvalidOption(TaketurnsError):
    """An option of a task or a schedule is out of its bounds."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


class IdempotencyConflict(TaketurnsError):
    """The key was used before, for another request; `positions` are the places in a batch of so many, from 0."""

    def __init__(self, positions: Sequence[int], *, of: int) -> None:
        of_which = f" of task {', '.join(map(str, positions))}" if of > 1 else ""
        super().__init__(
            f"the idempotency key{of_which} was used before for another request:"
            " use a new key, or send the same request"
        )
        self.positions = tuple(positions)


class UniqueKeyTaken(TaketurnsError):
    """Another task of the company has the unique key: nothing was stored.

    `holders` are the tasks that have it, by the places in a batch of so many, from 0.
    """

    def __init__(self, holders: Mapping[int, UUID], *, of: int = 1) -> None:
        of_which = f" of task {', '.join(map(str, holders))}" if of > 1 else ""
        super().__init__(
            f"the unique key{of_which} is that of task {', '.join(map(str, holders.values()))}:"
            " wait until that one gives it up, at its end or after its uniqueSeconds, or cancel it while it waits"
        )
        self.holders = dict(holders)


class QuotaExceeded(TaketurnsError):
    """The company may submit no more tasks in this period: nothing was stored.

    `period` is the one that is used up, the one that lasts longest if several are; it ends at `resets_at`, in
    `retry_after` seconds. `allowances` tells of every period.
    """

    def __init__(self, allowances: Sequence[Allowance], wanted: int) -> None:
        last = exceeded(allowances, wanted)[-1]
        super().__init__(
            f"the quota of {last.quota} tasks in this {last.period} has room for {last.remaining}, not for {wanted}:"
            f" it begins anew at {last.ends_at:%Y-%m-%dT%H:%M:%SZ}"
        )
        self.allowances = tuple(allowances)
        self.period = last.period
        self.resets_at = last.ends_at
        self.retry_after = last.seconds_left


class QueueFull(TaketurnsError):
    """The company has as many tasks waiting as it may have, or would have with these: nothing was stored."""

    def __init__(self, most: int, wanted: int) -> None:
        super().__init__(
            f"at most {most} tasks of this company may be scheduled or pending, and there is no room for {wanted} more:"
            " submit them when some have started"
        )
        self.max_queued = most
        self.wanted = wanted


class TooManyOperations(TaketurnsError):
    """The company has as many operations that go on as it may have: nothing was begun."""

    def __init__(self, most: int) -> None:
        super().__init__(
            f"{most} operations of this company go on, as many as may: begin another when one has ended, or abort one"
        )


class WorkerIsGone(TaketurnsError):
    """No process of this worker takes orders."""

    def __init__(self, worker: str) -> None:
        super().__init__(
            f"no process of worker {worker!r} takes orders: it has left, or is a pass, which ends by itself"
        )


class WorkerStops(TaketurnsError):
    """The worker was told to stop."""

    def __init__(self, worker: str) -> None:
        super().__init__(f"worker {worker!r} was told to stop, and does nothing else any more: start another")


class NotCompleted(TaketurnsError):
    """The result of a task was asked for, and the task has not completed."""

    def __init__(self, task_id: UUID, status: Status, error: str | None) -> None:
        super().__init__(f"task {task_id} is {status}" + (f": {error}" if error else ""))
        self.task_id = task_id
        self.status = status
        self.error = error


class Unavailable(TaketurnsError):
    """The server behind a broker cannot be reached, or did not answer in time: try again later."""


class InvalidData(TaketurnsError):
    """The server behind a broker refuses a value, or holds one that cannot be read: the same would happen again."""


class Busy(Unavailable):
    """Another transaction kept what this one needs for too long: nothing was stored, try again later."""

    def __init__(
        self, told: str = "another transaction kept what this one needs for too long: try again later"
    ) -> None:
        super().__init__(told)


class QuotaBusy(Busy):
    """Another transaction that submits for this company keeps its quotas: nothing was stored, try again later."""

    def __init__(self) -> None:
        super().__init__("another transaction that submits for this company keeps its quotas: try again later")


class BeingDeleted(Busy):
    """The company is being deleted: nothing was stored, and either nothing can be or it goes on soon."""

    def __init__(self, company: str) -> None:
        super().__init__(f"company {company!r} is being deleted: nothing was stored")


class Unconfirmed(Unavailable):
    """It is done, but the server did not say in time that it outlives a crash: `task_ids` stand as was asked, for now.

    The same call again changes nothing more, and has it confirmed.
    """

    def __init__(self, why: str, task_ids: Sequence[UUID]) -> None:
        super().__init__(f"it is done, but a crash of the server may undo it: {why}")
        self.why = why
        self.task_ids = tuple(task_ids)


class ConfigurationError(TaketurnsError):
    """A setting or a handler's definition is wrong."""


class Retry(Exception):
    """Raised by a handler: end this attempt and try again after `after` seconds (or a timedelta).

    Without `after` the usual backoff decides. Counts as a retry, so `max_retries` still ends it.
    """

    def __init__(self, reason: str = "the handler asked to be tried again", *, after: float | timedelta | None = None):
        super().__init__(reason)
        self.after_seconds = after.total_seconds() if isinstance(after, timedelta) else after


class Fail(Exception):
    """Raised by a handler: end the task as failed, whatever retries are left."""


class OverBudget(Exception):
    """Raised by a budget without room: the task is put off until it has some, with no penalty.

    A handler that catches it may do its work without the budget's provider.
    """

    def __init__(self, budget: str, *, after_seconds: float) -> None:
        super().__init__(f"the budget {budget!r} has no room")
        self.budget = budget
        self.after_seconds = after_seconds
