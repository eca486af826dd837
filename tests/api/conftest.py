"""An API over a fresh database, and clients of it: in process, or through a real server on a loopback port."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

import pytest
from fastapi import FastAPI
from httpx2 import ASGITransport, AsyncClient
from pydantic import Field

from taketurns.api.application import create_api
from taketurns.brokers.postgres import PostgresBroker
from taketurns.companies import directory
from taketurns.companies.directory import Company
from taketurns.engine.registry import Registry
from taketurns.engine.task import PassReport
from taketurns.storage.database import Database
from tests.api.servers import served


async def send_email(to: str, subject: str = "", copies: Annotated[int, Field(ge=1)] = 1) -> None: ...


async def anything(value: object = None) -> None: ...


@pytest.fixture
def registry() -> Registry:
    registry = Registry()
    registry.add(send_email, queue="mail", priority=3, max_retries=2, timeout_seconds=30.0)
    registry.add(anything)
    return registry


@pytest.fixture
async def database(database_url: str, company_url: str) -> AsyncIterator[Database]:
    companies = Database(company_url, pool_size=4, pool_timeout=20.0, statement_timeout=20.0)
    database = Database(database_url, pool_size=4, pool_timeout=20.0, statement_timeout=20.0, companies=companies)
    await database.open()
    yield database
    await database.close()


@pytest.fixture
async def broker(database: Database) -> AsyncIterator[PostgresBroker]:
    broker = PostgresBroker(database)
    yield broker
    await broker.notifier.flush()


async def process_nothing(*, limit: int | None) -> PassReport:
    return PassReport(claimed=limit or 0)


@pytest.fixture
async def app(database: Database, broker: PostgresBroker, registry: Registry) -> AsyncIterator[FastAPI]:
    app = create_api(
        database=database,
        broker=broker,
        registry=registry,
        process_pass=process_nothing,
        version="0.1.0",
        cursor_secret=b"secret",
    )
    yield app
    await app.state.parts.waiting.close()


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[AsyncClient]:
    transport = ASGITransport(app, raise_app_exceptions=False)
    async with AsyncClient(transport=transport, base_url="http://api") as client:
        yield client


@pytest.fixture
async def acme(database: Database) -> Company:
    return await directory.create(database, name="Acme", slug="acme")


@pytest.fixture
async def address(app: FastAPI) -> AsyncIterator[str]:
    """The address of the API behind a real server."""
    async with served(app) as address:
        yield address
