"""Schedules over HTTP."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from dirty_equals import IsUUID
from httpx2 import AsyncClient

from taketurns.companies import directory
from taketurns.companies.directory import Company
from taketurns.engine import limits
from taketurns.schedules.ticking import Ticking
from taketurns.storage.database import Database

SCHEDULES = "/companies/acme/schedules"
MORNING = {"name": "morning", "type": "send_email", "payload": {"to": "Ada"}, "expression": "0 9 * * *"}


async def create(client: AsyncClient, **given: Any) -> dict[str, Any]:
    answer = await client.post(SCHEDULES, json={**MORNING, **given})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def test_a_schedule_is_created_found_and_listed(client: AsyncClient, acme: Company) -> None:
    answer = await client.post(SCHEDULES, json={**MORNING, "timeZone": "Asia/Kolkata"})
    assert answer.status_code == 201
    made = answer.json()
    assert made | {"createdAt": "", "updatedAt": "", "nextTicks": []} == {
        "id": IsUUID(),
        "companyId": str(acme.id),
        "name": "morning",
        "type": "send_email",
        "payload": {"to": "Ada"},
        "queue": "mail",
        "priority": 3,
        "maxRetries": 2,
        "timeoutSeconds": 30.0,
        "expression": "0 9 * * *",
        "timeZone": "Asia/Kolkata",
        "missed": "last",
        "paused": False,
        "nextTicks": [],
        "lastTickAt": None,
        "error": None,
        "declared": False,
        "createdAt": "",
        "updatedAt": "",
    }
    assert answer.headers["location"] == f"/companies/{acme.id}/schedules/{made['id']}"
    assert (await client.get(answer.headers["location"])).json() == made
    assert (await client.get(SCHEDULES)).json() == {"schedules": [made], "hasMore": False, "nextCursor": None}


async def test_a_company_has_no_more_schedules_than_it_may_however_many_are_made_at_once(
    client: AsyncClient, acme: Company, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SCHEDULES_MAX", 5)
    requests = [client.post(SCHEDULES, json={**MORNING, "name": f"{number}"}) for number in range(12)]
    made = await asyncio.gather(*requests)
    assert Counter(answer.status_code for answer in made) == {201: 5, 409: 7}
    assert {answer.json()["code"] for answer in made if answer.status_code == 409} == {"too_many_schedules"}
    listed = (await client.get(SCHEDULES)).json()["schedules"]
    assert len(listed) == 5
    assert (await client.delete(f"{SCHEDULES}/{listed[0]['id']}")).status_code == 204
    await create(client)


async def test_the_next_five_times_are_told(client: AsyncClient, acme: Company) -> None:
    made = await create(client, timeZone="Asia/Kolkata")
    ticks = [datetime.fromisoformat(tick) for tick in made["nextTicks"]]
    assert [tick - ticks[0] for tick in ticks] == [timedelta(days=day) for day in range(5)]
    assert {(tick.hour, tick.minute, tick.tzinfo) for tick in ticks} == {(3, 30, UTC)}
    changed = (await client.patch(f"{SCHEDULES}/{made['id']}", json={"expression": "30 10 * * *"})).json()
    assert (changed["timeZone"], {tick[11:] for tick in changed["nextTicks"]}) == ("Asia/Kolkata", {"05:00:00Z"})


async def test_a_schedule_is_paused_resumed_and_deleted(client: AsyncClient, acme: Company) -> None:
    made = await create(client)
    path = f"{SCHEDULES}/{made['id']}"
    paused = (await client.patch(path, json={"paused": True})).json()
    assert (paused["paused"], paused["nextTicks"]) == (True, [])
    resumed = (await client.patch(path, json={"paused": False})).json()
    assert (resumed["paused"], len(resumed["nextTicks"])) == (False, 5)
    assert (await client.patch(path, json={})).json() == resumed
    assert (await client.delete(path)).status_code == 204
    for method in ("GET", "PATCH", "DELETE"):
        answer = await client.request(method, path, json={} if method == "PATCH" else None)
        assert (answer.status_code, answer.json()["code"]) == (404, "schedule_not_found")


async def test_a_task_tells_which_schedule_made_it(client: AsyncClient, acme: Company, database: Database) -> None:
    made = await create(client, expression="* * * * *")
    await Ticking(database, announce=lambda queues: None).make_due(at=datetime.now(UTC) + timedelta(minutes=1))
    (task,) = (await client.get("/companies/acme/tasks")).json()["tasks"]
    assert (task["scheduleId"], task["payload"], task["queue"]) == (made["id"], {"to": "Ada"}, "mail")
    assert (await client.post("/companies/acme/tasks", json={"type": "anything"})).json()["scheduleId"] is None
    after = (await client.get(f"{SCHEDULES}/{made['id']}")).json()
    assert after["lastTickAt"] == task["runAfter"]


async def test_a_schedule_is_of_one_company_alone(client: AsyncClient, acme: Company, database: Database) -> None:
    await directory.create(database, name="Zeta", slug="zeta")
    made = await create(client)
    for company, code in (("zeta", "schedule_not_found"), ("nobody", "schedule_not_found")):
        for method in ("GET", "PATCH", "DELETE"):
            path = f"/companies/{company}/schedules/{made['id']}"
            answer = await client.request(method, path, json={"paused": True} if method == "PATCH" else None)
            assert (answer.status_code, answer.json()["code"]) == (404, code)
    assert (await client.get("/companies/zeta/schedules")).json()["schedules"] == []
    for method in ("GET", "POST"):
        answer = await client.request(method, "/companies/nobody/schedules", json=MORNING if method == "POST" else None)
        assert (answer.status_code, answer.json()["code"]) == (404, "company_not_found")
    assert (await client.get(f"{SCHEDULES}/{made['id']}")).json()["paused"] is False
    assert (await client.get(f"{SCHEDULES}/seven")).status_code == 404


async def test_a_name_is_taken_once(client: AsyncClient, acme: Company) -> None:
    await create(client)
    again = await client.post(SCHEDULES, json=MORNING)
    other = await create(client, name="evening")
    renamed = await client.patch(f"{SCHEDULES}/{other['id']}", json={"name": "morning"})
    for answer in (again, renamed):
        assert (answer.status_code, answer.json()["code"]) == (409, "schedule_name_taken")
        assert [error["pointer"] for error in answer.json()["errors"]] == ["/name"]


@pytest.mark.parametrize(
    ("given", "pointer", "told"),
    [
        ({"expression": "0 0 30 2 *"}, "/expression", "never comes"),
        ({"expression": "0 0 31 4,6 *"}, "/expression", "never comes"),
        ({"expression": "0-59," * 1000 + "0 * * * *"}, "/expression", "255"),
        ({"expression": "* " * 5000}, "/expression", "255"),
        ({"expression": "* * * * * *"}, "/expression", "five fields"),
        ({"expression": "PT0S"}, "/expression", "intervals"),
        ({"expression": 0}, "/expression", "string"),
        ({"expression": None}, "/expression", "string"),
        ({"every": 0.0001}, "/every", "not permitted"),
        ({"timeZone": ""}, "/timeZone", "Europe/Berlin"),
        ({"timeZone": "utc"}, "/timeZone", "UTC is meant"),
        ({"timeZone": "UTC+5"}, "/timeZone", "Europe/Berlin"),
        ({"timeZone": "../etc/passwd"}, "/timeZone", "Europe/Berlin"),
        ({"timeZone": "europe/berlin"}, "/timeZone", "Europe/Berlin is meant"),
        ({"missed": "some"}, "/missed", "skip"),
        ({"paused": "yes"}, "/paused", "boolean"),
        ({"priority": 10}, "/priority", "9"),
        ({"queue": "a b"}, "/queue", "pattern"),
        ({"name": ""}, "/name", "at least"),
        ({"name": "a\0b"}, "/name", "pattern"),
        ({"payload": {"subject": "x"}}, "/payload/to", "required"),
        ({"payload": {"to": "a\0b"}}, "/payload/to", "U+0000"),
        ({"payload": [1]}, "/payload", "must be an object"),
        ({"type": "unheard_of"}, "/type", "known"),
    ],
)
async def test_what_cannot_be_is_told_by_its_field(
    client: AsyncClient, acme: Company, given: dict[str, Any], pointer: str, told: str
) -> None:
    """Faults 131, 132, 134 and 136."""
    answer = await client.post(SCHEDULES, json={**MORNING, **given})
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert (error["pointer"], told in error["detail"]) == (pointer, True), error
    if not given.keys() & {"type", "every"}:
        made = await create(client)
        answer = await client.patch(f"{SCHEDULES}/{made['id']}", json=given)
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)
        assert (await client.get(f"{SCHEDULES}/{made['id']}")).json() == made


async def test_the_list_works_beside_rows_that_cannot_be(
    client: AsyncClient, acme: Company, database: Database, database_url: str
) -> None:
    """Fault 135."""
    bad, good = await create(client), await create(client, name="evening")
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "update taketurns.schedules set time_zone = 'Mars/Base', expression = 'x y z', payload = 'null'"
            " where id = %s",
            (bad["id"],),
        )
    listed = (await client.get(SCHEDULES)).json()["schedules"]
    assert [(schedule["id"], len(schedule["nextTicks"])) for schedule in listed] == [(good["id"], 5), (bad["id"], 0)]
    await Ticking(database, announce=lambda queues: None).make_due(at=datetime.now(UTC) + timedelta(days=1))
    after = (await client.get(f"{SCHEDULES}/{bad['id']}")).json()
    assert (after["paused"], after["error"]) == (True, "payload: must be an object, not null")
    answer = await client.patch(f"{SCHEDULES}/{bad['id']}", json={"paused": False})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/timeZone")
    mended = {"paused": False, "payload": {"to": "Ada"}, "expression": "0 9 * * *", "timeZone": "UTC"}
    assert (await client.patch(f"{SCHEDULES}/{bad['id']}", json=mended)).json()["error"] is None


async def test_schedules_are_paged(client: AsyncClient, acme: Company) -> None:
    made = [await create(client, name=f"number {number}") for number in range(3)]
    first = await client.get(f"{SCHEDULES}?limit=2")
    assert [schedule["id"] for schedule in first.json()["schedules"]] == [made[2]["id"], made[1]["id"]]
    second = await client.get(first.links["next"]["url"])
    assert [schedule["id"] for schedule in second.json()["schedules"]] == [made[0]["id"]]
    assert (await client.get(f"{SCHEDULES}?status=paused")).json()["code"] == "unknown_parameter"
