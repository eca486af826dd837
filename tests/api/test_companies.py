"""Companies over HTTP."""

from __future__ import annotations

import re
from typing import Any

import pytest
from dirty_equals import IsUUID
from httpx2 import AsyncClient

from taketurns.companies.directory import Company

TIME = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?Z")


async def test_a_company_is_created_found_and_listed(client: AsyncClient) -> None:
    answer = await client.post("/companies", json={"name": "Acme", "slug": "acme", "weight": 2})
    assert answer.status_code == 201
    made = answer.json()
    assert made | {"createdAt": "", "updatedAt": ""} == {
        "id": IsUUID(),
        "slug": "acme",
        "name": "Acme",
        "weight": 2,
        "paused": False,
        "pausedUntil": None,
        "maxInFlight": None,
        "maxQueued": None,
        "rate": None,
        "requestRate": None,
        "quotas": {"hour": None, "day": None, "month": None},
        "retention": {"completedSeconds": None, "failedSeconds": None, "cancelledSeconds": None},
        "limitsSetBy": None,
        "createdAt": "",
        "updatedAt": "",
    }
    assert TIME.fullmatch(made["createdAt"])
    assert answer.headers["location"] == f"/companies/{made['id']}"
    assert (await client.get(answer.headers["location"])).json() == made
    assert (await client.get("/companies/acme")).json() == made
    assert (await client.get("/companies")).json() == {"companies": [made], "hasMore": False, "nextCursor": None}


async def test_a_slug_is_unique(client: AsyncClient, acme: Company) -> None:
    answer = await client.post("/companies", json={"name": "Another", "slug": "acme"})
    assert answer.status_code == 409
    assert answer.json()["code"] == "slug_taken"
    assert [error["pointer"] for error in answer.json()["errors"]] == ["/slug"]


async def test_a_change_leaves_the_rest(client: AsyncClient, acme: Company) -> None:
    changed = await client.patch("/companies/acme", json={"weight": 7, "paused": True, "maxInFlight": 3})
    assert changed.status_code == 200
    assert (changed.json()["weight"], changed.json()["paused"], changed.json()["maxInFlight"]) == (7, True, 3)
    changed = await client.patch("/companies/acme", json={"maxInFlight": None})
    assert (changed.json()["weight"], changed.json()["paused"], changed.json()["maxInFlight"]) == (7, True, None)
    assert (await client.patch("/companies/acme", json={})).json() == changed.json()


async def test_a_retention_replaces_the_one_before(client: AsyncClient, acme: Company) -> None:
    given = {"completedSeconds": 60, "failedSeconds": None, "cancelledSeconds": 315_360_000}
    made = await client.post("/companies", json={"name": "Globex", "retention": given})
    assert made.json()["retention"] == given
    assert (await client.get("/companies/globex")).json()["retention"] == given
    changed = await client.patch("/companies/globex", json={"retention": {"failedSeconds": 86_400}})
    expected = {"completedSeconds": None, "failedSeconds": 86_400, "cancelledSeconds": None}
    assert changed.json()["retention"] == expected
    assert (await client.patch("/companies/globex", json={"weight": 2})).json()["retention"] == expected
    assert (await client.get("/companies/acme")).json()["retention"] == dict.fromkeys(expected)


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"name": ""}, "/name"),
        ({"name": "  "}, "/name"),
        ({"name": "a\0b"}, "/name"),  # fault 001
        ({"name": "x" * 201}, "/name"),
        ({"name": None}, "/name"),
        ({"weight": 0}, "/weight"),
        ({"weight": 101}, "/weight"),
        ({"weight": True}, "/weight"),  # fault 012
        ({"weight": "3"}, "/weight"),
        ({"weight": 1.0}, "/weight"),
        ({"weight": None}, "/weight"),
        ({"paused": "yes"}, "/paused"),
        ({"paused": 1}, "/paused"),
        ({"maxInFlight": 0}, "/maxInFlight"),
        ({"maxInFlight": 10**30}, "/maxInFlight"),  # fault 013
        ({"max_in_flight": 3}, "/max_in_flight"),
        ({"slug": "other"}, "/slug"),
        ({"quotas": None}, "/quotas"),
        ({"quotas": 5}, "/quotas"),
        ({"quotas": {"hour": -1}}, "/quotas/hour"),
        ({"quotas": {"day": 1.5}}, "/quotas/day"),
        ({"quotas": {"month": 10**12}}, "/quotas/month"),
        ({"quotas": {"week": 1}}, "/quotas/week"),
        ({"retention": None}, "/retention"),
        ({"retention": {"completedSeconds": 59}}, "/retention/completedSeconds"),
        ({"retention": {"failedSeconds": 0}}, "/retention/failedSeconds"),
        ({"retention": {"cancelledSeconds": 315_360_001}}, "/retention/cancelledSeconds"),
        ({"retention": {"completedSeconds": 60.5}}, "/retention/completedSeconds"),
        ({"retention": {"pendingSeconds": 60}}, "/retention/pendingSeconds"),
    ],
)
async def test_what_cannot_be_is_told_by_its_field(
    client: AsyncClient, acme: Company, body: dict[str, Any], pointer: str
) -> None:
    answer = await client.patch("/companies/acme", json=body)
    assert answer.status_code == 422
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]
    assert (await client.get("/companies/acme")).json()["updatedAt"] == f"{acme.updated_at:%Y-%m-%dT%H:%M:%S.%fZ}"


@pytest.mark.parametrize(
    "slug", ["", "Acme", "a b", "-a", "a-", "a" * 65, "\0", "é", "01a22c88-1688-7635-9d2d-7343a10dfaad", None, 7]
)
async def test_a_slug_that_cannot_be_is_refused(client: AsyncClient, slug: object) -> None:
    answer = await client.post("/companies", json={"name": "Acme", "slug": slug})
    assert answer.status_code == 422
    assert [error["pointer"] for error in answer.json()["errors"]] == ["/slug"]


async def test_a_deleted_company_is_gone(client: AsyncClient, acme: Company) -> None:
    made = await client.post("/companies/acme/tasks", json={"type": "anything"})
    refused = await client.delete("/companies/acme")
    assert (refused.status_code, refused.json()["code"]) == (409, "company_has_open_tasks")
    await client.post(f"{made.headers['location']}/cancel")
    deleted = await client.delete("/companies/acme")
    assert (deleted.status_code, deleted.content) == (204, b"")
    for company in ("acme", acme.id):
        for method, path in [
            ("GET", f"/companies/{company}"),
            ("PATCH", f"/companies/{company}"),
            ("DELETE", f"/companies/{company}"),
            ("GET", f"/companies/{company}/tasks"),
            ("POST", f"/companies/{company}/tasks"),
        ]:
            answer = await client.request(method, path, json={"type": "anything"} if method == "POST" else {})
            assert (answer.status_code, answer.json()["code"]) == (404, "company_not_found"), (method, path)
    assert (await client.get(made.headers["location"])).status_code == 404


async def test_a_company_with_open_tasks_is_deleted_by_force(client: AsyncClient, acme: Company) -> None:
    await client.post("/companies/acme/tasks", json={"type": "anything"})
    for query in ("force=false", ""):
        assert (await client.delete(f"/companies/acme?{query}")).status_code == 409
    assert (await client.delete("/companies/acme?force=maybe")).status_code == 422
    assert (await client.delete("/companies/acme?force=true&force=true")).status_code == 422
    assert (await client.delete("/companies/acme?forced=true")).status_code == 400
    assert (await client.delete("/companies/acme?force=true")).status_code == 204
    assert (await client.get(f"/companies/{acme.id}")).status_code == 404


async def test_companies_are_paged(client: AsyncClient) -> None:
    made = [(await client.post("/companies", json={"name": f"Company {number}"})).json() for number in range(5)]
    first = await client.get("/companies?limit=2")
    assert first.json()["companies"] == made[:2:-1]
    second = await client.get(first.links["next"]["url"])
    assert second.json()["companies"] == made[2:0:-1]
    last = await client.get("/companies", params={"limit": 2, "cursor": second.json()["nextCursor"]})
    assert last.json() == {"companies": made[:1], "hasMore": False, "nextCursor": None}
    assert "link" not in last.headers
    assert (await client.get("/companies?limit=2&offset=3")).json()["companies"] == made[1::-1]
