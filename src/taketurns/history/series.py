"""What attempts came to over time, for charts: from roll-ups, in steps. See series.sql."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib import resources
from typing import Final
from uuid import UUID

from taketurns.engine import waits
from taketurns.storage.database import Database

STATEMENT_MILLISECONDS: Final = 2_000

_QUERY: Final = resources.files("taketurns.history").joinpath("series.sql").read_bytes()


@dataclass(frozen=True, slots=True)
class Span:
    """A window and the steps that it is told in."""

    name: str
    window: timedelta
    step: timedelta

    @property
    def seconds(self) -> int:
        """Of the roll-ups that it is made of."""
        return 10 if self.step < timedelta(minutes=1) else 60


SPANS: Final = {
    span.name: span
    for span in (
        Span("15m", timedelta(minutes=15), timedelta(seconds=10)),
        Span("1h", timedelta(hours=1), timedelta(minutes=1)),
        Span("6h", timedelta(hours=6), timedelta(minutes=5)),
        Span("24h", timedelta(hours=24), timedelta(minutes=20)),
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

    @property
    def attempts(self) -> int:
        return self.completed + self.retried + self.failed

    def wait_seconds(self, share: float) -> float | None:
        """The wait that this share of the attempts did not exceed."""
        return waits.quantile(self.waits, share)


@dataclass(frozen=True, slots=True)
class Series:
    """By company and step: what is missing is nothing. `starts` are the beginnings of all steps, the oldest first."""

    span: Span
    starts: Sequence[datetime]
    sums: dict[UUID, dict[datetime, Sum]]

    def of(self, company_id: UUID) -> list[Sum]:
        """A company's steps, every one of them."""
        known = self.sums.get(company_id, {})
        return [known.get(start, Sum()) for start in self.starts]

    def of_all(self) -> list[Sum]:
        """The steps of all companies together."""
        return self.together(self.sums)

    def together(self, company_ids: Iterable[UUID]) -> list[Sum]:
        steps = {start: Sum() for start in self.starts}
        for company_id in company_ids:
            for start, told in self.sums.get(company_id, {}).items():
                steps[start].add(told)
        return list(steps.values())

    def total(self, company_id: UUID) -> Sum:
        """The whole window of a company."""
        return added(self.sums.get(company_id, {}).values())


async def read(database: Database, span: Span, company_ids: Sequence[UUID] | None = None) -> Series:
    """The window up to now, of these companies or of every one. Raises Unavailable."""
    parameters = {
        "step": span.step,
        "window": span.window,
        "seconds": span.seconds,
        "companies": None if company_ids is None else list(company_ids),
    }
    settings = {
        "search_path": f'"{database.schema}"',
        "statement_timeout": str(STATEMENT_MILLISECONDS),
        "enable_seqscan": "off",
        "jit": "off",
    }
    rows = await database.run(_QUERY, parameters, settings=settings)
    starts = list(_starts(span, datetime.now(UTC)))
    sums: dict[UUID, dict[datetime, Sum]] = {}
    for company_id, at, completed, retried, failed, counts in rows:
        start = at.astimezone(UTC)
        if starts[0] <= start <= starts[-1]:
            sums.setdefault(company_id, {})[start] = Sum(completed, retried, failed, list(counts))
    return Series(span, starts, sums)


def added(sums: Iterable[Sum]) -> Sum:
    """All of them in one."""
    total = Sum()
    for one in sums:
        total.add(one)
    return total


def _starts(span: Span, now: datetime) -> Iterator[datetime]:
    """The beginnings of the steps that a window has, the one under way the last."""
    seconds = span.step.total_seconds()
    last = datetime.fromtimestamp(now.timestamp() // seconds * seconds, UTC)
    steps = round(span.window / span.step)
    for number in range(steps, -1, -1):
        yield last - number * span.step
