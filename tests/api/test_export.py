"""An export has everything that a company owns, a line each, and says when it is whole."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import orjson
import pytest
from fastapi import FastAPI
from httpx2 import ASGITransport, AsyncClient

from taketurns.api import export
from taketurns.api.application import create_api
from taketurns.brokers.postgres import PostgresBroker
from taketurns.brokers.redis import RedisBroker
from taketurns.brokers.redis.server import Server
from taketurns.companies import directory, keys, pauses
from taketurns.companies.directory import Company
from taketurns.companies.keys import Stamp
from taketurns.engine.quota import Quotas
from taketurns.engine.registry import Registry
from taketurns.storage.audit import Actor, ActorKind
from taketurns.storage.database import Database
from tests.valkeys import Valkeys

BY = Actor(kind=ActorKind.COMMAND, name="test")


async def exported(client: AsyncClient, company: str = "acme") -> list[dict[str, Any]]:
    answer = await client.get(f"/companies/{company}/export")
    assert (answer.status_code, answer.headers["content-type"]) == (200, export.MEDIA_TYPE)
    return [orjson.loads(line) for line in answer.content.splitlines()]


async def test_everything_is_exported_and_nothing_of_others(
    client: AsyncClient, database: Database, acme: Company, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "TASKS_AT_A_TIME", 2)
    monkeypatch.setattr(export, "FIRST_EVENTS", 1)
    monkeypatch.setattr(export, "EVENTS_AT_A_TIME", 1)
    monkeypatch.setattr(export, "AT_A_TIME", 1)
    await directory.create(database, name="Zeta", slug="zeta", by=BY)
    stamp = Stamp(environment="test", peppers=(b"pepper",))
    for slug in ("acme", "zeta"):
        await directory.change(database, slug, {"quotas": Quotas(hour=100)}, by=BY)
        for name in ("one", "two"):
            await keys.create_for_company(database, slug, stamp=stamp, name=name, scopes=["tasks:read"], by=BY)
        await pauses.put(database, slug, queue=None, type="never", by=BY)
        plan = {"name": "nightly", "type": "anything", "expression": "0 3 * * *", "timeZone": "UTC"}
        assert (await client.post(f"/companies/{slug}/schedules", json=plan)).status_code == 201
        made = [
            (await client.post(f"/companies/{slug}/tasks", json={"type": "anything", "payload": {"value": n}})).json()
            for n in range(5)
        ]
        await client.post(f"/companies/{slug}/tasks/{made[0]['id']}/cancel")
        body = {"kind": "cancel", "taskIds": [made[1]["id"]]}
        assert (await client.post(f"/companies/{slug}/operations", json=body)).status_code == 202
    lines = await exported(client)
    assert Counter(line["kind"] for line in lines) == {
        "company": 1,
        "key": 2,
        "pause": 1,
        "schedule": 1,
        "operation": 1,
        "usage": 1,
        "task": 5,
        "event": 6,
        "auditEntry": 4,
        "end": 1,
    }
    assert lines[0]["value"] == (await client.get("/companies/acme")).json()
    assert lines[-1] == {"kind": "end", "value": {"lines": len(lines) - 1}}
    told = [line["value"] for line in lines if line["kind"] == "task"]
    assert [task["payload"]["value"] for task in told] == list(range(5))
    assert {value["companyId"] for line in lines if "companyId" in (value := line["value"])} == {str(acme.id)}
    first = next(number for number, line in enumerate(lines) if line["kind"] == "task")
    assert [line["value"].get("kind") for line in lines[first + 1 : first + 3]] == ["created", "cancelled"]
    (digest,) = await database.run(b"select encode(digest, 'hex') from taketurns.api_keys limit 1")
    assert digest[0] not in orjson.dumps(lines).decode()


async def test_jobs_are_exported_with_their_events(
    database: Database, broker: PostgresBroker, registry: Registry, valkey_url: str, valkey_cell: str
) -> None:
    server = Server(valkey_url, cell=valkey_cell, pool_size=4)
    jobs = RedisBroker(server)
    app = create_api(
        database=database, broker=broker, registry=registry, job_broker=jobs, version="0.1.0", cursor_secret=b"secret"
    )
    async with AsyncClient(transport=ASGITransport(app), base_url="http://api") as client:
        made: dict[str, list[str]] = {}
        for slug in ("acme", "zeta"):
            await client.post("/companies", json={"name": slug, "slug": slug})
            answers = [
                await client.post(f"/companies/{slug}/jobs", json={"type": "anything", "payload": {"value": value}})
                for value in range(3)
            ]
            made[slug] = [answer.json()["jobId"] for answer in answers]
        cancelled = made["acme"][0]
        await client.post(f"/companies/acme/jobs/{cancelled}/cancel")
        lines = await exported(client)
        told = [line["value"] for line in lines if line["kind"] == "job"]
        assert sorted(job["jobId"] for job in told) == sorted(made["acme"])
        assert sorted(job["payload"]["value"] for job in told) == [0, 1, 2]
        (place,) = [number for number, line in enumerate(lines) if line["value"].get("jobId") == cancelled]
        assert lines[place]["value"] == (await client.get(f"/companies/acme/jobs/{cancelled}")).json()
        assert [line["value"]["kind"] for line in lines[place + 1 : place + 3]] == ["created", "cancelled"]
        assert Counter(line["kind"] for line in lines)["jobEvent"] == 4
        assert lines[-1]["kind"] == "end"
    await server.close()
    await app.state.parts.waiting.close()
    await app.state.parts.jobs.waiting.close()


async def test_an_export_without_the_jobs_has_no_end(
    database: Database, broker: PostgresBroker, registry: Registry, valkey: Valkeys
) -> None:
    valkey_server = valkey()
    server = Server(valkey_server.url, cell="gone", pool_size=4)
    app = create_api(
        database=database,
        broker=broker,
        registry=registry,
        job_broker=RedisBroker(server),
        version="0.1.0",
        cursor_secret=b"secret",
    )
    await directory.create(database, name="Acme", slug="acme")
    valkey_server.kill()
    async with AsyncClient(transport=ASGITransport(app), base_url="http://api") as client:
        assert "end" not in {line["kind"] for line in await exported(client)}
    await server.close()
    await app.state.parts.waiting.close()
    await app.state.parts.jobs.waiting.close()


async def test_an_export_of_nobody_is_not_found(client: AsyncClient) -> None:
    answer = await client.get("/companies/nobody/export")
    assert (answer.status_code, answer.json()["code"]) == (404, "company_not_found")


async def test_an_export_whose_company_goes_meanwhile_has_no_end(
    app: FastAPI, database: Database, broker: PostgresBroker, acme: Company
) -> None:
    lines = export._written(database, None, acme, app.state.parts.waiting)
    assert orjson.loads(await anext(lines))["kind"] == "company"
    assert await directory.delete(database, "acme")
    assert "end" not in [orjson.loads(line)["kind"] async for line in lines]


async def test_an_export_ends_when_the_process_does(app: FastAPI, database: Database, acme: Company) -> None:
    waiting = app.state.parts.waiting
    lines = export._written(database, None, acme, waiting)
    assert orjson.loads(await anext(lines))["kind"] == "company"
    waiting.leave()
    async with asyncio.timeout(5):
        assert [line async for line in lines] == []
