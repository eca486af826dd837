"""The buckets of one process: as exact as the rule of rates, whatever the number of processes, and not without end."""

from __future__ import annotations

from itertools import combinations_with_replacement

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taketurns.companies.throttle import Throttle, network
from taketurns.engine.rate import MICROSECONDS, Rate, part

rates = st.builds(Rate, st.integers(1, 20), st.integers(1, 20), st.integers(1, 20))
pauses = st.lists(st.integers(0, 10) | st.integers(0, 30 * MICROSECONDS), min_size=1, max_size=40)
HOURLY = Rate(1, 3600, 2)


class Clock:
    def __init__(self) -> None:
        self.microseconds = 0

    def __call__(self) -> int:
        return self.microseconds * 1_000


def excess(whole: Rate, passed: list[int], burst: int) -> int:
    """By how many units the fullest window has more than this burst and what the rate gives in it."""
    return max(
        (last - first + 1) * whole.start - burst * whole.start - (passed[last] - passed[first]) * whole.tasks
        for first, last in combinations_with_replacement(range(len(passed)), 2)
    )


@given(rates, pauses)
def test_no_window_has_more_requests_than_the_rate_and_none_is_refused_for_less(rate: Rate, pauses: list[int]) -> None:
    clock = Clock()
    throttle, passed = Throttle(clock=clock), list[int]()
    for pause in pauses:
        clock.microseconds += pause
        if throttle.take("acme", rate) is not None:
            passed.append(clock.microseconds)
        else:
            assert excess(rate, [*passed, clock.microseconds], rate.burst) > 0
    assert excess(rate, passed, rate.burst) <= 0


@given(rates, st.lists(st.tuples(st.integers(0, 3 * MICROSECONDS), st.integers(0, 4)), min_size=1, max_size=60))
def test_processes_that_share_a_rate_let_no_more_pass_together_than_it_allows(
    rate: Rate, requests: list[tuple[int, int]]
) -> None:
    clock, passed = Clock(), list[int]()
    processes = [Throttle(clock=clock) for _ in range(5)]
    share = part(rate, of=len(processes))
    for pause, process in requests:
        clock.microseconds += pause
        if processes[process].take("acme", share) is not None:
            passed.append(clock.microseconds)
    assert not passed or excess(rate, passed, max(rate.burst, len(processes))) <= 0


def test_a_process_that_is_not_told_of_others_lets_the_whole_rate_pass() -> None:
    processes = [Throttle() for _ in range(3)]
    passed = [throttle.take("acme", HOURLY) is not None for throttle in processes for _ in range(5)]
    assert sum(passed) == 3 * HOURLY.burst


def test_it_is_told_how_many_may_come_when_the_next_may_and_when_all_may_again() -> None:
    clock = Clock()
    throttle, rate = Throttle(clock=clock), Rate(2, 10, 3)
    told = [throttle.take("acme", rate) for _ in range(4)]
    assert [one and one.left for one in told] == [2, 1, 0, None]
    standing = throttle.look("acme", rate)
    assert (standing.left, standing.wait_seconds, standing.full_seconds) == (0, 5.0, 15.0)
    clock.microseconds += 5 * MICROSECONDS
    assert throttle.take("acme", rate) is not None
    assert throttle.take("acme", rate) is None


def test_those_who_came_longest_ago_are_forgotten_when_there_are_many() -> None:
    throttle = Throttle(most=3)
    for name in ("a", "b", "c", "a", "d", "e"):
        assert throttle.take(name, HOURLY) is not None
    assert len(throttle) == 3
    assert throttle.take("a", HOURLY) is None
    assert throttle.look("b", HOURLY).left == 2


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("testclient", "testclient"),
    ],
)
def test_an_address_goes_by_what_its_owner_has_of_them(host: str, name: str) -> None:
    assert network(host) == name
