"""What a request that creates tasks asks of the server: at most two round trips, the wake-up of workers with it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from httpx2 import ASGITransport, AsyncClient

from taketurns.api.application import create_api
from taketurns.api.guard import Guard
from taketurns.brokers.postgres import PostgresBroker
from taketurns.companies import keys
from taketurns.companies.directory import Company
from taketurns.companies.keyring import KeyRing
from taketurns.engine.key import GRANTS
from taketurns.engine.registry import Registry
from taketurns.storage.database import Database
from tests.api.conftest import process_nothing
from tests.api.keyed import STAMP, bearer
from tests.pooler import TransactionPooler

TASK = {"type": "anything", "payload": {"value": 1}}
MOST = 2


@dataclass
class Asked:
    """A client of an API whose two roles at the database are behind what counts how often they waited for it."""

    client: AsyncClient
    broker: PostgresBroker
    poolers: list[TransactionPooler]
    key: dict[str, str]

    @property
    def turns(self) -> int:
        return sum(pooler.turns for pooler in self.poolers)

    async def count(self, body: Any, **headers: str) -> int:
        """The round trips of one creation."""
        await self.broker.notifier.flush()
        before = self.turns
        answer = await self.client.post("/companies/acme/tasks", json=body, headers={**self.key, **headers})
        assert answer.status_code in (200, 201), answer.text
        await self.broker.notifier.flush()
        return self.turns - before


@pytest.fixture
async def asked(
    database: Database, database_url: str, company_url: str, registry: Registry, acme: Company, open_directory: Path
) -> AsyncIterator[Asked]:
    made = await keys.create_for_company(database, acme.id, stamp=STAMP, name="program", scopes=GRANTS)
    poolers = []
    async with AsyncExitStack() as stack:
        for number, url in enumerate((database_url, company_url)):
            directory = open_directory / str(number)
            directory.mkdir(mode=0o755)
            poolers.append(TransactionPooler(url, directory))
            await stack.enter_async_context(poolers[-1].running())
        companies = Database(poolers[1].url, pool_size=1, prepare=False)
        behind = Database(poolers[0].url, pool_size=1, prepare=False, companies=companies)
        await behind.open()
        stack.push_async_callback(behind.close)
        broker = PostgresBroker(behind)
        guard = Guard(keyring=KeyRing(behind, stamp=STAMP))
        app = create_api(
            database=behind,
            broker=broker,
            registry=registry,
            process_pass=process_nothing,
            version="0.1.0",
            cursor_secret=b"secret",
            guard=guard,
        )
        client = AsyncClient(transport=ASGITransport(app), base_url="http://api")
        asked = Asked(await stack.enter_async_context(client), broker, poolers, bearer(made.text))
        await asked.count(TASK)  # from here on the key is known
        await guard.keyring.close()
        yield asked
        await app.state.parts.waiting.close()
        await broker.notifier.flush()


async def test_a_task_is_created_in_two_round_trips_at_most(asked: Asked) -> None:
    assert 1 <= await asked.count(TASK) <= MOST
    assert 1 <= await asked.count(TASK, **{"Idempotency-Key": "first"}) <= MOST
    assert 1 <= await asked.count(TASK, **{"Idempotency-Key": "first"}) <= MOST
    assert await asked.count({**TASK, "delaySeconds": 60}) == 1
    assert 1 <= await asked.count({**TASK, "uniqueKey": "one", "tags": ["red"]}) <= MOST
