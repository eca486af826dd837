"""The claim held to the rule: it takes the very turns that taketurns.engine.turns tells, and leaves the very places."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taketurns.engine import turns
from taketurns.engine.rate import Rate
from taketurns.engine.task import ClaimedTask
from tests.brokers.cell import new_tasks, pause_and_resume, reports
from tests.brokers.places import ROUND, is_the_next, steps_of_every_place
from tests.brokers.redis.cell import RedisCell, look
from tests.effort import examples

QUEUES = ("bulk", "default")
WORKER = UUID(int=1)

by_random_moves = settings(
    max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

weights = st.one_of(st.integers(1, 5), st.integers(1, 100), st.sampled_from([1, 100]))
batches = st.one_of(st.just(1), st.integers(1, 10), st.integers(1, 100))
rates = st.none() | st.builds(Rate, st.integers(1, 7), st.integers(1, 3), st.integers(1, 4))
companies = st.lists(
    st.tuples(st.fixed_dictionaries({"weight": weights, "max_in_flight": st.none() | st.integers(1, 4)}), rates),
    min_size=1,
    max_size=7,
)
microseconds = st.sampled_from([0, 1, 333_333, 500_000, 1_000_000, 5_000_000])
steps = st.lists(st.tuples(batches, microseconds), min_size=1, max_size=8)

NEXT_PLACES = """
local told = {}
for _, step in ipairs(cjson.decode(ARGV[1])) do
  table.insert(told, whole(place_after(step[1] + tonumber(ARGV[2]) * ROUND, step[2])))
end
return told
"""


async def claim_as_told(
    cell: RedisCell, batch: int, queues: Sequence[str] = ("default",), at: datetime | None = None
) -> list[ClaimedTask]:
    """Claim, and compare turn by turn with what the rule says of the state that the claim finds."""
    known, rotations = cell.seen_by_the_rule(queues, at)
    rotations |= {"blocked": turns.Rotation(waiting=_counted_all_the_same(rotations))}
    open_queues = [queue for queue in queues if not cell.pauses.have_queue(None, queue, at)]
    told = turns.take(known, rotations, open_queues, batch)
    taken = await cell.broker.claim(WORKER, queues=queues, batch=batch, at=at)
    assert [(task.queue, str(task.company_id)) for task in taken] == [(turn.queue, turn.company) for turn in told]
    left_to_start, found = cell.seen_by_the_rule(queues, at)
    assert {name: one.starts_left for name, one in left_to_start.items()} == {
        name: one.starts_left for name, one in known.items()
    }
    for queue in queues:
        assert found[queue].place == rotations[queue].place
        assert found[queue].places == rotations[queue].places
    return taken


def _counted_all_the_same(rotations: Mapping[str, turns.Rotation]) -> dict[str, int]:
    """Companies with tasks of a paused type that are not set aside: they wait, for all that the sums of weights say."""
    return {name: 1 for rotation in rotations.values() for name in rotation.blocked - rotation.paused}


@by_random_moves
@given(companies, steps, st.randoms())
async def test_the_claim_takes_the_turns_of_the_rule(
    cell: RedisCell,
    companies: list[tuple[dict[str, Any], Rate | None]],
    steps: list[tuple[int, int]],
    chance: random.Random,
) -> None:
    cell.clear()
    names = [chr(ord("a") + place) for place in range(len(companies))]
    for name, (options, rate) in zip(names, companies, strict=True):
        cell.add_company(name, **options)
        cell.set_rate(name, rate)
    paused: set[tuple[str, str]] = set()
    running: list[ClaimedTask] = []
    for batch, pause in steps:
        await _disturb(cell, names, chance)
        pause_and_resume(cell, QUEUES, names, paused, chance)
        cell.let_pass(timedelta(microseconds=pause))
        queues = chance.choice([["default"], ["bulk"], QUEUES, QUEUES[::-1]])
        running += await claim_as_told(cell, batch, queues, cell.now())
        ended = [task for task in running if chance.random() < 0.5]
        await cell.broker.settle(reports(ended))
        running = [task for task in running if task not in ended]
    assert cell.contradictions() == []


async def _disturb(cell: RedisCell, names: Sequence[str], chance: random.Random) -> None:
    for name in names:
        for queue in QUEUES:
            if chance.random() < 0.4:
                await cell.broker.enqueue(name, new_tasks(chance.randint(1, 30), queue=queue))
        if chance.random() < 0.1:
            cell.set_weight(name, chance.choice([1, 2, 7, 100]))
        if chance.random() < 0.1:
            cell.set_paused(name, chance.random() < 0.5)
        if chance.random() < 0.1:
            cell.set_max_in_flight(name, chance.choice([None, 1, 5]))
        if chance.random() < 0.1:
            cell.set_rate(name, chance.choice([None, Rate(1, 1, 1), Rate(3, 2, 5)]))


@pytest.mark.parametrize("heaviest", [1, 3, 100])
async def test_a_hundred_and_fifty_companies_take_the_turns_of_the_rule(cell: RedisCell, heaviest: int) -> None:
    chance = random.Random(heaviest)
    for place in range(150):
        cell.add_company(f"c{place:03}", weight=chance.choice([1, 1, 1, heaviest]))
        await cell.broker.enqueue(f"c{place:03}", new_tasks(40))
    running: list[ClaimedTask] = []
    for batch in [1, 7, 150, 40, 1, 20, 3, 90, 10, 10]:
        running += await claim_as_told(cell, batch)
        chance.shuffle(running)
        ended, running = running[::2], running[1::2]
        await cell.broker.settle(reports(ended))


async def test_a_heavy_company_at_its_limit_does_not_bring_a_light_one_forward(cell: RedisCell) -> None:
    cell.add_company("hoarder")
    await cell.broker.enqueue("hoarder", new_tasks(1_000))
    await cell.broker.enqueue("hoarder", new_tasks(queue="hoard"))
    await cell.broker.claim(WORKER, queues=["default"], batch=1_000)
    cell.add_company("heavy", weight=100)
    cell.add_company("light")
    cell.add_company("limited", weight=100, max_in_flight=1)
    for name in ("heavy", "light", "limited"):
        await cell.broker.enqueue(name, new_tasks(500))
    taken: Counter[str] = Counter()
    for _ in range(30):
        claimed = await claim_as_told(cell, 10)
        taken.update(cell.slug_of(task.company_id) for task in claimed)
        await cell.broker.settle(reports(claimed))
    assert taken["light"] <= 4


async def test_companies_that_were_deleted_do_not_stop_the_rotation(cell: RedisCell) -> None:
    for name in ("gone", "lost", "past", "kept"):
        cell.add_company(name)
        await cell.broker.enqueue(name, new_tasks())
    await cell.broker.settle(reports(await claim_as_told(cell, 4)))
    for name in ("gone", "lost", "past"):
        cell.delete_company(name)
    await cell.broker.enqueue("kept", new_tasks(3))
    assert len(await claim_as_told(cell, 1)) == 1
    assert len(await claim_as_told(cell, 10)) == 2
    assert cell.contradictions() == []


def test_the_next_place_is_exact_after_every_place(cell: RedisCell) -> None:
    """Late in the life of a rotation."""
    steps, rounds = steps_of_every_place(), 2**37 - 1
    told = cell.client.eval(look(NEXT_PLACES, ""), 1, cell.prefix, json.dumps(steps), rounds)
    for (place, weight), after in zip(steps, told, strict=True):
        assert is_the_next(int(after), place=place, weight=weight, rounds=rounds)


async def test_a_rotation_goes_on_when_its_numbers_have_become_large(cell: RedisCell) -> None:
    """The same turns as after a start, and whole rounds less."""
    for name, weight in (("a", 3), ("b", 7), ("c", 100)):
        cell.add_company(name, weight=weight)
        await cell.broker.enqueue(name, new_tasks(60))
    await claim_as_told(cell, 5)
    far = (2**37 - 1) * ROUND
    for company in cell.client.zrange(cell.key("turns", "default"), 0, -1):
        cell.client.zincrby(cell.key("turns", "default"), far, company)
    cell.client.hincrby(cell.key("rotations"), "default", far)
    for _ in range(20):
        known, rotations = cell.seen_by_the_rule(["default"])
        told = turns.take(known, rotations, ["default"], 6)
        taken = await cell.broker.claim(WORKER, queues=["default"], batch=6)
        assert [str(task.company_id) for task in taken] == [turn.company for turn in told]
    _, found = cell.seen_by_the_rule(["default"])
    assert found["default"].place < 10
    assert cell.contradictions() == []
