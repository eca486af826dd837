"""Operations and failures over HTTP."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
from httpx2 import AsyncClient

from taketurns.brokers.postgres import PostgresBroker
from taketurns.companies.directory import Company
from taketurns.engine.task import Outcome, Report
from taketurns.operations.carrying import Carrying

TASKS = "/companies/acme/tasks"
OPERATIONS = "/companies/acme/operations"


async def add(client: AsyncClient, count: int = 1, **options: Any) -> list[dict[str, Any]]:
    body = {"tasks": [{"type": "anything", **options}] * count}
    return (await client.post(f"{TASKS}/batch", json=body)).json()["tasks"]  # type: ignore[no-any-return]


async def fail(broker: PostgresBroker, error: str, count: int = 1) -> None:
    held = await broker.claim(UUID(int=1), queues=["default"], batch=count)
    await broker.settle([Report(task, Outcome.FAILED, error=error) for task in held])


async def carried_on(client: AsyncClient, broker: PostgresBroker, path: str) -> dict[str, Any]:
    carrier = Carrying(broker.database, announce=broker.notifier.announce)
    while not (now := (await client.get(path)).json())["finishedAt"]:
        await carrier.step()
    return now  # type: ignore[no-any-return]


async def test_an_operation_is_made_looked_at_and_listed(
    client: AsyncClient, acme: Company, broker: PostgresBroker
) -> None:
    await add(client, 3, tags=["eu"])
    await add(client, 2)
    wanted = {"kind": "cancel", "filter": {"tag": ["eu"]}}
    dry = await client.post(OPERATIONS, json=wanted | {"dryRun": True})
    assert (dry.status_code, dry.json()) == (200, {"matched": 3, "matchedIsExact": True})
    assert (await client.get(OPERATIONS)).json()["operations"] == []
    made = await client.post(OPERATIONS, json=wanted)
    assert made.status_code == 202
    body = made.json()
    assert made.headers["location"] == f"/companies/{acme.id}/operations/{body['id']}"
    assert body["filter"] == {"tag": ["eu"], "status": ["pending", "processing", "scheduled"]}
    assert (body["status"], body["matched"], body["done"], body["skipped"]) == ("matching", 0, 0, {})
    over = await carried_on(client, broker, made.headers["location"])
    assert (over["status"], over["matched"], over["done"]) == ("completed", 3, 3)
    assert (await client.get(OPERATIONS)).json()["operations"] == [over]
    left = (await client.get(f"{TASKS}?status=pending")).json()["tasks"]
    assert len(left) == 2


async def test_one_more_than_may_go_on_is_refused_and_room_is_made_by_an_abort(
    client: AsyncClient, acme: Company, broker: PostgresBroker
) -> None:
    begun = [await client.post(OPERATIONS, json={"kind": "retry", "filter": {"status": ["failed"]}}) for _ in range(20)]
    assert {one.status_code for one in begun} == {202}
    refused = await client.post(OPERATIONS, json={"kind": "retry", "filter": {"status": ["failed"]}})
    assert (refused.status_code, refused.json()["code"], refused.json()["retryable"]) == (
        429,
        "too_many_operations",
        True,
    )
    assert refused.headers["retry-after"] == "1"
    assert len((await client.get(OPERATIONS)).json()["operations"]) == 20
    first = begun[0].headers["location"]
    assert (await client.post(f"{first}/abort")).status_code == 200
    await carried_on(client, broker, first)
    assert (await client.post(OPERATIONS, json={"kind": "cancel", "filter": {"tag": ["eu"]}})).status_code == 202


async def test_a_repeated_request_is_one_operation(client: AsyncClient, acme: Company) -> None:
    key = {"Idempotency-Key": "k"}
    body = {"kind": "cancel", "filter": {"status": ["pending"]}}
    first = await client.post(OPERATIONS, json=body, headers=key)
    again = await client.post(OPERATIONS, json=body, headers=key)
    assert (again.status_code, again.json()["id"]) == (202, first.json()["id"])
    assert again.headers["idempotent-replayed"] == "true"
    other = await client.post(OPERATIONS, json=body | {"rate": 1}, headers=key)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")


async def test_an_operation_is_aborted(client: AsyncClient, acme: Company, broker: PostgresBroker) -> None:
    await add(client, 2)
    made = await client.post(OPERATIONS, json={"kind": "cancel", "filter": {"status": ["pending"]}})
    aborted = await client.post(f"{made.headers['location']}/abort")
    assert (aborted.status_code, aborted.json()["status"]) == (200, "aborted")
    assert (await carried_on(client, broker, made.headers["location"]))["done"] == 0
    assert len((await client.get(f"{TASKS}?status=pending")).json()["tasks"]) == 2


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"kind": "cancel"}, ""),
        ({"kind": "cancel", "filter": {}}, "/filter"),
        ({"kind": "cancel", "filter": {"status": ["gone"]}}, "/filter/status/0"),
        ({"kind": "cancel", "filter": {"tag": ["a b"]}}, "/filter/tag/0"),
        ({"kind": "cancel", "filter": {"type": ["a\0"]}}, "/filter/type/0"),
        ({"kind": "retry", "filter": {"errorFingerprint": "x"}}, "/filter/errorFingerprint"),
        ({"kind": "retry", "filter": {"errorFingerprint": "0" * 16, "status": ["pending"]}}, "/filter"),
        ({"kind": "cancel", "taskIds": []}, "/taskIds"),
        ({"kind": "cancel", "taskIds": ["x"]}, "/taskIds/0"),
        ({"kind": "cancel", "taskIds": [str(uuid4())] * 1001}, "/taskIds"),
        ({"kind": "cancel", "taskIds": [str(uuid4())], "filter": {"status": ["pending"]}}, ""),
        ({"kind": "reschedule", "filter": {"status": ["pending"]}}, ""),
        ({"kind": "cancel", "filter": {"status": ["pending"]}, "rate": 0}, "/rate"),
        ({"kind": "cancel", "filter": {"status": ["pending"]}, "rate": 1e-300}, "/rate"),
        ({"kind": "explode", "filter": {"status": ["pending"]}}, "/kind"),
    ],
)
async def test_what_cannot_be_is_told_by_its_field(
    client: AsyncClient, acme: Company, body: dict[str, Any], pointer: str
) -> None:
    answer = await client.post(OPERATIONS, json=body)
    assert answer.status_code == 422
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]


async def test_what_is_not_there_is_not_found(client: AsyncClient, acme: Company) -> None:
    for path in (f"{OPERATIONS}/{uuid4()}", f"{OPERATIONS}/x"):
        assert (await client.get(path)).json()["code"] == "operation_not_found"
        assert (await client.post(f"{path}/abort")).json()["code"] == "operation_not_found"
    body = {"kind": "cancel", "filter": {"status": ["pending"]}}
    for answer in (
        await client.post("/companies/nobody/operations", json=body),
        await client.post("/companies/nobody/operations", json=body | {"dryRun": True}),
        await client.get("/companies/nobody/operations"),
        await client.get("/companies/nobody/failures"),
    ):
        assert (answer.status_code, answer.json()["code"]) == (404, "company_not_found")


async def test_failures_are_grouped_and_a_group_is_run_again(
    client: AsyncClient, acme: Company, broker: PostgresBroker
) -> None:
    await add(client, 4)
    await fail(broker, "ValueError: order 7 of 'ada' is gone\n\n  File x, line 3")
    await fail(broker, "ValueError: order 1234 of 'bob' is gone")
    await fail(broker, "TimeoutError: 5.0 s")
    page = (await client.get("/companies/acme/failures")).json()
    assert not page["hasMore"]
    groups = sorted(page["failures"], key=lambda group: group["count"])
    assert [(group["count"], group["countIsExact"], group["type"]) for group in groups] == [
        (1, True, "anything"),
        (2, True, "anything"),
    ]
    orders = groups[1]
    assert orders["exampleError"] == "ValueError: order 1234 of 'bob' is gone"
    assert orders["firstFailedAt"] < orders["lastFailedAt"]
    first = (await client.get("/companies/acme/failures?limit=1")).json()
    assert first["hasMore"]
    second = await client.get("/companies/acme/failures", params={"after": first["failures"][0]["id"]})
    assert first["failures"] + second.json()["failures"] == page["failures"]
    found = await client.get(f"{TASKS}?errorFingerprint={orders['errorFingerprint']}")
    assert len(found.json()["tasks"]) == 2
    group = {"type": ["anything"], "errorFingerprint": orders["errorFingerprint"]}
    made = await client.post(OPERATIONS, json={"kind": "retry", "filter": group, "rate": 100})
    assert (await carried_on(client, broker, made.headers["location"]))["done"] == 2
    left = (await client.get("/companies/acme/failures")).json()["failures"]
    assert [group["errorFingerprint"] for group in left] == [groups[0]["errorFingerprint"]]


async def test_one_task_is_rescheduled_and_deleted(client: AsyncClient, acme: Company, broker: PostgresBroker) -> None:
    (task,) = await add(client)
    path = f"{TASKS}/{task['id']}"
    later = await client.post(f"{path}/reschedule", json={"runAfter": "2100-01-01T00:00:00Z"})
    assert (later.status_code, later.json()["status"], later.json()["runAfter"]) == (
        200,
        "scheduled",
        "2100-01-01T00:00:00Z",
    )
    events = (await client.get(f"{path}/events")).json()["events"]
    assert [(event["kind"], event["status"]) for event in events] == [
        ("created", "pending"),
        ("rescheduled", "scheduled"),
    ]
    refused = await client.delete(path)
    assert (refused.status_code, refused.json()["code"]) == (409, "invalid_state")
    await client.post(f"{path}/cancel")
    refused = await client.post(f"{path}/reschedule", json={"runAfter": "2100-01-01T00:00:00Z"})
    assert (refused.status_code, refused.json()["code"]) == (409, "invalid_state")
    assert (await client.delete(path)).status_code == 204
    assert (await client.get(path)).status_code == 404
    assert (await client.delete(path)).status_code == 404
