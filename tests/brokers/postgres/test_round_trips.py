"""What a verb asks of the server: one statement, in one round trip, for a task or for a thousand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest

from taketurns.brokers.postgres import PostgresBroker
from taketurns.engine.task import ClaimedTask, NewTask, Outcome, Report
from taketurns.storage.database import Database
from taketurns.storage.ids import new_id
from tests.brokers.postgres.cell import WORKER, PostgresCell
from tests.pooler import TransactionPooler

MANY = 300
Answer = TypeVar("Answer")


@dataclass
class Asked:
    """A broker behind what counts: how often each verb waited for the server."""

    broker: PostgresBroker
    pooler: TransactionPooler
    turns: dict[str, int] = field(default_factory=dict)

    async def count(self, verb: str, answer: Awaitable[Answer]) -> Answer:
        await self.broker.notifier.flush()
        before = self.pooler.turns
        answered = await answer
        self.turns[verb] = self.pooler.turns - before
        return answered


@pytest.fixture
async def asked(cell: PostgresCell, open_directory: Path) -> AsyncIterator[Asked]:
    pooler = TransactionPooler(cell.url, open_directory)
    async with pooler.running():
        database = Database(pooler.url, pool_size=1, prepare=False)
        await database.open()
        asked = Asked(PostgresBroker(database), pooler)
        yield asked
        await asked.broker.notifier.flush()
        await database.close()


def tasks(count: int) -> list[NewTask]:
    return [NewTask(type="work", payload='{"to": "somebody@example.com"}', task_id=new_id()) for _ in range(count)]


def reports(held: list[ClaimedTask]) -> list[Report]:
    """Of every outcome some."""
    outcomes = list(Outcome)
    return [
        Report(task, outcomes[place % len(outcomes)], error="why", delay_seconds=1.0) for place, task in enumerate(held)
    ]


@pytest.mark.parametrize("count", [1, MANY])
async def test_every_verb_is_one_round_trip(asked: Asked, cell: PostgresCell, count: int) -> None:
    companies = [f"company-{number}" for number in range(10 if count == MANY else 1)]
    for company in companies:
        cell.add_company(company)
        await asked.count("enqueue", asked.broker.enqueue(company, tasks(count)))
    held = await asked.count("claim", claim(asked.broker, count))
    assert len(held) == count
    assert len(await asked.count("settle", asked.broker.settle(reports(held)))) == count
    if count == MANY:
        held = await asked.count("another claim", claim(asked.broker, count))
        assert len(await asked.count("release", asked.broker.release(held))) == count
    assert set(asked.turns.values()) == {1}, asked.turns


async def claim(broker: PostgresBroker, batch: int) -> list[ClaimedTask]:
    return list(await broker.claim(WORKER, queues=["default"], batch=batch))
