"""What a test may ask of a cell besides its broker: companies and leases made by hand, and where tasks stand."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID

from taketurns.engine.broker import Broker
from taketurns.engine.rate import Rate
from taketurns.engine.task import ClaimedTask, Enqueued, NewTask, Outcome, Report, Status


@dataclass(frozen=True, slots=True)
class Move:
    """One event of a task's history."""

    number: int
    kind: str


class Cell(Protocol):
    """A broker with nothing in it, and the means to look behind it."""

    @property
    def broker(self) -> Broker: ...

    def add_company(
        self, slug: str, *, weight: int = 1, max_in_flight: int | None = None, paused: bool = False
    ) -> UUID: ...

    def set_weight(self, slug: str, weight: int) -> None: ...

    def set_max_in_flight(self, slug: str, most: int | None) -> None: ...

    def set_rate(self, slug: str, rate: Rate | None) -> None: ...

    def set_max_queued(self, slug: str, most: int | None) -> None: ...

    def set_paused(self, slug: str, paused: bool) -> None:
        """Pause a company or let it go on, as `companies` does."""
        ...

    def pause(self, company: str | None, *, queue: str = "", type: str = "", until: datetime | None = None) -> None:
        """Pause a queue, a type or both, of a company or of all, as `pauses` does."""
        ...

    def resume(self, company: str | None, *, queue: str = "", type: str = "") -> None:
        """Lift such a pause."""
        ...

    def delete_company(self, slug: str) -> None: ...

    def add_lease(self, worker_id: UUID, *, beat: int = 0, types: Sequence[str] = ("work",)) -> None: ...

    def beat(self, worker_id: UUID) -> int:
        """Beat the lease; answers the beat it stands at."""
        ...

    def remove_lease(self, worker_id: UUID) -> None: ...

    def slug_of(self, company_id: UUID) -> str: ...

    def company_of(self, task_id: UUID) -> UUID: ...

    def status(self, task_id: UUID) -> Status | None: ...

    def result(self, task_id: UUID) -> object: ...

    def error(self, task_id: UUID) -> str | None: ...

    def retries(self, task_id: UUID) -> int:
        """The retry count of the task, wherever it stands."""
        ...

    def history(self, task_id: UUID) -> list[Move]:
        """Every move of the task, in order of its number."""
        ...

    def standing(self) -> Counter[Status]:
        """How many tasks stand where."""
        ...

    def contradictions(self) -> list[str]:
        """What cannot be: a task in two places or none, a company with work but no turn, a history with gaps."""
        ...

    def clear(self) -> None:
        """Forget everything, companies too."""
        ...


def new_tasks(
    count: int = 1,
    *,
    type: str = "work",
    payload: str = "{}",
    queue: str = "default",
    priority: int = 5,
    run_after: datetime | None = None,
    delay_seconds: float | None = None,
) -> list[NewTask]:
    return [
        NewTask(
            type=type,
            payload=payload,
            queue=queue,
            priority=priority,
            run_after=run_after,
            delay_seconds=delay_seconds,
        )
        for _ in range(count)
    ]


def keyed_task(key: str, *, request: str = "same", payload: str = "{}", delay_seconds: float | None = None) -> NewTask:
    """A task under an idempotency key; `request` is what its fingerprint tells apart."""
    return NewTask(
        type="work",
        payload=payload,
        delay_seconds=delay_seconds,
        idempotency_key=key,
        fingerprint=request.encode(),
    )


def ids(enqueued: Iterable[Enqueued]) -> list[UUID]:
    return [task.task_id for task in enqueued]


def claimed_ids(claimed: Iterable[ClaimedTask]) -> list[UUID]:
    return [task.task_id for task in claimed]


def reports(claimed: Iterable[ClaimedTask], outcome: Outcome = Outcome.COMPLETED) -> list[Report]:
    return [Report(task, outcome) for task in claimed]


def turns_of(cell: Cell, claimed: Sequence[ClaimedTask]) -> list[str]:
    """Whose turns they were, in order, by slug."""
    return [cell.slug_of(task.company_id) for task in claimed]


def has_no_gaps(history: Sequence[Move]) -> bool:
    return [move.number for move in history] == list(range(1, len(history) + 1))


def terminal_moves(history: Sequence[Move]) -> list[str]:
    return [move.kind for move in history if move.kind in {"completed", "failed", "cancelled"}]


def pause_and_resume(
    cell: Cell, queues: Sequence[str], names: Sequence[str], paused: set[tuple[str, str]], chance: random.Random
) -> None:
    """Pause some of the companies' queues, and let some of those in `paused` go on."""
    for line in [(name, queue) for name in names for queue in queues]:
        name, queue = line
        if chance.random() < 0.15:
            cell.pause(name, queue=queue)
            paused.add(line)
        elif line in paused and chance.random() < 0.5:
            cell.resume(name, queue=queue)
            paused.remove(line)
