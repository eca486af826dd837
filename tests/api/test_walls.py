"""What is asked for within a company is asked of the database as that company sees it, whatever the query says."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import psycopg
import pytest
from fastapi import FastAPI
from httpx2 import ASGITransport, AsyncClient
from psycopg import sql
from sqlalchemy import select
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from taketurns.api.application import create_api
from taketurns.api.parts import operator_parts, parts
from taketurns.brokers.postgres import PostgresBroker
from taketurns.brokers.redis import RedisBroker
from taketurns.brokers.redis.server import Server
from taketurns.companies import directory
from taketurns.companies.directory import Company
from taketurns.engine.registry import Registry
from taketurns.storage.database import Database, conninfo
from taketurns.storage.models import Task
from tests.servers import DatabaseServer

AWAY = "postgresql://taketurns@127.0.0.1:1/nowhere"
# What is asked or done beyond the wall: a task that waits tells why, and that lies with others too.
OF_OPERATORS = tuple("/companies/{companyId}/" + name for name in ("keys", "pauses", "stats", "export"))
WHY = ("get", "/companies/{companyId}/tasks/{taskId}")
BODIES = {
    "/companies/{companyId}/operations": {"kind": "retry", "filter": {"status": ["failed"]}},
    "/companies/{companyId}/tasks/{taskId}/reschedule": {"runAfter": "2100-01-01T00:00:00Z"},
    "/companies/{companyId}/tasks": {"type": "anything"},
    "/companies/{companyId}/tasks/batch": {"tasks": [{"type": "anything"}]},
    "/companies/{companyId}/jobs": {"type": "anything"},
    "/companies/{companyId}/schedules": {"name": "weekly", "type": "anything", "expression": "0 9 * * 1"},
}


@pytest.fixture
async def for_companies_alone(
    company_url: str, registry: Registry, valkey_url: str, valkey_cell: str
) -> AsyncIterator[AsyncClient]:
    """An API that reaches its database as the role of companies only."""
    database = Database(AWAY, pool_size=1, pool_timeout=0.1, companies=Database(company_url, pool_size=4))
    server = Server(valkey_url, cell=valkey_cell)
    app = create_api(
        database=database,
        broker=PostgresBroker(database),
        job_broker=RedisBroker(server),
        registry=registry,
        version="0.1.0",
        cursor_secret=b"secret",
    )
    await database.open()
    async with AsyncClient(transport=ASGITransport(app), base_url="http://api") as client:
        yield client
    await server.close()
    await database.close()


async def test_every_route_within_a_company_is_behind_its_wall(
    for_companies_alone: AsyncClient, client: AsyncClient, acme: Company
) -> None:
    document = (await client.get("/openapi.json")).json()
    task = (await client.post("/companies/acme/tasks", json={"type": "anything"})).json()["id"]
    known = {"companyId": "acme", "taskId": task, "jobId": uuid.uuid4(), "scheduleId": uuid.uuid4()}
    known["operationId"] = uuid.uuid4()
    routes = [
        (method, path)
        for path, methods in document["paths"].items()
        for method in methods
        if path.startswith("/companies/{companyId}/") and not path.startswith(OF_OPERATORS) and (method, path) != WHY
    ]
    assert {path for _, path in routes} >= BODIES.keys()
    for method, path in routes:
        body = None if method == "get" else BODIES.get(path)
        for company in ("acme", str(acme.id), "nobody"):
            address = path.format_map(known | {"companyId": company})
            answer = await for_companies_alone.request(method, address, json=body)
            assert answer.status_code < 500, (method, address, answer.text)
            assert company != "nobody" or not answer.is_success, (method, address)
            if path in BODIES and company == "acme":
                assert answer.is_success, (method, address, answer.text)
    for path in ("/companies", "/companies/acme", "/companies/acme/keys"):
        assert (await for_companies_alone.get(path)).status_code == 503


async def test_a_query_that_forgets_its_company_answers_of_one_all_the_same(
    app: FastAPI, client: AsyncClient, acme: Company, database: Database
) -> None:
    async def forget(request: Request) -> Response:
        rows = await parts(request).database.fetch(select(Task.company_id))
        every = await operator_parts(request).database.fetch(select(Task.company_id))
        return JSONResponse([[str(company_id) for (company_id,) in rows], len(every)])

    app.add_route("/companies/{companyId}/everything", forget)
    zeta = await directory.create(database, name="Zeta", slug="zeta")
    for slug in ("acme", "zeta"):
        await client.post(f"/companies/{slug}/tasks", json={"type": "anything"})
    for named, company in (("acme", acme), ("zeta", zeta), (str(zeta.id), zeta)):
        assert (await client.get(f"/companies/{named}/everything")).json() == [[str(company.id)], 2]
    assert (await client.get("/companies/nobody/everything")).json() == [[], 2]


async def test_a_company_that_is_gone_is_not_found_by_its_id_or_its_slug(client: AsyncClient, acme: Company) -> None:
    assert (await client.get("/companies/acme/tasks")).status_code == 200
    assert (await client.delete("/companies/acme")).status_code == 204
    for named in ("acme", str(acme.id)):
        for path in ("tasks", "schedules", "usage"):
            assert (await client.get(f"/companies/{named}/{path}")).status_code == 404
        assert (await client.post(f"/companies/{named}/tasks", json={"type": "anything"})).status_code == 404


async def test_who_cannot_keep_companies_apart_is_not_ready(
    database_url: str, company_url: str, registry: Registry, postgres_server: DatabaseServer
) -> None:
    assert await ready(database_url, company_url, registry) == (200, None)
    status, detail = await ready(database_url, database_url, registry)
    assert status == 503
    assert "sees every company" in str(detail)
    role = sql.Identifier(postgres_server.company_role)
    with psycopg.connect(conninfo(database_url), autocommit=True) as owner:
        for statement in (
            "revoke select on taketurns.schedules from {}",
            "revoke insert, update, delete on taketurns.schedules from {}",
        ):
            owner.execute(sql.SQL(statement).format(role))
        status, detail = await ready(database_url, company_url, registry)
        assert (status, "taketurns db grant" in str(detail)) == (503, True)
        owner.execute(sql.SQL("revoke usage on schema taketurns from {}").format(role))
        assert (await ready(database_url, company_url, registry))[0] == 503
        postgres_server.grant(database_url)
        assert (await ready(database_url, company_url, registry))[0] == 200


async def ready(url: str, company_url: str, registry: Registry) -> tuple[int, str | None]:
    database = Database(url, pool_size=1, companies=Database(company_url, pool_size=1))
    app = create_api(
        database=database, broker=PostgresBroker(database), registry=registry, version="1", cursor_secret=b""
    )
    await database.open()
    async with AsyncClient(transport=ASGITransport(app), base_url="http://api") as client:
        answer = await client.get("/ready")
    await database.close()
    return answer.status_code, answer.json().get("detail")
