"""What attempts came to over time, for charts: from roll-ups, in steps. See series.sql and busiest.sql."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib import resources
from itertools import zip_longest
from math import ceil
from typing import Final
from uuid import UUID

from sqlalchemy import func, select

from taketurns.engine import waits
from taketurns.storage.database import Database
from taketurns.storage.models import Rollup

STATEMENT_MILLISECONDS: Final = 2_000
EVERYBODY: Final = UUID(int=0)
TOLD_MOST: Final = 12
OF_EACH_PERIOD: Final = 8
STEPS_LEAST: Final = 12

_QUERY: Final = resources.files("taketurns.history").joinpath("series.sql").read_bytes()
_BUSIEST: Final = resources.files("taketurns.history").joinpath("busiest.sql").read_bytes()


@dataclass(frozen=True, slots=True)
class Span:
    """A window and the steps that it is told in."""

    name: str
    window: timedelta
    step: timedelta

    @property
    def seconds(self) -> int:
        """Of the roll-ups that it is made of."""
        return next(seconds for seconds in (3600, 60, 10) if timedelta(seconds=seconds) <= self.step)


SPANS: Final = {
    span.name: span
    for span in (
        Span("15m", timedelta(minutes=15), timedelta(seconds=10)),
        Span("1h", timedelta(hours=1), timedelta(minutes=1)),
        Span("24h", timedelta(hours=24), timedelta(hours=1)),
        Span("7d", timedelta(days=7), timedelta(hours=3)),
    )
}


@dataclass(slots=True)
class Sum:
    """Attempts and their waits by bucket; waits of a second run of a task count as that."""

    completed: int = 0
    retried: int = 0
    failed: int = 0
    waits: list[int] = field(default_factory=list)

    def add(self, other: Sum) -> None:
        self.completed += other.completed
        self.retried += other.retried
        self.failed += other.failed
        self.waits += [0] * (len(other.waits) - len(self.waits))
        for bucket, count in enumerate(other.waits):
            self.waits[bucket] += count

    def without(self, other: Sum) -> Sum:
        """What is left of it; where the other was told of more, that is nothing."""
        waits = [count - taken for count, taken in zip_longest(self.waits, other.waits, fillvalue=0)]
        return Sum(
            max(self.completed - other.completed, 0),
            max(self.retried - other.retried, 0),
            max(self.failed - other.failed, 0),
            [max(count, 0) for count in waits],
        )

    @property
    def attempts(self) -> int:
        return self.completed + self.retried + self.failed

    def wait_seconds(self, share: float) -> float | None:
        """The wait that this share of the attempts did not exceed."""
        return waits.quantile(self.waits, share)


@dataclass(frozen=True, slots=True)
class Busiest:
    """Companies that a window is told of: `most` had most attempts, `failing` most that failed."""

    most: list[UUID]
    failing: list[UUID]


@dataclass(frozen=True, slots=True)
class Series:
    """By company and step: what is missing is nothing. `starts` are the beginnings of all steps, the oldest first,
    `read_at` is when it was read, and before `begun_at` nothing is known."""

    span: Span
    starts: Sequence[datetime]
    sums: dict[UUID, dict[datetime, Sum]]
    read_at: datetime
    begun_at: datetime | None = None

    @property
    def companies(self) -> list[UUID]:
        """Those that had attempts, the busiest first."""
        named = [company_id for company_id in self.sums if company_id != EVERYBODY]
        return sorted(named, key=lambda company_id: self.total(company_id).attempts, reverse=True)

    @property
    def seconds(self) -> float:
        """How long it lasts, of what is known."""
        since = max(self.starts[0], self.begun_at or self.starts[0])
        return max((self.read_at - since).total_seconds(), 1.0)

    def of(self, company_id: UUID) -> list[Sum]:
        """A company's steps, every one of them."""
        known = self.sums.get(company_id, {})
        return [known.get(start, Sum()) for start in self.starts]

    def together(self, company_ids: Iterable[UUID]) -> list[Sum]:
        steps = {start: Sum() for start in self.starts}
        for company_id in company_ids:
            for start, told in self.sums.get(company_id, {}).items():
                steps[start].add(told)
        return list(steps.values())

    def total(self, company_id: UUID) -> Sum:
        """The whole window of a company."""
        return added(self.sums.get(company_id, {}).values())


async def begun_at(database: Database) -> datetime | None:
    """The beginning of the first period that is still known of."""
    firsts = [
        select(Rollup.starts_at).where(Rollup.seconds == seconds).order_by(Rollup.starts_at).limit(1).scalar_subquery()
        for seconds in (10, 60, 3600)
    ]
    ((begun,),) = await database.fetch(select(func.least(*firsts)))
    return None if begun is None else begun.astimezone(UTC)


def suiting(begun: datetime | None) -> Span:
    """The window in which something is seen of what there is: an hour, or less where there is less."""
    age = datetime.now(UTC) - (begun or datetime.min.replace(tzinfo=UTC))
    return SPANS["15m"] if age <= SPANS["15m"].window else SPANS["1h"]


async def busiest(database: Database, span: Span) -> Busiest:
    """Who had most attempts in the window up to now, and whose failed most. Raises Unavailable."""
    parameters = {
        "window": span.window,
        "seconds": max(span.seconds, 60),
        "each": OF_EACH_PERIOD,
        "most": TOLD_MOST,
        "everybody": EVERYBODY,
    }
    rows = await database.run(_BUSIEST, parameters, settings=_settings(database))
    return Busiest(
        [company_id for company_id, is_failing in rows if not is_failing],
        [company_id for company_id, is_failing in rows if is_failing],
    )


async def read(database: Database, span: Span, company_ids: Iterable[UUID], *, begun: datetime | None = None) -> Series:
    """The window up to now, of these companies, where `EVERYBODY` is all of them together. Raises Unavailable.

    Where nothing is known before `begun`, it begins there.
    """
    parameters = {
        "step": span.step,
        "window": span.window,
        "seconds": span.seconds,
        "companies": list(dict.fromkeys(company_ids)),
        "everybody": EVERYBODY,
    }
    rows = await database.run(_QUERY, parameters, settings=_settings(database))
    now = datetime.now(UTC)
    starts = list(_starts(span, now, begun))
    sums: dict[UUID, dict[datetime, Sum]] = {}
    for company_id, at, completed, retried, failed, counts in rows:
        start = at.astimezone(UTC)
        if starts[0] <= start <= starts[-1]:
            sums.setdefault(company_id, {})[start] = Sum(completed, retried, failed, list(counts))
    return Series(span, starts, sums, now, begun)


def added(sums: Iterable[Sum]) -> Sum:
    """All of them in one."""
    total = Sum()
    for one in sums:
        total.add(one)
    return total


def _settings(database: Database) -> dict[str, str]:
    return {
        "search_path": f'"{database.schema}"',
        "statement_timeout": str(STATEMENT_MILLISECONDS),
        "enable_seqscan": "off",
        "enable_bitmapscan": "off",
        "jit": "off",
    }


def _starts(span: Span, now: datetime, begun: datetime | None) -> Iterator[datetime]:
    """The beginnings of the steps that a window has, the one under way the last."""
    seconds = span.step.total_seconds()
    last = datetime.fromtimestamp(now.timestamp() // seconds * seconds, UTC)
    steps = round(span.window / span.step)
    if begun is not None:
        steps = min(steps, max(ceil((last - begun) / span.step), STEPS_LEAST))
    for number in range(steps, -1, -1):
        yield last - number * span.step
