"""Many claimers at once decide as one would: each claim takes the turns that the rule tells of the state it found."""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from fractions import Fraction
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taketurns.brokers.redis import replies, scripts
from taketurns.brokers.redis.broker import claim_arguments
from taketurns.brokers.redis.scripts import Script
from taketurns.engine import turns
from taketurns.engine.task import ClaimedTask
from taketurns.engine.turns import Company, Rotation, Turn
from tests.brokers.cell import new_tasks, reports
from tests.brokers.redis.cell import SEEN, RedisCell, known_to_the_rule, look
from tests.effort import examples
from tests.engine.fairness import spread

QUEUES = ["default", "bulk"]
CLAIMERS = [1, 4, 16]
STEPS = 48

# A claim that writes down what it found and what it took; nobody runs in between.
_, _, CLAIM = scripts.read("claim").partition("\n")
WATCHED = Script(
    look(
        SEEN,
        f"""
local function claim()
{CLAIM}
end
local before = seen(cjson.decode(ARGV[5]))
local answer = claim()
local held, turns = {{}}, {{}}
for _, company in ipairs(redis.call('SMEMBERS', key('companies'))) do
  held[company] = redis.call('SCARD', key('held', company))
end
for place = 1, #answer[1], 2 do
  table.insert(turns, {{ read_job(answer[1][place + 1]).queue, company_of(answer[1][place]) }})
end
redis.call('RPUSH', key('watched'), cjson.encode({{ cjson.decode(ARGV[5]), tonumber(ARGV[4]), before, turns, held }}))
return {{ answer[1], answer[4] }}
""",
    )
)

by_many_claimers = settings(
    max_examples=examples(3), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

weights = st.one_of(st.integers(1, 5), st.integers(1, 100))


@dataclass(frozen=True)
class Watched:
    """One claim: what it found, what it took, and what was held after it."""

    queues: list[str]
    batch: int
    companies: dict[str, Company]
    rotations: dict[str, Rotation]
    taken: list[Turn]
    held: dict[str, int]


def watched(cell: RedisCell) -> list[Watched]:
    """What was written down, in the order in which it happened."""
    rows = [json.loads(row) for row in cell.client.lrange(cell.key("watched"), 0, -1)]
    cell.client.delete(cell.key("watched"))
    return [
        Watched(queues, batch, *known_to_the_rule(before), [Turn(*turn) for turn in taken], held)
        for queues, batch, before, taken, held in rows
    ]


async def claim_watched(cell: RedisCell, batch: int, *, queues: list[str] | None = None) -> list[ClaimedTask]:
    token = uuid4()
    arguments = claim_arguments(UUID(int=1), token, queues=queues or ["default"], batch=batch, lost_lifetime=1_000)
    taken, claimed_at = await cell.broker.server.run(WATCHED, *arguments)
    return list(replies.claimed(taken, token, claimed_at))


async def run_claimers(count: int, seed: int, step: Callable[[random.Random], Awaitable[None]]) -> None:
    """Take steps on `count` connections at once, 48 in all."""

    async def claimer(place: int) -> None:
        chance = random.Random(f"{seed} {place}")
        for _ in range(STEPS // count):
            await step(chance)

    await asyncio.gather(*[claimer(place) for place in range(count)])


@pytest.mark.parametrize("claimers", CLAIMERS)
@by_many_claimers
@given(
    st.lists(st.tuples(weights, st.none() | st.integers(1, 4)), min_size=1, max_size=8),
    st.integers(1, 30),
    st.integers(0, 1_000_000),
)
async def test_every_claim_takes_the_turns_of_the_rule(
    cell: RedisCell, claimers: int, companies: list[tuple[int, int | None]], largest: int, seed: int
) -> None:
    """Jobs finish and come in at random meanwhile."""
    cell.clear()
    names = [f"c{place}" for place in range(len(companies))]
    for name, (weight, most) in zip(names, companies, strict=True):
        cell.add_company(name, weight=weight, max_in_flight=most)
        for queue in QUEUES:
            await cell.broker.enqueue(name, new_tasks(40, queue=queue))

    async def step(chance: random.Random) -> None:
        taken = await claim_watched(
            cell, chance.randint(1, largest), queues=chance.sample(QUEUES, chance.randint(1, 2))
        )
        await cell.broker.settle(reports(chance.sample(taken, len(taken) // 2)))
        await cell.broker.enqueue(chance.choice(names), new_tasks(chance.randint(1, 10), queue=chance.choice(QUEUES)))

    await run_claimers(claimers, seed, step)
    seen = watched(cell)
    assert len(seen) == STEPS
    for claim in seen:
        assert turns.take(claim.companies, claim.rotations, claim.queues, claim.batch) == claim.taken
    assert cell.contradictions() == []


@pytest.mark.parametrize("claimers", CLAIMERS)
@by_many_claimers
@given(st.lists(weights, min_size=2, max_size=8), st.integers(1, 25), st.integers(0, 1_000_000))
async def test_turns_by_weight_keep_in_step_across_claimers(
    cell: RedisCell, claimers: int, weighted: list[int], largest: int, seed: int
) -> None:
    """Of companies that have jobs waiting all along and are below their share."""
    cell.clear()
    cell.add_company("hoarder")
    await cell.broker.enqueue("hoarder", new_tasks(1_000, queue="hoard"))
    await cell.broker.claim(UUID(int=2), queues=["hoard"], batch=1_000)
    await cell.broker.enqueue("hoarder", new_tasks(queue="hoard"))
    by_id = {str(cell.add_company(f"c{place}", weight=weight)): weight for place, weight in enumerate(weighted)}
    for place in range(len(weighted)):
        await cell.broker.enqueue(f"c{place}", new_tasks(1_000))

    async def step(chance: random.Random) -> None:
        taken = await claim_watched(cell, chance.randint(1, largest))
        await cell.broker.settle(reports(chance.sample(taken, len(taken))))

    await run_claimers(claimers, seed, step)
    assert spread([turn.company for claim in watched(cell) for turn in claim.taken], by_id) <= 2


@pytest.mark.parametrize("claimers", CLAIMERS)
async def test_limits_hold_across_queues_and_claimers(cell: RedisCell, claimers: int) -> None:
    """Jobs are settled and released freely meanwhile."""
    most = {str(cell.add_company(f"c{limit}", max_in_flight=limit)): limit for limit in (1, 2, 5)}
    for limit in most.values():
        for queue in QUEUES:
            await cell.broker.enqueue(f"c{limit}", new_tasks(100, queue=queue))

    async def step(chance: random.Random) -> None:
        taken = await claim_watched(cell, chance.randint(1, 10), queues=chance.sample(QUEUES, 2))
        split = chance.randint(0, len(taken))
        await cell.broker.settle(reports(taken[:split]))
        await cell.broker.release(taken[split:])

    await run_claimers(claimers, 5, step)
    seen = watched(cell)
    assert all(count <= most[company] for claim in seen for company, count in claim.held.items())
    assert Counter(turn.company for claim in seen for turn in claim.taken).keys() == most.keys()
    assert cell.contradictions() == []


@pytest.mark.parametrize("claimers", CLAIMERS)
@pytest.mark.parametrize("hands", [4, 16])
async def test_long_tasks_hold_no_more_than_their_share_across_claimers(
    cell: RedisCell, claimers: int, hands: int
) -> None:
    """The slow company never finishes anything; the fast ones do at once."""
    slow = str(cell.add_company("slow"))
    await cell.broker.enqueue("slow", new_tasks(500))
    for name in ("fast", "faster"):
        cell.add_company(name)
        await cell.broker.enqueue(name, new_tasks(500))
    free = hands

    async def step(_: random.Random) -> None:
        nonlocal free
        if not free:
            return
        free -= 1
        taken = await claim_watched(cell, 1)
        ended = [task for task in taken if str(task.company_id) != slow]
        await cell.broker.settle(reports(ended))
        free += len(ended)

    await run_claimers(claimers, 5, step)
    for claim in watched(cell):
        if [turn.company for turn in claim.taken] == [slow]:
            assert claim.held[slow] <= math.ceil(Fraction(sum(claim.held.values()), 3))
