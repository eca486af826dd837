"""Rates: how many tasks of a company may start in a time, decided where turns are taken. What holds for starts holds
for requests too, which API processes count (`companies/throttle.py`).

A bucket holds up to `burst` starts and is filled with `tasks` in each period of `seconds`, evenly. Every claim of a
task takes one out, a retry's and a rescue's too, for a rate protects what a company's tasks call; what is claimed and
given back unstarted is not put back. So in any time t there are at most burst + t × tasks / seconds starts.

Exact, for all numbers are whole: one start is `seconds` × 1,000,000 units of what the bucket owes, and each microsecond
gives `tasks` of them back. With the bounds in `limits` they stay below 2^53. A changed rate counts from the last start
on; whole starts that are owed stay owed. This is the rule as a plain model; `rate.sql` and `rate.lua` are held to it.
"""

from __future__ import annotations

from dataclasses import dataclass

MICROSECONDS = 1_000_000


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `tasks` starts in `seconds`, up to `burst` of them at once."""

    tasks: int
    seconds: int
    burst: int

    @property
    def start(self) -> int:
        """What one start owes, in units."""
        return self.seconds * MICROSECONDS


@dataclass(frozen=True, slots=True)
class Bucket:
    """What was owed at a moment, in units of a rate's `seconds`. `at` is in microseconds; times of one clock."""

    owed: int
    seconds: int
    at: int


def part(rate: Rate, *, of: int) -> Rate:
    """What each of so many processes that count by themselves may let start: together no more than the rate, but for
    the one start that each of them has at least."""
    return Rate(rate.tasks, rate.seconds * of, max(rate.burst // of, 1))


def owed(rate: Rate, bucket: Bucket | None, at: int) -> int:
    """What is still owed at a moment. A clock that was set back fills no bucket; one that is far off empties none."""
    most = rate.burst * rate.start
    if bucket is None or bucket.at - at > most // rate.tasks:
        return 0
    before = bucket.owed
    if bucket.seconds != rate.seconds:
        before = -(-before // (bucket.seconds * MICROSECONDS)) * rate.start
    return max(min(before, most) - max(at - bucket.at, 0) * rate.tasks, 0)


def starts_left(rate: Rate, owes: int) -> int:
    """How many tasks may start when so much is owed."""
    return max(rate.burst * rate.start - owes, 0) // rate.start


def wait(rate: Rate, owes: int) -> int:
    """The microseconds until one task may start."""
    return -(-max(owes - (rate.burst - 1) * rate.start, 0) // rate.tasks)


def spend(rate: Rate, owes: int, starts: int, at: int) -> Bucket:
    """The bucket after so many starts at a moment."""
    return Bucket(owes + starts * rate.start, rate.seconds, at)
