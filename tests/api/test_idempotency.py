"""A request under an idempotency key is served once, however often and however much at once it is sent."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from httpx2 import ASGITransport, AsyncClient, Response

from taketurns.api.application import create_api
from taketurns.brokers.postgres import PostgresBroker
from taketurns.companies import directory
from taketurns.companies.directory import Company
from taketurns.engine.registry import Registry
from taketurns.storage.database import Database, conninfo

TASKS = "/companies/acme/tasks"
BODY = {"type": "anything", "payload": {"value": {"a": 1, "b": [1, 2]}}}


async def post(client: AsyncClient, key: str | bytes, body: Any = BODY, *, path: str = TASKS) -> Response:
    return await client.post(
        path, json=body, headers=[(b"Idempotency-Key", key.encode() if isinstance(key, str) else key)]
    )


async def count(client: AsyncClient) -> int:
    return len((await client.get(TASKS)).json()["tasks"])


async def test_a_repeated_request_is_answered_with_the_task_it_made(client: AsyncClient, acme: Company) -> None:
    first = await post(client, "k")
    again = await post(client, "k")
    assert (first.status_code, again.status_code) == (201, 200)
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert again.json() == first.json()
    await client.post(f"{TASKS}/{first.json()['id']}/cancel")
    assert (await post(client, "k")).json()["status"] == "cancelled"


async def test_equal_requests_are_equal_however_they_are_written(
    client: AsyncClient, acme: Company
) -> None:  # fault 028
    first = await post(client, "k")
    written = b'{ "payload" : {"value":{"b":[1,2],   "a":1}}, "type":"anything" }'
    headers = {"Idempotency-Key": "k", "Content-Type": "application/json; charset=utf-8"}
    again = await client.post(TASKS, content=written, headers=headers)
    assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])


@pytest.mark.parametrize(
    "other",
    [
        {"payload": {"value": {"a": 2, "b": [1, 2]}}},
        {"payload": {"value": {"a": 1, "b": [2, 1]}}},
        {"payload": {}},
        {"priority": 1},
        {"queue": "other"},
        {"delaySeconds": 1},
        {"runAfter": "2999-01-01T00:00:00Z"},
        {"maxRetries": 0},
        {"timeoutSeconds": 5},
        {"type": "send_email", "payload": {"to": "a"}},
    ],
)
async def test_another_request_under_the_key_is_refused(  # fault 028
    client: AsyncClient, acme: Company, other: dict[str, Any]
) -> None:
    await post(client, "k")
    refused = await post(client, "k", BODY | other)
    assert (refused.status_code, refused.json()["code"]) == (422, "idempotency_key_reused")
    assert await count(client) == 1
    assert (await post(client, "k")).status_code == 200


@pytest.mark.parametrize("key", ["a", "x" * 255, "Key", "a b", '"quoted"', '"with \\" and \\\\"', "!~#$%"])
async def test_printable_keys_are_taken(client: AsyncClient, acme: Company, key: str) -> None:  # fault 024
    assert (await post(client, key)).status_code == 201
    assert (await post(client, key)).status_code == 200


@pytest.mark.parametrize(
    "key",
    [
        b"",
        b"   ",
        b'""',
        b'"  "',
        b"x" * 256,
        b'"' + b"x" * 256 + b'"',
        b"x" * 10_000,
        b"a\tb",
        b'"unfinished',
        b'"a"b"',
        b'"a\\n"',
        "clé-鍵-🔑".encode(),  # fault 022
        "clé".encode("latin-1"),
    ],
)
async def test_other_keys_are_refused_and_never_shared(client: AsyncClient, acme: Company, key: bytes) -> None:
    for _ in range(2):  # fault 024
        refused = await post(client, key)
        assert (refused.status_code, refused.json()["code"]) == (400, "invalid_idempotency_key")
    assert await count(client) == 0


async def test_two_keys_are_refused(client: AsyncClient, acme: Company) -> None:
    headers = [("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
    assert (await client.post(TASKS, json=BODY, headers=headers)).status_code == 400


async def test_a_key_is_the_same_bare_and_quoted_and_its_case_counts(client: AsyncClient, acme: Company) -> None:
    first = await post(client, "order-1")
    assert (await post(client, '"order-1"')).json()["id"] == first.json()["id"]
    assert (await post(client, "Order-1")).json()["id"] != first.json()["id"]


async def test_many_at_once_make_one_task(client: AsyncClient, acme: Company) -> None:  # faults 026, 027
    for attempt in range(5):
        answers = await asyncio.gather(*(post(client, f"k{attempt}") for _ in range(50)))
        assert Counter(answer.status_code for answer in answers) == {201: 1, 200: 49}
        assert len({answer.json()["id"] for answer in answers}) == 1
        assert await count(client) == attempt + 1


async def test_a_slow_database_makes_nobody_fail(  # fault 027
    client: AsyncClient, acme: Company, database: Database
) -> None:
    async with database.connection() as connection:
        await connection.execute(
            "create function slowly() returns trigger language plpgsql as"
            " $$ begin perform pg_sleep(0.3); return new; end $$"
        )
        await connection.execute(
            "create trigger slowly before insert on taketurns.tasks for each row execute function slowly()"
        )
    answers = await asyncio.gather(*(post(client, "k") for _ in range(50)))
    assert Counter(answer.status_code for answer in answers) == {201: 1, 200: 49}


async def test_a_key_belongs_to_its_company(client: AsyncClient, acme: Company, database: Database) -> None:
    await directory.create(database, name="Other", slug="other")  # fault 033
    ours = await post(client, "k")
    theirs = await post(client, "k", path="/companies/other/tasks")
    differ = await post(client, "k", BODY | {"priority": 9}, path="/companies/other/tasks")
    assert (ours.status_code, theirs.status_code, differ.status_code) == (201, 201, 422)
    assert ours.json()["id"] != theirs.json()["id"]
    assert ours.json()["id"] not in differ.text


async def test_refused_requests_leave_their_key_unused(client: AsyncClient, acme: Company) -> None:  # fault 031
    assert (await post(client, "k", {"type": "nothing"})).status_code == 422
    assert (await post(client, "k", BODY | {"priority": 10})).status_code == 422
    assert (await post(client, "k", path="/companies/nobody/tasks")).status_code == 404
    assert (await post(client, "k")).status_code == 201


async def test_what_failed_for_the_database_can_be_repeated(  # faults 030, 031
    client: AsyncClient, acme: Company, database: Database
) -> None:
    async def interrupt() -> None:
        async with await psycopg.AsyncConnection.connect(conninfo(database.url), autocommit=True) as connection:
            for _ in range(20):
                await connection.execute(
                    "select pg_terminate_backend(pid, 1000) from pg_stat_activity"
                    " where datname = current_database() and pid <> pg_backend_pid() and query like '%enqueue%'"
                )

    answers, _ = await asyncio.gather(asyncio.gather(*(post(client, f"k{n}") for n in range(100))), interrupt())
    assert {answer.status_code for answer in answers} <= {201, 503}
    again = await asyncio.gather(*(post(client, f"k{n}") for n in range(100)))
    assert {answer.status_code for answer in again} <= {200, 201}
    ids = {answer.json()["id"] for answer in again}
    assert len(ids) == 100
    assert {answer.json()["id"] for answer in answers if answer.status_code == 201} <= ids


async def test_a_key_expires_by_the_clock(  # fault 035
    acme: Company, database: Database, registry: Registry
) -> None:
    broker = PostgresBroker(database, key_lifetime=timedelta(seconds=1000))
    app = create_api(database=database, broker=broker, registry=registry, version="1", cursor_secret=b"")
    async with AsyncClient(transport=ASGITransport(app), base_url="http://api") as client:
        first = await post(client, "k")
        await wait_until_expired(database, timedelta(seconds=990))
        assert (await post(client, "k")).json()["id"] == first.json()["id"]
        await wait_until_expired(database, timedelta(seconds=10))
        answers = await asyncio.gather(*(post(client, "k") for _ in range(20)))
        assert Counter(answer.status_code for answer in answers) == {201: 1, 200: 19}
        assert {answer.json()["id"] for answer in answers} != {first.json()["id"]}
        assert await count(client) == 2
    await broker.notifier.flush()


async def wait_until_expired(database: Database, time: timedelta) -> None:
    async with database.connection() as connection:
        await connection.execute("update taketurns.idempotency_keys set expires_at = expires_at - %s", (time,))


async def test_the_key_of_a_forgotten_task_says_so(client: AsyncClient, acme: Company, database: Database) -> None:
    made = await post(client, "k")  # fault 035
    await client.post(f"{TASKS}/{made.json()['id']}/cancel")
    async with database.connection() as connection:
        await connection.execute("delete from taketurns.tasks")
    answer = await post(client, "k")
    assert (answer.status_code, answer.json()["code"]) == (409, "task_forgotten")


async def batch(client: AsyncClient, tasks: list[dict[str, Any]], **headers: str) -> Response:
    return await client.post(f"{TASKS}/batch", json={"tasks": tasks}, headers=headers)


def keyed(key: str | None, value: object = 0) -> dict[str, Any]:
    task = {"type": "anything", "payload": {"value": value}}
    return task if key is None else task | {"idempotencyKey": key}


async def test_a_batch_is_answered_in_its_order(client: AsyncClient, acme: Company) -> None:
    answer = await batch(client, [keyed(None, number) for number in range(1000)])
    assert answer.status_code == 201
    tasks = answer.json()["tasks"]
    assert [task["payload"]["value"] for task in tasks] == list(range(1000))
    assert len({task["id"] for task in tasks}) == 1000
    assert not any(task["replayed"] for task in tasks)


async def test_a_duplicate_in_a_batch_is_shown_and_the_rest_is_stored(client: AsyncClient, acme: Company) -> None:
    earlier = await post(client, "k3", {"type": "anything", "payload": {"value": 3}})  # fault 037
    answer = await batch(client, [keyed(f"k{number}", number) for number in range(10)])
    assert answer.status_code == 201
    tasks = answer.json()["tasks"]
    assert [task["replayed"] for task in tasks] == [number == 3 for number in range(10)]
    assert tasks[3] == earlier.json() | {"replayed": True, "held": False}
    assert await count(client) == 10
    again = await batch(client, [keyed(f"k{number}", number) for number in range(10)])
    assert (again.status_code, again.headers["idempotent-replayed"]) == (200, "true")
    assert [task["id"] for task in again.json()["tasks"]] == [task["id"] for task in tasks]


async def test_a_conflict_in_a_batch_stores_nothing(client: AsyncClient, acme: Company) -> None:  # fault 037
    await post(client, "k3", {"type": "anything", "payload": {"value": "other"}})
    answer = await batch(client, [keyed(f"k{number}", number) for number in range(10)])
    assert (answer.status_code, answer.json()["code"]) == (422, "idempotency_key_reused")
    assert [error["pointer"] for error in answer.json()["errors"]] == ["/tasks/3/idempotencyKey"]
    assert await count(client) == 1
    assert (await batch(client, [keyed("k0", 0)])).status_code == 201


async def test_a_key_twice_in_a_batch_is_one_task(client: AsyncClient, acme: Company) -> None:  # fault 038
    answer = await batch(client, [keyed("a"), keyed("b"), keyed("a"), keyed(None)])
    assert answer.status_code == 201
    ids = [task["id"] for task in answer.json()["tasks"]]
    assert ids[0] == ids[2]
    assert len(set(ids)) == 3
    assert [task["replayed"] for task in answer.json()["tasks"]] == [False, False, True, False]
    conflict = await batch(client, [keyed("c", 1), keyed("d"), keyed("c", 1), keyed(None), keyed("c", 2)])
    assert conflict.status_code == 422
    assert [error["pointer"] for error in conflict.json()["errors"]] == ["/tasks/4/idempotencyKey"]
    assert await count(client) == 3


async def test_a_batch_has_no_key_of_its_own(client: AsyncClient, acme: Company) -> None:
    answer = await batch(client, [keyed(None)], **{"Idempotency-Key": "k"})
    assert (answer.status_code, answer.json()["code"]) == (400, "misplaced_idempotency_key")


async def test_one_wrong_task_stops_its_batch(client: AsyncClient, acme: Company) -> None:
    wrongs: list[tuple[dict[str, Any], str]] = [
        ({"type": "nothing"}, "/tasks/1/type"),
        ({"type": "send_email", "payload": {}}, "/tasks/1/payload/to"),
        ({"type": "anything", "priority": 11}, "/tasks/1/priority"),
        ({"type": "anything", "idempotencyKey": " "}, "/tasks/1/idempotencyKey"),
        ({"type": "anything", "payload": {"value": "\0"}}, "/tasks/1/payload/value"),
    ]
    for wrong, pointer in wrongs:
        answer = await batch(client, [keyed(None), wrong, keyed(None)])
        assert answer.status_code == 422
        assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]
    assert await count(client) == 0


async def test_a_batch_has_one_to_a_thousand_tasks(client: AsyncClient, acme: Company) -> None:
    for size in (0, 1001):
        answer = await batch(client, [keyed(None)] * size)
        assert answer.status_code == 422
        assert [error["pointer"] for error in answer.json()["errors"]] == ["/tasks"]
