"""The Redis broker on a cluster of three nodes: a cell is in one slot, wherever that moves, whoever else is gone."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeVar
from uuid import UUID

import pytest
from redis.crc import key_slot

from taketurns.brokers.redis import RedisBroker
from taketurns.brokers.redis.server import Server, cell_key
from taketurns.engine.errors import Unavailable
from taketurns.engine.lease import Holder
from taketurns.engine.task import NewTask, Status
from taketurns.storage.ids import new_id
from tests.brokers.cell import claimed_ids, ids, new_tasks, reports
from tests.brokers.contract import Finishing, Submitting, TakingTurns, Upkeep
from tests.brokers.redis.cell import RedisCell
from tests.valkeys import Valkey, ValkeyCluster, Valkeys, free_ports, wait_until
from tests.waiting import PATIENCE

WORKER = UUID(int=1)
Answer = TypeVar("Answer")
HOLDER = Holder(queues=["default"], types=[], concurrency=1)


@asynccontextmanager
async def open_broker(name: str, *nodes: Valkey) -> AsyncIterator[RedisBroker]:
    """A broker that is told the addresses of some nodes, and has to find its cell."""
    hosts = ",".join(f"127.0.0.1:{node.port}" for node in nodes)
    broker = RedisBroker(Server(f"redis+cluster://{hosts}", cell=name, pool_size=32))
    yield broker
    await broker.server.close()


@asynccontextmanager
async def open_cell(cluster: ValkeyCluster, name: str, *nodes: Valkey) -> AsyncIterator[RedisCell]:
    """The same with the cell, which tests look at where it is. The broker is told of the first node if of no others."""
    async with open_broker(name, *(nodes or cluster.nodes[:1])) as broker:
        cell = RedisCell(cluster.node_of(cell_key(name)).url, name)
        cell.broker = broker
        yield cell
        cell.clear()
        cell.client.close()


@pytest.fixture
def name() -> str:
    """Of a cell that no other test has."""
    return f"test_{uuid.uuid4().hex[:12]}"


def look_at(cell: RedisCell, node: Valkey) -> None:
    """Look at a cell where it has come to be."""
    cell.client.close()
    cell.client = node.client()


@pytest.fixture
async def cell(valkey_cluster: ValkeyCluster, name: str) -> AsyncIterator[RedisCell]:
    async with open_cell(valkey_cluster, name) as cell:
        yield cell


class TestRedisBrokerOnACluster(Submitting, Finishing, Upkeep):
    """What the contract asks of each verb, and of claims that race."""

    test_companies_alternate = TakingTurns.test_companies_alternate_however_many_tasks_one_has
    test_no_task_is_claimed_twice = TakingTurns.test_no_task_is_claimed_twice


async def test_cells_are_spread_over_the_nodes_and_each_has_all_its_keys_on_one(valkey_cluster: ValkeyCluster) -> None:
    owners = set()
    for number in range(12):
        name = f"test_spread_{number}"
        async with open_cell(valkey_cluster, name) as cell:
            cell.add_company("acme")
            cell.add_lease(WORKER)
            made = ids(await cell.broker.enqueue("acme", new_tasks(2)))
            assert claimed_ids(await cell.broker.claim(WORKER, queues=["default"], batch=2)) == made
            nodes = [node for node in valkey_cluster.nodes if node.execute("KEYS", f"*{name}*")]
            assert nodes == [valkey_cluster.node_of(cell.prefix)]
            owners.add(nodes[0].port)
    assert owners == {node.port for node in valkey_cluster.nodes}


class Move:
    """The way of a key's slot to another node."""

    def __init__(self, cluster: ValkeyCluster, key: str) -> None:
        self._cluster = cluster
        self._key = key
        self.slot = key_slot(key.encode())
        self.source = cluster.node_of(key)
        self.target = next(node for node in cluster.nodes if node is not self.source)

    def begin(self) -> None:
        self.target.execute("CLUSTER SETSLOT", self.slot, "IMPORTING", self.source.execute("CLUSTER MYID"))
        self.source.execute("CLUSTER SETSLOT", self.slot, "MIGRATING", self.target.execute("CLUSTER MYID"))

    def carry(self, most: int) -> int:
        """Move so many keys; answers how many are left."""
        keys = self.source.execute("CLUSTER GETKEYSINSLOT", self.slot, most)
        if keys:
            self.source.execute("MIGRATE", "127.0.0.1", self.target.port, "", 0, 5_000, "KEYS", *keys)
        return int(self.source.execute("CLUSTER COUNTKEYSINSLOT", self.slot))

    def end(self) -> None:
        for node in (self.target, self.source, *self._cluster.nodes):
            node.execute("CLUSTER SETSLOT", self.slot, "NODE", self.target.execute("CLUSTER MYID"))

    def key_by_key(self) -> None:
        """As `valkey-cli --cluster reshard` does it."""
        self.begin()
        while self.carry(10):
            pass
        self.end()

    def at_once(self) -> None:
        """As Valkey does it by itself from its version 9 on."""
        if "MIGRATESLOTS" not in str(self.source.execute("CLUSTER HELP")):
            pytest.skip("this server moves slots key by key only")
        name = self.target.execute("CLUSTER MYID")
        self.source.execute("CLUSTER MIGRATESLOTS", "SLOTSRANGE", self.slot, self.slot, "NODE", name)
        wait_until(self._is_known, "every node knows where the slot is")

    def _is_known(self) -> bool:
        return all(self._cluster.node_of(self._key, told_by=node) is self.target for node in self._cluster.nodes)


async def test_a_cell_whose_slot_moves_is_unavailable_until_all_of_it_is_there(
    valkey_cluster: ValkeyCluster, cell: RedisCell
) -> None:
    company = cell.add_company("acme")
    made = ids(await cell.broker.enqueue("acme", new_tasks(20)))
    line = cell.broker.lease_line(patience_seconds=5)
    line.take(WORKER, HOLDER, former=None)
    async with cell.broker.wakeups() as wakeups:
        move = Move(valkey_cluster, cell.prefix)
        move.begin()
        while move.carry(5):
            for call in (
                cell.broker.claim(WORKER, queues=["default"], batch=5),
                cell.broker.enqueue("acme", new_tasks()),
                cell.broker.beats(),
            ):
                with pytest.raises(Unavailable, match="is moving"):
                    await call
            with pytest.raises(Unavailable):
                line.beat(WORKER, seconds_since_claim=None)
            for job_id in made:
                with suppress(Unavailable):
                    assert await cell.broker.job(company, job_id) is not None
        move.end()

        look_at(cell, move.target)
        assert cell.contradictions() == []
        made += ids(await cell.broker.enqueue("acme", new_tasks()))
        assert await anext(wakeups) == {"default"}
    with pytest.raises(Unavailable):
        line.beat(WORKER, seconds_since_claim=None)
    line.close()
    line = cell.broker.lease_line(patience_seconds=5)
    assert line.beat(WORKER, seconds_since_claim=None) is not None
    line.close()
    claimed = await cell.broker.claim(WORKER, queues=["default"], batch=50)
    assert claimed_ids(claimed) == made
    assert await cell.broker.settle(reports(claimed)) == set(made)


@pytest.mark.parametrize("way", [Move.key_by_key, Move.at_once])
async def test_no_job_is_lost_or_claimed_twice_while_its_cell_moves(
    valkey_cluster: ValkeyCluster, cell: RedisCell, way: Callable[[Move], None]
) -> None:
    cell.add_company("acme")
    accepted = set(ids(await cell.broker.enqueue("acme", new_tasks(200))))
    claimed: Counter[UUID] = Counter()
    moved = asyncio.Event()

    async def submit() -> None:
        while not moved.is_set():
            task = NewTask(type="work", payload="{}", task_id=new_id())
            accepted.update(ids(await insist(lambda task=task: cell.broker.enqueue("acme", [task]))))  # type: ignore[misc]

    async def work() -> None:
        while not moved.is_set() or claimed.keys() != accepted:
            tasks = await insist(lambda: cell.broker.claim(WORKER, queues=["default"], batch=3))
            claimed.update(claimed_ids(tasks))
            await insist(lambda tasks=tasks: cell.broker.settle(reports(tasks)))  # type: ignore[misc]

    async def move() -> None:
        try:
            await asyncio.to_thread(way, step)
        finally:
            moved.set()

    step = Move(valkey_cluster, cell.prefix)
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(move(), submit(), submit(), work(), work(), work())
    look_at(cell, step.target)
    assert set(claimed.values()) == {1}
    assert cell.standing() == {Status.COMPLETED: len(accepted)}
    assert cell.contradictions() == []


async def insist(call: Callable[[], Awaitable[Answer]]) -> Answer:
    """What a call answers once it is possible."""
    while True:
        with suppress(Unavailable):
            return await call()
        await asyncio.sleep(0.01)


async def test_nodes_that_do_not_have_the_cell_may_go_and_the_one_that_has_it_is_replaced(
    valkey: Valkeys, name: str
) -> None:
    settings = {"cluster_require_full_coverage": "no", "cluster_node_timeout": "1000", "repl_diskless_sync_delay": "0"}
    cluster = valkey.cluster(**settings)
    owner = cluster.node_of(cell_key(name))
    other, third = (node for node in cluster.nodes if node is not owner)
    replica = valkey.cluster_node(**settings)
    cluster.add_replica(replica, of=owner)
    async with open_cell(cluster, name, owner) as cell, open_broker(name, other, third) as newcomer:
        cell.add_company("acme")
        made = ids(await cell.broker.enqueue("acme", new_tasks(4)))

        other.kill()
        wait_until(lambda: owner.execute("CLUSTER INFO")["cluster_slots_fail"] != "0", "the death is noticed")
        assert await claim_one(cell.broker) == made[0]
        assert await claim_one(newcomer) == made[1]

        other.start()
        wait_until(lambda: cluster.is_copied(owner, replica), "the replica has everything")
        owner.kill()
        with pytest.raises(Unavailable):
            await claim_one(cell.broker)
        replica.execute("CLUSTER FAILOVER", "TAKEOVER")
        look_at(cell, replica)
        async with asyncio.timeout(PATIENCE):
            assert await insist(lambda: claim_one(cell.broker)) == made[2]
            assert await insist(lambda: claim_one(newcomer)) == made[3]
        line = newcomer.lease_line(patience_seconds=5)
        line.take(WORKER, HOLDER, former=None)
        line.close()
        assert cell.standing() == {Status.PROCESSING: 4}


async def claim_one(broker: RedisBroker) -> UUID:
    (job_id,) = claimed_ids(await broker.claim(WORKER, queues=["default"], batch=1))
    return job_id


async def test_nodes_that_do_not_tell_their_host_are_on_that_of_who_told_of_them(
    valkey_cluster: ValkeyCluster, cell: RedisCell, name: str
) -> None:
    cell.add_company("acme")
    made = ids(await cell.broker.enqueue("acme", new_tasks(2)))
    move = Move(valkey_cluster, cell.prefix)
    try:
        for node in valkey_cluster.nodes:
            node.execute("CONFIG SET", "cluster-preferred-endpoint-type", "unknown-endpoint")
        async with open_broker(name, move.target) as newcomer:
            assert await claim_one(newcomer) == made[0]
            move.key_by_key()
            assert await claim_one(newcomer) == made[1]
    finally:
        for node in valkey_cluster.nodes:
            node.execute("CONFIG SET", "cluster-preferred-endpoint-type", "ip")
    look_at(cell, move.target)


async def test_an_address_where_no_cluster_is_to_be_found_is_told(valkey: Valkeys) -> None:
    async with open_broker("cell", valkey.cluster_node()) as broker:
        with pytest.raises(Unavailable, match="none serves its slot"):
            await broker.beats()
    (port,) = free_ports(1)
    alone = valkey(port=port)
    async with open_broker("cell", alone) as broker:
        with pytest.raises(
            Unavailable, match=rf"no node of the cluster at redis\+cluster://127.0.0.1:{port} .*disabled"
        ):
            await broker.beats()
        alone.stop()
        with pytest.raises(Unavailable, match="no node"):
            await broker.beats()
        with pytest.raises(Unavailable, match="no node"):
            broker.lease_line(patience_seconds=5)
