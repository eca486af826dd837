"""Tasks over HTTP: created, looked at, listed, cancelled, run again."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from dirty_equals import IsStr, IsUUID
from httpx2 import AsyncClient

from taketurns.brokers.postgres import PostgresBroker
from taketurns.companies import directory
from taketurns.companies.directory import Company
from taketurns.engine.task import Outcome, Report
from taketurns.storage.database import Database

EMAIL = {"type": "send_email", "payload": {"to": "ada@example.com"}}


async def create(client: AsyncClient, company: str = "acme", **body: Any) -> dict[str, Any]:
    answer = await client.post(f"/companies/{company}/tasks", json=EMAIL | body)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def end(broker: PostgresBroker, outcome: Outcome, *, count: int = 1) -> None:
    claimed = await broker.claim(uuid4(), queues=["mail"], batch=count)
    assert len(claimed) == count
    result = '{"sent": [1, 2.50]}' if outcome is Outcome.COMPLETED else None
    error = None if outcome is Outcome.COMPLETED else "no answer"
    await broker.settle([Report(task, outcome, result, error, 60) for task in claimed])


async def test_a_task_is_created_as_its_type_and_the_request_want_it(client: AsyncClient, acme: Company) -> None:
    answer = await client.post("/companies/acme/tasks", json=EMAIL | {"priority": 1}, headers={"X-Request-Id": "r-1"})
    assert answer.status_code == 201
    made = answer.json()
    assert made == {
        "id": IsUUID(),
        "companyId": str(acme.id),
        "type": "send_email",
        "payload": {"to": "ada@example.com"},
        "status": "pending",
        "queue": "mail",
        "priority": 1,
        "runAfter": made["createdAt"],
        "maxRetries": 2,
        "timeoutSeconds": 30.0,
        "retryCount": 0,
        "createdAt": IsStr(regex=r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"),
        "startedAt": None,
        "finishedAt": None,
        "result": None,
        "error": None,
        "errorFingerprint": None,
        "workerId": None,
        "requestId": "r-1",
        "traceparent": None,
        "scheduleId": None,
        "tags": [],
        "uniqueKey": None,
    }
    assert answer.headers["location"] == f"/companies/{acme.id}/tasks/{made['id']}"
    assert (await client.get(answer.headers["location"])).json().items() >= made.items()
    assert (await client.get(f"/companies/acme/tasks/{made['id'].upper()}")).json().items() >= made.items()


async def test_a_task_may_wait_for_its_time(client: AsyncClient, acme: Company) -> None:
    at_a_time = await create(client, runAfter="2999-01-01T00:00:00+05:45")
    assert (at_a_time["status"], at_a_time["runAfter"]) == ("scheduled", "2998-12-31T18:15:00Z")
    in_a_while = await create(client, delaySeconds=3600)
    assert in_a_while["status"] == "scheduled"
    at_once = await create(client, runAfter="2001-01-01T00:00:00Z")
    assert (at_once["status"], at_once["runAfter"]) == ("pending", "2001-01-01T00:00:00Z")
    for made in (at_a_time, in_a_while, at_once):
        assert (await client.get(f"/companies/acme/tasks/{made['id']}")).json().items() >= made.items()


async def test_a_result_and_an_error_are_told(client: AsyncClient, acme: Company, broker: PostgresBroker) -> None:
    made = await create(client)
    await end(broker, Outcome.COMPLETED)
    told = (await client.get(f"/companies/acme/tasks/{made['id']}")).json()
    assert (told["status"], told["result"], told["error"]) == ("completed", {"sent": [1, 2.5]}, None)
    assert told["startedAt"] <= told["finishedAt"]
    made = await create(client)
    await end(broker, Outcome.FAILED)
    told = (await client.get(f"/companies/acme/tasks/{made['id']}")).json()
    assert (told["status"], told["result"], told["error"]) == ("failed", None, "no answer")


async def test_the_payload_must_fit_the_handler(client: AsyncClient, acme: Company) -> None:
    for payload, pointer in [
        ({}, "/payload/to"),
        ({"to": 7}, "/payload/to"),
        ({"to": "a", "cc": "b"}, "/payload/cc"),
        ({"to": "a", "copies": 0}, "/payload/copies"),
    ]:
        answer = await client.post("/companies/acme/tasks", json={"type": "send_email", "payload": payload})
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_payload")
        assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]
    assert (await client.get("/companies/acme/tasks")).json()["tasks"] == []


async def test_an_unknown_type_names_the_known_ones(client: AsyncClient, acme: Company) -> None:
    answer = await client.post("/companies/acme/tasks", json={"type": "send_fax"})
    assert (answer.status_code, answer.json()["code"]) == (422, "unknown_type")
    assert "anything, send_email" in answer.json()["detail"]
    assert [error["pointer"] for error in answer.json()["errors"]] == ["/type"]


async def test_a_type_that_only_a_worker_knows_is_held_to_its_schema(
    client: AsyncClient, acme: Company, database: Database
) -> None:
    invoice = {"type": "send_invoice", "payload": {"number": 7}}
    assert (await client.post("/companies/acme/tasks", json=invoice)).status_code == 422
    await publish(database, "send_invoice", '{"type": "object", "properties": {"number": {"type": "integer"}}}')
    made = await client.post("/companies/acme/tasks", json=invoice)
    assert made.status_code == 201
    assert (made.json()["queue"], made.json()["priority"]) == ("invoices", 4)
    wrong = await client.post("/companies/acme/tasks", json={"type": "send_invoice", "payload": {"number": "x"}})
    assert (wrong.status_code, wrong.json()["code"]) == (422, "invalid_payload")
    assert [error["pointer"] for error in wrong.json()["errors"]] == ["/payload/number"]
    assert '"x"' not in wrong.text
    names = [one["name"] for one in (await client.get("/task-types")).json()["taskTypes"]]
    assert names == ["anything", "send_email", "send_invoice"]


async def test_a_published_schema_that_cannot_be_used_leaves_the_judgement_to_the_worker(
    client: AsyncClient, acme: Company, database: Database
) -> None:
    await publish(database, "odd", '{"$ref": "http://127.0.0.1:1/nowhere"}')
    assert (await client.post("/companies/acme/tasks", json={"type": "odd", "payload": {"a": 1}})).status_code == 201


async def publish(database: Database, name: str, schema: str) -> None:
    async with database.connection() as connection:
        await connection.execute(
            "insert into taketurns.task_types (name, payload_schema, queue, priority, max_retries, published_at)"
            " values (%s, %s, 'invoices', 4, 1, now())",
            (name, schema),
        )


async def test_the_list_is_filtered_and_ordered(client: AsyncClient, acme: Company, broker: PostgresBroker) -> None:
    failed = await create(client)
    await end(broker, Outcome.FAILED)
    pending = await create(client)
    scheduled = await create(client, delaySeconds=60)
    other = await create(client, type="anything", payload={})

    async def listed(query: str) -> list[str]:
        answer = await client.get(f"/companies/acme/tasks?{query}")
        assert answer.status_code == 200, answer.text
        return [task["id"] for task in answer.json()["tasks"]]

    everything = [task["id"] for task in (other, scheduled, pending, failed)]
    assert await listed("") == everything
    assert await listed("sort=createdAt") == everything[::-1]
    assert await listed("status=pending") == [other["id"], pending["id"]]
    assert await listed("status=pending&status=failed") == [other["id"], pending["id"], failed["id"]]
    assert await listed("status=completed") == []
    assert await listed("type=send_email") == everything[1:]
    assert await listed("type=nothing") == []
    assert await listed("type=send_email&type=anything&type=nothing") == everything
    assert await listed("type=send_email&type=anything&status=pending") == [other["id"], pending["id"]]
    assert await listed(f"createdAfter={pending['createdAt']}") == [other["id"], scheduled["id"]]
    assert await listed(f"createdBefore={pending['createdAt']}") == [failed["id"]]
    assert await listed("createdAfter=2001-01-01T00:00:00+01:00&limit=1") == [other["id"]]


async def test_pages_are_followed_by_cursor_and_by_link(client: AsyncClient, acme: Company) -> None:
    await client.post("/companies/acme/tasks/batch", json={"tasks": [EMAIL] * 25})
    every = [task["id"] for task in (await client.get("/companies/acme/tasks")).json()["tasks"]]
    assert len(set(every)) == 25
    by_link: list[str] = []
    url = "/companies/acme/tasks?limit=7&status=pending&type=send_email"
    while url:
        answer = await client.get(url)
        by_link += [task["id"] for task in answer.json()["tasks"]]
        url = answer.links["next"]["url"] if answer.json()["hasMore"] else ""
        assert ("next" in answer.links) == answer.json()["hasMore"]
    assert by_link == every
    page = (await client.get("/companies/acme/tasks?limit=20&offset=10")).json()
    assert [task["id"] for task in page["tasks"]] == every[10:]
    assert (page["hasMore"], page["nextCursor"]) == (False, None)


async def test_a_cursor_fits_whether_the_company_is_named_by_its_slug_or_its_id(
    client: AsyncClient, acme: Company
) -> None:
    for number in range(3):
        await create(client)
        schedule = {"name": f"s{number}", "type": "anything", "expression": "0 0 1 1 *"}
        assert (await client.post("/companies/acme/schedules", json=schedule)).status_code == 201
    for things in ("tasks", "schedules"):
        by_slug, by_id, shouted = (f"/companies/{name}/{things}" for name in ("acme", acme.id, str(acme.id).upper()))
        every = [thing["id"] for thing in (await client.get(by_slug)).json()[things]]
        for first, then in ((by_slug, by_id), (by_id, by_slug), (by_id, shouted)):
            cursor = (await client.get(f"{first}?limit=1")).json()["nextCursor"]
            answer = await client.get(f"{then}?cursor={cursor}")
            assert answer.status_code == 200, answer.text
            assert [thing["id"] for thing in answer.json()[things]] == every[1:]


async def test_a_cursor_fits_its_own_list_alone(client: AsyncClient, acme: Company, database: Database) -> None:
    await directory.create(database, name="Other", slug="other")
    await client.post("/companies/acme/tasks/batch", json={"tasks": [EMAIL] * 3})
    cursor = (await client.get("/companies/acme/tasks?limit=1&status=pending")).json()["nextCursor"]
    assert (await client.get(f"/companies/acme/tasks?status=pending&cursor={cursor}")).status_code == 200
    forged = cursor[:-2] + ("AA" if cursor[-2:] != "AA" else "BB")
    for url in [
        f"/companies/other/tasks?status=pending&cursor={cursor}",
        f"/companies/acme/tasks?cursor={cursor}",
        f"/companies/acme/tasks?status=pending&sort=createdAt&cursor={cursor}",
        f"/companies/acme/tasks?status=pending&offset=1&cursor={cursor}",
        f"/companies/acme/tasks?status=pending&cursor={forged}",
        f"/companies?cursor={cursor}",
        "/companies/acme/tasks?cursor=",
        "/companies/acme/tasks?cursor=%00",
        "/companies/acme/tasks?cursor=é",
    ]:
        answer = await client.get(url)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_cursor"), url


async def test_a_task_that_has_not_ended_is_cancelled_once(client: AsyncClient, acme: Company) -> None:
    for made in (await create(client), await create(client, delaySeconds=60)):
        first = await client.post(f"/companies/acme/tasks/{made['id']}/cancel")
        assert (first.status_code, first.json()["status"]) == (200, "cancelled")
        again = await client.post(f"/companies/acme/tasks/{made['id']}/cancel")
        assert (again.status_code, again.json()) == (200, first.json())


async def test_a_task_that_has_ended_is_not_cancelled(
    client: AsyncClient, acme: Company, broker: PostgresBroker
) -> None:
    for outcome in (Outcome.COMPLETED, Outcome.FAILED):
        made = await create(client)
        await end(broker, outcome)
        answer = await client.post(f"/companies/acme/tasks/{made['id']}/cancel")
        assert (answer.status_code, answer.json()["code"]) == (409, "invalid_state")
        assert outcome.value in answer.json()["detail"]


async def test_a_task_is_run_again_unless_it_is_processing(
    client: AsyncClient, acme: Company, broker: PostgresBroker
) -> None:
    made = await create(client)
    await end(broker, Outcome.FAILED)
    again = await client.post(f"/companies/acme/tasks/{made['id']}/retry")
    assert (again.status_code, again.json()["status"], again.json()["error"]) == (200, "pending", None)
    assert (await client.post(f"/companies/acme/tasks/{made['id']}/retry")).status_code == 200
    await broker.claim(uuid4(), queues=["mail"], batch=1)
    answer = await client.post(f"/companies/acme/tasks/{made['id']}/retry")
    assert (answer.status_code, answer.json()["code"]) == (409, "invalid_state")


async def test_the_history_is_told_in_order(client: AsyncClient, acme: Company, broker: PostgresBroker) -> None:
    made = await create(client)
    await end(broker, Outcome.RETRY)
    await client.post(f"/companies/acme/tasks/{made['id']}/retry")
    await end(broker, Outcome.COMPLETED)
    path = f"/companies/acme/tasks/{made['id']}/events"
    told = (await client.get(path)).json()
    assert [(event["number"], event["kind"], event["status"]) for event in told["events"]] == [
        (1, "created", "pending"),
        (2, "claimed", "processing"),
        (3, "retried", "scheduled"),
        (4, "requeued", "pending"),
        (5, "claimed", "processing"),
        (6, "completed", "completed"),
    ]
    assert told["hasMore"] is False
    assert told["events"][2]["error"] == "no answer"
    page = (await client.get(f"{path}?limit=2&after=3")).json()
    assert (page["events"], page["hasMore"]) == (told["events"][3:5], True)


async def test_another_company_finds_nothing(  # fault 039
    client: AsyncClient, acme: Company, database: Database
) -> None:
    made = await create(client)
    await directory.create(database, name="Other", slug="other")
    for method, action in [("GET", ""), ("GET", "/events"), ("POST", "/cancel"), ("POST", "/retry")]:
        theirs = await client.request(method, f"/companies/other/tasks/{made['id']}{action}")
        random = await client.request(method, f"/companies/other/tasks/{uuid4()}{action}")
        assert theirs.status_code == 404
        of_the_request = {"instance": "", "requestId": ""}
        assert theirs.json() | of_the_request == random.json() | of_the_request
    assert (await client.get(f"/companies/acme/tasks/{made['id']}")).json().items() >= made.items()
    assert (await client.get("/companies/other/tasks")).json()["tasks"] == []


async def test_an_odd_row_does_not_spoil_the_list(  # fault 003
    client: AsyncClient, acme: Company, database: Database, broker: PostgresBroker
) -> None:
    odd = await create(client)
    await create(client)
    await end(broker, Outcome.FAILED, count=2)
    async with database.connection() as connection:
        await connection.execute(
            "update taketurns.tasks set result = to_jsonb(repeat('x', 1000000)), error = E'\\x01\\x1b[31m',"
            " type = '☃ \"', payload = '[1e400, 12345678901234567890123]' where id = %s",
            (odd["id"],),
        )
    for path in ("/companies/acme/tasks", "/companies/acme/tasks?status=failed"):
        answer = await client.get(path)
        assert answer.status_code == 200
        told = {task["id"]: task for task in answer.json()["tasks"]}
        assert len(told) == 2
        assert (told[odd["id"]]["type"], told[odd["id"]]["error"]) == ('☃ "', "\x01\x1b[31m")
        assert len(told[odd["id"]]["result"]) == 1_000_000
        assert "12345678901234567890123" in answer.text


@pytest.mark.parametrize(
    "text", ["x", "%00", "a%00b", "a/../b", "é", "%F0%9F%94%91", "01a22c99-96bf-75d8-9883-152c1da2084", "null"]
)
async def test_what_cannot_be_an_id_is_not_found(client: AsyncClient, acme: Company, text: str) -> None:  # fault 004
    for method, path in [
        ("GET", f"/companies/acme/tasks/{text}"),
        ("GET", f"/companies/acme/tasks/{text}/events"),
        ("POST", f"/companies/acme/tasks/{text}/cancel"),
        ("POST", f"/companies/acme/tasks/{text}/retry"),
        ("GET", f"/companies/{text}x/tasks"),
        ("DELETE", f"/companies/{text}x"),
    ]:
        answer = await client.request(method, path)
        assert answer.status_code == 404, (method, path)
        assert answer.headers["content-type"] == "application/problem+json"


async def test_a_list_tells_its_total_when_asked(client: AsyncClient, acme: Company) -> None:
    for _ in range(3):
        await client.post(f"/companies/{acme.id}/tasks", json={"type": "anything"})
    for asked in ("estimate", "exact"):
        answer = (await client.get(f"/companies/{acme.id}/tasks?limit=1&includeTotal={asked}")).json()
        assert (len(answer["tasks"]), answer["total"], answer["totalIsExact"]) == (1, 3, True)
    assert "total" not in (await client.get(f"/companies/{acme.id}/tasks?limit=1")).json()
    assert (await client.get(f"/companies/{acme.id}/tasks?includeTotal=maybe")).status_code == 422


async def test_a_task_says_why_it_waits_where_it_is_looked_at_alone(client: AsyncClient, acme: Company) -> None:
    await client.post("/companies/acme/tasks", json={"type": "anything"})
    made = (await client.post("/companies/acme/tasks", json={"type": "anything"})).json()
    told = (await client.get(f"/companies/acme/tasks/{made['id']}")).json()
    waiting = told.pop("waiting")
    assert told == made
    assert 0 <= waiting.pop("pendingSeconds") < 60
    assert waiting == {
        "reason": "noWorkerFor",
        "of": "queue",
        "until": None,
        "tasksAhead": 1,
        "tasksAheadIsExact": True,
        "turnsAhead": 0,
        "turnsAheadIsExact": True,
        "scheduledSeconds": 0,
    }
    (first, *_) = (await client.get("/companies/acme/tasks")).json()["tasks"]
    assert "waiting" not in first
    await client.post(f"/companies/acme/tasks/{made['id']}/cancel")
    assert (await client.get(f"/companies/acme/tasks/{made['id']}")).json()["waiting"] is None
