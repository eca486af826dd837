"""The claim held to the rule beside pauses of queues, of types and of types in queues, of one company and of all."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings

from tests.brokers import pausing
from tests.brokers.pausing import Limits, PausedWalk, Step, with_stories
from tests.brokers.redis.cell import RedisCell
from tests.brokers.redis.test_rotation import claim_as_told
from tests.effort import examples

by_random_moves = settings(
    max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@by_random_moves
@given(pausing.companies, pausing.steps)
@with_stories
async def test_what_is_paused_takes_no_turns_and_is_in_nobodys_way(
    cell: RedisCell, companies: list[Limits], steps: list[Step]
) -> None:
    await PausedWalk(cell, companies, claim_as_told).take(steps)
