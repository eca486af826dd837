"""Leases in Redis: taken, beaten and lost on a line of their own, from any thread."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from taketurns.engine.errors import Unavailable
from taketurns.engine.lease import Holder
from taketurns.storage.ids import new_id
from tests.brokers.cell import new_tasks
from tests.brokers.redis.cell import RedisCell
from tests.valkeys import Valkeys

WORKER = UUID(int=1)
HOLDER = Holder(queues=["default"], types=[], concurrency=1)


def test_a_lease_is_taken_beaten_and_given_up(cell: RedisCell) -> None:
    line = cell.broker.lease_line(patience_seconds=5)
    taken = line.take(WORKER, HOLDER, former=None)
    assert abs(taken.at - datetime.now(UTC)) < timedelta(minutes=1)
    for beat in (1, 2):
        assert line.beat(WORKER, seconds_since_claim=1.5) is not None
        assert cell.client.hget(cell.key("lease", WORKER), "beat") == str(beat)
    line.remove(WORKER, seconds_since_claim=None)
    assert line.beat(WORKER, seconds_since_claim=None) is None
    line.close()


async def test_a_new_lease_takes_the_place_of_the_former_one(cell: RedisCell) -> None:
    line = cell.broker.lease_line(patience_seconds=5)
    former, latter = new_id(), new_id()
    await asyncio.to_thread(line.take, former, HOLDER, former=None)
    await asyncio.to_thread(line.take, latter, HOLDER, former=former)
    assert await cell.broker.beats() == {latter: 0}
    line.close()


# Faults 145 and 155: what keeps work is the worker's own, and is not kept for ever when nobody gives it up.
async def test_a_lease_is_its_workers_own_and_is_forgotten_at_last(cell: RedisCell) -> None:
    line = cell.broker.lease_line(patience_seconds=5)
    mine, theirs = new_id(), new_id()
    line.take(mine, HOLDER, former=None)
    line.take(theirs, HOLDER, former=None)
    line.remove(mine, seconds_since_claim=None)
    line.remove(mine, seconds_since_claim=None)
    assert await cell.broker.beats() == {theirs: 0}
    assert line.beat(theirs, seconds_since_claim=None) is not None
    assert cell.client.ttl(cell.key("lease", theirs)) > timedelta(hours=23).total_seconds()
    cell.client.pexpire(cell.key("lease", theirs), 60_000)
    line.beat(theirs, seconds_since_claim=None)
    assert cell.client.ttl(cell.key("lease", theirs)) > timedelta(hours=23).total_seconds()
    line.close()


async def test_a_worker_that_was_rescued_learns_it_at_its_next_beat(cell: RedisCell) -> None:
    cell.add_company("acme")
    await cell.broker.enqueue("acme", new_tasks())
    line = cell.broker.lease_line(patience_seconds=5)
    line.take(WORKER, HOLDER, former=None)
    (task,) = await cell.broker.claim(WORKER, queues=["default"], batch=1)
    assert [one.claim_token for one in await cell.broker.held(WORKER)] == [task.claim_token]
    beats = await cell.broker.beats()
    assert len(await cell.broker.rescue(WORKER, watched_beat=beats[WORKER], max_rescues=1)) == 1
    assert line.beat(WORKER, seconds_since_claim=None) is None
    assert await cell.broker.held(WORKER) == []
    line.close()


def test_a_line_tells_that_the_server_is_gone_or_does_not_answer(valkey: Valkeys) -> None:
    server = valkey()
    cell = RedisCell.open(server.url, "lease")
    line = cell.broker.lease_line(patience_seconds=0.5)
    line.take(WORKER, HOLDER, former=None)
    server.pause()
    with pytest.raises(Unavailable):
        line.beat(WORKER, seconds_since_claim=None)
    line.close()
    server.go_on()

    line = cell.broker.lease_line(patience_seconds=5)
    assert line.beat(WORKER, seconds_since_claim=None) is not None
    server.kill()
    with pytest.raises(Unavailable):
        line.beat(WORKER, seconds_since_claim=None)
    line.close()
    cell.client.close()
