"""The rule of turns: what it must hold, for random companies, weights, limits and batches."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taketurns.engine import turns
from taketurns.engine.turns import Company, Rotation, place_after, share
from tests.engine.fairness import spread

Q = "default"

weights = st.one_of(st.integers(1, 5), st.integers(1, 100))
batches = st.one_of(st.just(1), st.integers(1, 10), st.integers(1, 100))


@dataclass
class Fleet:
    """Hands that take turns in one queue, and finish what they hold."""

    companies: dict[str, Company]
    rotation: Rotation = field(default_factory=Rotation)
    hands: list[str] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)

    def wait(self, name: str, count: int) -> None:
        self.rotation.waiting[name] = self.rotation.waiting.get(name, 0) + count

    def take(self, batch: int) -> list[str]:
        names = [turn.company for turn in turns.take(self.companies, {Q: self.rotation}, [Q], batch)]
        self.hands += names
        self.taken += names
        return names

    def finish(self, name: str) -> None:
        self.hands.remove(name)
        self.companies[name].held -= 1

    def finish_all(self) -> None:
        for name in list(self.hands):
            self.finish(name)

    def shares(self) -> dict[str, int]:
        """The shares of a fleet with these hands, of the companies that have tasks waiting."""
        waiting = [name for name, count in self.rotation.waiting.items() if count and not self.companies[name].paused]
        hands = sum(self.companies[name].held for name in waiting)
        total = sum(self.companies[name].weight for name in waiting)
        return {
            name: share(hands, self.companies[name].weight, total, others_wait=len(waiting) > 1) for name in waiting
        }


def backlogged(*weighted: int, hoarded: int = 0) -> Fleet:
    """Companies a, b, c … with endless backlogs, beside one that waits while it has `hoarded` hands.

    With many of those nobody else comes near its share.
    """
    fleet = Fleet({chr(ord("a") + place): Company(weight) for place, weight in enumerate(weighted)})
    for name in fleet.companies:
        fleet.wait(name, 1_000_000)
    if hoarded:
        fleet.companies["hoarder"] = Company(held=hoarded)
        fleet.wait("hoarder", 1)
    return fleet


def test_turns_of_equal_companies_alternate() -> None:
    fleet = backlogged(1, 1, 1, hoarded=100)
    assert "".join(fleet.take(9)) == "abcabcabc"


def test_turns_of_a_heavy_company_are_spread_over_the_round() -> None:
    fleet = backlogged(1, 2, 5, hoarded=100)
    fleet.take(8)
    assert "".join(fleet.take(8)) == "cbccbcac"


@given(st.lists(weights, min_size=2, max_size=12), st.lists(batches, min_size=1, max_size=20))
def test_turns_by_weight_never_differ_by_more_than_two(weighted: list[int], sizes: list[int]) -> None:
    fleet = backlogged(*weighted, hoarded=100_000)
    for size in sizes:
        fleet.take(size)
    assert spread(fleet.taken, {name: c.weight for name, c in fleet.companies.items() if name != "hoarder"}) <= 2


@given(st.lists(weights, min_size=2, max_size=8), st.lists(batches, min_size=1, max_size=40), st.randoms())
def test_companies_below_their_share_keep_in_step_with_random_ends(
    weighted: list[int], sizes: list[int], chance: random.Random
) -> None:
    fleet = backlogged(*weighted)
    ahead = {pair: [Fraction(0)] for pair in combinations(fleet.companies, 2)}
    for size in sizes:
        names = fleet.take(size)
        shares = fleet.shares()
        for pair, levels in ahead.items():
            if any(fleet.companies[name].held >= shares[name] for name in pair):
                ahead[pair] = [Fraction(0)]
                continue
            for name in names:
                levels.append(levels[-1] + _step(name, pair, fleet))
            assert max(levels) - min(levels) <= 2
        for name in list(fleet.hands):
            if chance.random() < 0.6:
                fleet.finish(name)


def _step(name: str, pair: tuple[str, str], fleet: Fleet) -> Fraction:
    """The difference that one turn makes to turns / weight between two companies."""
    if name not in pair:
        return Fraction(0)
    return Fraction(1 if name == pair[0] else -1, fleet.companies[name].weight)


@given(st.lists(weights, min_size=1, max_size=10), weights, st.integers(0, 300), batches)
def test_a_newcomers_first_turn_comes_before_anybody_takes_its_weight_and_one_more(
    weighted: list[int], weight: int, before: int, batch: int
) -> None:
    fleet = backlogged(*weighted, hoarded=100_000)
    for _ in range(before):
        fleet.take(1)
    fleet.companies["new"] = Company(weight)
    fleet.wait("new", 1)
    others: Counter[str] = Counter()
    while "new" not in (names := fleet.take(batch)):
        others.update(names)
    others.update(names[: names.index("new")])
    assert all(count <= fleet.companies[name].weight for name, count in others.items())


@given(
    st.lists(weights, min_size=2, max_size=8),
    st.lists(st.integers(0, 20), max_size=4),
    st.lists(batches, min_size=1, max_size=40),
    st.randoms(),
)
def test_nobody_takes_more_than_its_share_of_what_others_leave(
    weighted: list[int], kept: list[int], sizes: list[int], chance: random.Random
) -> None:
    """However many hands are held by companies that want no more."""
    fleet = backlogged(*weighted)
    for number, held in enumerate(kept):
        fleet.companies[f"content {number}"] = Company(chance.randint(1, 100), held=held)
    for size in sizes:
        before = {name: company.held for name, company in fleet.companies.items()}
        fleet.take(size)
        for name, most in fleet.shares().items():
            assert fleet.companies[name].held <= max(before[name], most)
        for name in list(fleet.hands):
            if chance.random() < 0.6:
                fleet.finish(name)


@pytest.mark.parametrize("settles_at_once", [1, 5])
def test_long_tasks_do_not_pile_up_on_hands_that_a_third_company_does_not_want(settles_at_once: int) -> None:
    """Of sixteen hands globex has one and wants no more; initech's tasks are long, acme's short."""
    fleet = Fleet({"globex": Company(), "initech": Company(), "acme": Company()})
    for name in ("initech", "acme"):
        fleet.wait(name, 1_000_000)
    lengths = {"globex": 3, "initech": 500, "acme": 1}
    ends: list[tuple[int, str]] = []
    now = 0
    for _ in range(4_000):
        fleet.wait("globex", 1 - fleet.rotation.waiting.get("globex", 0) - fleet.companies["globex"].held)
        ends += [(now + lengths[name], name) for name in fleet.take(16 - len(ends))]
        assert len(ends) == 16
        assert fleet.companies["initech"].held <= 8
        ends.sort()
        now = ends[settles_at_once - 1][0]
        for _, name in ends[:settles_at_once]:
            fleet.finish(name)
        del ends[:settles_at_once]
    assert fleet.companies["initech"].held == 8


def test_what_a_company_at_its_limit_has_no_use_for_is_shared_by_the_others() -> None:
    fleet = backlogged(1, 1, 1)
    fleet.companies["c"].max_in_flight = 2
    assert Counter(fleet.take(16)) == {"a": 7, "b": 7, "c": 2}
    fleet.finish("a")
    fleet.finish("a")
    assert fleet.take(2) == ["a", "a"]


def test_what_a_company_that_runs_out_does_not_want_is_shared_by_the_others() -> None:
    fleet = backlogged(1, 1)
    fleet.companies["c"] = Company()
    fleet.wait("c", 1)
    assert Counter(fleet.take(15)) == {"a": 7, "b": 7, "c": 1}
    fleet.finish("b")
    fleet.finish("c")
    fleet.wait("c", 1)
    assert Counter(fleet.take(2)) == {"b": 1, "c": 1}


@given(
    st.lists(st.tuples(weights, st.integers(0, 30), st.none() | st.integers(1, 5), st.booleans()), max_size=10),
    batches,
)
def test_a_claim_comes_back_full_as_far_as_limits_allow(
    lines: list[tuple[int, int, int | None, bool]], batch: int
) -> None:
    fleet = Fleet({})
    for place, (weight, waiting, most, paused) in enumerate(lines):
        fleet.companies[str(place)] = Company(weight, max_in_flight=most, paused=paused)
        fleet.wait(str(place), waiting)
    able = sum(min(waiting, waiting if most is None else most) for _, waiting, most, paused in lines if not paused)
    assert len(fleet.take(batch)) == min(batch, able)


@pytest.mark.parametrize("hands", [1, 3, 4, 8, 16])
def test_weights_one_two_five_come_out_so_when_tasks_take_random_times(hands: int) -> None:
    chance = random.Random(7)
    fleet = backlogged(1, 2, 5)
    ends: list[tuple[float, str]] = []
    now = 0.0
    for _ in range(8_000):
        (name,) = fleet.take(1)
        ends.append((now + chance.uniform(0.5, 1.5), name))
        if len(ends) == hands:
            now, name = min(ends)
            ends.remove((now, name))
            fleet.finish(name)
    counts = Counter(fleet.taken)
    assert counts["b"] / counts["a"] == pytest.approx(2, rel=0.10)
    assert counts["c"] / counts["a"] == pytest.approx(5, rel=0.10)


@pytest.mark.parametrize("hands", [2, 4, 8])
def test_a_company_whose_tasks_take_a_hundred_times_longer_holds_half_beside_an_equal(hands: int) -> None:
    fleet = backlogged(1, 1)
    ends: list[tuple[int, str]] = []
    held: list[int] = []
    now = 0
    for _ in range(10_000):
        (name,) = fleet.take(1)
        ends.append((now + (100 if name == "a" else 1), name))
        held.append(fleet.companies["a"].held)
        if len(ends) == hands:
            now, name = min(ends)
            ends.remove((now, name))
            fleet.finish(name)
    assert max(held) == hands // 2


def test_limits_hold_across_queues() -> None:
    companies = {"a": Company(max_in_flight=3), "b": Company()}
    rotations = {queue: Rotation(waiting={"a": 10, "b": 1}) for queue in ("one", "two")}
    taken = turns.take(companies, rotations, ["one", "two"], 10)
    assert Counter(turn.company for turn in taken) == {"a": 3, "b": 2}


def test_a_company_that_comes_back_after_the_rotation_has_passed_starts_where_it_is() -> None:
    fleet = backlogged(1, hoarded=100)
    fleet.companies["b"] = Company()
    fleet.wait("b", 1)
    fleet.take(20)
    fleet.wait("b", 10)
    assert "".join(fleet.take(6)) == "bababa"


def test_a_company_that_asks_for_one_turn_at_a_time_gets_no_more_than_others() -> None:
    fleet = backlogged(1, hoarded=100)
    fleet.companies["b"] = Company()
    for _ in range(50):
        fleet.wait("b", 1 - fleet.rotation.waiting.get("b", 0))
        fleet.take(1)
    counts = Counter(fleet.taken)
    assert abs(counts["a"] - counts["b"]) <= 1


def test_a_company_that_goes_and_comes_back_gets_no_more_than_others() -> None:
    fleet = backlogged(10, hoarded=1_000)
    fleet.companies["b"] = Company()
    for step in range(220):
        if step % 2 and not fleet.rotation.waiting.get("b"):
            fleet.wait("b", 1)
        fleet.take(1)
    assert Counter(fleet.taken)["b"] <= 22


def test_a_changed_weight_acts_at_the_next_turn() -> None:
    fleet = backlogged(1, 1, hoarded=1_000)
    fleet.take(10)
    fleet.companies["b"].weight = 10
    assert Counter(fleet.take(110)) == {"a": 10, "b": 100}


@given(st.fractions(min_value=0, max_value=1_000, max_denominator=200), st.integers(1, 100))
def test_the_place_after_is_the_next_on_the_companys_grid(place: Fraction, weight: int) -> None:
    following = place_after(place, weight)
    assert place < following <= place + Fraction(1, weight)
    assert (following * weight - Fraction(1, 2)).denominator == 1


@settings(max_examples=200)
@given(st.integers(1, 1_000), st.lists(weights, min_size=2, max_size=10))
def test_shares_are_at_least_a_hand_and_never_all_of_them(hands: int, weighted: list[int]) -> None:
    shares = [share(hands, weight, sum(weighted), others_wait=True) for weight in weighted]
    assert min(shares) >= 1
    assert max(shares) <= max(hands - 1, 1)
    assert sum(share(hands, weight, sum(weighted), others_wait=False) for weight in weighted) >= hands
