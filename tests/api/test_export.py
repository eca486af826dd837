"""An export has everything that a company owns, a line each, and says when it is whole."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import orjson
import pytest
from fastapi import FastAPI
from httpx2 import AsyncClient

from taketurns.api import export
from taketurns.brokers.postgres import PostgresBroker
from taketurns.companies import directory, keys, pauses
from taketurns.companies.directory import Company
from taketurns.companies.keys import Stamp
from taketurns.engine.quota import Quotas
from taketurns.storage.audit import Actor, ActorKind
from taketurns.storage.database import Database

BY = Actor(kind=ActorKind.COMMAND, name="test")


async def exported(client: AsyncClient, company: str = "acme") -> list[dict[str, Any]]:
    answer = await client.get(f"/companies/{company}/export")
    assert (answer.status_code, answer.headers["content-type"]) == (200, export.MEDIA_TYPE)
    return [orjson.loads(line) for line in answer.content.splitlines()]


async def test_everything_is_exported_and_nothing_of_others(
    client: AsyncClient, database: Database, acme: Company, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "TASKS_AT_A_TIME", 2)
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


async def test_an_export_of_nobody_is_not_found(client: AsyncClient) -> None:
    answer = await client.get("/companies/nobody/export")
    assert (answer.status_code, answer.json()["code"]) == (404, "company_not_found")


async def test_an_export_whose_company_goes_meanwhile_has_no_end(
    app: FastAPI, database: Database, broker: PostgresBroker, acme: Company
) -> None:
    lines = export._written(database, acme, app.state.parts.waiting)
    assert orjson.loads(await anext(lines))["kind"] == "company"
    assert await directory.delete(database, "acme")
    assert "end" not in [orjson.loads(line)["kind"] async for line in lines]


async def test_an_export_ends_when_the_process_does(app: FastAPI, database: Database, acme: Company) -> None:
    waiting = app.state.parts.waiting
    lines = export._written(database, acme, waiting)
    assert orjson.loads(await anext(lines))["kind"] == "company"
    waiting.leave()
    async with asyncio.timeout(5):
        assert [line async for line in lines] == []
