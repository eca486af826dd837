"""Health, readiness, limits, types, and a pass of processing: also while the database is away or busy."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from httpx2 import ASGITransport, AsyncClient

from taketurns.api.application import create_api
from taketurns.brokers.postgres import PostgresBroker
from taketurns.brokers.redis import RedisBroker
from taketurns.brokers.redis.server import Server
from taketurns.companies.directory import Company
from taketurns.engine import limits
from taketurns.engine.job import JobBroker
from taketurns.engine.registry import Registry
from taketurns.engine.task import PassReport
from taketurns.storage import schema
from taketurns.storage.database import Database
from tests.api.conftest import process_nothing
from tests.valkeys import Valkeys
from tests.waiting import PATIENCE

TASKS = "/companies/acme/tasks"
AWAY = "postgresql://taketurns@127.0.0.1:1/nowhere"


def api(
    database: Database,
    registry: Registry,
    process_pass: Any = process_nothing,
    job_broker: JobBroker | None = None,
) -> AsyncClient:
    app = create_api(
        database=database,
        broker=PostgresBroker(database),
        job_broker=job_broker,
        registry=registry,
        process_pass=process_pass,
        version="0.1.0",
        cursor_secret=b"secret",
    )
    return AsyncClient(transport=ASGITransport(app, raise_app_exceptions=False), base_url="http://api")


@pytest.fixture
async def stranded(registry: Registry) -> AsyncIterator[AsyncClient]:
    """An API whose database is away."""
    companies = Database(AWAY, pool_size=1, pool_timeout=0.2)
    database = Database(AWAY, pool_size=1, pool_timeout=0.2, companies=companies)
    await database.open()
    async with api(database, registry) as client:
        yield client
    await database.close()


async def test_health_says_that_the_process_answers(client: AsyncClient) -> None:
    answer = await client.get("/health")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok", "version": "0.1.0"})


async def test_ready_says_that_the_schema_is_the_one_needed(client: AsyncClient, database: Database) -> None:
    answer = await client.get("/ready")
    assert (answer.status_code, answer.json()) == (200, ready())
    async with database.connection() as connection:
        await connection.execute("update taketurns.alembic_version set version_num = 'older'")
    answer = await client.get("/ready")
    assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")
    assert "older" in answer.json()["detail"]
    assert schema.head() in answer.json()["detail"]


async def test_ready_is_degraded_while_jobs_have_no_server_and_whole_again_without_a_restart(  # faults 110, 147, 149
    database: Database, registry: Registry, valkey: Valkeys
) -> None:
    server = valkey()
    broker = RedisBroker(Server(server.url, timeout=0.5))
    async with api(database, registry, job_broker=broker) as client:
        assert (await client.get("/ready")).json() == ready(jobs="ready")

        server.kill()
        answer = await client.get("/ready")
        assert (answer.status_code, answer.json()["status"], answer.json()["jobs"]) == (200, "degraded", "unavailable")
        assert server.url in answer.json()["detail"]

        server.start()
        assert (await client.get("/ready")).json() == ready(jobs="ready")

        server.pause()
        answer = await client.get("/ready")
        assert (answer.status_code, answer.json()["jobs"]) == (200, "unavailable")

        server.go_on()
        server.execute("CONFIG SET", "maxmemory-policy", "allkeys-lru")
        answer = await client.get("/ready")
        assert (answer.status_code, answer.json()["status"], answer.json()["jobs"]) == (
            200,
            "degraded",
            "misconfigured",
        )
        assert "maxmemory-policy is allkeys-lru" in answer.json()["detail"]
    await broker.server.close()


def ready(*, jobs: str | None = None) -> dict[str, str | None]:
    return {"status": "ready", "migration": schema.head(), "jobs": jobs, "detail": None}


async def test_ready_says_that_there_is_no_schema_yet(empty_database_url: str, registry: Registry) -> None:
    database = Database(empty_database_url, pool_size=1)
    await database.open()
    async with api(database, registry) as client:
        answer = await client.get("/ready")
    await database.close()
    assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")
    assert "no revision" in answer.json()["detail"]


async def test_without_a_database_everything_that_needs_one_is_unavailable(  # faults 031, 042
    stranded: AsyncClient,
) -> None:
    assert (await stranded.get("/health")).status_code == 200
    assert (await stranded.get("/limits")).status_code == 200
    assert (await stranded.get("/ready")).status_code == 503
    for method, path in [
        ("GET", "/companies"),
        ("POST", "/companies"),
        ("GET", "/companies/acme"),
        ("PATCH", "/companies/acme"),
        ("DELETE", "/companies/acme"),
        ("GET", TASKS),
        ("POST", TASKS),
        ("GET", "/task-types"),
    ]:
        body = {"type": "anything"} if path == TASKS else {"name": "Acme"}
        answer = await stranded.request(method, path, json=body)
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable"), (method, path)
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json()["retryable"] is True
        assert "127.0.0.1" not in answer.text


async def test_a_blocked_database_holds_nobody_for_long(  # faults 042, 043, 045
    database_url: str, company_url: str, acme: Company, database: Database, registry: Registry
) -> None:
    companies = Database(company_url, pool_size=2, pool_timeout=0.3, statement_timeout=0.5)
    small = Database(database_url, pool_size=2, pool_timeout=0.3, statement_timeout=0.5, companies=companies)
    await small.open()
    async with api(small, registry) as client:
        async with database.transaction() as connection:
            await connection.execute("lock table taketurns.tasks")
            began_at = time.monotonic()
            answers, alive = await asyncio.gather(
                asyncio.gather(*(client.post(TASKS, json={"type": "anything"}) for _ in range(50))),
                asyncio.gather(*(took(client.get("/health")) for _ in range(20))),
            )
            assert time.monotonic() - began_at < 15
            assert {answer.status_code for answer in answers} == {503}
            assert all("retry-after" in answer.headers for answer in answers)
            assert max(alive) < 10
        assert (await client.post(TASKS, json={"type": "anything"})).status_code == 201
    await small.close()


async def took(request: Any) -> float:
    began_at = time.monotonic()
    assert (await request).status_code == 200
    return time.monotonic() - began_at


async def test_health_answers_beside_the_largest_requests(address: str, acme: Company) -> None:  # fault 045
    body = {"type": "anything", "payload": {"value": "x" * 250_000}}
    async with AsyncClient(base_url=address, timeout=PATIENCE) as client, AsyncClient(base_url=address) as prober:

        async def probe() -> int:
            answered = 0
            while not done.is_set():
                assert (await prober.get("/health")).status_code == 200
                answered += 1
            return answered

        done = asyncio.Event()
        probing = asyncio.create_task(probe())
        made = await asyncio.gather(*(client.post(TASKS, json=body) for _ in range(40)))
        assert {answer.status_code for answer in made} == {201}
        listed = await asyncio.gather(*(client.get(f"{TASKS}?limit=40") for _ in range(5)))
        assert {len(answer.json()["tasks"]) for answer in listed} == {40}
        done.set()
        assert await probing > 20  # in turn, where one that waited for the others would have been answered twice


async def test_limits_are_those_that_requests_meet(client: AsyncClient) -> None:
    told = (await client.get("/limits")).json()
    assert told["payloadBytes"] == limits.PAYLOAD_BYTES
    assert told["batchTasks"] == limits.BATCH_TASKS
    assert told["pageMax"] == limits.PAGE_MAX


async def test_types_are_told_with_their_schemas(client: AsyncClient) -> None:
    told = (await client.get("/task-types")).json()["taskTypes"]
    assert [one["name"] for one in told] == ["anything", "send_email"]
    assert told[1] | {"payloadSchema": ""} == {
        "name": "send_email",
        "queue": "mail",
        "priority": 3,
        "maxRetries": 2,
        "timeoutSeconds": 30.0,
        "payloadSchema": "",
    }
    assert told[1]["payloadSchema"]["required"] == ["to"]


async def test_a_pass_of_processing_is_reported(database: Database, registry: Registry) -> None:
    asked: list[int | None] = []

    async def process_pass(*, limit: int | None) -> PassReport:
        asked.append(limit)
        return PassReport(claimed=10, completed=4, retried=2, deferred=1, failed=1, released=1, lost=1)

    async with api(database, registry, process_pass) as client:
        bodies: list[dict[str, Any]] = [{}, {"json": {}}, {"json": {"limit": 5}}]
        for options in bodies:
            answer = await client.post("/workers/process", **options)
            assert (answer.status_code, answer.json()) == (
                200,
                {"claimed": 10, "completed": 4, "retried": 2, "deferred": 1, "failed": 1, "released": 1, "lost": 1},
            )
        assert asked == [None, None, 5]
        wrong: list[Any] = [{"limit": 0}, {"limit": True}, {"limit": None}, {"most": 1}, []]
        for body in wrong:
            assert (await client.post("/workers/process", json=body)).status_code == 422
        assert asked == [None, None, 5]


async def test_without_a_pass_there_is_no_such_route(database: Database, registry: Registry) -> None:
    async with api(database, registry, None) as client:
        assert (await client.post("/workers/process")).status_code == 404
        assert "/workers/process" not in (await client.get("/openapi.json")).json()["paths"]
