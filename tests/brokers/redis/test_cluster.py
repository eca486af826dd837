"""The verbs on a cluster of three nodes: all keys of a cell are in one slot, and a client finds it wherever it is."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from uuid import UUID

import pytest
import redis

from tests.brokers.cell import new_tasks
from tests.brokers.contract import Finishing, Submitting, Upkeep
from tests.brokers.redis.cell import RedisCell
from tests.valkeys import ValkeyCluster

WORKER = UUID(int=1)


@pytest.fixture(params=range(2))
async def cell(valkey_cluster: ValkeyCluster) -> AsyncIterator[RedisCell]:
    """Cells of different names, which are on different nodes."""
    cell = RedisCell.open(f"redis+cluster://127.0.0.1:{valkey_cluster.nodes[0].port}", uuid.uuid4().hex)
    yield cell
    await cell.close()


class TestOnACluster(Submitting, Finishing, Upkeep):
    """What the contract asks of each verb."""


async def test_a_cell_that_moves_to_another_node_goes_on(cell: RedisCell, valkey_cluster: ValkeyCluster) -> None:
    cell.add_company("acme")
    await cell.broker.enqueue("acme", new_tasks(20))
    line = cell.broker.lease_line(patience_seconds=5)
    (task,) = await cell.broker.claim(WORKER, queues=["default"], batch=1)
    move_slot(valkey_cluster, cell.prefix)
    assert await cell.broker.release([task]) == {task.task_id}
    assert len(await cell.broker.claim(WORKER, queues=["default"], batch=50)) == 20
    assert line.beat(WORKER, seconds_since_claim=None) is None
    async with cell.broker.wakeups() as wakeups:
        await cell.broker.enqueue("acme", new_tasks())
        assert await anext(wakeups) == {"default"}
    assert cell.contradictions() == []
    line.close()


def move_slot(cluster: ValkeyCluster, key: str) -> None:
    """Give the slot of a key, and what is in it, to the next node."""
    slot = int(cluster.nodes[0].execute("CLUSTER KEYSLOT", key))
    names = [node.execute("CLUSTER MYID") for node in cluster.nodes]
    with redis.RedisCluster.from_url(cluster.url) as client:
        port = client.get_node_from_key(key).port
    owner = [node.port for node in cluster.nodes].index(port)
    target = (owner + 1) % len(cluster.nodes)
    source, destination = cluster.nodes[owner], cluster.nodes[target]
    destination.execute("CLUSTER SETSLOT", slot, "IMPORTING", names[owner])
    source.execute("CLUSTER SETSLOT", slot, "MIGRATING", names[target])
    while keys := source.execute("CLUSTER GETKEYSINSLOT", slot, 100):
        source.execute("MIGRATE", "127.0.0.1", destination.port, "", 0, 5_000, "KEYS", *keys)
    for node in (destination, source, *cluster.nodes):
        node.execute("CLUSTER SETSLOT", slot, "NODE", names[target])
