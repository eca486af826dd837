"""The figures of fairness are what they say, and the measurement tells a fair claim from an unfair one."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.fairness import shares
from bench.fairness.loads import Company, Load, at_once, simulate
from bench.fairness.shares import Arrival, Held
from bench.fairness.sides import Fifo, Lateral, Ours, Side

COUNTS = st.integers(0, 20)
WEIGHTS = st.integers(1, 10)


def test_the_index_is_one_for_equal_amounts_and_one_in_n_for_one_that_has_everything() -> None:
    assert shares.jain([3, 3, 3, 3]) == 1
    assert shares.jain([7, 0, 0, 0]) == 0.25
    assert shares.jain([1, 2]) == pytest.approx(9 / 10)
    assert shares.jain([0, 0]) == 1


@pytest.mark.parametrize(("percent", "figure"), [(0, 1), (50, 10), (95, 19), (96, 20), (100, 20)])
def test_a_percentile_is_the_smallest_figure_that_so_many_do_not_exceed(percent: float, figure: int) -> None:
    assert shares.percentile(range(20, 0, -1), percent) == figure


def test_a_wait_without_an_end_counts_as_the_longest() -> None:
    waits = [0.1] * 18 + [math.inf] * 2
    assert shares.percentile(waits, 90) == 0.1
    assert math.isinf(shares.percentile(waits, 95))


def test_what_a_company_has_no_tasks_for_goes_to_the_others_by_weight() -> None:
    weights = {0: 1, 1: 1, 2: 3, 3: 1}
    assert shares.fair_hands(12, weights, {0: 2, 1: 99, 2: 99, 3: 0}) == {0: 2.0, 1: 2.5, 2: 7.5}


@given(st.lists(st.tuples(WEIGHTS, COUNTS), min_size=1, max_size=8), st.integers(1, 60))
def test_fair_hands_are_all_given_out_and_nobody_is_given_more_than_it_can_use(
    companies: list[tuple[int, int]], hands: int
) -> None:
    weights = {number: weight for number, (weight, _) in enumerate(companies)}
    tasks = {number: count for number, (_, count) in enumerate(companies)}
    fair = shares.fair_hands(hands, weights, tasks)
    assert sum(fair.values()) == pytest.approx(min(hands, sum(tasks.values())))
    assert all(fair[number] <= tasks[number] + 1e-9 for number in fair)
    highest = max((fair[number] / weights[number] for number in fair), default=0)
    assert all(
        fair[number] / weights[number] == pytest.approx(highest) for number in fair if fair[number] < tasks[number]
    )


def test_a_company_that_was_served_as_another_one_waited_got_more_than_its_share() -> None:
    arrivals = [Arrival(0, 0, 2), Arrival(0, 1, 1), Arrival(0, 2, 0)]
    held = [Held(0, 0, 10), Held(0, 10, 20), Held(1, 20, 30)]
    of_fair = shares.served_against_fair(arrivals, held, {0: 1, 1: 1, 2: 1}, until=20)
    assert of_fair == {0: 2.0, 1: 0.0}  # the third had no work


def test_a_company_is_owed_nothing_from_before_its_tasks_came() -> None:
    held = [Held(0, 0, 10), Held(1, 10, 20), Held(0, 20, 30)]
    of_fair = shares.served_against_fair([Arrival(0, 0, 2), Arrival(10, 1, 1)], held, {0: 1, 1: 3}, until=30)
    assert of_fair == pytest.approx({0: 20 / 22.5, 1: 10 / 7.5})


def test_a_window_is_whole_rounds_of_turns_and_what_is_left_of_one_is_none() -> None:
    fair = [Held(company, moment, moment + 5) for moment in range(4) for company in (0, 1, 1)]
    unfair = [Held(1, moment, moment + 5) for moment in range(4, 10)]
    held = [*unfair, *fair, Held(0, 11, 16)]
    assert list(shares.in_windows(held, {0: 1, 1: 2}, rounds=2)) == [1.0, 1.0, 0.5]
    assert list(shares.in_windows(held, {0: 1, 1: 2}, rounds=2, after=4)) == [0.5]
    assert list(shares.in_windows(held, {0: 1, 1: 2}, rounds=1, after=3)) == [1.0, 0.5, 0.5]


EQUAL = at_once("equal", [Company()] * 5, workers=2, hands=2, rounds=20, tasks=130)
WEIGHTED = at_once("weighted", [Company(1), Company(2), Company(3)], workers=2, hands=2, rounds=10, tasks=80)


@pytest.mark.parametrize("load", [EQUAL, WEIGHTED], ids=["equal", "weighted"])
def test_our_claim_is_fair_in_every_window(database_url: str, load: Load) -> None:
    held = _held(Ours, database_url, load)
    windows = list(shares.in_windows(held, load.weights, rounds=10, after=load.all_there_at))
    assert windows
    assert min(windows) >= 0.999


@pytest.mark.parametrize(("side", "served"), [(Fifo, 1), (Lateral, 2)])
def test_the_usual_claims_serve_those_that_came_first(database_url: str, side: type[Side], served: int) -> None:
    held = _held(side, database_url, EQUAL)
    of_fair = shares.served_against_fair(EQUAL.arrivals, held, EQUAL.weights, until=EQUAL.until)
    assert of_fair == pytest.approx({number: 5 / served if number < served else 0 for number in range(5)})


def test_a_burst_that_comes_while_workers_are_idle_is_served_at_once(database_url: str) -> None:
    load = Load("burst", [Company()] * 2, 2, 2, [Arrival(0, 0, 1), Arrival(5_000, 1, 3)], 10_000)
    assert sorted((task.company, task.began_at) for task in _held(Ours, database_url, load)) == [
        (0, 0),
        (1, 5_000),
        (1, 5_000),
        (1, 5_000),
    ]


def _held(kind: type[Side], url: str, load: Load) -> list[Held]:
    kind.build(url, list(load.weights.values()))
    side = kind(url)
    try:
        return simulate(side, load)
    finally:
        side.connection.close()
