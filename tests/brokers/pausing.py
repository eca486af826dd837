"""A walk with pauses of every kind, for both brokers: what is submitted, paused and resumed, and what each claim finds.

What is paused is judged by a record of what was set, not by the broker, and the order of tasks by when they came.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Generic, Protocol, TypeVar
from uuid import UUID

from hypothesis import example
from hypothesis import strategies as st

from taketurns.engine import turns
from taketurns.engine.rate import Rate
from taketurns.engine.task import ClaimedTask, NewTask
from tests.brokers.cell import Cell, ids, reports

QUEUES: Final = ("bulk", "default")
TYPES: Final = ("work", "mail")
WORKER: Final = UUID(int=1)
HOUR: Final = 3_600_000_000

Paused = tuple[UUID | None, str, str]
Limits = tuple[dict[str, Any], Rate | None]


class Pauses:
    """What was paused: by company, queue and type; no company is all, an empty queue or type is any."""

    def __init__(self) -> None:
        self._untils: dict[Paused, datetime | None] = {}

    def __iter__(self) -> Iterator[Paused]:
        return iter(self._untils)

    def put(self, paused: Paused, until: datetime | None) -> None:
        self._untils[paused] = until

    def lift(self, paused: Paused) -> None:
        self._untils.pop(paused, None)

    def bring_forward(self, time: timedelta) -> None:
        """Let all of them end so much earlier."""
        self._untils = {paused: until and until - time for paused, until in self._untils.items()}

    def have_queue(self, company: UUID | None, queue: str, at: datetime | None) -> bool:
        """Whether the queue is paused for this company by itself, or, of None, for all."""
        return self._stand((company, queue, ""), at)

    def have_type(self, company: UUID, queue: str, type: str, at: datetime | None) -> bool:
        return any(self._stand((owner, of, type), at) for owner in (None, company) for of in ("", queue))

    def of(self, company: UUID | None) -> dict[Paused, datetime | None]:
        return {paused: until for paused, until in self._untils.items() if paused[0] == company}

    def _stand(self, paused: Paused, at: datetime | None) -> bool:
        if paused not in self._untils:
            return False
        until = self._untils[paused]
        return until is None or until > (at or datetime.now(UTC))


def put_line(
    rotation: turns.Rotation, company: str, queue: str, types: Mapping[str, int], pauses: Pauses, at: datetime | None
) -> None:
    """Tell the rule of a line: how many of each type stand in it that are not set aside."""
    able = sum(count for type, count in types.items() if not pauses.have_type(UUID(company), queue, type, at))
    rotation.waiting[company] = able
    if able < sum(types.values()):
        rotation.blocked |= {company}


@dataclass(frozen=True, slots=True)
class Submission:
    """Tasks of these types, together; companies go by their number."""

    company: int
    types: Sequence[str]
    queue: str = "default"
    priority: int = 5


@dataclass(frozen=True, slots=True)
class Pause:
    company: int | None
    queue: str = ""
    type: str = ""
    hours: int | None = None


@dataclass(frozen=True, slots=True)
class Resume:
    """Lift a pause that was put; one that is over counts as one that was."""

    number: int


@dataclass(frozen=True, slots=True)
class PauseCompany:
    company: int
    paused: bool


@dataclass(frozen=True, slots=True)
class Step:
    """What comes before a claim, and of those that run which end after it: none, or every so many."""

    submissions: Sequence[Submission] = ()
    changes: Sequence[Pause | Resume | PauseCompany] = ()
    batch: int = 10
    queues: Sequence[str] = QUEUES
    passes: int = 0
    has_upkeep: bool = True
    ends: int = 0


class PausedCell(Cell, Protocol):
    """A cell of which a walk can tell what its next claim finds."""

    @property
    def pauses(self) -> Pauses: ...

    def lines(self) -> Mapping[tuple[str, UUID], Mapping[UUID, str]]:
        """The tasks of each line by queue and company, with their types; `!type!queue` is what was set aside."""
        ...

    def noted_lines(self, queues: Sequence[str]) -> set[tuple[str, UUID]]:
        """The lines that upkeep looks at for tasks to set aside."""
        ...

    def pass_time(self, microseconds: int) -> datetime:
        """Let so much time pass; answers the moment that it is then."""
        ...


C = TypeVar("C", bound=PausedCell)
Test = TypeVar("Test", bound=Callable[..., Awaitable[None]])

weights = st.one_of(st.integers(1, 5), st.sampled_from([1, 100]))
limited = st.tuples(
    st.fixed_dictionaries({"weight": weights, "max_in_flight": st.none() | st.integers(1, 4)}),
    st.none() | st.builds(Rate, st.integers(1, 7), st.integers(1, 3), st.integers(1, 4)),
)
free = st.tuples(st.fixed_dictionaries({"weight": weights}), st.none())
companies = st.builds(lambda first, others: [first, *others], free, st.lists(limited | free, max_size=4))
"""The first has no limits: there is always one that only a pause keeps from its turn."""

numbers = st.integers(0, 4)
some_company = st.one_of(numbers, numbers, st.none())
untils = st.none() | st.sampled_from([1, 2])
type_pauses = st.builds(Pause, some_company, st.sampled_from(["", *QUEUES]), st.sampled_from(TYPES), untils)
queue_pauses = st.builds(Pause, some_company, st.sampled_from(QUEUES), hours=untils)
changes = st.one_of(
    type_pauses,
    type_pauses,
    type_pauses,
    st.builds(Resume, st.integers(0, 9)),
    st.builds(Resume, st.integers(0, 9)),
    queue_pauses | st.builds(PauseCompany, numbers, st.booleans()),
)
submissions = st.builds(
    Submission,
    numbers,
    st.lists(st.sampled_from(TYPES), min_size=1, max_size=5),
    st.sampled_from(QUEUES),
    st.sampled_from([0, 5, 5]),
)
steps = st.lists(
    st.builds(
        Step,
        st.lists(submissions, min_size=1, max_size=8),
        st.lists(changes, max_size=3),
        st.sampled_from([10, 10, 1, 3, 30]),
        st.sampled_from([QUEUES, QUEUES[::-1], ["default"], ["bulk"]]),
        st.sampled_from([0, 1, 333_333, 1_000_000, HOUR]),
        st.booleans(),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=8,
)


BESIDE: Final = Pause(1, "bulk", "work")


def story(pause: Pause) -> list[Step]:
    """Two companies with both types in both queues; a pause stands, is over or resumed, and all is taken.

    One that will be over is there before the tasks, and another beside it, so that somebody is paused still.
    """
    submitted = [Submission(company, ["mail", "work"] * 2, queue) for company in (0, 1) for queue in QUEUES]
    return [
        *([] if pause.hours is None else [Step([], [pause, BESIDE])]),
        Step(submitted, [pause] if pause.hours is None else [], queues=QUEUES[::-1], has_upkeep=False),
        Step(submitted, ends=1),
        Step([], ends=2),
        Step(submitted, passes=HOUR, ends=1),
        Step([], [Resume(0)], batch=30),
    ]


STORIES: Final = [
    story(Pause(company, queue, type, hours))
    for company in (0, None)
    for queue, type in (("", "mail"), ("default", ""), ("default", "mail"))
    for hours in (None, 1)
]
TWO: Final[list[Limits]] = [({"weight": 1}, None), ({"weight": 2}, None)]


def with_stories(test: Test) -> Test:
    for steps in STORIES:
        test = example(TWO, steps)(test)
    return test


class PausedWalk(Generic[C]):
    """Takes the steps; fails where a claim, or upkeep, does what neither the rule nor the pauses say.

    `claim_as_told` claims, and compares with what the rule says of the state that the claim finds.
    """

    def __init__(
        self,
        cell: C,
        companies: Sequence[Limits],
        claim_as_told: Callable[[C, int, Sequence[str], datetime], Awaitable[Sequence[ClaimedTask]]],
    ) -> None:
        self._cell = cell
        self._claim_as_told = claim_as_told
        self._names = [chr(ord("a") + number) for number in range(len(companies))]
        self._came: dict[UUID, tuple[int, int]] = {}
        self._running: list[ClaimedTask] = []
        cell.clear()
        cell.add_lease(WORKER, types=TYPES)
        for name, (options, rate) in zip(self._names, companies, strict=True):
            cell.add_company(name, **options)
            cell.set_rate(name, rate)

    async def take(self, steps: Sequence[Step]) -> None:
        for step in steps:
            await self._take(step)
            assert self._cell.contradictions() == []

    async def _take(self, step: Step) -> None:
        for submission in step.submissions:
            await self._submit(submission)
        now = self._cell.pass_time(step.passes)
        for change in step.changes:
            self._change(change, now)
        if step.has_upkeep:
            await self._keep_up(now)
        able = self._able(now)
        taken = await self._claim_as_told(self._cell, step.batch, step.queues, now)
        for task in taken:
            assert task.task_id == next(able[task.queue, task.company_id])
        self._running += taken
        ended = self._running[:: step.ends] if step.ends else []
        await self._cell.broker.settle(reports(ended))
        self._running = [task for task in self._running if task not in ended]

    async def _submit(self, submission: Submission) -> None:
        tasks = [
            NewTask(type=type, payload="{}", queue=submission.queue, priority=submission.priority)
            for type in submission.types
        ]
        for task_id in ids(await self._cell.broker.enqueue(self._name(submission.company), tasks)):
            self._came[task_id] = (submission.priority, len(self._came))

    def _name(self, number: int) -> str:
        return self._names[number % len(self._names)]

    def _change(self, change: Pause | Resume | PauseCompany, now: datetime) -> None:
        match change:
            case Pause(company, queue, type, hours):
                name = None if company is None else self._name(company)
                until = None if hours is None else now + hours * timedelta(hours=1)
                self._cell.pause(name, queue=queue, type=type, until=until)
            case Resume(number):
                if standing := list(self._cell.pauses):
                    owner, queue, type = standing[number % len(standing)]
                    self._cell.resume(None if owner is None else self._cell.slug_of(owner), queue=queue, type=type)
            case PauseCompany(number, paused):
                self._cell.set_paused(self._name(number), paused)

    async def _keep_up(self, now: datetime) -> None:
        """Set aside and give back, and see that what stands where is what should."""
        noted, before = self._cell.noted_lines(QUEUES), self._cell.lines()
        while await self._cell.broker.park([], queues=QUEUES, at=now):
            pass
        for (line, company), tasks in self._cell.lines().items():
            if line.startswith("!") and tasks.keys() - before.get((line, company), {}):
                _, type, queue = line.split("!")
                assert self._is_paused(company, queue, type, now), f"{line} was set aside though it is not paused"
        while await self._cell.broker.unpark(most=5, at=now):
            pass
        lines = self._cell.lines()
        for (line, company), tasks in lines.items():
            if line.startswith("!"):
                _, type, queue = line.split("!")
                assert self._is_paused(company, queue, type, now), f"{line} stays aside though it is not paused"
            elif (line, company) in noted:
                head = min(tasks, key=self._came.__getitem__)
                assert not self._is_paused(company, line, tasks[head], now), f"{line} begins with what is paused"

    def _is_paused(self, company: UUID, queue: str, type: str, now: datetime) -> bool:
        return self._cell.pauses.have_type(company, queue, type, now)

    def _able(self, now: datetime) -> dict[tuple[str, UUID], Iterator[UUID]]:
        """What may be done of each line, in the order in which it came."""
        return {
            (queue, company): iter(
                sorted(
                    (task_id for task_id, type in tasks.items() if not self._is_paused(company, queue, type, now)),
                    key=self._came.__getitem__,
                )
            )
            for (queue, company), tasks in self._cell.lines().items()
        }
