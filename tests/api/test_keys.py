"""Keys and the audit over the API: made and shown once, rotated, revoked at once, and every change told of."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from httpx2 import AsyncClient

from taketurns.api.guard import Guard
from taketurns.brokers.postgres import PostgresBroker
from taketurns.companies.directory import Company
from taketurns.companies.keyring import KeyRing
from taketurns.engine import key
from taketurns.engine.key import Role
from taketurns.engine.lease import Holder
from taketurns.engine.registry import Registry
from taketurns.storage.database import Database
from taketurns.storage.ids import new_id
from tests.api import keyed
from tests.api.keyed import STAMP, House, bearer
from tests.api.test_guard import api


@pytest.fixture
async def house(database: Database, registry: Registry) -> AsyncIterator[House]:
    guard = Guard(keyring=KeyRing(database, stamp=STAMP))
    app = api(database, registry, guard)
    house = await keyed.house(app, database)
    async with house.client:
        yield house
    await app.state.parts.waiting.close()
    await guard.keyring.close()


@pytest.fixture
async def admin(house: House) -> dict[str, str]:
    return bearer(await house.operator_key(Role.ADMIN))


async def made(house: House, admin: dict[str, str], **options: Any) -> dict[str, Any]:
    body = {"name": "shop", "scopes": ["tasks:read", "jobs:*"]} | options
    answer = await house.client.post("/companies/acme/keys", headers=admin, json=body)
    assert answer.status_code == 201, answer.text
    told: dict[str, Any] = answer.json()
    assert answer.headers["location"] == f"/companies/{told['companyId']}/keys/{told['id']}"
    return told


async def test_a_key_is_shown_once_and_opens_its_company(house: House, admin: dict[str, str]) -> None:
    told = await made(house, admin)
    text = told.pop("key")
    assert key.read(text.encode()) is not None
    assert (text[:30], text[-4:]) == (told["prefix"], told["lastFour"])
    seen = await house.client.get(f"/companies/acme/keys/{told['id']}", headers=admin)
    assert seen.json() == told
    listed = await house.client.get("/companies/acme/keys", headers=admin)
    assert listed.json() == {"keys": [told], "hasMore": False, "nextCursor": None}
    assert text not in seen.text + listed.text
    assert (await house.client.get("/tasks", headers=bearer(text))).json()["tasks"] == []


async def test_an_operator_s_key_is_made_by_an_admin(house: House, admin: dict[str, str]) -> None:
    body = {"name": "robot", "role": "viewer"}
    answer = await house.client.post("/operators/keys", headers=admin, json=body)
    told = answer.json()
    assert (answer.status_code, answer.headers["location"]) == (201, f"/operators/keys/{told['id']}")
    assert (told["role"], told["name"], "companyId" in told) == ("viewer", "robot", False)
    assert (await house.client.get("/companies", headers=bearer(told.pop("key")))).status_code == 200
    assert (await house.client.get(answer.headers["location"], headers=admin)).json() | {"lastUsedAt": None} == told
    listed = (await house.client.get("/operators/keys", headers=admin)).json()["keys"]
    assert [one["name"] for one in listed] == ["robot", "admin"]


async def test_a_revoked_key_works_no_more_at_once(house: House, admin: dict[str, str]) -> None:
    told = await made(house, admin)
    own = bearer(told["key"])
    assert (await house.client.get("/tasks", headers=own)).status_code == 200
    for _ in range(2):
        answer = await house.client.post(f"/companies/acme/keys/{told['id']}/revoke", headers=admin)
        assert (answer.status_code, answer.json()["isActive"]) == (200, False)
        assert answer.json()["revokedAt"] is not None
    refused = await house.client.get("/tasks", headers=own)
    assert (refused.status_code, refused.json()["detail"]) == (401, "the key was revoked")
    rotated = await house.client.post(f"/companies/acme/keys/{told['id']}/rotate", headers=admin)
    assert (rotated.status_code, rotated.json()["code"]) == (409, "key_not_active")


async def test_an_admin_s_key_can_end_itself(house: House, admin: dict[str, str]) -> None:
    (own,) = (await house.client.get("/operators/keys", headers=admin)).json()["keys"]
    assert (await house.client.post(f"/operators/keys/{own['id']}/revoke", headers=admin)).status_code == 200
    assert (await house.client.get("/operators/keys", headers=admin)).status_code == 401


async def test_a_rotated_key_works_for_the_overlap_that_was_asked_for(house: House, admin: dict[str, str]) -> None:
    old = await made(house, admin)
    path = f"/companies/acme/keys/{old['id']}/rotate"
    new = (await house.client.post(path, headers=admin)).json()
    assert new["replaces"] == old["id"]
    for text in (old["key"], new["key"]):
        assert (await house.client.get("/tasks", headers=bearer(text))).status_code == 200
    seen = (await house.client.get(f"/companies/acme/keys/{old['id']}", headers=admin)).json()
    left = datetime.fromisoformat(seen["expiresAt"]) - datetime.fromisoformat(new["createdAt"])
    assert timedelta(hours=23) < left <= timedelta(hours=24)
    assert (await house.client.post(path, headers=admin, json={"overlapSeconds": 0})).status_code == 201
    assert (await house.client.get("/tasks", headers=bearer(old["key"]))).status_code == 401


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"scopes": []}, "/scopes"),
        ({"scopes": ["root"]}, "/scopes/0"),
        ({"scopes": "tasks:read"}, "/scopes"),
        ({"name": " "}, "/name"),
        ({"name": "x" * 201}, "/name"),
        ({"expiresAt": "2020-01-01T00:00:00Z"}, "/expiresAt"),
        ({"expiresAt": "tomorrow"}, "/expiresAt"),
        ({"role": "admin"}, "/role"),
    ],
)
async def test_a_key_that_cannot_be_is_refused(
    house: House, admin: dict[str, str], body: dict[str, Any], pointer: str
) -> None:
    whole = {"name": "shop", "scopes": ["tasks:read"]} | body
    answer = await house.client.post("/companies/acme/keys", headers=admin, json=whole)
    assert answer.status_code == 422
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]
    assert (await house.client.get("/companies/acme/keys", headers=admin)).json()["keys"] == []


async def test_the_longest_lives_and_overlaps_are_bounded(house: House, admin: dict[str, str]) -> None:
    told = await made(house, admin, expiresAt="9998-12-31T00:00:00Z")
    path = f"/companies/acme/keys/{told['id']}/rotate"
    assert (await house.client.post(path, headers=admin, json={"overlapSeconds": 1e9})).status_code == 422
    assert (await house.client.post(path, headers=admin, json={"overlapSeconds": -1})).status_code == 422
    again = await house.client.post(path, headers=admin, json={"overlapSeconds": 1})
    assert again.json()["expiresAt"] <= "9998-12-31T00:00:00Z"


async def test_the_keys_of_a_company_go_with_it(house: House, admin: dict[str, str]) -> None:
    told = await made(house, admin)
    assert (await house.client.get("/tasks", headers=bearer(told["key"]))).status_code == 200
    assert (await house.client.delete("/companies/acme", headers=admin)).status_code == 204
    assert (await house.client.get("/tasks", headers=bearer(told["key"]))).status_code == 401


# The audit


async def test_a_change_is_noted_with_all_that_it_sets_by_the_names_of_the_api(
    house: House, admin: dict[str, str]
) -> None:
    later = "2100-01-01T00:00:00Z"
    rate = {"tasks": 5, "seconds": 1, "burst": 5}
    limits = {"weight": 2, "maxInFlight": 3, "maxQueued": 40, "rate": rate, "pausedUntil": later}
    await house.client.post("/companies", headers=admin, json={"name": "Zeta", "slug": "zeta", **limits})
    await house.client.patch("/companies/acme", headers=admin, json={"retention": {"failedSeconds": 60}})
    weekly = {"name": "weekly", "type": "anything", "expression": "0 9 * * 1"}
    schedule = (await house.client.post("/companies/acme/schedules", headers=admin, json=weekly)).json()["id"]
    await house.client.patch(
        f"/companies/acme/schedules/{schedule}", headers=admin, json={"timeZone": "Europe/Berlin", "maxRetries": 1}
    )
    task = (await house.client.post("/companies/acme/tasks", headers=admin, json={"type": "anything"})).json()["id"]
    await house.client.post(f"/companies/acme/tasks/{task}/reschedule", headers=admin, json={"runAfter": later})
    put_off = {"kind": "reschedule", "filter": {"type": ["anything"]}, "runAfter": later, "rate": 2}
    await house.client.post("/companies/acme/operations", headers=admin, json=put_off)
    entries = (await house.client.get("/audit", headers=admin)).json()["entries"]
    noted = {entry["action"]: entry["details"] for entry in entries}
    assert noted["createCompany"] == {"slug": "zeta", "name": "Zeta", **limits}
    kept = {"completedSeconds": None, "failedSeconds": 60, "cancelledSeconds": None}
    assert noted["changeCompany"] == {"retention": kept}
    assert noted["changeSchedule"] == {"timeZone": "Europe/Berlin", "maxRetries": 1}
    assert noted["rescheduleTask"] == {"runAfter": later}
    assert noted["createOperation"] == {
        "kind": "reschedule",
        "filter": {"type": ["anything"], "status": ["pending", "scheduled"]},
        "runAfter": later,
        "rate": 2.0,
    }


async def test_every_change_is_noted_with_who_made_it_and_from_where(house: House, admin: dict[str, str]) -> None:
    (by,) = (await house.client.get("/operators/keys", headers=admin)).json()["keys"]
    shop = await made(house, admin, scopes=["tasks:write", "tasks:read", "schedules:*"])
    own = bearer(shop["key"])
    await house.client.patch("/companies/acme", headers=admin, json={"weight": 7, "quotas": {"hour": 5}})
    task = (await house.client.post("/tasks", headers=own, json={"type": "anything"})).json()["id"]
    secret = {"value": "a secret of acme"}
    weekly = {"name": "weekly", "type": "anything", "expression": "0 9 * * 1", "payload": secret}
    schedule = (await house.client.post("/companies/acme/schedules", headers=own, json=weekly)).json()["id"]
    at = f"/companies/acme/schedules/{schedule}"
    await house.client.patch(at, headers=own, json={"paused": True, "payload": secret})
    await house.client.delete(at, headers=own)
    await house.client.post(f"/tasks/{task}/cancel", headers=own | {"x-request-id": "the-one"})
    await house.client.post(f"/tasks/{task}/retry", headers=own)
    await house.client.post("/workers/process", headers=admin)
    line = PostgresBroker(house.database).lease_line(patience_seconds=5)
    line.take(new_id(), Holder(queues=(), types=(), concurrency=1, name="mail"), former=None)
    line.close()
    for order in ("drain", "resume", "stop"):
        assert (await house.client.post(f"/workers/mail/{order}", headers=admin)).status_code == 202

    answer = await house.client.get("/audit", headers=admin)
    entries = answer.json()["entries"][::-1]
    acme = str(house.acme.id)
    assert [(one["action"], one["actorKind"], one["companyId"], one["target"]) for one in entries] == [
        ("createKey", "operator", acme, shop["id"]),
        ("changeCompany", "operator", acme, acme),
        ("createSchedule", "company", acme, schedule),
        ("changeSchedule", "company", acme, schedule),
        ("deleteSchedule", "company", acme, schedule),
        ("cancelTask", "company", acme, task),
        ("retryTask", "company", acme, task),
        ("processTasks", "operator", None, "workers"),
        *[(action, "operator", None, "mail") for action in ("drainWorker", "resumeWorker", "stopWorker")],
    ]
    assert [one["keyId"] for one in entries] == [by["id"]] * 2 + [shop["id"]] * 5 + [by["id"]] * 4
    assert entries[1]["details"] == {"weight": 7, "quotas": {"hour": 5, "day": None, "month": None}}
    assert entries[3]["details"] == {"paused": True}
    assert (entries[5]["requestId"], entries[5]["actorName"], entries[5]["address"]) == ("the-one", "shop", "127.0.0.1")
    assert "a secret of acme" not in answer.text
    assert shop["key"] not in answer.text


async def test_what_was_refused_is_no_change(house: House, admin: dict[str, str]) -> None:
    viewer = bearer(await house.operator_key(Role.VIEWER))
    await house.client.patch("/companies/acme", headers=viewer, json={"weight": 7})
    await house.client.patch("/companies/acme", headers=admin, json={"weight": 0})
    await house.client.patch("/companies/nobody", headers=admin, json={"weight": 7})
    await house.client.post("/companies", headers=admin, json={"name": "Acme", "slug": "acme"})
    await house.client.post("/companies/acme/tasks", headers=admin, json={"type": "anything"})
    await house.client.delete("/companies/acme", headers=admin)
    assert (await house.client.get("/audit", headers=admin)).json()["entries"] == []


async def test_the_audit_outlives_the_company_and_is_read_by_company_action_and_time(
    house: House, admin: dict[str, str]
) -> None:
    async def read(**query: Any) -> list[str]:
        answer = await house.client.get("/audit", headers=admin, params=query)
        assert answer.status_code == 200, answer.text
        return [entry["action"] for entry in answer.json()["entries"]]

    initech = (await house.client.post("/companies", headers=admin, json={"name": "Initech"})).json()
    await house.client.patch("/companies/acme", headers=admin, json={"weight": 2})
    await house.client.delete(f"/companies/{initech['id']}", headers=admin)
    assert await read() == ["deleteCompany", "changeCompany", "createCompany"]
    assert await read(companyId=initech["id"]) == ["deleteCompany", "createCompany"]
    assert await read(companyId=initech["id"].upper(), action="createCompany") == ["createCompany"]
    assert await read(action=["changeCompany", "createCompany"]) == ["changeCompany", "createCompany"]
    assert await read(since=(datetime.now(UTC) - timedelta(hours=1)).isoformat()) == await read()
    assert await read(since=(datetime.now(UTC) + timedelta(hours=1)).isoformat()) == []
    for wrong in ({"companyId": "acme"}, {"action": "sing"}, {"since": "once"}):
        assert (await house.client.get("/audit", headers=admin, params=wrong)).status_code == 422


async def test_the_audit_and_keys_are_paged(house: House, admin: dict[str, str]) -> None:
    names = [(await made(house, admin, name=f"key {number}"))["name"] for number in range(5)][::-1]
    for path, field in (("/companies/acme/keys", "keys"), ("/audit", "entries")):
        found: list[str] = []
        url = f"{path}?limit=2"
        while True:
            page = await house.client.get(url, headers=admin)
            found += [one.get("name") or one["details"]["name"] for one in page.json()[field]]
            if "next" not in page.links:
                break
            url = page.links["next"]["url"]
        assert found == names
        other = "acme" if field == "entries" else "globex"
        wrong = {"cursor": (await house.client.get(f"{path}?limit=1", headers=admin)).json()["nextCursor"]}
        refused = await house.client.get(f"/companies/{other}/keys", headers=admin, params=wrong)
        assert (refused.status_code, refused.json()["code"]) == (400, "invalid_cursor")


async def test_where_nobody_is_asked_who_they_are_nothing_is_noted(client: AsyncClient, acme: Company) -> None:
    assert (await client.patch("/companies/acme", json={"weight": 2})).status_code == 200
    answer = await client.post("/companies/acme/keys", json={"name": "first", "scopes": ["tasks:read"]})
    assert answer.status_code == 201
    assert (await client.get("/audit")).json()["entries"] == []
