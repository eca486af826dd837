"""The rule of rates: never more than burst + rate × time, and never less when work waits."""

from __future__ import annotations

from itertools import combinations_with_replacement

from hypothesis import given
from hypothesis import strategies as st

from taketurns.engine import limits
from taketurns.engine.rate import MICROSECONDS, Bucket, Rate, owed, spend, starts_left, wait

rates = st.builds(
    Rate,
    st.integers(1, 10) | st.integers(1, limits.RATE_TASKS_MAX),
    st.integers(1, 10) | st.integers(1, limits.RATE_SECONDS_MAX),
    st.integers(1, 10) | st.integers(1, limits.RATE_TASKS_MAX),
)
pauses = st.integers(0, 10) | st.integers(0, 10 * MICROSECONDS) | st.integers(0, 10**12)
claims = st.lists(st.tuples(pauses, st.integers(1, 1_000)), min_size=1, max_size=30)


def start(rate: Rate, claims: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Moment, starts and what was left after them, for claims of so many, so long after each other."""
    bucket, now = None, 0
    taken = []
    for pause, batch in claims:
        now += pause
        owes = owed(rate, bucket, now)
        starts = min(batch, starts_left(rate, owes))
        if starts:
            bucket = spend(rate, owes, starts, now)
        taken.append((now, starts, starts_left(rate, owed(rate, bucket, now))))
    return taken


@given(rates, claims)
def test_no_window_has_more_starts_than_the_burst_and_what_the_rate_gives_in_it(
    rate: Rate, claims: list[tuple[int, int]]
) -> None:
    taken = start(rate, claims)
    for first, last in combinations_with_replacement(range(len(taken)), 2):
        starts = sum(count for _, count, _ in taken[first : last + 1])
        time = taken[last][0] - taken[first][0]
        assert starts * rate.start <= rate.burst * rate.start + time * rate.tasks


@given(rates, claims)
def test_what_was_refused_would_have_been_too_much(rate: Rate, claims: list[tuple[int, int]]) -> None:
    """Whenever a claim got less than it asked for, some window ends there that has no room for one more."""
    taken = start(rate, claims)
    for last, (now, starts, _) in enumerate(taken):
        if starts < claims[last][1]:
            assert any(
                (sum(count for _, count, _ in taken[first : last + 1]) + 1) * rate.start
                > rate.burst * rate.start + (now - taken[first][0]) * rate.tasks
                for first in range(last + 1)
            )


@given(rates, claims)
def test_the_wait_ends_at_the_first_microsecond_in_which_one_may_start(
    rate: Rate, claims: list[tuple[int, int]]
) -> None:
    owes = rate.burst * rate.start - sum(batch for _, batch in claims) % rate.start
    bucket = Bucket(owes, rate.seconds, 0)
    until = wait(rate, owes)
    assert starts_left(rate, owed(rate, bucket, until)) >= 1
    assert until == 0 or starts_left(rate, owed(rate, bucket, until - 1)) == 0


@given(rates, rates, st.integers(0, 10**6))
def test_a_changed_rate_forgives_no_start(before: Rate, after: Rate, starts: int) -> None:
    starts = min(starts, before.burst)
    bucket = spend(before, 0, starts, 0)
    assert starts_left(after, owed(after, bucket, 0)) == max(after.burst - starts, 0)


@given(rates, st.integers(1, 10**15))
def test_a_clock_that_was_set_back_neither_fills_a_bucket_nor_keeps_it_empty(rate: Rate, back: int) -> None:
    bucket = spend(rate, 0, rate.burst, 0)
    fills_in = rate.burst * rate.start // rate.tasks
    assert starts_left(rate, owed(rate, bucket, -back)) == (0 if back <= fills_in else rate.burst)


@given(rates)
def test_all_that_is_counted_is_exact_in_a_double(rate: Rate) -> None:
    assert rate.burst * rate.start + rate.tasks < 2**53
