"""Quotas: how many tasks a company may submit in an hour, a day and a month of UTC."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class Period(StrEnum):
    """What a quota is for. Periods are those of the UTC calendar."""

    HOUR = "hour"
    DAY = "day"
    MONTH = "month"


@dataclass(frozen=True, slots=True)
class Quotas:
    """How many tasks a company may submit in each period: None is no limit, 0 is nothing."""

    hour: int | None = None
    day: int | None = None
    month: int | None = None


@dataclass(frozen=True, slots=True)
class Allowance:
    """A company's current period: what was reserved in it, what of that was given back, and what may be used.

    `seconds_left` is the time to `ends_at` on the clock that decides.
    """

    period: Period
    starts_at: datetime
    ends_at: datetime
    seconds_left: float
    quota: int | None
    reserved: int
    refunded: int

    @property
    def used(self) -> int:
        return self.reserved - self.refunded

    @property
    def remaining(self) -> int | None:
        """What may still be submitted; None without a quota. A quota that was lowered below the use leaves nothing."""
        return None if self.quota is None else max(self.quota - self.used, 0)


def exceeded(allowances: Sequence[Allowance], wanted: int) -> list[Allowance]:
    """Those that have no room for so many tasks, the longest wait last."""
    full = [one for one in allowances if one.remaining is not None and one.remaining < wanted]
    return sorted(full, key=lambda one: one.seconds_left)
