"""The claim held to the rule beside pauses of queues, of types and of types in queues, of one company and of all."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from hypothesis import HealthCheck, given, settings

from taketurns.engine.task import ClaimedTask
from tests.brokers import pausing
from tests.brokers.pausing import WORKER, Limits, PausedWalk, Step, with_stories
from tests.brokers.postgres.cell import PostgresCell
from tests.brokers.postgres.test_rotation import as_told
from tests.effort import examples

by_random_moves = settings(
    max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


async def claim_as_told(cell: PostgresCell, batch: int, queues: Sequence[str], at: datetime) -> Sequence[ClaimedTask]:
    with as_told(cell, batch, queues, at) as taken:
        claimed = await cell.broker.claim(WORKER, queues=queues, batch=batch, at=at)
        taken += [(task.queue, str(task.company_id)) for task in claimed]
    return claimed


@by_random_moves
@given(pausing.companies, pausing.steps)
@with_stories
async def test_what_is_paused_takes_no_turns_and_is_in_nobodys_way(
    cell: PostgresCell, companies: list[Limits], steps: list[Step]
) -> None:
    await PausedWalk(cell, companies, claim_as_told).take(steps)
