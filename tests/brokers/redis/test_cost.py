"""What a claim costs: the batch and what runs, never the backlog or the number of companies."""

from __future__ import annotations

from uuid import UUID

from tests.brokers.cell import new_tasks
from tests.brokers.redis.cell import RedisCell
from tests.valkeys import Valkeys

WORKER = UUID(int=1)


async def commands_of_a_claim(valkey: Valkeys, *, companies: int, tasks: int, delayed: int = 0) -> int:
    """How many commands the server ran for a claim of ten, those of the script included."""
    server = valkey(appendonly="no")
    cell = RedisCell.open(server.url, "cost")
    for place in range(companies):
        cell.add_company(f"c{place}")
        await cell.broker.enqueue(f"c{place}", [*new_tasks(tasks), *new_tasks(delayed, delay_seconds=60)])
    await cell.broker.claim(WORKER, queues=["default"], batch=10)
    server.execute("CONFIG RESETSTAT")
    assert len(await cell.broker.claim(WORKER, queues=["default"], batch=10)) == 10
    told = cell.client.info("commandstats")
    await cell.broker.server.close()
    cell.client.close()
    return sum(command["calls"] for name, command in told.items() if "|" not in name)


async def test_a_claim_costs_the_same_whatever_waits(valkey: Valkeys) -> None:
    few = await commands_of_a_claim(valkey, companies=20, tasks=2)
    assert await commands_of_a_claim(valkey, companies=20, tasks=200, delayed=50) == few
    assert await commands_of_a_claim(valkey, companies=600, tasks=2) == few
