"""Quotas over HTTP: set, used up, told in the headers, and looked at."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

import pytest
from httpx2 import AsyncClient, Response

from taketurns.brokers.postgres import PostgresBroker
from taketurns.companies.directory import Company
from taketurns.engine.task import NewTask, Outcome, Report
from taketurns.storage.database import Database
from taketurns.storage.ids import new_id

TASKS = "/companies/acme/tasks"
TASK = {"type": "anything"}
SECONDS = {"hour": 3600, "day": 86_400}


async def set_quotas(client: AsyncClient, **quotas: int | None) -> None:
    answer = await client.patch("/companies/acme", json={"quotas": quotas})
    assert answer.status_code == 200, answer.text


async def usage(client: AsyncClient, period: str = "hour") -> dict[str, object]:
    answer = await client.get("/companies/acme/usage")
    assert answer.status_code == 200
    (found,) = [one for one in answer.json()["current"] if one["period"] == period]
    return {name: found[name] for name in ("limit", "used", "reserved", "refunded", "remaining")}


def limits(answer: Response) -> dict[str, dict[str, int]]:
    """The RateLimit headers by policy: q, w, r and t."""
    told: dict[str, dict[str, int]] = {}
    for header in ("ratelimit-policy", "ratelimit"):
        for item in answer.headers[header].split(", "):
            found = re.fullmatch(r'"(\w+)";(\w)=(\d+);(\w)=(\d+)', item)
            assert found is not None, item
            name, *pairs = found.groups()
            told.setdefault(name, {}).update(zip(pairs[::2], map(int, pairs[1::2]), strict=True))
    return told


async def test_quotas_replace_those_before(client: AsyncClient, acme: Company) -> None:
    made = await client.post("/companies", json={"name": "Globex", "quotas": {"day": 7}})
    assert made.json()["quotas"] == {"hour": None, "day": 7, "month": None}
    await set_quotas(client, hour=0, month=1000)
    assert (await client.get("/companies/acme")).json()["quotas"] == {"hour": 0, "day": None, "month": 1000}
    await client.patch("/companies/acme", json={"weight": 3})
    assert (await client.get("/companies/acme")).json()["quotas"] == {"hour": 0, "day": None, "month": 1000}
    await set_quotas(client, day=5)
    assert (await client.get("/companies/acme")).json()["quotas"] == {"hour": None, "day": 5, "month": None}


async def test_headers_tell_what_is_left(client: AsyncClient, acme: Company) -> None:
    await set_quotas(client, hour=5, day=20)
    answer = await client.post(TASKS, json=TASK)
    assert answer.status_code == 201
    told = limits(answer)
    assert {name: (one["q"], one["w"], one["r"]) for name, one in told.items()} == {
        "hour": (5, 3600, 4),
        "day": (20, 86_400, 19),
    }
    assert all(0 < one["t"] <= SECONDS[name] for name, one in told.items())
    batch = await client.post(f"{TASKS}/batch", json={"tasks": [TASK] * 3})
    assert limits(batch)["hour"]["r"] == 1
    assert limits(await client.get("/companies/acme/usage"))["day"]["r"] == 16


async def test_without_a_quota_there_are_no_headers(client: AsyncClient, acme: Company) -> None:
    answer = await client.post(TASKS, json=TASK)
    assert "ratelimit" not in answer.headers
    assert "ratelimit-policy" not in answer.headers
    assert await usage(client) == {"limit": None, "used": 0, "reserved": 0, "refunded": 0, "remaining": None}


async def test_a_quota_that_is_used_up_is_429(client: AsyncClient, acme: Company) -> None:
    await set_quotas(client, hour=2, day=10)
    batch = await client.post(f"{TASKS}/batch", json={"tasks": [TASK] * 3})
    assert (batch.status_code, limits(batch)["hour"]["r"]) == (429, 2)
    for _ in range(2):
        assert (await client.post(TASKS, json=TASK)).status_code == 201
    answer = await client.post(TASKS, json=TASK)
    assert answer.status_code == 429
    problem = answer.json()
    assert (problem["code"], problem["retryable"]) == ("quota_exceeded", True)
    assert "this hour has room for 0, not for 1" in problem["detail"]
    assert int(answer.headers["retry-after"]) == limits(answer)["hour"]["t"]
    assert limits(answer)["day"]["r"] == 8
    assert await usage(client) == {"limit": 2, "used": 2, "reserved": 2, "refunded": 0, "remaining": 0}


# Fault 047.
async def test_refused_requests_and_replays_cost_nothing(client: AsyncClient, acme: Company) -> None:
    await set_quotas(client, hour=1)
    refused = [
        await client.post(TASKS, json={"type": "no_such"}),
        await client.post(TASKS, json={"type": "send_email", "payload": {}}),
        await client.post(TASKS, content=b"{", headers={"Content-Type": "application/json"}),
        await client.post(f"{TASKS}/batch", json={"tasks": [TASK, {"type": "send_email"}]}),
    ]
    assert [answer.status_code for answer in refused] == [422, 422, 400, 422]
    key = {"Idempotency-Key": "k"}
    made = await client.post(TASKS, json=TASK, headers=key)
    assert (made.status_code, limits(made)["hour"]["r"]) == (201, 0)
    again = await client.post(TASKS, json=TASK, headers=key)
    assert (again.status_code, again.json()) == (200, made.json())
    other = await client.post(TASKS, json=TASK | {"priority": 1}, headers=key)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
    assert (await client.post(TASKS, json=TASK, headers={"Idempotency-Key": "l"})).status_code == 429
    await set_quotas(client, hour=0)
    assert (await client.post(TASKS, json=TASK, headers=key)).status_code == 200
    assert (await usage(client))["used"] == 1


async def test_a_retry_by_hand_may_be_refused(client: AsyncClient, acme: Company, broker: PostgresBroker) -> None:
    await set_quotas(client, hour=1)
    made = await client.post(TASKS, json=TASK)
    claimed = await broker.claim(new_id(), queues=["default"], batch=1)
    await broker.settle([Report(task, Outcome.FAILED) for task in claimed])
    assert await usage(client) == {"limit": 1, "used": 0, "reserved": 1, "refunded": 1, "remaining": 1}
    assert (await client.post(TASKS, json=TASK)).status_code == 201
    answer = await client.post(f"{made.headers['location']}/retry")
    assert (answer.status_code, answer.json()["code"]) == (429, "quota_exceeded")
    assert "retry-after" in answer.headers
    assert (await client.get(made.headers["location"])).json()["status"] == "failed"


async def test_a_long_transaction_of_somebody_else_is_a_503_that_can_be_repeated(
    client: AsyncClient, acme: Company, broker: PostgresBroker, database: Database
) -> None:
    await set_quotas(client, hour=10)
    await client.post(TASKS, json=TASK)
    async with database.transaction() as long:
        await broker.enqueue_on(long, "acme", [NewTask(type="anything", payload="{}")])
        answer = await client.post(TASKS, json=TASK)
    assert (answer.status_code, answer.json()["code"], answer.json()["retryable"]) == (503, "quota_busy", True)
    assert answer.headers["retry-after"] == "1"
    assert (await client.post(TASKS, json=TASK)).status_code == 201
    assert (await usage(client))["used"] == 3


async def test_a_long_transaction_with_the_companys_first_task_is_not_told_as_an_outage(
    client: AsyncClient, acme: Company, broker: PostgresBroker, database: Database
) -> None:
    async with database.transaction() as long:
        await broker.enqueue_on(long, "acme", [NewTask(type="anything", payload="{}")])
        answer = await client.post(TASKS, json=TASK)
    assert (answer.status_code, answer.json()["code"], answer.json()["retryable"]) == (503, "unavailable", True)
    assert answer.json()["detail"] == "another transaction kept what this one needs for too long: try again later"
    assert answer.headers["retry-after"] == "1"
    assert (await client.post(TASKS, json=TASK)).status_code == 201


async def test_usage_tells_of_the_periods_before(client: AsyncClient, acme: Company, broker: PostgresBroker) -> None:
    await set_quotas(client, hour=100)
    now = datetime.fromisoformat((await client.get("/companies/acme/usage")).json()["current"][0]["startsAt"])
    for hours in range(30):
        await broker.enqueue("acme", [NewTask(type="anything", payload="{}")], at=now - timedelta(hours=hours))
    told = (await client.get("/companies/acme/usage")).json()
    past = [one for one in told["past"] if one["period"] == "hour"]
    assert len(past) == 24
    assert [one["startsAt"] for one in past] == sorted((one["startsAt"] for one in past), reverse=True)
    assert past[0] == {
        "period": "hour",
        "startsAt": f"{now - timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}",
        "resetsAt": f"{now:%Y-%m-%dT%H:%M:%SZ}",
        "used": 1,
        "reserved": 1,
        "refunded": 0,
    }
    assert [one["period"] for one in told["current"]] == ["hour", "day", "month"]


@pytest.mark.parametrize("company", ["nobody", "01a22c88-1688-7635-9d2d-7343a10dfaad", "No"])
async def test_the_usage_of_nobody_is_not_found(client: AsyncClient, company: str) -> None:
    answer = await client.get(f"/companies/{company}/usage")
    assert (answer.status_code, answer.json()["code"]) == (404, "company_not_found")
