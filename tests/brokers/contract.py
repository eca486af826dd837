"""What every broker keeps: one suite, which a broker passes by running it on a cell of its own.

A test module of a broker has a class that inherits `Contract`, and a fixture `cell`: see tests.brokers.cell.Cell.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taketurns.engine import orders
from taketurns.engine.errors import IdempotencyConflict, QueueFull, UnknownCompany
from taketurns.engine.lease import Holder, Kind
from taketurns.engine.orders import Asked, Wanted
from taketurns.engine.rate import Rate
from taketurns.engine.task import Claimed, ClaimedTask, NewTask, Outcome, Report, Status
from tests.brokers.cell import (
    Cell,
    claimed_ids,
    has_no_gaps,
    ids,
    keyed_task,
    new_tasks,
    reports,
    terminal_moves,
    turns_of,
)
from tests.brokers.statuses import SHARED, Statuses
from tests.effort import examples
from tests.keeping import NOT_AT_ALL, kept
from tests.waiting import PATIENCE

WORKER = UUID(int=1)
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
SECOND, HALF, MICROSECOND = timedelta(seconds=1), timedelta(seconds=0.5), timedelta(microseconds=1)
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


async def submit(cell: Cell, company: str, count: int = 1, **options: object) -> list[UUID]:
    return ids(await cell.broker.enqueue(company, new_tasks(count, **options)))  # type: ignore[arg-type]


async def claim(
    cell: Cell, batch: int = 1, *, queues: tuple[str, ...] = ("default",), worker: UUID = WORKER
) -> list[ClaimedTask]:
    return await cell.broker.claim(worker, queues=queues, batch=batch)


def a_holder(name: str, *, kind: Kind = Kind.WORKER) -> Holder:
    return Holder(queues=("default",), types=(), concurrency=1, name=name, kind=kind)


async def claim_at(cell: Cell, at: datetime, batch: int = 1) -> Claimed:
    return await cell.broker.claim(WORKER, queues=["default"], batch=batch, at=at)


async def claim_one(cell: Cell, *, worker: UUID = WORKER) -> ClaimedTask:
    (task,) = await claim(cell, worker=worker)
    return task


def add_two(cell: Cell) -> None:
    """Companies acme and globex, and a worker that knows of work and mail."""
    for slug in ("acme", "globex"):
        cell.add_company(slug)
    cell.add_lease(UUID(int=9), types=("work", "mail"))


async def taken(cell: Cell, batch: int = 100) -> dict[str, int]:
    """How many turns each company is given."""
    return dict(Counter(turns_of(cell, await claim(cell, batch))))


def kinds(cell: Cell, task_id: UUID) -> list[str]:
    history = cell.history(task_id)
    assert has_no_gaps(history), history
    return [move.kind for move in history]


@dataclass
class Walk:
    """What a random walk knows of a cell: every task that it submitted, and every claim that it made, ended or not."""

    cell: Cell
    chance: random.Random
    slugs: Sequence[str] = ("a", "b", "c")
    now: datetime = NOON
    submitted: list[UUID] = field(default_factory=list)
    claimed: list[ClaimedTask] = field(default_factory=list)

    def some_claimed(self) -> list[ClaimedTask]:
        return self.chance.sample(self.claimed, min(len(self.claimed), 8))

    async def submit(self) -> None:
        delay = self.chance.choice([None, None, 60.0])
        tasks = new_tasks(self.chance.randint(1, 8), queue=self.chance.choice(["one", "two"]), delay_seconds=delay)
        self.submitted += ids(await self.cell.broker.enqueue(self.chance.choice(self.slugs), tasks, at=self.now))

    async def claim(self) -> None:
        worker, batch = UUID(int=self.chance.randint(1, 3)), self.chance.randint(1, 10)
        self.claimed += await self.cell.broker.claim(worker, queues=["one", "two"], batch=batch, at=self.now)

    async def settle(self) -> None:
        told = [Report(task, self.chance.choice(list(Outcome)), delay_seconds=60) for task in self.some_claimed()]
        await self.cell.broker.settle(told, at=self.now)

    async def release(self) -> None:
        await self.cell.broker.release(self.some_claimed(), at=self.now)

    async def rescue(self) -> None:
        worker = UUID(int=self.chance.randint(1, 3))
        await self.cell.broker.rescue(worker, watched_beat=None, max_rescues=2, at=self.now)

    async def promote(self) -> None:
        self.now += timedelta(seconds=self.chance.choice([0, 61]))
        await self.cell.broker.promote(most=self.chance.randint(1, 20), at=self.now)

    async def cancel(self) -> None:
        for task_id in self.chance.sample(self.submitted, min(len(self.submitted), 2)):
            await self.cell.broker.cancel(self.slug_of(task_id), task_id, at=self.now)

    async def retry(self) -> None:
        for task_id in self.chance.sample(self.submitted, min(len(self.submitted), 4)):
            await self.cell.broker.retry(self.slug_of(task_id), task_id, at=self.now)

    async def pause(self) -> None:
        self.cell.set_paused(self.chance.choice(self.slugs), self.chance.random() < 0.5)

    async def heal(self) -> None:
        await self.cell.broker.heal()

    def slug_of(self, task_id: UUID) -> str:
        return self.cell.slug_of(self.cell.company_of(task_id))


Move = Callable[[Walk], Awaitable[None]]

MOVES: list[Move] = [
    Walk.submit,
    Walk.claim,
    Walk.settle,
    Walk.release,
    Walk.rescue,
    Walk.promote,
    Walk.cancel,
    Walk.retry,
    Walk.pause,
    Walk.heal,
]


class Submitting:
    """Enqueue: all or none, in order, each once for its key."""

    async def test_a_task_comes_out_as_it_went_in(self, cell: Cell) -> None:
        company = cell.add_company("acme")
        payload = {"text": "naïve ☃ 𝄞", "number": 12345678901234567890, "list": [None, True, 1.5], "": {}}
        task = NewTask(type="send", payload=json.dumps(payload), priority=3, max_retries=7, timeout_seconds=2.5)
        (enqueued,) = await cell.broker.enqueue("acme", [task], request_id="request-1", traceparent=TRACE)
        assert (enqueued.status, enqueued.replayed, enqueued.position) == (Status.PENDING, False, 0)
        claimed = await claim_one(cell)
        assert claimed.company_id == company
        assert claimed.task_id == enqueued.task_id
        assert (claimed.type, claimed.queue, claimed.priority) == ("send", "default", 3)
        assert (claimed.max_retries, claimed.timeout_seconds) == (7, 2.5)
        assert (claimed.request_id, claimed.traceparent) == ("request-1", TRACE)
        assert claimed.created_at == enqueued.created_at
        assert (claimed.attempt, claimed.rescue_count) == (1, 0)
        assert json.loads(claimed.payload) == payload

    async def test_a_company_goes_by_its_id_or_its_slug(self, cell: Cell) -> None:
        company = cell.add_company("acme")
        for name in ("acme", str(company)):
            (enqueued,) = await cell.broker.enqueue(name, new_tasks())
            assert enqueued.company_id == company

    @pytest.mark.parametrize("name", ["nobody", "00000000-0000-7000-8000-000000000000", ""])
    async def test_a_company_that_is_not_there_is_told(self, cell: Cell, name: str) -> None:
        with pytest.raises(UnknownCompany):
            await cell.broker.enqueue(name, new_tasks())
        assert not cell.standing()

    async def test_tasks_of_one_request_are_made_in_its_order(self, cell: Cell) -> None:
        cell.add_company("acme")
        enqueued = await cell.broker.enqueue("acme", new_tasks(250))
        assert [task.position for task in enqueued] == list(range(250))
        assert claimed_ids(await claim(cell, 250)) == ids(enqueued)

    async def test_nothing_is_submitted_when_nothing_is_asked_for(self, cell: Cell) -> None:
        cell.add_company("acme")
        assert await cell.broker.enqueue("acme", []) == []

    async def test_a_task_that_is_not_due_is_scheduled(self, cell: Cell) -> None:
        cell.add_company("acme")
        enqueued = await cell.broker.enqueue(
            "acme",
            [
                *new_tasks(delay_seconds=90),
                *new_tasks(run_after=NOON + timedelta(seconds=1)),
                *new_tasks(run_after=NOON),
                *new_tasks(delay_seconds=0),
            ],
            at=NOON,
        )
        assert [task.status for task in enqueued] == ["scheduled", "scheduled", "pending", "pending"]
        assert enqueued[0].run_after == NOON + timedelta(seconds=90)
        assert claimed_ids(await claim(cell, 10)) == ids(enqueued[2:])

    # Faults 026 to 028.
    async def test_the_same_request_under_a_key_is_the_same_task(self, cell: Cell) -> None:
        cell.add_company("acme")
        (first,) = await cell.broker.enqueue("acme", [keyed_task("k")])
        (again,) = await cell.broker.enqueue("acme", [keyed_task("k")])
        assert (again.task_id, again.replayed, first.replayed) == (first.task_id, True, False)
        assert cell.standing().total() == 1

    async def test_another_request_under_a_key_is_a_conflict(self, cell: Cell) -> None:
        cell.add_company("acme")
        await cell.broker.enqueue("acme", [keyed_task("k", request="one")])
        with pytest.raises(IdempotencyConflict) as raised:
            await cell.broker.enqueue("acme", [keyed_task("k", request="two")])
        assert raised.value.positions == (0,)
        assert cell.standing().total() == 1

    @pytest.mark.parametrize("round_", range(5))
    async def test_fifty_at_once_under_a_key_make_one_task(self, cell: Cell, round_: int) -> None:
        cell.add_company("acme")
        answers = await asyncio.gather(*[cell.broker.enqueue("acme", [keyed_task("k")]) for _ in range(50)])
        assert len({task.task_id for (task,) in answers}) == 1
        assert Counter(task.replayed for (task,) in answers) == {False: 1, True: 49}
        assert cell.standing().total() == 1

    async def test_two_requests_race_for_a_key_and_one_has_it(self, cell: Cell) -> None:
        cell.add_company("acme")
        answers = await asyncio.gather(
            *[cell.broker.enqueue("acme", [keyed_task("k", request=f"{place % 2}")]) for place in range(50)],
            return_exceptions=True,
        )
        assert Counter(type(answer) for answer in answers) == {list: 25, IdempotencyConflict: 25}
        assert cell.standing().total() == 1

    # Fault 033.
    async def test_a_key_is_its_companys_own(self, cell: Cell) -> None:
        cell.add_company("acme")
        cell.add_company("globex")
        answers = await asyncio.gather(
            *[cell.broker.enqueue(slug, [keyed_task("k", request=slug)]) for slug in ["acme", "globex"] * 10]
        )
        assert len({task.task_id for (task,) in answers}) == 2
        assert cell.standing().total() == 2

    async def test_keys_that_look_alike_are_others(self, cell: Cell) -> None:
        cell.add_company("acme")
        keys = ["key", "KEY", "key ", "caf\u00e9", "cafe\u0301"]
        enqueued = await cell.broker.enqueue("acme", [keyed_task(key) for key in keys])
        assert len(set(ids(enqueued))) == len(keys)

    # Fault 037.
    async def test_a_batch_tells_for_each_task_whether_it_was_there(self, cell: Cell) -> None:
        cell.add_company("acme")
        (first,) = await cell.broker.enqueue("acme", [keyed_task("k4")])
        enqueued = await cell.broker.enqueue("acme", [keyed_task(f"k{place}") for place in range(10)])
        assert [task.position for task in enqueued if task.replayed] == [4]
        assert enqueued[4].task_id == first.task_id
        assert cell.standing().total() == 10

    async def test_a_batch_with_a_conflict_is_refused_as_a_whole(self, cell: Cell) -> None:
        cell.add_company("acme")
        await cell.broker.enqueue("acme", [keyed_task("k4", request="other")])
        batch = [keyed_task(f"k{place}") for place in range(10)]
        with pytest.raises(IdempotencyConflict) as raised:
            await cell.broker.enqueue("acme", batch)
        assert raised.value.positions == (4,)
        assert cell.standing().total() == 1
        # The keys of the other nine are free.
        enqueued = await cell.broker.enqueue("acme", [*batch[:4], *batch[5:]])
        assert not any(task.replayed for task in enqueued)

    # Fault 038.
    async def test_a_key_twice_in_a_batch_is_one_task(self, cell: Cell) -> None:
        cell.add_company("acme")
        enqueued = await cell.broker.enqueue("acme", [keyed_task("k"), *new_tasks(), keyed_task("k")])
        assert [task.replayed for task in enqueued] == [False, False, True]
        assert enqueued[0].task_id == enqueued[2].task_id
        assert cell.standing().total() == 2

    async def test_a_key_twice_in_a_batch_for_other_requests_is_a_conflict(self, cell: Cell) -> None:
        cell.add_company("acme")
        with pytest.raises(IdempotencyConflict) as raised:
            await cell.broker.enqueue("acme", [keyed_task("k"), *new_tasks(), keyed_task("k", request="other")])
        assert raised.value.positions == (2,)
        assert not cell.standing()

    # Fault 035.
    async def test_a_key_is_kept_for_its_lifetime_by_the_clock(self, cell: Cell) -> None:
        cell.add_company("acme")
        (first,) = await cell.broker.enqueue("acme", [keyed_task("k")], at=NOON)
        (before,) = await cell.broker.enqueue("acme", [keyed_task("k")], at=NOON + DAY - timedelta(seconds=1))
        assert before.task_id == first.task_id
        answers = await asyncio.gather(
            *[cell.broker.enqueue("acme", [keyed_task("k", request="new")], at=NOON + DAY) for _ in range(20)]
        )
        assert len({task.task_id for (task,) in answers} | {first.task_id}) == 2
        assert Counter(task.replayed for (task,) in answers) == {False: 1, True: 19}

    async def test_a_key_outlives_its_task(self, cell: Cell) -> None:
        cell.add_company("acme")
        (first,) = await cell.broker.enqueue("acme", [keyed_task("k")], at=NOON)
        await cell.broker.settle(reports([await claim_one(cell)]), at=NOON)
        soon = NOON + timedelta(hours=1)
        pruned = await cell.broker.prune(NOT_AT_ALL, at=soon)
        assert (pruned.tasks, pruned.keys) == (1, 0)
        (again,) = await cell.broker.enqueue("acme", [keyed_task("k")], at=soon)
        assert (again.task_id, again.replayed) == (first.task_id, True)

    async def test_keys_in_different_orders_do_not_stop_each_other(self, cell: Cell) -> None:
        cell.add_company("acme")
        keys = [keyed_task(f"k{place}") for place in range(40)]
        chance = random.Random(3)
        await asyncio.gather(*[cell.broker.enqueue("acme", chance.sample(keys, len(keys))) for _ in range(16)])
        assert cell.standing().total() == 40


class Queueing:
    """A company has no more tasks waiting than it may have, however many submit at once. Fault 083."""

    async def test_fifty_who_submit_at_once_fill_it_and_no_more(self, cell: Cell) -> None:
        cell.add_company("acme")
        cell.set_max_queued("acme", 20)
        outcomes = await asyncio.gather(*(submit(cell, "acme") for _ in range(50)), return_exceptions=True)
        assert Counter(map(type, outcomes)) == {list: 20, QueueFull: 30}
        assert cell.standing() == {Status.PENDING: 20}
        assert cell.contradictions() == []

    async def test_a_batch_is_taken_whole_or_not_at_all(self, cell: Cell) -> None:
        for slug in ("acme", "globex"):
            cell.add_company(slug)
        cell.set_max_queued("acme", 5)
        await submit(cell, "acme", 2, queue="bulk")
        await submit(cell, "acme", 1, delay_seconds=60.0)
        with pytest.raises(QueueFull, match=r"at most 5 .* no room for 3 more") as refused:
            await submit(cell, "acme", 3)
        assert (refused.value.max_queued, refused.value.wanted) == (5, 3)
        await submit(cell, "globex", 9)
        await submit(cell, "acme", 2)
        assert cell.standing() == {Status.PENDING: 13, Status.SCHEDULED: 1}

    async def test_what_has_started_makes_room_and_a_lowered_limit_takes_nothing_away(  # fault 087
        self, cell: Cell
    ) -> None:
        cell.add_company("acme")
        cell.set_max_queued("acme", 2)
        await submit(cell, "acme", 2)
        held = await claim(cell)
        await submit(cell, "acme")
        cell.set_max_queued("acme", 1)
        with pytest.raises(QueueFull):
            await submit(cell, "acme")
        await cell.broker.settle(reports(held))
        assert len(await claim(cell, 5)) == 2
        cell.set_max_queued("acme", 0)
        with pytest.raises(QueueFull):
            await submit(cell, "acme")
        cell.set_max_queued("acme", None)
        await submit(cell, "acme", 3)

    @pytest.mark.parametrize("where", ["scheduled", "pending", "set aside", "retried"])
    async def test_wherever_a_task_waits_it_needs_room_until_it_does_not(self, cell: Cell, where: str) -> None:
        cell.add_company("acme")
        cell.set_max_queued("acme", 1)
        (task,) = await submit(cell, "acme", delay_seconds=60.0 if where == "scheduled" else None)
        if where == "set aside":
            assert await cell.broker.park(["work"], queues=["default"]) == {"work": 1}
        if where == "retried":
            await cell.broker.settle([Report(await claim_one(cell), Outcome.RETRY, delay_seconds=60.0)])
        with pytest.raises(QueueFull):
            await submit(cell, "acme")
        assert await cell.broker.cancel("acme", task) is Status.CANCELLED
        await submit(cell, "acme")
        assert cell.contradictions() == []

    async def test_a_request_that_is_repeated_needs_no_room_and_one_that_is_refused_keeps_its_key_free(
        self, cell: Cell
    ) -> None:
        cell.add_company("acme")
        cell.set_max_queued("acme", 1)
        (made,) = await cell.broker.enqueue("acme", [keyed_task("first")])
        (again,) = await cell.broker.enqueue("acme", [keyed_task("first")])
        assert (again.replayed, again.task_id) == (True, made.task_id)
        with pytest.raises(QueueFull):
            await cell.broker.enqueue("acme", [keyed_task("second")])
        cell.set_max_queued("acme", 2)
        (second,) = await cell.broker.enqueue("acme", [keyed_task("second")])
        assert not second.replayed

    async def test_a_retry_by_hand_needs_no_room(self, cell: Cell) -> None:
        cell.add_company("acme")
        cell.set_max_queued("acme", 1)
        (made,) = await submit(cell, "acme")
        await cell.broker.settle(reports(await claim(cell)))
        await submit(cell, "acme")
        assert await cell.broker.retry("acme", made) is Status.COMPLETED
        assert cell.standing() == {Status.PENDING: 2}


class TakingTurns:
    """Claim: whose turn it is, and which of its tasks."""

    async def test_nothing_waits_and_nothing_comes(self, cell: Cell) -> None:
        assert await claim(cell, 10) == []

    async def test_companies_alternate_however_many_tasks_one_has(self, cell: Cell) -> None:
        for slug, count in (("flood", 500), ("quiet", 3)):
            cell.add_company(slug)
            await submit(cell, slug, count)
        assert turns_of(cell, await claim(cell, 8)) == ["flood", "quiet"] * 3 + ["flood"] * 2

    @pytest.mark.parametrize("batch", [1, 10, 100])
    async def test_weights_one_two_five_are_served_so(self, cell: Cell, batch: int) -> None:
        for slug, weight in (("a", 1), ("b", 2), ("c", 5)):
            cell.add_company(slug, weight=weight)
            await submit(cell, slug, 1_000)
        served: Counter[str] = Counter()
        async with Hoarder(cell, hands=400):
            while served.total() < 800:
                claimed = await claim(cell, batch)
                assert len(claimed) == batch
                served.update(turns_of(cell, claimed))
                await cell.broker.settle(reports(claimed))
        assert served["a"] == pytest.approx(100, abs=2)
        assert served["b"] == pytest.approx(200, abs=4)
        assert served["c"] == pytest.approx(500, abs=10)

    @pytest.mark.parametrize("batch", [1, 3, 7])
    async def test_more_companies_than_a_batch_holds_all_have_their_turn(self, cell: Cell, batch: int) -> None:
        slugs = [f"c{place:02}" for place in range(20)]
        for slug in slugs:
            cell.add_company(slug)
            await submit(cell, slug, 20)
        served: list[str] = []
        while len(served) < 100:
            claimed = await claim(cell, batch)
            served += turns_of(cell, claimed)
            await cell.broker.settle(reports(claimed))
        for end in range(1, len(served)):
            counts = Counter(served[:end])
            assert max(counts.values()) - min(counts[slug] for slug in slugs) <= 2

    @pytest.mark.parametrize("batch", [1, 4, 18])
    async def test_within_a_company_priority_then_due_time_then_age_decide(self, cell: Cell, batch: int) -> None:
        cell.add_company("acme")
        expected = []
        for priority in (9, 0, 5):
            for minutes in (1, 2):
                for _ in range(3):
                    (task,) = await cell.broker.enqueue(
                        "acme", new_tasks(priority=priority, run_after=NOON - timedelta(minutes=minutes)), at=NOON
                    )
                    expected.append(((priority, -minutes), task.task_id))
        claimed: list[UUID] = []
        while taken := await claim(cell, batch):
            claimed += claimed_ids(taken)
        assert claimed == [task_id for _, task_id in sorted(expected, key=lambda item: item[0])]

    # Fault 067.
    async def test_a_newcomer_is_next(self, cell: Cell) -> None:
        for slug in ("a", "b", "c"):
            cell.add_company(slug)
            await submit(cell, slug, 100)
        for _ in range(10):
            await cell.broker.settle(reports(await claim(cell, 7)))
        cell.add_company("late")
        async with Hoarder(cell, hands=100):
            await submit(cell, "late", 1)
            assert "late" in turns_of(cell, await claim(cell, 4))

    async def test_a_company_that_comes_back_does_not_collect_what_it_missed(self, cell: Cell) -> None:
        for slug in ("steady", "absent"):
            cell.add_company(slug)
            await submit(cell, slug, 2)
        await submit(cell, "steady", 200)
        for _ in range(10):
            await cell.broker.settle(reports(await claim(cell, 10)))
        await submit(cell, "absent", 50)
        async with Hoarder(cell, hands=100):
            assert Counter(turns_of(cell, await claim(cell, 40)))["absent"] == pytest.approx(20, abs=2)

    async def test_nobody_gains_by_asking_for_one_turn_at_a_time(self, cell: Cell) -> None:
        for slug in ("patient", "pushing"):
            cell.add_company(slug)
        await submit(cell, "patient", 100)
        served: Counter[str] = Counter()
        await submit(cell, "pushing", 1)
        for _ in range(40):
            claimed = await claim(cell, 1)
            served.update(turns_of(cell, claimed))
            await cell.broker.settle(reports(claimed))
            if turns_of(cell, claimed) == ["pushing"]:
                await submit(cell, "pushing", 1)
        assert abs(served["patient"] - served["pushing"]) <= 2

    async def test_nobody_gains_by_going_and_coming_back(self, cell: Cell) -> None:
        cell.add_company("patient", weight=10)
        cell.add_company("coming")
        await submit(cell, "patient", 300)
        is_away = True
        served: Counter[str] = Counter()
        async with Hoarder(cell, hands=400):
            for step in range(220):
                if step % 2 and is_away:
                    await submit(cell, "coming")
                    is_away = False
                claimed = await claim(cell, 1)
                served.update(turns_of(cell, claimed))
                is_away = is_away or turns_of(cell, claimed) == ["coming"]
                await cell.broker.settle(reports(claimed))
        assert served["coming"] <= 22

    @pytest.mark.parametrize("hands", [2, 4, 8, 16])
    async def test_long_tasks_do_not_take_all_hands(self, cell: Cell, hands: int) -> None:
        """A company whose tasks take a hundred times longer holds its share of the hands, not more."""
        for slug, count in (("slow", 100), ("fast", 3_000)):
            cell.add_company(slug)
            await submit(cell, slug, count)
        running: list[tuple[int, ClaimedTask]] = []
        for now in range(300):
            ended = [(end, task) for end, task in running if end <= now]
            await cell.broker.settle(reports(task for _, task in ended))
            running = [item for item in running if item not in ended]
            for task in await claim(cell, hands - len(running)):
                running.append((now + (100 if cell.slug_of(task.company_id) == "slow" else 1), task))
            held = Counter(cell.slug_of(task.company_id) for _, task in running)
            assert held["slow"] <= hands // 2
            assert held.total() == hands

    async def test_long_tasks_do_not_pile_up_on_hands_that_a_third_company_does_not_want(self, cell: Cell) -> None:
        """Of sixteen hands globex has one and wants no more; initech's tasks are long, acme's short."""
        for slug, count in (("globex", 1), ("initech", 100), ("acme", 1_500)):
            cell.add_company(slug)
            await submit(cell, slug, count)
        lengths = {"globex": 3, "initech": 100, "acme": 1}
        running: list[tuple[int, ClaimedTask]] = []
        for now in range(120):
            ended = [(end, task) for end, task in running if end <= now]
            await cell.broker.settle(reports(task for _, task in ended))
            running = [item for item in running if item not in ended]
            if "globex" in (cell.slug_of(task.company_id) for _, task in ended):
                await submit(cell, "globex")
            for task in await claim(cell, 16 - len(running)):
                running.append((now + lengths[cell.slug_of(task.company_id)], task))
            held = Counter(cell.slug_of(task.company_id) for _, task in running)
            assert held == {"globex": 1, "initech": 8, "acme": 7}

    async def test_a_heavy_company_does_not_end_up_with_every_hand(self, cell: Cell) -> None:
        """Its share of two hands, rounded up, would be both."""
        for slug, weight in (("heavy", 100), ("light", 1)):
            cell.add_company(slug, weight=weight)
            await submit(cell, slug, 5)
        await cell.broker.settle(reports(await claim(cell, 2)))
        assert turns_of(cell, [await claim_one(cell), await claim_one(cell)]) == ["heavy", "light"]

    async def test_shares_are_lifted_when_nobody_else_waits(self, cell: Cell) -> None:
        cell.add_company("alone")
        cell.add_company("small")
        await submit(cell, "alone", 50)
        await submit(cell, "small", 2)
        assert len(await claim(cell, 30)) == 30

    async def test_a_changed_weight_acts_on_the_backlog_that_is_there(self, cell: Cell) -> None:
        for slug in ("a", "b"):
            cell.add_company(slug)
            await submit(cell, slug, 500)
        async with Hoarder(cell, hands=400):
            await cell.broker.settle(reports(await claim(cell, 20)))
            cell.set_weight("b", 4)
            served = Counter(turns_of(cell, await claim(cell, 100)))
        assert served["b"] == pytest.approx(80, abs=2)

    # Fault 070.
    async def test_a_paused_company_stops_nobody_and_goes_on_where_it_was(self, cell: Cell) -> None:
        cell.add_company("paused")
        cell.add_company("other")
        first = await submit(cell, "paused", 100, priority=0)
        await submit(cell, "other", 10)
        cell.set_paused("paused", True)
        assert turns_of(cell, await claim(cell, 20)) == ["other"] * 10
        await submit(cell, "paused", 1, priority=9)
        assert await claim(cell, 20) == []
        cell.set_paused("paused", False)
        assert claimed_ids(await claim(cell, 3)) == first[:3]

    async def test_a_company_that_is_paused_from_its_beginning_is_served_when_it_goes_on(self, cell: Cell) -> None:
        cell.add_company("acme", paused=True)
        await submit(cell, "acme", 2)
        assert await claim(cell, 5) == []
        cell.set_paused("acme", False)
        assert len(await claim(cell, 5)) == 2

    # Faults 068, 089.
    async def test_a_limit_holds_across_queues(self, cell: Cell) -> None:
        cell.add_company("limited", max_in_flight=3)
        cell.add_company("other")
        for queue in ("one", "two"):
            await submit(cell, "limited", 20, queue=queue)
            await submit(cell, "other", 5, queue=queue)
        held = await claim(cell, 30, queues=("one", "two"))
        assert Counter(turns_of(cell, held)) == {"limited": 3, "other": 10}
        assert await claim(cell, 30, queues=("two", "one")) == []
        mine = [task for task in held if cell.slug_of(task.company_id) == "limited"]
        await cell.broker.settle(reports(mine[:2]))
        assert turns_of(cell, await claim(cell, 30, queues=("two",))) == ["limited"] * 2

    # Faults 058 and 071.
    @pytest.mark.parametrize("end", ["completed", "failed", "retry", "deferred", "cancel", "release", "rescue"])
    async def test_a_limit_is_free_again_however_a_task_ended(self, cell: Cell, end: str) -> None:
        cell.add_company("acme", max_in_flight=1)
        cell.add_lease(WORKER)
        await submit(cell, "acme", 2)
        task = await claim_one(cell)
        assert await claim(cell, 5) == []
        match end:
            case "cancel":
                await cell.broker.cancel("acme", task.task_id)
            case "release":
                await cell.broker.release([task])
            case "rescue":
                await cell.broker.rescue(WORKER, watched_beat=0, max_rescues=0)
            case outcome:
                await cell.broker.settle([Report(task, Outcome(outcome), delay_seconds=60.0)])
        assert len(await claim(cell, 5)) == 1

    async def test_a_rate_lets_so_many_start_and_tells_when_the_next_may(self, cell: Cell) -> None:
        cell.add_company("rated")
        cell.set_rate("rated", Rate(2, 1, 3))
        await submit(cell, "rated", 10)
        first = await claim_at(cell, NOON, 10)
        assert (len(first), first.again_at) == (3, NOON + HALF)
        again = await claim_at(cell, NOON, 10)
        assert (len(again), again.again_at) == (0, NOON + HALF)
        assert len(await claim_at(cell, NOON + HALF - MICROSECOND, 10)) == 0
        assert len(await claim_at(cell, NOON + HALF, 10)) == 1
        assert len(await claim_at(cell, NOON + DAY, 10)) == 3

    async def test_a_company_out_of_its_rate_is_passed_over_and_keeps_its_place(self, cell: Cell) -> None:
        for slug in ("rated", "other"):
            cell.add_company(slug)
            await submit(cell, slug, 10)
        cell.set_rate("rated", Rate(1, 1, 1))
        assert turns_of(cell, await claim_at(cell, NOON, 5)) == ["rated", "other", "other", "other", "other"]
        assert turns_of(cell, await claim_at(cell, NOON, 2)) == ["other"] * 2
        assert turns_of(cell, await claim_at(cell, NOON + SECOND, 2)) == ["rated", "other"]

    async def test_a_rate_holds_across_queues_and_claimers(self, cell: Cell) -> None:
        cell.add_company("rated")
        cell.set_rate("rated", Rate(1, 1, 5))
        for queue in ("one", "two"):
            await submit(cell, "rated", 40, queue=queue)
        queues = [("one",), ("two",), ("one", "two"), ("two", "one")]
        claims = [cell.broker.claim(uuid4(), queues=queues[n % 4], batch=2, at=NOON) for n in range(20)]
        assert sum(map(len, await asyncio.gather(*claims))) == 5
        assert cell.contradictions() == []

    async def test_a_retry_and_a_rescue_start_again_and_use_the_rate(self, cell: Cell) -> None:
        cell.add_company("rated")
        cell.set_rate("rated", Rate(1, 60, 3))
        cell.add_lease(WORKER)
        await submit(cell, "rated")
        (task,) = await claim_at(cell, NOON)
        await cell.broker.settle([Report(task, Outcome.RETRY, delay_seconds=0.0)], at=NOON)
        await cell.broker.promote(at=NOON)
        assert len(await claim_at(cell, NOON)) == 1
        await cell.broker.rescue(WORKER, watched_beat=0, max_rescues=3, at=NOON)
        assert len(await claim_at(cell, NOON)) == 1
        await submit(cell, "rated")
        assert len(await claim_at(cell, NOON)) == 0

    async def test_a_changed_rate_acts_at_the_next_claim(self, cell: Cell) -> None:
        cell.add_company("rated")
        await submit(cell, "rated", 10)
        cell.set_rate("rated", Rate(1, 3600, 1))
        assert len(await claim_at(cell, NOON, 5)) == 1
        assert len(await claim_at(cell, NOON, 5)) == 0
        cell.set_rate("rated", Rate(1, 60, 3))
        assert len(await claim_at(cell, NOON, 5)) == 2
        cell.set_rate("rated", None)
        assert len(await claim_at(cell, NOON, 5)) == 5

    async def test_lowering_a_limit_interrupts_nothing(self, cell: Cell) -> None:
        cell.add_company("acme")
        await submit(cell, "acme", 10)
        held = await claim(cell, 5)
        cell.set_max_in_flight("acme", 2)
        assert await claim(cell, 5) == []
        assert await cell.broker.settle(reports(held[:3])) == {task.task_id for task in held[:3]}
        assert await claim(cell, 5) == []
        await cell.broker.settle(reports(held[3:4]))
        assert len(await claim(cell, 5)) == 1
        cell.set_max_in_flight("acme", None)
        assert len(await claim(cell, 5)) == 4

    async def test_companies_at_their_limits_that_are_paused_and_go_on_are_not_forgotten(self, cell: Cell) -> None:
        for slug, most in (("full", 1), ("rated", None)):
            cell.add_company(slug, max_in_flight=most)
            await submit(cell, slug, 3)
        cell.set_rate("rated", Rate(1, 1, 1))
        held = await claim_at(cell, NOON, 5)
        assert await claim_at(cell, NOON, 5) == []
        for slug in ("full", "rated"):
            cell.set_paused(slug, True)
        assert await claim_at(cell, NOON + DAY, 5) == []
        for slug in ("full", "rated"):
            cell.set_paused(slug, False)
        await cell.broker.settle(reports(held))
        assert Counter(turns_of(cell, await claim_at(cell, NOON + DAY, 5))) == {"full": 1, "rated": 1}
        assert cell.contradictions() == []

    async def test_work_that_is_cancelled_while_its_company_rests_leaves_nothing_behind(self, cell: Cell) -> None:
        cell.add_company("rated")
        cell.set_rate("rated", Rate(1, 60, 1))
        tasks = await submit(cell, "rated", 3)
        await cell.broker.settle(reports(await claim_at(cell, NOON, 5)))
        assert await claim_at(cell, NOON, 5) == []
        for task_id in tasks[1:]:
            await cell.broker.cancel("rated", task_id)
        assert await claim_at(cell, NOON + DAY, 5) == []
        await submit(cell, "rated")
        assert len(await claim_at(cell, NOON + DAY, 5)) == 1
        assert cell.contradictions() == []

    async def test_queues_are_claimed_in_the_order_in_which_they_are_named(self, cell: Cell) -> None:
        cell.add_company("acme")
        for queue in ("low", "high"):
            await submit(cell, "acme", 5, queue=queue)
        claimed = await claim(cell, 8, queues=("high", "low"))
        assert [task.queue for task in claimed] == ["high"] * 5 + ["low"] * 3

    async def test_other_queues_are_left_alone(self, cell: Cell) -> None:
        cell.add_company("acme")
        await submit(cell, "acme", 5, queue="other")
        assert await claim(cell, 8) == []

    async def test_a_type_that_is_not_known_is_left_for_somebody_who_knows_it(self, cell: Cell) -> None:
        for slug in ("a", "b"):
            cell.add_company(slug)
            await submit(cell, slug, 3, type="new", priority=0)
            await submit(cell, slug, 2, type="old")
        claimed = await cell.broker.claim(WORKER, queues=["default"], batch=10, skipped_types=["new", "newer"])
        assert Counter((cell.slug_of(task.company_id), task.type) for task in claimed) == {
            ("a", "old"): 2,
            ("b", "old"): 2,
        }
        assert Counter(task.type for task in await claim(cell, 10)) == {"new": 6}

    async def test_a_task_behind_others_of_types_that_are_not_known_is_found(self, cell: Cell) -> None:
        cell.add_company("acme")
        await submit(cell, "acme", 50, type="new", priority=0)
        (task_id,) = await submit(cell, "acme", type="old")
        claimed = await cell.broker.claim(WORKER, queues=["default"], batch=1, skipped_types=["new"])
        assert claimed_ids(claimed) == [task_id]

    # Fault 049.
    @pytest.mark.parametrize("batch", [1, 2, 7])
    async def test_a_claim_never_takes_more_than_its_batch(self, cell: Cell, batch: int) -> None:
        for slug in ("a", "b", "c"):
            cell.add_company(slug)
            await submit(cell, slug, 15)
        for _ in range(6):
            assert len(await claim(cell, batch)) == batch
        assert cell.standing()[Status.PROCESSING] == 6 * batch

    @pytest.mark.parametrize("round_", range(30))
    async def test_no_task_is_claimed_twice(self, cell: Cell, round_: int) -> None:
        """Ten connections at once."""
        for slug in ("a", "b", "c"):
            cell.add_company(slug)
            await submit(cell, slug, 40)

        async def claim_all() -> list[UUID]:
            mine: list[UUID] = []
            while claimed := await claim(cell, 7):
                mine += claimed_ids(claimed)
            return mine

        claimed = [task_id for mine in await asyncio.gather(*[claim_all() for _ in range(10)]) for task_id in mine]
        assert len(claimed) == len(set(claimed)) == 120


class Pausing:
    """What is paused is given no turn, stands in nobody's way, and goes on in its old order. Fault 070."""

    async def test_a_paused_type_blocks_no_line_even_before_it_is_set_aside(self, cell: Cell) -> None:
        add_two(cell)
        await submit(cell, "acme", 50, type="mail", priority=0)
        await submit(cell, "acme", 2)
        await submit(cell, "globex", 1, type="mail")
        cell.pause(None, type="mail")
        assert await taken(cell) == {"acme": 2}
        cell.resume(None, type="mail")
        assert await taken(cell) == {"acme": 50, "globex": 1}
        assert cell.contradictions() == []

    async def test_a_paused_type_is_set_aside_in_batches_and_comes_back_in_its_order(self, cell: Cell) -> None:
        add_two(cell)
        mails = await submit(cell, "acme", 500, type="mail", priority=0)
        await submit(cell, "acme", 10)
        cell.pause("acme", type="mail")
        assert await taken(cell) == {}  # a head is not searched that deep
        moved = 0
        while parked := await cell.broker.park([], queues=["default"], most=100):
            assert parked["mail"] <= 100
            moved += parked["mail"]
        assert moved == 500
        assert await taken(cell) == {"acme": 10}
        urgent = await submit(cell, "acme", 1, type="mail", priority=0)
        assert await taken(cell) == {}
        assert await cell.broker.unpark() == 0
        cell.resume("acme", type="mail")
        while await cell.broker.unpark(most=100):
            pass
        assert claimed_ids(await claim(cell, 600)) == [*mails, *urgent]
        assert cell.contradictions() == []

    async def test_a_pause_of_one_company_and_type_is_nobody_elses(self, cell: Cell) -> None:
        add_two(cell)
        for slug in ("acme", "globex"):
            await submit(cell, slug, 2, type="mail")
            await submit(cell, slug, 3)
        cell.pause("acme", type="mail")
        assert await taken(cell) == {"acme": 3, "globex": 5}
        await cell.broker.park([], queues=["default"])
        assert cell.standing() == {Status.PENDING: 2, Status.PROCESSING: 8}

    async def test_a_paused_queue_rests_and_comes_back_where_it_was(self, cell: Cell) -> None:
        add_two(cell)
        await submit(cell, "acme", 3)
        await submit(cell, "globex", 3)
        await submit(cell, "acme", 1, queue="bulk")
        cell.pause("acme", queue="default")
        assert await taken(cell) == {"globex": 3}
        assert [task.queue for task in await claim(cell, 5, queues=("default", "bulk"))] == ["bulk"]
        cell.resume("acme", queue="default")
        cell.pause(None, queue="default")
        await submit(cell, "globex", 1)
        assert await taken(cell) == {}
        assert await taken(cell) == {}
        cell.resume(None, queue="default")
        assert await taken(cell) == {"acme": 3, "globex": 1}
        assert cell.contradictions() == []

    async def test_work_that_comes_to_a_paused_queue_waits_for_it(self, cell: Cell) -> None:
        add_two(cell)
        cell.pause("acme", queue="default")
        await submit(cell, "acme", 2)
        await submit(cell, "globex", 1)
        assert await taken(cell) == {"globex": 1}
        cell.set_max_in_flight("acme", 1)
        cell.set_paused("acme", True)
        cell.set_paused("acme", False)
        assert await taken(cell) == {}
        cell.resume("acme", queue="default")
        assert await taken(cell) == {"acme": 1}
        assert cell.contradictions() == []

    async def test_a_pause_of_a_type_in_a_queue_leaves_the_type_elsewhere_alone(self, cell: Cell) -> None:
        add_two(cell)
        for queue in ("default", "bulk"):
            await submit(cell, "acme", 1, type="mail", queue=queue)
        cell.pause(None, queue="bulk", type="mail")
        assert [task.queue for task in await claim(cell, 5, queues=("default", "bulk"))] == ["default"]

    async def test_pauses_are_over_at_their_time(self, cell: Cell) -> None:
        add_two(cell)
        await submit(cell, "acme", 2)
        await submit(cell, "globex", 2, type="mail")
        cell.pause("acme", queue="default", until=NOON)
        cell.pause(None, type="mail", until=NOON)
        hour_before = NOON - timedelta(hours=1)
        assert await claim_at(cell, hour_before, batch=9) == []
        await cell.broker.park([], queues=["default"], at=hour_before)
        assert await cell.broker.unpark(at=hour_before) == 0
        assert [cell.slug_of(task.company_id) for task in await claim_at(cell, NOON, batch=9)] == ["acme"] * 2
        assert await cell.broker.unpark(at=NOON) == 2
        assert [cell.slug_of(task.company_id) for task in await claim_at(cell, NOON, batch=9)] == ["globex"] * 2
        assert cell.contradictions() == []

    async def test_what_is_paused_is_cancelled_all_the_same(self, cell: Cell) -> None:  # fault 119
        add_two(cell)
        cell.pause("acme", queue="default")
        (rests,) = await submit(cell, "acme")
        cell.pause("globex", type="mail")
        (aside,) = await submit(cell, "globex", type="mail")
        assert await taken(cell) == {}
        await cell.broker.park([], queues=["default"])
        assert await cell.broker.cancel("acme", rests) is Status.CANCELLED
        assert await cell.broker.cancel("globex", aside) is Status.CANCELLED
        cell.resume("acme", queue="default")
        cell.resume("globex", type="mail")
        await cell.broker.unpark()
        assert await taken(cell) == {}
        assert cell.contradictions() == []


class Hoarder:
    """A company that waits while it has many hands, so that nobody else comes near its share."""

    def __init__(self, cell: Cell, *, hands: int) -> None:
        self._cell = cell
        self._hands = hands

    async def __aenter__(self) -> None:
        self._cell.add_company("hoarder")
        await submit(self._cell, "hoarder", self._hands + 1, queue="hoard")
        self._held = await claim(self._cell, self._hands, queues=("hoard",))

    async def __aexit__(self, *_: object) -> None:
        await self._cell.broker.settle(reports(self._held))


class Finishing:
    """Settle, release, rescue, cancel, retry: who may move a task, and where to."""

    @pytest.mark.parametrize("outcome", [Outcome.COMPLETED, Outcome.FAILED, Outcome.CANCELLED])
    async def test_an_attempt_ends_a_task(self, cell: Cell, outcome: Outcome) -> None:
        cell.add_company("acme")
        (task_id,) = await submit(cell, "acme")
        task = await claim_one(cell)
        report = Report(task, outcome, result='{"sent": [1, null, "é"]}', error="it broke")
        assert await cell.broker.settle([report]) == {task_id}
        assert cell.status(task_id) == outcome.value
        assert cell.result(task_id) == {"sent": [1, None, "é"]}
        assert cell.error(task_id) == "it broke"
        assert kinds(cell, task_id) == ["created", "claimed", outcome.value]

    async def test_a_failed_attempt_is_tried_again_after_its_delay(self, cell: Cell) -> None:
        cell.add_company("acme")
        (task_id,) = ids(await cell.broker.enqueue("acme", new_tasks(), at=NOON))
        for attempt in (1, 2):
            at = NOON + attempt * DAY
            assert (await cell.broker.promote(at=at)).count == attempt - 1
            (task,) = await cell.broker.claim(WORKER, queues=["default"], batch=1, at=at)
            assert task.attempt == attempt
            await cell.broker.settle([Report(task, Outcome.RETRY, error="busy", delay_seconds=60)], at=at)
            assert cell.status(task_id) is Status.SCHEDULED
            assert (await cell.broker.promote(at=at + timedelta(seconds=59))).next_due == at + timedelta(seconds=60)
        assert cell.retries(task_id) == 2
        assert kinds(cell, task_id) == ["created", "claimed", "retried", "claimed", "retried"]

    async def test_seconds_may_be_whole_or_not_in_one_batch(self, cell: Cell) -> None:
        cell.add_company("acme")
        batch = [new_tasks(delay_seconds=delay)[0] for delay in (60, None, 0.5)]
        made = await cell.broker.enqueue("acme", batch, at=NOON)
        assert [task.run_after for task in made] == [NOON + timedelta(seconds=delay) for delay in (60, 0, 0.5)]
        await cell.broker.promote(at=NOON + DAY)
        claimed = await cell.broker.claim(WORKER, queues=["default"], batch=3, at=NOON + DAY)
        ended = [
            Report(task, Outcome.RETRY, delay_seconds=delay) for task, delay in zip(claimed, (60, 0.5, 5), strict=True)
        ]
        assert len(await cell.broker.settle(ended, at=NOON + DAY)) == 3

    async def test_a_deferred_task_waits_for_its_time_without_a_penalty(self, cell: Cell) -> None:
        cell.add_company("acme")
        (task_id,) = ids(await cell.broker.enqueue("acme", new_tasks(), at=NOON))
        for turn in (1, 2):
            at = NOON + turn * DAY
            assert (await cell.broker.promote(at=at)).count == turn - 1
            (task,) = await cell.broker.claim(WORKER, queues=["default"], batch=1, at=at)
            assert (task.attempt, task.rescue_count) == (1, 0)
            report = Report(task, Outcome.DEFERRED, error="the budget is used up", delay_seconds=60)
            assert await cell.broker.settle([report], at=at) == {task_id}
            assert cell.status(task_id) is Status.SCHEDULED
            assert (await cell.broker.promote(at=at + timedelta(seconds=59))).next_due == at + timedelta(seconds=60)
        assert cell.retries(task_id) == 0
        assert kinds(cell, task_id) == ["created", "claimed", "deferred", "claimed", "deferred"]

    async def test_many_reports_are_settled_at_once_each_its_own_way(self, cell: Cell) -> None:
        cell.add_company("a")
        cell.add_company("b")
        await submit(cell, "a", 40)
        await submit(cell, "b", 40)
        claimed = await claim(cell, 80)
        outcomes = [list(Outcome)[place % len(Outcome)] for place in range(80)]
        told = [Report(task, outcome, delay_seconds=60) for task, outcome in zip(claimed, outcomes, strict=True)]
        assert await cell.broker.settle(told) == set(claimed_ids(claimed))
        assert cell.standing() == {"completed": 16, "failed": 16, "cancelled": 16, "scheduled": 32}

    async def test_a_report_counts_once(self, cell: Cell) -> None:
        cell.add_company("acme")
        (task_id,) = await submit(cell, "acme")
        task = await claim_one(cell)
        await cell.broker.settle([Report(task, Outcome.COMPLETED)])
        assert await cell.broker.settle([Report(task, Outcome.FAILED)]) == set()
        assert cell.status(task_id) is Status.COMPLETED

    # Faults 052, 053.
    @pytest.mark.parametrize("outcome", [Outcome.COMPLETED, Outcome.FAILED, Outcome.RETRY, Outcome.DEFERRED])
    @pytest.mark.parametrize("late", [False, True])
    async def test_only_the_latest_claims_report_counts(self, cell: Cell, outcome: Outcome, late: bool) -> None:
        """The same worker loses a task and claims it again while the first attempt still runs."""
        cell.add_company("acme")
        (task_id,) = await submit(cell, "acme")
        first = await claim_one(cell)
        await cell.broker.rescue(WORKER, watched_beat=None, max_rescues=3)
        second = await claim_one(cell)
        assert first.claim_token != second.claim_token
        stale = Report(first, outcome, error="stale", delay_seconds=1)
        good = Report(second, Outcome.COMPLETED, result='"second"')
        order = [good, stale] if late else [stale, good]
        assert [await cell.broker.settle([report]) for report in order] == [
            {task_id} if report is good else set() for report in order
        ]
        assert cell.status(task_id) is Status.COMPLETED
        assert cell.result(task_id) == "second"
        assert kinds(cell, task_id) == ["created", "claimed", "rescued", "claimed", "completed"]

    async def test_lost_reports_do_not_hold_up_the_others(self, cell: Cell) -> None:
        cell.add_company("acme")
        await submit(cell, "acme", 10)
        claimed = await claim(cell, 10)
        for task in claimed[::2]:
            await cell.broker.cancel("acme", task.task_id)
        assert await cell.broker.settle(reports(claimed)) == set(claimed_ids(claimed[1::2]))
        assert cell.standing() == {"completed": 5, "cancelled": 5}

    async def test_released_tasks_wait_where_they_were_without_a_penalty(self, cell: Cell) -> None:
        cell.add_company("acme")
        submitted = await submit(cell, "acme", 5)
        claimed = await claim(cell, 3)
        assert await cell.broker.release(claimed) == set(submitted[:3])
        again = await claim(cell, 5)
        assert claimed_ids(again) == submitted
        assert [task.attempt for task in again] == [1] * 5
        assert [task.run_after for task in again[:3]] == [task.run_after for task in claimed]
        assert kinds(cell, submitted[0]) == ["created", "claimed", "released", "claimed"]

    async def test_a_task_that_is_not_held_any_more_is_not_released(self, cell: Cell) -> None:
        cell.add_company("acme")
        (task_id,) = await submit(cell, "acme")
        first = await claim_one(cell)
        await cell.broker.release([first])
        await claim_one(cell)
        assert await cell.broker.release([first]) == set()
        assert cell.status(task_id) is Status.PROCESSING

    # Fault 057.
    async def test_tasks_of_a_lost_worker_are_rescued(self, cell: Cell) -> None:
        cell.add_company("acme")
        cell.add_lease(WORKER)
        submitted = await submit(cell, "acme", 4)
        await claim(cell, 4)
        beat = cell.beat(WORKER)
        rescued = await cell.broker.rescue(WORKER, watched_beat=beat, max_rescues=3)
        assert sorted(task.task_id for task in rescued) == sorted(submitted)
        assert not any(task.failed for task in rescued)
        again = await claim(cell, 4)
        assert [(task.attempt, task.rescue_count) for task in again] == [(1, 1)] * 4

    # Fault 050.
    async def test_a_worker_that_beat_meanwhile_keeps_its_tasks(self, cell: Cell) -> None:
        cell.add_company("acme")
        cell.add_lease(WORKER, beat=7)
        (task_id,) = await submit(cell, "acme")
        await claim_one(cell)
        cell.beat(WORKER)
        assert await cell.broker.rescue(WORKER, watched_beat=7, max_rescues=3) == []
        assert await cell.broker.rescue(WORKER, watched_beat=None, max_rescues=3) == []
        assert cell.status(task_id) is Status.PROCESSING

    # Fault 060.
    async def test_a_worker_without_a_lease_is_lost(self, cell: Cell) -> None:
        cell.add_company("acme")
        cell.add_lease(WORKER)
        (task_id,) = await submit(cell, "acme")
        await claim_one(cell)
        cell.remove_lease(WORKER)
        assert [task.task_id for task in await cell.broker.rescue(WORKER, watched_beat=None, max_rescues=3)] == [
            task_id
        ]

    async def test_other_workers_tasks_are_not_rescued(self, cell: Cell) -> None:
        cell.add_company("acme")
        await submit(cell, "acme", 2)
        mine, theirs = await claim_one(cell, worker=UUID(int=1)), await claim_one(cell, worker=UUID(int=2))
        rescued = await cell.broker.rescue(UUID(int=1), watched_beat=None, max_rescues=3)
        assert [task.task_id for task in rescued] == [mine.task_id]
        assert cell.status(theirs.task_id) is Status.PROCESSING

    async def test_a_worker_may_be_gone_when_its_lease_is_not_beaten_or_missing(self, cell: Cell) -> None:
        cell.add_company("acme")
        held, missing, idle = UUID(int=1), UUID(int=2), UUID(int=3)
        await submit(cell, "acme", 2)
        cell.add_lease(held)
        cell.add_lease(idle)
        await claim_one(cell, worker=held)
        await claim_one(cell, worker=missing)
        assert set(await cell.broker.overdue(seconds=600)) == {missing}
        later = datetime.now(UTC) + DAY
        assert set(await cell.broker.overdue(seconds=600, at=later)) == {held, missing, idle}

    async def test_an_order_is_read_with_the_next_beat_by_whom_it_names(self, cell: Cell) -> None:
        line = await asyncio.to_thread(cell.broker.lease_line, patience_seconds=5)
        one, two, other = UUID(int=1), UUID(int=2), UUID(int=3)
        for worker, name in ((one, "mail"), (two, "mail"), (other, "other")):
            assert line.take(worker, a_holder(name), former=None).wanted is Wanted.RUN

        def wanted() -> list[Wanted | None]:
            beats = [line.beat(worker, seconds_since_claim=None) for worker in (one, two, other)]
            return [None if beat is None else beat.wanted for beat in beats]

        assert await cell.broker.order(two, Wanted.DRAIN) == Asked(1, 0)
        assert wanted() == [Wanted.RUN, Wanted.DRAIN, Wanted.RUN]
        assert await cell.broker.order("mail", Wanted.RUN) == Asked(2, 0)
        assert wanted() == [Wanted.RUN, Wanted.RUN, Wanted.RUN]
        assert await cell.broker.order(one, Wanted.STOP) == Asked(1, 0)
        assert await cell.broker.order("mail", Wanted.DRAIN) == Asked(1, 1)
        assert wanted() == [Wanted.STOP, Wanted.DRAIN, Wanted.RUN]
        line.remove(two, seconds_since_claim=None)
        assert await cell.broker.order("mail", Wanted.RUN) == Asked(0, 1)
        assert await cell.broker.order("mail", Wanted.STOP) == Asked(1, 0)
        assert await cell.broker.order(two, Wanted.DRAIN) == Asked(0, 0)
        line.close()

    async def test_an_order_stays_with_who_takes_a_new_lease(self, cell: Cell) -> None:
        line = await asyncio.to_thread(cell.broker.lease_line, patience_seconds=5)
        first, second, third = UUID(int=1), UUID(int=2), UUID(int=3)
        line.take(first, a_holder("mail"), former=None)
        await cell.broker.order(first, Wanted.DRAIN)
        assert line.take(second, a_holder("mail"), former=first).wanted is Wanted.DRAIN
        line.remove(second, seconds_since_claim=None)
        assert line.take(third, a_holder("mail"), former=second, wanted=Wanted.DRAIN).wanted is Wanted.DRAIN
        line.close()

    @pytest.mark.parametrize("kind", [Kind.PASS, Kind.CALLER])
    async def test_what_ends_by_itself_takes_no_orders(self, cell: Cell, kind: Kind) -> None:
        line = await asyncio.to_thread(cell.broker.lease_line, patience_seconds=5)
        line.take(WORKER, a_holder("mail", kind=kind), former=None)
        assert await cell.broker.order(WORKER, Wanted.STOP) == Asked(0, 0)
        line.close()

    async def test_an_order_wakes_who_listens(self, cell: Cell) -> None:
        line = await asyncio.to_thread(cell.broker.lease_line, patience_seconds=5)
        line.take(WORKER, a_holder("mail"), former=None)
        async with cell.broker.wakeups() as notices:
            await cell.broker.order("nobody", Wanted.STOP)
            await cell.broker.order("mail", Wanted.DRAIN)
            async with asyncio.timeout(PATIENCE):
                async for told in notices:
                    if told:
                        break
        assert told == {orders.WAKE}
        line.close()

    async def test_a_task_that_keeps_losing_its_workers_fails(self, cell: Cell) -> None:
        cell.add_company("acme")
        (task_id,) = await submit(cell, "acme")
        for rescues in range(4):
            task = await claim_one(cell)
            assert task.rescue_count == rescues
            (rescued,) = await cell.broker.rescue(WORKER, watched_beat=None, max_rescues=3)
            assert rescued.failed is (rescues == 3)
        assert cell.status(task_id) is Status.FAILED
        assert "worker" in (cell.error(task_id) or "")
        assert cell.retries(task_id) == 0
        assert kinds(cell, task_id) == ["created", *["claimed", "rescued"] * 3, "claimed", "failed"]

    # Fault 092.
    async def test_nobody_is_given_up_at_a_loss_that_two_suspects_share(self, cell: Cell) -> None:
        cell.add_company("acme")
        submitted = await submit(cell, "acme", 2)
        for _ in range(5):
            assert set(claimed_ids(await claim(cell, 2))) == set(submitted)
            rescued = await cell.broker.rescue(WORKER, watched_beat=None, max_rescues=3)
            assert not any(task.failed for task in rescued)
        last, first = await claim(cell, 2)
        assert (last.rescue_count, first.rescue_count) == (3, 3)
        await cell.broker.settle([Report(first, Outcome.DEFERRED, delay_seconds=60)])
        beside = (await submit(cell, "acme"))[0]
        await claim_one(cell)
        rescued = await cell.broker.rescue(WORKER, watched_beat=None, max_rescues=3)
        assert {task.task_id: task.failed for task in rescued} == {last.task_id: True, beside: False}
        assert kinds(cell, last.task_id) == ["created", *["claimed", "rescued"] * 5, "claimed", "failed"]

    async def test_rescues_and_retries_have_budgets_of_their_own(self, cell: Cell) -> None:
        cell.add_company("acme")
        (task_id,) = await submit(cell, "acme")
        await claim_one(cell)
        await cell.broker.rescue(WORKER, watched_beat=None, max_rescues=3)
        task = await claim_one(cell)
        await cell.broker.settle([Report(task, Outcome.RETRY, delay_seconds=0)])
        await cell.broker.promote(at=NOON)
        again = await claim_one(cell)
        assert (again.task_id, again.retry_count, again.rescue_count) == (task_id, 1, 1)

    @pytest.mark.parametrize("where", ["scheduled", "pending", "processing"])
    async def test_a_task_is_cancelled_wherever_it_stands(self, cell: Cell, where: str) -> None:
        cell.add_company("acme")
        (task_id,) = await submit(cell, "acme", delay_seconds=60 if where == "scheduled" else None)
        held = await claim(cell) if where == "processing" else []
        assert cell.status(task_id) == where
        assert await cell.broker.cancel("acme", task_id) is Status.CANCELLED
        assert await cell.broker.cancel("acme", task_id) is Status.CANCELLED
        assert await cell.broker.settle(reports(held)) == set()
        assert cell.status(task_id) is Status.CANCELLED
        assert await claim(cell) == []
        assert kinds(cell, task_id) == ["created", *["claimed"] * len(held), "cancelled"]

    @pytest.mark.parametrize("outcome", [Outcome.COMPLETED, Outcome.FAILED])
    async def test_an_end_is_not_overwritten_by_a_cancel(self, cell: Cell, outcome: Outcome) -> None:
        cell.add_company("acme")
        (task_id,) = await submit(cell, "acme")
        await cell.broker.settle([Report(await claim_one(cell), outcome)])
        assert await cell.broker.cancel("acme", task_id) == outcome.value
        assert kinds(cell, task_id) == ["created", "claimed", outcome.value]

    async def test_a_task_is_its_companys_own(self, cell: Cell) -> None:
        cell.add_company("acme")
        cell.add_company("globex")
        (task_id,) = await submit(cell, "acme")
        for company, task in (("globex", task_id), ("nobody", task_id), ("acme", uuid4())):
            assert await cell.broker.cancel(company, task) is None
            assert await cell.broker.retry(company, task) is None
        assert cell.status(task_id) is Status.PENDING

    @pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
    async def test_an_ended_task_is_run_again_by_hand(self, cell: Cell, end: str) -> None:
        cell.add_company("acme")
        (task_id,) = await submit(cell, "acme")
        task = await claim_one(cell)
        await cell.broker.settle([Report(task, Outcome(end), result="1", error="broken")])
        assert await cell.broker.retry("acme", task_id) == end
        assert cell.status(task_id) is Status.PENDING
        assert (cell.result(task_id), cell.error(task_id)) == (None, None)
        again = await claim_one(cell)
        assert (again.task_id, again.attempt, again.rescue_count) == (task_id, 1, 0)
        await cell.broker.settle([Report(again, Outcome.COMPLETED)])
        assert kinds(cell, task_id) == ["created", "claimed", end, "requeued", "claimed", "completed"]

    async def test_a_scheduled_task_is_run_at_once_by_hand(self, cell: Cell) -> None:
        cell.add_company("acme")
        (task_id,) = await submit(cell, "acme", delay_seconds=3600)
        assert await cell.broker.retry("acme", task_id) is Status.SCHEDULED
        assert (await claim_one(cell)).task_id == task_id

    async def test_a_retry_is_refused_only_while_a_task_runs(self, cell: Cell) -> None:
        cell.add_company("acme")
        (task_id,) = await submit(cell, "acme")
        assert await cell.broker.retry("acme", task_id) is Status.PENDING
        task = await claim_one(cell)
        assert await cell.broker.retry("acme", task_id) is Status.PROCESSING
        assert await cell.broker.settle(reports([task])) == {task_id}

    async def test_a_retry_by_many_at_once_is_one_attempt(self, cell: Cell) -> None:
        cell.add_company("acme")
        (task_id,) = await submit(cell, "acme")
        await cell.broker.settle(reports([await claim_one(cell)]))
        answers = await asyncio.gather(*[cell.broker.retry("acme", task_id) for _ in range(20)])
        assert Counter(answers) == {Status.COMPLETED: 1, Status.PENDING: 19}
        assert len(await claim(cell, 5)) == 1
        assert kinds(cell, task_id) == ["created", "claimed", "completed", "requeued", "claimed"]

    # Faults 055, 056.
    async def test_a_task_that_many_want_to_end_ends_once(self, cell: Cell) -> None:
        cell.add_company("acme")
        submitted = await submit(cell, "acme", 300)
        claimed = await claim(cell, 300)
        chance = random.Random(11)
        chance.shuffle(claimed)

        async def settle() -> None:
            for start in range(0, 300, 10):
                await cell.broker.settle(reports(claimed[start : start + 10]))

        async def cancel() -> None:
            for task_id in chance.sample(submitted, 300):
                await cell.broker.cancel("acme", task_id)

        async def rescue() -> None:
            await cell.broker.rescue(WORKER, watched_beat=None, max_rescues=0)

        await asyncio.gather(settle(), cancel(), rescue())
        for task_id in submitted:
            assert len(terminal_moves(cell.history(task_id))) == 1
        assert cell.contradictions() == []


class Upkeep:
    """Promote, prune, heal, and the wake-ups that go with work."""

    async def test_due_tasks_become_pending_in_order_of_their_time(self, cell: Cell) -> None:
        cell.add_company("acme")
        enqueued = await cell.broker.enqueue(
            "acme", [task for delay in (30, 10, 20) for task in new_tasks(delay_seconds=delay)], at=NOON
        )
        promoted = await cell.broker.promote(most=1, at=NOON + timedelta(seconds=25))
        assert (promoted.count, promoted.queues) == (1, ("default",))
        assert cell.status(enqueued[1].task_id) is Status.PENDING
        promoted = await cell.broker.promote(at=NOON + timedelta(seconds=25))
        assert (promoted.count, promoted.next_due) == (1, NOON + timedelta(seconds=30))
        promoted = await cell.broker.promote(at=NOON + timedelta(seconds=30))
        assert (promoted.count, promoted.next_due) == (1, None)
        assert claimed_ids(await claim(cell, 5)) == [enqueued[place].task_id for place in (1, 2, 0)]

    async def test_a_task_is_not_promoted_before_its_time(self, cell: Cell) -> None:
        cell.add_company("acme")
        await cell.broker.enqueue("acme", new_tasks(run_after=NOON + timedelta(microseconds=1)), at=NOON)
        assert (await cell.broker.promote(at=NOON)).count == 0

    async def test_many_promoters_promote_each_task_once(self, cell: Cell) -> None:
        for slug in ("a", "b", "c"):
            cell.add_company(slug)
            await cell.broker.enqueue(slug, new_tasks(60, delay_seconds=1), at=NOON)
        answers = await asyncio.gather(*[cell.broker.promote(most=40, at=NOON + DAY) for _ in range(10)])
        assert sum(promoted.count for promoted in answers) == 180
        assert cell.standing() == {Status.PENDING: 180}
        assert cell.contradictions() == []

    async def test_finished_tasks_are_forgotten_when_they_were_kept_long_enough(self, cell: Cell) -> None:
        cell.add_company("acme")
        submitted = await submit(cell, "acme", 5)
        await cell.broker.release(await claim(cell, 3))
        claimed = await claim(cell, 3)
        for outcome, task in zip(("completed", "failed", "cancelled"), claimed, strict=True):
            await cell.broker.settle([Report(task, Outcome(outcome))], at=NOON)

        async def prune(at: datetime) -> int:
            return (await cell.broker.prune(kept(7 * DAY, 30 * DAY), at=at)).tasks

        assert await prune(NOON + 7 * DAY) == 0
        assert await prune(NOON + 8 * DAY) == 1
        assert [cell.status(task_id) for task_id in submitted[:2]] == [None, Status.FAILED]
        assert await prune(NOON + 365 * DAY) == 2
        assert cell.standing() == {Status.PENDING: 2}
        assert [cell.history(task_id) for task_id in submitted[:3]] == [[], [], []]
        assert cell.contradictions() == []

    async def test_as_many_are_forgotten_at_a_time_as_are_asked_for(self, cell: Cell) -> None:
        cell.add_company("acme")
        await submit(cell, "acme", 10)
        await cell.broker.settle(reports(await claim(cell, 10)), at=NOON)
        counts = [(await cell.broker.prune(kept(DAY), most=4, at=NOON + 2 * DAY)).tasks for _ in range(4)]
        assert counts == [4, 4, 2, 0]

    async def test_expired_keys_are_forgotten(self, cell: Cell) -> None:
        cell.add_company("acme")
        await cell.broker.enqueue("acme", [keyed_task("k")], at=NOON)
        assert (await cell.broker.prune(kept(DAY), at=NOON + DAY / 2)).keys == 0
        assert (await cell.broker.prune(kept(DAY), at=NOON + DAY)).keys == 1
        assert cell.standing() == {Status.PENDING: 1}

    async def test_there_is_nothing_to_heal(self, cell: Cell) -> None:
        for slug in ("a", "b"):
            cell.add_company(slug)
            await submit(cell, slug, 3)
        await claim(cell, 4)
        assert await cell.broker.heal() == 0

    async def test_work_that_comes_up_is_told(self, cell: Cell) -> None:
        cell.add_company("acme")
        async with asyncio.timeout(PATIENCE), cell.broker.wakeups() as wakeups:
            await submit(cell, "acme", queue="one")
            assert await anext(wakeups) == {"one"}
            (task_id,) = ids(await cell.broker.enqueue("acme", new_tasks(queue="two", delay_seconds=60), at=NOON))
            await cell.broker.promote(at=NOON + DAY)
            assert await anext(wakeups) == {"two"}
            held = await claim(cell, queues=("two",))
            await cell.broker.release(held)
            assert await anext(wakeups) == {"two"}
            held = await claim(cell, queues=("two",))
            await cell.broker.rescue(WORKER, watched_beat=None, max_rescues=3)
            assert await anext(wakeups) == {"two"}
            held = await claim(cell, queues=("two",))
            await cell.broker.settle(reports(held))
            await cell.broker.retry("acme", task_id)
            assert await anext(wakeups) == {"two"}

    async def test_a_request_that_is_repeated_wakes_nobody(self, cell: Cell) -> None:
        cell.add_company("acme")
        async with asyncio.timeout(PATIENCE), cell.broker.wakeups() as wakeups:
            await cell.broker.enqueue("acme", [keyed_task("k")])
            assert await anext(wakeups) == {"default"}
            await cell.broker.enqueue("acme", [keyed_task("k")])
            await submit(cell, "acme", queue="two")
            assert await anext(wakeups) == {"two"}

    async def test_moves_of_a_watched_task_are_told_and_of_no_other(self, cell: Cell) -> None:
        company = cell.add_company("acme")
        (watched,) = ids(await cell.broker.enqueue("acme", new_tasks(delay_seconds=60), at=NOON))
        await submit(cell, "acme", 3, queue="other")
        async with asyncio.timeout(PATIENCE), cell.broker.changes() as changes:
            await cell.broker.watch(company, watched, seconds=60)
            await claim(cell, 1, queues=("other",))
            await cell.broker.promote(at=NOON + DAY)
            assert await anext(changes) == {watched}
            held = await claim(cell)
            assert await anext(changes) == {watched}
            await cell.broker.release(held)
            assert await anext(changes) == {watched}
            held = await claim(cell)
            assert await anext(changes) == {watched}
            await cell.broker.settle([*reports(await claim(cell, queues=("other",))), *reports(held)])
            assert await anext(changes) == {watched}
            await cell.broker.retry("acme", watched)
            assert await anext(changes) == {watched}
            await claim(cell)
            assert await anext(changes) == {watched}
            await cell.broker.rescue(WORKER, watched_beat=None, max_rescues=3)
            assert await anext(changes) == {watched}
            await cell.broker.cancel("acme", watched)
            assert await anext(changes) == {watched}

    async def test_a_task_that_somebody_watches_longer_is_told_of_longer(self, cell: Cell) -> None:
        company = cell.add_company("acme")
        (task_id,) = await submit(cell, "acme")
        async with asyncio.timeout(PATIENCE), cell.broker.changes() as changes:
            await cell.broker.watch(company, task_id, seconds=60)
            await cell.broker.watch(company, task_id, seconds=0)
            await claim(cell)
            assert await anext(changes) == {task_id}

    async def test_a_move_that_a_read_after_the_watch_does_not_see_is_told(self, cell: Cell) -> None:
        company = cell.add_company("acme")
        async with asyncio.timeout(PATIENCE), cell.broker.changes() as changes:
            for _ in range(30):
                (task_id,) = await submit(cell, "acme")
                moving = asyncio.gather(claim(cell), cell.broker.cancel("acme", task_id))
                await cell.broker.watch(company, task_id, seconds=60)
                while cell.status(task_id) is not Status.CANCELLED:
                    assert await anext(changes), "the move was not told"
                await moving


class Wandering:
    """Whatever is done, in whatever order and at the same time, leaves a cell that agrees with itself."""

    @settings(max_examples=examples(12), deadline=None, suppress_health_check=SHARED)
    @given(st.lists(st.lists(st.sampled_from(MOVES), min_size=1, max_size=12), max_size=12), st.integers(0, 10_000))
    async def test_nothing_contradicts_itself(self, cell: Cell, rounds: list[list[Move]], seed: int) -> None:
        cell.clear()
        walk = Walk(cell, random.Random(seed))
        for slug in walk.slugs:
            cell.add_company(slug)
        for moves in rounds:
            await asyncio.gather(*[move(walk) for move in moves])
            assert cell.contradictions() == []
        for task_id in walk.submitted:
            assert ends_once(kinds(cell, task_id))


def ends_once(kinds: Sequence[str]) -> bool:
    """Whether nothing follows an end but a new attempt by hand."""
    return all(
        kind not in {"completed", "failed", "cancelled"} or following == "requeued"
        for kind, following in pairwise(kinds)
    )


class Contract(Submitting, Queueing, TakingTurns, Pausing, Finishing, Upkeep, Wandering, Statuses):
    """All that a broker keeps."""
