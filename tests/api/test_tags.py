"""Tags and unique keys over HTTP, and from Python."""

from __future__ import annotations

from typing import Any

import pytest
from httpx2 import AsyncClient

from taketurns.companies.directory import Company

TASKS = "/companies/acme/tasks"


async def test_tags_are_kept_and_tasks_are_found_by_them(client: AsyncClient, acme: Company) -> None:
    both = (await client.post(TASKS, json={"type": "anything", "tags": ["eu", "customer:7"]})).json()
    one = (await client.post(TASKS, json={"type": "anything", "tags": ["eu"]})).json()
    none = (await client.post(TASKS, json={"type": "anything"})).json()
    assert (both["tags"], none["tags"], none["uniqueKey"]) == (["eu", "customer:7"], [], None)
    shown = (await client.get(f"{TASKS}/{both['id']}")).json()
    assert {name: shown[name] for name in both} == both
    assert (await client.get(f"{TASKS}?tag=eu")).json()["tasks"] == [one, both]
    assert (await client.get(f"{TASKS}?tag=eu&tag=customer:7")).json()["tasks"] == [both]
    assert (await client.get(f"{TASKS}?tag=eu&status=completed")).json()["tasks"] == []
    page = (await client.get(f"{TASKS}?tag=eu&limit=1")).json()
    assert page["hasMore"]
    assert (await client.get(f"{TASKS}?tag=eu&limit=1&cursor={page['nextCursor']}")).json()["tasks"] == [both]
    other = await client.get(f"{TASKS}?tag=customer:7&limit=1&cursor={page['nextCursor']}")
    assert (other.status_code, other.json()["code"]) == (400, "invalid_cursor")


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"tags": [""]}, "/tags/0"),
        ({"tags": ["a b"]}, "/tags/0"),
        ({"tags": ["-a"]}, "/tags/0"),
        ({"tags": ["a\0"]}, "/tags/0"),  # fault 001
        ({"tags": ["a\n"]}, "/tags/0"),
        ({"tags": ["é"]}, "/tags/0"),
        ({"tags": ["a" * 65]}, "/tags/0"),
        ({"tags": ["a", 7]}, "/tags/1"),
        ({"tags": ["a", "a"]}, "/tags"),
        ({"tags": [f"t{number}" for number in range(11)]}, "/tags"),
        ({"tags": None}, "/tags"),
        ({"uniqueKey": " "}, "/uniqueKey"),
        ({"uniqueKey": "a\0"}, "/uniqueKey"),
        ({"uniqueKey": "k", "uniqueSeconds": 0}, "/uniqueSeconds"),
        ({"uniqueKey": "k", "uniqueSeconds": 1e10}, "/uniqueSeconds"),
        ({"uniqueKey": "k", "onConflict": "ignore"}, "/onConflict"),
        ({"uniqueSeconds": 5}, ""),
        ({"onConflict": "return"}, ""),
    ],
)
async def test_what_cannot_be_is_told_by_its_field(
    client: AsyncClient, acme: Company, body: dict[str, Any], pointer: str
) -> None:
    answer = await client.post(TASKS, json={"type": "anything", **body})
    assert answer.status_code == 422
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]


@pytest.mark.parametrize("tag", ["%00", "a%00b", "", "a b", "x" * 65])  # fault 001
async def test_a_tag_that_cannot_be_is_refused_in_a_query(client: AsyncClient, acme: Company, tag: str) -> None:
    assert (await client.get(f"{TASKS}?tag={tag}")).status_code == 422


async def test_a_unique_key_is_refused_returned_or_replaced(client: AsyncClient, acme: Company) -> None:
    body = {"type": "anything", "uniqueKey": "sync"}
    first = await client.post(TASKS, json=body)
    assert (first.status_code, first.json()["uniqueKey"]) == (201, "sync")
    refused = await client.post(TASKS, json=body)
    assert (refused.status_code, refused.json()["code"]) == (409, "unique_key_taken")
    assert first.json()["id"] in refused.json()["detail"]
    assert [error["pointer"] for error in refused.json()["errors"]] == ["/uniqueKey"]
    held = await client.post(TASKS, json=body | {"onConflict": "return"})
    assert (held.status_code, held.json()) == (200, first.json())
    assert held.headers["unique-key-held"] == "true"
    assert "idempotent-replayed" not in held.headers
    second = await client.post(TASKS, json=body | {"onConflict": "replace"})
    assert second.status_code == 201
    assert (await client.get(first.headers["location"])).json()["status"] == "cancelled"
    again = await client.post(f"{first.headers['location']}/retry")
    assert (again.status_code, again.json()["code"]) == (409, "unique_key_taken")


async def test_a_batch_says_which_task_stands_in_the_way(client: AsyncClient, acme: Company) -> None:
    first = (await client.post(TASKS, json={"type": "anything", "uniqueKey": "a"})).json()
    tasks: list[dict[str, Any]] = [{"type": "anything", "uniqueKey": "b"}, {"type": "anything", "uniqueKey": "a"}]
    refused = await client.post(f"{TASKS}/batch", json={"tasks": tasks})
    assert refused.status_code == 409
    assert [error["pointer"] for error in refused.json()["errors"]] == ["/tasks/1/uniqueKey"]
    tasks[1]["onConflict"] = "return"
    made = await client.post(f"{TASKS}/batch", json={"tasks": tasks})
    assert [(task["held"], task["id"] == first["id"]) for task in made.json()["tasks"]] == [
        (False, False),
        (True, True),
    ]
    twice = await client.post(f"{TASKS}/batch", json={"tasks": [tasks[0], tasks[0]]})
    assert twice.status_code == 422


async def test_a_key_with_another_tag_is_another_request(client: AsyncClient, acme: Company) -> None:
    key = {"Idempotency-Key": "k"}
    assert (await client.post(TASKS, json={"type": "anything", "tags": ["a", "b"]}, headers=key)).status_code == 201
    assert (await client.post(TASKS, json={"type": "anything", "tags": ["b", "a"]}, headers=key)).status_code == 200
    assert (await client.post(TASKS, json={"type": "anything"}, headers=key)).status_code == 422
