"""A task's status, as every broker keeps it: distinct, ordered, and never a trap.

A model follows each task through whatever is done to it, in whatever order, by claims that still stand and by claims
that were lost; the broker must agree with it, in what every move answers and in what it left. Every move happens at
the same moment, so that nothing but the numbers of events can tell which came last.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import UUID

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taketurns.engine import rescue
from taketurns.engine.task import ClaimedTask, Outcome, Report, Status
from tests.brokers.cell import Cell, has_no_gaps, ids, new_tasks
from tests.effort import examples

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(days=1)
MAX_RESCUES = 2
SLUGS = ("a", "b")
WORKERS = (UUID(int=1), UUID(int=2))
SHARED = [HealthCheck.function_scoped_fixture, HealthCheck.differing_executors]  # run by a class of each broker
ENDS = {
    Outcome.COMPLETED: Status.COMPLETED,
    Outcome.FAILED: Status.FAILED,
    Outcome.CANCELLED: Status.CANCELLED,
}


@dataclass
class Known:
    """What is to be true of one task."""

    company: str
    status: Status
    kinds: list[str] = field(default_factory=lambda: ["created"])
    retries: int = 0
    rescues: int = 0
    claim: ClaimedTask | None = None

    def move(self, kind: str, status: Status) -> None:
        assert not (self.status.is_terminal and kind != "requeued"), f"{kind} after {self.status}"
        self.kinds.append(kind)
        self.status = status
        if status is not Status.PROCESSING:
            self.claim = None


class Model:
    """The tasks of a cell, and every claim that was ever made of them."""

    def __init__(self, cell: Cell, chance: random.Random) -> None:
        self.cell = cell
        self.broker = cell.broker
        self.chance = chance
        self.known: dict[UUID, Known] = {}
        self.claims: list[tuple[UUID, ClaimedTask]] = []

    async def submit(self) -> None:
        slug, is_delayed = self.chance.choice(SLUGS), self.chance.random() < 0.3
        tasks = new_tasks(self.chance.randint(1, 3), delay_seconds=60 if is_delayed else None)
        for task_id in ids(await self.broker.enqueue(slug, tasks, at=NOON)):
            self.known[task_id] = Known(slug, Status.SCHEDULED if is_delayed else Status.PENDING)

    async def claim(self) -> None:
        worker, batch = self.chance.choice(WORKERS), self.chance.randint(1, 4)
        waiting = sum(known.status is Status.PENDING for known in self.known.values())
        claimed = await self.broker.claim(worker, queues=["default"], batch=batch, at=NOON)
        assert len(claimed) == min(batch, waiting)
        for task in claimed:
            known = self.known[task.task_id]
            assert known.status is Status.PENDING
            known.move("claimed", Status.PROCESSING)
            known.claim = task
            assert self.cell.status(task.task_id) is Status.PROCESSING  # before anybody has it in hand
            assert (task.retry_count, task.rescue_count) == (known.retries, known.rescues)
            self.claims.append((worker, task))

    async def settle(self) -> None:
        told = [
            Report(task, self.chance.choice(list(Outcome)), error="why", delay_seconds=60)
            for task in self.some_claims()
        ]
        stood = {report.task.task_id for report in told if self.stands(report.task)}
        assert await self.broker.settle(told, at=NOON) == stood
        for report in told:
            if report.task.task_id in stood and self.stands(report.task):
                known = self.known[report.task.task_id]
                if report.outcome is Outcome.RETRY:
                    known.retries += 1
                    known.move("retried", Status.SCHEDULED)
                elif report.outcome is Outcome.DEFERRED:
                    known.move("deferred", Status.SCHEDULED)
                else:
                    known.move(report.outcome.value, ENDS[report.outcome])

    async def release(self) -> None:
        tasks = self.some_claims()
        stood = {task.task_id for task in tasks if self.stands(task)}
        assert await self.broker.release(tasks, at=NOON) == stood
        for task_id in stood:
            self.known[task_id].move("released", Status.PENDING)

    async def lose_a_worker(self) -> None:
        worker = self.chance.choice(WORKERS)
        held = {task.task_id for holder, task in self.claims if holder == worker and self.stands(task)}
        rescued = await self.broker.rescue(worker, watched_beat=None, max_rescues=MAX_RESCUES, at=NOON)
        assert {task.task_id for task in rescued} == held
        lost = [self.known[task.task_id] for task in rescued]
        left = rescue.after_loss([known.rescues for known in lost], MAX_RESCUES)
        assert [task.failed for task in rescued] == [rescues is None for rescues in left]
        for known, rescues in zip(lost, left, strict=True):
            if rescues is None:
                known.move("failed", Status.FAILED)
            else:
                known.rescues = rescues
                known.move("rescued", Status.PENDING)

    async def promote(self) -> None:
        due = [known for known in self.known.values() if known.status is Status.SCHEDULED]
        assert (await self.broker.promote(at=LATER)).count == len(due)
        for known in due:
            known.status = Status.PENDING

    async def cancel(self) -> None:
        for task_id, known in self.some_tasks():
            answer = await self.broker.cancel(known.company, task_id, at=NOON)
            if not known.status.is_terminal:
                known.move("cancelled", Status.CANCELLED)
            assert answer is known.status

    async def retry(self) -> None:
        for task_id, known in self.some_tasks():
            assert await self.broker.retry(known.company, task_id, at=NOON) is known.status
            if known.status not in {Status.PROCESSING, Status.PENDING}:
                known.retries = known.rescues = 0
                known.move("requeued", Status.PENDING)

    def some_claims(self) -> list[ClaimedTask]:
        """Of a few claims, lost ones too, one of each task: two reports of one task do not come in one settlement."""
        chosen = self.chance.sample(self.claims, min(len(self.claims), 4))
        return list({task.task_id: task for _, task in chosen}.values())

    def some_tasks(self) -> Iterable[tuple[UUID, Known]]:
        return self.chance.sample(list(self.known.items()), min(len(self.known), 3))

    def stands(self, task: ClaimedTask) -> bool:
        return self.known[task.task_id].claim is task

    def agree(self) -> None:
        """The history is append-only, so that it tells in the end whether any move did what it may not."""
        for task_id, known in self.known.items():
            history = self.cell.history(task_id)
            assert has_no_gaps(history)
            assert [move.kind for move in history] == known.kinds
            assert self.cell.status(task_id) is known.status, known.kinds

    async def lead_out(self) -> None:
        """Whatever state a task is stuck in, those who hold it being gone, upkeep and a worker bring it to an end."""
        for worker in WORKERS:
            await self.broker.rescue(worker, watched_beat=None, max_rescues=MAX_RESCUES, at=NOON)
        await self.broker.promote(at=LATER)
        while claimed := await self.broker.claim(WORKERS[0], queues=["default"], batch=50, at=LATER):
            await self.broker.settle([Report(task, Outcome.COMPLETED) for task in claimed], at=LATER)
        stuck = {task_id: status for task_id in self.known if not (status := self.cell.status(task_id)).is_terminal}  # type: ignore[union-attr]
        assert stuck == {}


MOVES: list[Callable[[Model], Awaitable[None]]] = [
    Model.submit,
    Model.claim,
    Model.settle,
    Model.release,
    Model.lose_a_worker,
    Model.promote,
    Model.cancel,
    Model.retry,
]


class Statuses:
    """A status says what is true, in the order in which it became true, and can always be left."""

    @settings(max_examples=examples(15), deadline=None, suppress_health_check=SHARED)
    @given(st.lists(st.sampled_from(MOVES), min_size=20, max_size=60), st.integers(0, 10_000))
    async def test_a_status_is_what_the_last_move_made_it_whatever_the_order_of_moves(
        self, cell: Cell, moves: list[Callable[[Model], Awaitable[None]]], seed: int
    ) -> None:
        cell.clear()
        for slug in SLUGS:
            cell.add_company(slug)
        model = Model(cell, random.Random(seed))
        await model.submit()
        for move in moves:
            await move(model)
        model.agree()
        await model.lead_out()
