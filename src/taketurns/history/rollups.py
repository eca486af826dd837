"""What companies' attempts came to, in periods of 10 s and of 1 min that survive restarts.

Each worker adds up what it settled and tells it in one statement every 10 s, outside of what it settles: a worker that
is killed loses at most the 10 s that it had not told, and an answer that is lost is told twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, Literal
from uuid import UUID

from taketurns import telemetry
from taketurns.engine import waits
from taketurns.engine.task import Outcome, Report
from taketurns.storage.database import Database

Lane = Literal["tasks", "jobs"]

TELL_SECONDS: Final = 10.0
ROLL_UP_SECONDS: Final = 30.0
KEEP_TENS: Final = timedelta(hours=1)
KEEP_MINUTES: Final = timedelta(days=7)
MOST: Final = 5_000
NOISY_TASKS: Final = 100

_NO_ATTEMPTS: Final = frozenset({Outcome.DEFERRED, Outcome.CANCELLED})


@dataclass(slots=True)
class Counts:
    """Attempts of one company. `waits` are counted by bucket, and `waited_seconds` is their sum."""

    completed: int = 0
    retried: int = 0
    failed: int = 0
    waits: list[int] = field(default_factory=list)
    waited_seconds: float = 0.0

    def add(self, report: Report) -> None:
        task = report.task
        match report.outcome:
            case Outcome.COMPLETED:
                self.completed += 1
            case Outcome.RETRY:
                self.retried += 1
            case Outcome.FAILED:
                self.failed += 1
        if not task.rescue_count:  # the time that a lost worker had it was no wait
            seconds = waits.seconds(claimed_at=task.claimed_at, run_after=task.run_after, created_at=task.created_at)
            bucket = waits.bucket(seconds)
            self.waits += [0] * (bucket + 1 - len(self.waits))
            self.waits[bucket] += 1
            self.waited_seconds += seconds

    def add_all(self, others: Counts) -> None:
        self.completed += others.completed
        self.retried += others.retried
        self.failed += others.failed
        self.waits += [0] * (len(others.waits) - len(self.waits))
        for bucket, count in enumerate(others.waits):
            self.waits[bucket] += count
        self.waited_seconds += others.waited_seconds


class Attempts:
    """A duty: tells what this worker settled. What cannot be told is told the next time."""

    name = "attempts"

    def __init__(self, database: Database, *, lane: Lane = "tasks", every_seconds: float = TELL_SECONDS) -> None:
        self._database = database
        self._lane = lane
        self._every_seconds = every_seconds
        self._counts: dict[UUID, Counts] = {}

    def add(self, reports: Iterable[Report]) -> None:
        """Count attempts that were settled. One that was put off, or whose task was cancelled, is none."""
        ended: defaultdict[int, list[Report]] = defaultdict(list)  # by the number of an id, which costs no call to find
        for report in reports:
            if report.outcome not in _NO_ATTEMPTS:
                ended[report.task.company_id.int].append(report)
        for of_company in ended.values():
            counts = self._of(of_company[0].task.company_id)
            for report in of_company:
                counts.add(report)

    async def step(self) -> float:
        counts, self._counts = self._counts, {}
        if counts:
            try:
                await self._tell(counts)
            except BaseException:
                for company_id, untold in counts.items():
                    self._of(company_id).add_all(untold)
                raise
        return self._every_seconds

    def _of(self, company_id: UUID) -> Counts:
        return self._counts.setdefault(company_id, Counts())

    async def _tell(self, counts: Mapping[UUID, Counts]) -> None:
        rows = await self._database.call(
            "tell_attempts",
            self._lane,
            list(counts),
            [of.completed for of in counts.values()],
            [of.retried for of in counts.values()],
            [of.failed for of in counts.values()],
            [f"{{{','.join(map(str, of.waits))}}}" for of in counts.values()],
            NOISY_TASKS,
        )
        if self._lane == "tasks":
            for company_id, is_noisy in rows:
                of = counts[company_id]
                telemetry.TASK_WAITS.add("noisy" if is_noisy else "quiet", of.waits, of.waited_seconds)


class RollUp:
    """A duty: makes minutes of what workers told, and forgets what was kept long enough."""

    name = "roll up"

    def __init__(self, database: Database, *, every_seconds: float = ROLL_UP_SECONDS) -> None:
        self._database = database
        self._every_seconds = every_seconds

    async def step(self) -> float:
        ((has_more,),) = await self._database.call("roll_up", KEEP_TENS, KEEP_MINUTES, MOST)
        return 0.0 if has_more else self._every_seconds
