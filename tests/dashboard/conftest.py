"""The dashboard over a fresh database, open to all or asking for keys, and browsers that look at it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from fastapi import FastAPI
from httpx2 import ASGITransport, AsyncClient

from taketurns.api.application import create_api
from taketurns.api.guard import Guard
from taketurns.brokers.postgres import PostgresBroker
from taketurns.companies.keyring import KeyRing
from taketurns.companies.wrong_keys import WrongKeys
from taketurns.dashboard import Dashboard
from taketurns.engine.registry import Registry
from taketurns.storage.database import Database
from tests.api import keyed
from tests.api.conftest import acme, broker, database, process_nothing, registry
from tests.api.keyed import STAMP, House
from tests.dashboard.browsing import Browser

__all__ = ["acme", "broker", "database", "registry"]


def with_dashboard(
    database: Database,
    broker: PostgresBroker,
    registry: Registry,
    *,
    asks_for_keys: bool = False,
    on_loopback_only: bool = False,
    wrong_keys: WrongKeys | None = None,
    prefix: str = "/dashboard",
) -> FastAPI:
    """An API with its dashboard mounted, as assembly makes it."""
    guard = Guard(
        keyring=KeyRing(database, stamp=STAMP),
        asks_for_keys=asks_for_keys,
        on_loopback_only=on_loopback_only,
        wrong_keys=wrong_keys,
    )
    dashboard = Dashboard(
        database=database,
        keyring=guard.keyring,
        asks_for_keys=asks_for_keys,
        on_loopback_only=on_loopback_only,
        wrong_keys=wrong_keys,
        prefix=prefix,
        version="0.1.0",
        told={"Completed tasks are kept": "7 days"},
    )
    app = create_api(
        database=database,
        broker=broker,
        registry=registry,
        process_pass=process_nothing,
        version="0.1.0",
        cursor_secret=b"secret",
        guard=guard,
        on_leaving=dashboard.leave,
    )
    dashboard.mount(app)
    return app


@pytest.fixture
async def app(database: Database, broker: PostgresBroker, registry: Registry) -> AsyncIterator[FastAPI]:
    app = with_dashboard(database, broker, registry)
    yield app
    await app.state.parts.waiting.close()


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(transport=ASGITransport(app), base_url="http://localhost") as client:
        yield client


@pytest.fixture
def browser(client: AsyncClient) -> Browser:
    return Browser(client)


@pytest.fixture
async def guarded(database: Database, broker: PostgresBroker, registry: Registry) -> AsyncIterator[FastAPI]:
    app = with_dashboard(database, broker, registry, asks_for_keys=True)
    yield app
    await app.state.parts.waiting.close()
    await app.state.parts.guard.keyring.close()


@pytest.fixture
async def house(guarded: FastAPI, database: Database) -> AsyncIterator[House]:
    house = await keyed.house(guarded, database)
    async with house.client:
        await house.furnish()
        yield house


@pytest.fixture
async def stranger(guarded: FastAPI) -> AsyncIterator[Browser]:
    """A browser that nobody has signed in with."""
    async with AsyncClient(transport=ASGITransport(guarded), base_url="http://localhost") as client:
        yield Browser(client)
