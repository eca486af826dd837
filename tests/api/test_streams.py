"""Streams whose key or token ends while they are open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from httpx2 import ASGITransport, AsyncClient

from taketurns.api import streams
from taketurns.api.application import create_api
from taketurns.api.guard import Guard
from taketurns.brokers.postgres import PostgresBroker
from taketurns.brokers.redis import RedisBroker
from taketurns.brokers.redis.server import Server
from taketurns.companies import keyring, keys
from taketurns.companies.keyring import KeyRing
from taketurns.engine.key import Role, id_of
from taketurns.engine.registry import Registry
from taketurns.storage.database import Database
from tests.api import keyed
from tests.api.keyed import STAMP, House, bearer
from tests.api.servers import served
from tests.waiting import PATIENCE

OVER = 'event: bye\ndata: {"reason":"the key or token works no more"}'


@dataclass
class Watched:
    """A job of acme, and an API at which it is watched."""

    house: House
    job_id: str
    address: str
    keyring: KeyRing

    async def watch(self, key: str) -> AsyncIterator[str]:
        """The lines of its stream until that ends."""
        path = f"{self.address}/companies/acme/jobs/{self.job_id}/events"
        async with AsyncClient(timeout=PATIENCE) as client, client.stream("GET", path, headers=bearer(key)) as answer:
            assert answer.status_code == 200, await answer.aread()
            async for line in answer.aiter_lines():
                yield line


async def begun(lines: AsyncIterator[str]) -> None:
    """Read a stream up to where it only waits."""
    async with asyncio.timeout(PATIENCE):
        async for line in lines:
            if line == ": still here":
                return


async def ended(lines: AsyncIterator[str]) -> str:
    """What a stream tells to its end."""
    async with asyncio.timeout(PATIENCE):
        return "\n".join([line async for line in lines])


@pytest.fixture
async def watched(
    database: Database,
    database_url: str,
    registry: Registry,
    valkey_url: str,
    valkey_cell: str,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Watched]:
    """The guard has a database of its own that does not wait for long."""
    monkeypatch.setattr(streams, "KEEP_ALIVE_SECONDS", 0.05)
    monkeypatch.setattr(keyring, "FRESH_SECONDS", 0.1)
    impatient = Database(database_url, pool_size=2, pool_timeout=0.3, statement_timeout=0.3)
    await impatient.open()
    guard = Guard(keyring=KeyRing(impatient, stamp=STAMP))
    server = Server(valkey_url, cell=valkey_cell)
    app = create_api(
        database=database,
        broker=PostgresBroker(database),
        job_broker=RedisBroker(server),
        registry=registry,
        version="0.1.0",
        cursor_secret=b"secret",
        guard=guard,
    )
    async with served(app) as address, AsyncClient(transport=ASGITransport(app), base_url="http://api") as client:
        house = await keyed.house_of(client, database)
        operator = bearer(await house.operator_key(Role.OPERATOR))
        made = await client.post("/companies/acme/jobs", headers=operator, json={"type": "anything"})
        yield Watched(house, made.json()["jobId"], address, guard.keyring)
        await app.state.parts.jobs.waiting.close()
    await guard.keyring.close()
    await server.close()
    await impatient.close()


async def test_a_stream_ends_with_its_key_and_those_of_others_go_on(watched: Watched) -> None:
    revoked, kept = [await watched.house.company_key(watched.house.acme) for _ in range(2)]
    first, second = watched.watch(revoked), watched.watch(kept)
    await begun(first)
    await begun(second)
    key_id = id_of(revoked)
    assert key_id is not None
    await keys.revoke(watched.house.database, "acme", key_id)
    assert OVER in await ended(first)
    operator = bearer(await watched.house.operator_key(Role.OPERATOR))
    await watched.house.client.post(f"/companies/acme/jobs/{watched.job_id}/cancel", headers=operator)
    told = await ended(second)
    assert "event: cancelled" in told
    assert "event: bye" not in told


async def test_a_stream_ends_when_its_key_expires(watched: Watched) -> None:
    lines = watched.watch(await watched.house.company_key(watched.house.acme))
    await begun(lines)
    async with watched.house.database.connection() as connection:
        await connection.execute("update taketurns.api_keys set expires_at = clock_timestamp()")
    assert OVER in await ended(lines)


async def test_a_stream_goes_on_while_nobody_can_tell_whether_its_key_works(watched: Watched) -> None:
    key = await watched.house.company_key(watched.house.acme)
    key_id = id_of(key)
    assert key_id is not None
    lines = watched.watch(key)
    await begun(lines)
    async with watched.house.database.transaction() as connection:
        await connection.execute("lock table taketurns.api_keys in access exclusive mode")
        watched.keyring.forget(key_id)
        await begun(lines)
        await begun(lines)  # the first may have been on its way
    async with watched.house.database.connection() as connection:
        await connection.execute("update taketurns.api_keys set revoked_at = clock_timestamp()")
    assert OVER in await ended(lines)
