"""The claim held to the rule: in series it takes the very turns that taketurns.engine.turns tells."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taketurns.engine import turns
from taketurns.engine.rate import Rate
from tests.brokers.cell import pause_and_resume
from tests.brokers.places import is_the_next, steps_of_every_place
from tests.brokers.postgres.cell import PostgresCell, Turn
from tests.effort import examples

QUEUES = ("bulk", "default")

by_bare_sql = settings(
    max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

weights = st.one_of(st.integers(1, 5), st.integers(1, 100), st.sampled_from([1, 100]))
batches = st.one_of(st.just(1), st.integers(1, 10), st.integers(1, 100))
rates = st.none() | st.builds(Rate, st.integers(1, 7), st.integers(1, 3), st.integers(1, 4))
companies = st.lists(
    st.tuples(st.fixed_dictionaries({"weight": weights, "max_in_flight": st.none() | st.integers(1, 4)}), rates),
    min_size=1,
    max_size=7,
)
steps = st.lists(
    st.tuples(batches, st.sampled_from([0, 1, 333_333, 500_000, 1_000_000, 5_000_000])), min_size=1, max_size=8
)


def claim_as_told(
    cell: PostgresCell, batch: int, queues: Sequence[str] = ("default",), at: datetime | None = None
) -> list[Turn]:
    """Claim, and compare turn by turn with what the rule says of the state that the claim finds."""
    with as_told(cell, batch, queues, at) as taken:
        turns_taken = cell.take(batch, queues=queues, at=at)
        taken += [(turn.queue, str(turn.company_id)) for turn in turns_taken]
    return turns_taken


@contextmanager
def as_told(
    cell: PostgresCell, batch: int, queues: Sequence[str], at: datetime | None
) -> Iterator[list[tuple[str, str]]]:
    """Compare what is claimed within, queues and companies put into the list, with what the rule says before."""
    known, rotations = cell.seen_by_the_rule(queues, at)
    stood = {queue: dict(rotations[queue].places) for queue in queues}
    told = turns.take(known, rotations, queues, batch)
    taken: list[tuple[str, str]] = []
    yield taken
    assert taken == [(turn.queue, turn.company) for turn in told]
    left_to_start, found = cell.seen_by_the_rule(queues, at)
    assert {name: one.starts_left for name, one in left_to_start.items()} == {
        name: one.starts_left for name, one in known.items()
    }
    for queue in queues:
        left = stood[queue].keys() - found[queue].places
        assert all(stood[queue][name] <= found[queue].place for name in left)
        if len(taken) == batch:
            assert found[queue].place == rotations[queue].place
            assert _places(found[queue], known) == _places(rotations[queue], known)


def _places(rotation: turns.Rotation, known: Mapping[str, turns.Company]) -> dict[str, Fraction]:
    """The next turns of those who wait; how long others keep their place is the claim's affair."""
    return {
        name: rotation.places[name]
        for name, count in rotation.waiting.items()
        if count and not known[name].paused and name not in rotation.paused
    }


@by_bare_sql
@given(companies, steps, st.randoms())
def test_the_claim_takes_the_turns_of_the_rule(
    bare_cell: PostgresCell,
    companies: list[tuple[dict[str, Any], Rate | None]],
    steps: list[tuple[int, int]],
    chance: random.Random,
) -> None:
    bare_cell.clear()
    names = [chr(ord("a") + place) for place in range(len(companies))]
    for name, (options, rate) in zip(names, companies, strict=True):
        bare_cell.add_company(name, **options)
        bare_cell.set_rate(name, rate)
    paused: set[tuple[str, str]] = set()
    running: list[Turn] = []
    now = datetime.now(UTC) + timedelta(minutes=1)
    for batch, microseconds in steps:
        now += timedelta(microseconds=microseconds)
        _disturb(bare_cell, names, chance)
        pause_and_resume(bare_cell, QUEUES, names, paused, chance)
        running += claim_as_told(bare_cell, batch, chance.choice([["default"], ["bulk"], QUEUES, QUEUES[::-1]]), now)
        ended = [turn for turn in running if chance.random() < 0.5]
        bare_cell.finish(ended)
        running = [turn for turn in running if turn not in ended]
    assert bare_cell.contradictions() == []


def _disturb(cell: PostgresCell, names: Sequence[str], chance: random.Random) -> None:
    for name in names:
        for queue in QUEUES:
            if chance.random() < 0.4:
                cell.submit(name, chance.randint(1, 30), queue=queue)
        if chance.random() < 0.1:
            cell.set_weight(name, chance.choice([1, 2, 7, 100]))
        if chance.random() < 0.1:
            cell.set_paused(name, chance.random() < 0.5)
        if chance.random() < 0.1:
            cell.set_max_in_flight(name, chance.choice([None, 1, 5]))
        if chance.random() < 0.1:
            cell.set_rate(name, chance.choice([None, Rate(1, 1, 1), Rate(3, 2, 5)]))


def test_the_next_place_is_exact_after_every_place(bare_cell: PostgresCell) -> None:
    """Late in the life of a rotation, and one turn ahead or several."""
    steps, rounds = steps_of_every_place(), 2**47
    told = bare_cell.rows(
        "select turn_place(p + %s * 32768, w, 1), turn_place(turn_place(turn_place(p, w, 1), w, 1), w, 1),"
        " turn_place(p, w, 3) from unnest(%s::bigint[], %s::integer[]) as s(p, w)",
        rounds,
        *map(list, zip(*steps, strict=True)),
    )
    for (place, weight), (after, stepwise, at_once) in zip(steps, told, strict=True):
        assert is_the_next(after, place=place, weight=weight, rounds=rounds)
        assert stepwise == at_once


@pytest.mark.parametrize("heaviest", [1, 3, 100])
def test_a_hundred_and_fifty_companies_take_the_turns_of_the_rule(bare_cell: PostgresCell, heaviest: int) -> None:
    """More than are asked for their tasks when the weights are added up."""
    chance = random.Random(heaviest)
    for place in range(150):
        bare_cell.add_company(f"c{place:03}", weight=chance.choice([1, 1, 1, heaviest]))
        bare_cell.submit(f"c{place:03}", 40)
    running: list[Turn] = []
    for batch in [1, 7, 150, 40, 1, 20, 3, 90, 10, 10]:
        running += claim_as_told(bare_cell, batch)
        chance.shuffle(running)
        ended, running = running[::2], running[1::2]
        bare_cell.finish(ended)


def test_a_queue_that_runs_out_keeps_its_place_while_another_fills_the_claim(bare_cell: PostgresCell) -> None:
    bare_cell.add_company("a", weight=2)
    for queue, count in (("bulk", 4), ("default", 10)):
        bare_cell.submit("a", count, queue=queue)
    claim_as_told(bare_cell, 10, QUEUES)


def test_a_heavy_company_at_its_limit_does_not_bring_a_light_one_forward(bare_cell: PostgresCell) -> None:
    bare_cell.add_hoarder(1_000)
    bare_cell.add_company("heavy", weight=100)
    bare_cell.add_company("light")
    bare_cell.add_company("limited", weight=100, max_in_flight=1)
    for name in ("heavy", "light", "limited"):
        bare_cell.submit(name, 500)
    taken: Counter[str] = Counter()
    for _ in range(30):
        turns = claim_as_told(bare_cell, 10)
        taken.update(turn.company for turn in turns)
        bare_cell.finish(turns)
    assert taken["light"] <= 4


def test_many_companies_that_have_run_out_are_passed_in_one_claim(bare_cell: PostgresCell) -> None:
    """More of them than the server's table of locks can hold."""
    bare_cell.add_companies(12_000)
    while taken := bare_cell.take(1_000):
        bare_cell.finish(taken)
    bare_cell.add_company("late")
    bare_cell.submit("late")
    assert [turn.company for turn in bare_cell.take(10)] == ["late"]


def test_companies_that_were_deleted_do_not_stop_the_rotation(bare_cell: PostgresCell) -> None:
    for name in ("gone", "lost", "past", "kept"):
        bare_cell.add_company(name)
        bare_cell.submit(name)
    bare_cell.finish(bare_cell.take(4))
    for name in ("gone", "lost", "past"):
        bare_cell.delete_company(name)
    bare_cell.submit("kept", 3)
    assert [turn.company for turn in bare_cell.take(1)] == ["kept"]
    assert [turn.company for turn in bare_cell.take(10)] == ["kept", "kept"]
    assert bare_cell.rows("select * from turns") == []
