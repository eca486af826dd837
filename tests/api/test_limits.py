"""Limits and pauses over HTTP."""

from __future__ import annotations

from typing import Any

import pytest
from dirty_equals import IsStr
from httpx2 import AsyncClient

from taketurns.companies.directory import Company

LATER = "2040-01-01T00:00:00Z"


async def test_limits_are_set_shown_and_taken_away(client: AsyncClient) -> None:
    rate = {"tasks": 100, "seconds": 60, "burst": 20}
    made = await client.post("/companies", json={"name": "Acme", "slug": "acme", "rate": rate, "maxQueued": 10})
    assert (made.status_code, made.json()["rate"], made.json()["maxQueued"]) == (201, rate, 10)
    changed = await client.patch("/companies/acme", json={"rate": {"tasks": 5, "seconds": 1}})
    assert changed.json()["rate"] == {"tasks": 5, "seconds": 1, "burst": 5}
    assert changed.json()["maxQueued"] == 10
    changed = await client.patch("/companies/acme", json={"rate": None, "maxQueued": None})
    assert (changed.json()["rate"], changed.json()["maxQueued"]) == (None, None)


async def test_a_company_is_paused_until_a_time_or_until_it_is_told_to_go_on(
    client: AsyncClient, acme: Company
) -> None:
    changed = (await client.patch("/companies/acme", json={"pausedUntil": LATER})).json()
    assert (changed["paused"], changed["pausedUntil"]) == (True, LATER)
    changed = (await client.patch("/companies/acme", json={"paused": True})).json()
    assert (changed["paused"], changed["pausedUntil"]) == (True, None)
    await client.patch("/companies/acme", json={"pausedUntil": LATER})
    changed = (await client.patch("/companies/acme", json={"paused": False})).json()
    assert (changed["paused"], changed["pausedUntil"]) == (False, None)


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"maxQueued": -1}, "/maxQueued"),
        ({"rate": {"tasks": 0, "seconds": 1}}, "/rate/tasks"),
        ({"rate": {"tasks": 1}}, "/rate/seconds"),
        ({"rate": {"tasks": 1, "seconds": 86_401}}, "/rate/seconds"),
        ({"rate": {"tasks": 1, "seconds": 1, "burst": 100_001}}, "/rate/burst"),
        ({"rate": {"tasks": 1, "seconds": 1, "burst": None}}, "/rate/burst"),
        ({"pausedUntil": "tomorrow"}, "/pausedUntil"),
        ({"pausedUntil": "2020-01-01T00:00:00Z"}, "/pausedUntil"),
        ({"paused": False, "pausedUntil": LATER}, ""),
    ],
)
async def test_what_is_no_limit_is_refused_by_its_name(
    client: AsyncClient, acme: Company, body: dict[str, Any], pointer: str
) -> None:
    before = (await client.get("/companies/acme")).json()
    for answer in (
        await client.patch("/companies/acme", json=body),
        await client.post("/companies", json={"name": "Other", "slug": "other", **body}),
    ):
        assert answer.status_code == 422
        assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]
    assert (await client.get("/companies/acme")).json() == before
    assert (await client.get("/companies/other")).status_code == 404


async def test_what_would_be_more_than_may_be_queued_is_refused(client: AsyncClient, acme: Company) -> None:
    await client.patch("/companies/acme", json={"maxQueued": 2})
    task = {"type": "send_email", "payload": {"to": "ada@example.com"}}
    answer = await client.post("/companies/acme/tasks/batch", json={"tasks": [task] * 3})
    assert (answer.status_code, answer.json()["code"]) == (429, "queue_full")
    assert answer.headers["retry-after"] == "1"
    assert "at most 2 tasks" in answer.json()["detail"]
    assert (await client.post("/companies/acme/tasks/batch", json={"tasks": [task] * 2})).status_code == 201


@pytest.mark.parametrize("path", ["/companies/acme/pauses", "/pauses"])
async def test_pauses_are_put_listed_and_lifted(client: AsyncClient, acme: Company, path: str) -> None:
    put = await client.put(path, json={"type": "send_email", "until": LATER})
    assert put.status_code == 200
    assert put.json() == {
        "companyId": None if path == "/pauses" else str(acme.id),
        "queue": None,
        "type": "send_email",
        "until": LATER,
        "setBy": None,
        "setAt": IsStr(),
    }
    await client.put(path, json={"queue": "bulk"})
    assert [one["queue"] for one in (await client.get(path)).json()["pauses"]] == [None, "bulk"]
    assert (await client.delete(path, params={"type": "send_email"})).status_code == 204
    again = await client.delete(path, params={"type": "send_email"})
    assert (again.status_code, again.json()["code"]) == (404, "pause_not_found")
    assert len((await client.get(path)).json()["pauses"]) == 1


@pytest.mark.parametrize("body", [{}, {"until": LATER}, {"queue": None}, {"type": "a b"}, {"queue": "!"}])
async def test_a_pause_names_a_queue_or_a_type(client: AsyncClient, acme: Company, body: dict[str, Any]) -> None:
    assert (await client.put("/companies/acme/pauses", json=body)).status_code == 422


@pytest.mark.parametrize("path", ["/companies/acme/pauses", "/pauses"])
async def test_a_pause_that_is_over_already_is_refused_and_changes_none(
    client: AsyncClient, acme: Company, path: str
) -> None:
    await client.put(path, json={"type": "send_email", "until": LATER})
    answer = await client.put(path, json={"type": "send_email", "until": "2020-01-01T00:00:00Z"})
    assert answer.status_code == 422
    assert answer.json()["errors"] == [{"pointer": "/until", "code": "over", "detail": "must be a time to come"}]
    assert [one["until"] for one in (await client.get(path)).json()["pauses"]] == [LATER]


async def test_pauses_of_nobody_are_not_found(client: AsyncClient) -> None:
    path = "/companies/nobody/pauses"
    answers = [
        await client.get(path),
        await client.put(path, json={"type": "send_email"}),
        await client.delete(path, params={"type": "send_email"}),
    ]
    assert [answer.json()["code"] for answer in answers] == ["company_not_found"] * 3
