"""What charts show. A chart is a table that a script draws: without the script, and for whoever asks, it stays one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal
from uuid import UUID

from taketurns.dashboard.refusals import Refusal
from taketurns.dashboard.rendering import colour
from taketurns.dashboard.visits import Visit
from taketurns.history import series
from taketurns.history.series import EVERYBODY, SPANS, Series, Span, Sum

SHARED_BY: Final = 8


@dataclass(frozen=True, slots=True)
class Line:
    """Values by step; None where there is nothing to tell. `look` is the class of its colour."""

    name: str
    look: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over time, drawn apart or `stacked`; `unit` is what its values are."""

    title: str
    unit: Literal["count", "seconds", "share"]
    starts: Sequence[datetime]
    lines: Sequence[Line]
    stacked: bool = False
    note: str = ""

    @property
    def is_empty(self) -> bool:
        return not any(value for line in self.lines for value in line.values)


def span_of(visit: Visit, begun: datetime | None) -> Span:
    """The window that the address asks for, or one that suits what has begun then. Raises Refusal."""
    name = visit.request.query_params.get("span")
    if name is None:
        return series.suiting(begun)
    if name not in SPANS:
        raise Refusal(400, "There is no such window", f"Choose one of {', '.join(SPANS)}.")
    return SPANS[name]


def outcomes(starts: Sequence[datetime], steps: Sequence[Sum]) -> Chart:
    """How attempts ended."""
    return Chart(
        "Attempts that ended",
        "count",
        starts,
        [
            Line("completed", "completed", [step.completed for step in steps]),
            Line("tried again", "retried", [step.retried for step in steps]),
            Line("failed", "failed", [step.failed for step in steps]),
        ],
        stacked=True,
    )


def waits(starts: Sequence[datetime], steps: Sequence[Sum]) -> Chart:
    """How long tasks waited for their turn."""
    return Chart(
        "Wait for a turn",
        "seconds",
        starts,
        [
            Line("half of them at most", "median", [step.wait_seconds(0.5) for step in steps]),
            Line("95 of 100 at most", "high", [step.wait_seconds(0.95) for step in steps]),
        ],
    )


def shares(told: Series, slugs: Mapping[UUID, str]) -> Chart:
    """How many attempts were whose: of the companies that had most, and of all others."""
    top = told.companies[:SHARED_BY]
    lines = [
        Line(slugs.get(company_id, "deleted"), colour(slugs.get(company_id, "deleted")), _attempts(told.of(company_id)))
        for company_id in top
    ]
    pairs = zip(told.of(EVERYBODY), told.together(top), strict=True)
    others = _attempts([everybody.without(some) for everybody, some in pairs])
    if any(others):
        lines.append(Line("all others", "others", others))
    return Chart("Attempts by company", "count", told.starts, lines, stacked=True)


def _attempts(steps: Sequence[Sum]) -> list[float | None]:
    return [step.attempts for step in steps]
