"""Nothing that a client sends breaks the API: what cannot be taken is refused by its place, the rest is kept whole."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from httpx2 import AsyncClient, Response

from taketurns.api import lists
from taketurns.companies.directory import Company
from taketurns.engine import limits
from taketurns.engine.registry import Registry

TASKS = "/companies/acme/tasks"


@dataclass
class Order:
    number: int


async def place_order(
    order: Order | None = None,
    prices: dict[str, int] | None = None,
    lines: list[int] | None = None,
    tags: set[str] | None = None,
) -> None: ...


@pytest.fixture
def registry(registry: Registry) -> Registry:
    registry.add(place_order)
    return registry


@pytest.fixture(autouse=True)
async def nothing_breaks(client: AsyncClient, acme: Company) -> AsyncIterator[None]:
    """After each test the list still answers."""
    yield
    assert (await client.get(TASKS)).status_code == 200


async def send(client: AsyncClient, body: str | bytes) -> Response:
    """A body as it is; every refusal is a problem that names the route and can be read."""
    answer = await client.post(TASKS, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code < 500, answer.text
    if answer.status_code >= 400:
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["status"] == answer.status_code
    return answer


def pointers(answer: Response) -> list[str]:
    return [error["pointer"] for error in answer.json()["errors"]]


def task(value: str) -> str:
    return f'{{"type": "anything", "payload": {{"value": {value}}}}}'


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        (task(r'{"a": "x\u0000y"}'), "/payload/value/a"),  # fault 001
        (task(r'{"k\u0000": 1}'), "/payload/value"),
        (task(r'{"l": [{"m": ["\u0000"]}]}'), "/payload/value/l/0/m/0"),
        (r'{"type": "any\u0000thing"}', "/type"),
        (r'{"type": "anything", "queue": "\u0000"}', "/queue"),
        (task(r'{"s": "\ud800"}'), "/payload/value/s"),  # fault 006
        (task(r'{"s": ["\udfff"]}'), "/payload/value/s/0"),
        (task(r'{"\udfff": 1}'), "/payload/value"),
        (r'{"type": "\ud83d"}', "/type"),
        (task('{"x": NaN}'), "/payload/value/x"),  # fault 007
        (task("[1, Infinity]"), "/payload/value/1"),
        (task('{"x": -Infinity}'), "/payload/value/x"),
        (task('{"x": 1e400}'), "/payload/value/x"),
        (task("-" + "9" * 5000), "/payload/value"),
        ('{"type": "anything", "priority": Infinity}', "/priority"),
        ('{"type": "anything", "delaySeconds": -Infinity}', "/delaySeconds"),
        ('{"type": "anything", "delaySeconds": 1e999}', "/delaySeconds"),
        ('{"type": "anything", "maxRetries": NaN}', "/maxRetries"),
        ('{"type": "anything", "priority": true}', "/priority"),  # fault 012
        ('{"type": "anything", "priority": 2.5}', "/priority"),
        ('{"type": "anything", "priority": 2.0}', "/priority"),
        ('{"type": "anything", "priority": 10}', "/priority"),
        ('{"type": "anything", "maxRetries": 1.0}', "/maxRetries"),
        ('{"type": "anything", "maxRetries": "3"}', "/maxRetries"),
        ('{"type": "anything", "maxRetries": -1}', "/maxRetries"),
        ('{"type": "anything", "delaySeconds": false}', "/delaySeconds"),
        ('{"type": "anything", "delaySeconds": "5"}', "/delaySeconds"),
        ('{"type": "anything", "timeoutSeconds": 0}', "/timeoutSeconds"),
        ('{"type": "anything", "maxRetries": 1' + "0" * 40 + "}", "/maxRetries"),  # fault 013
        ('{"type": "anything", "queue": null}', "/queue"),
        ('{"type": "anything", "runAfter": null}', "/runAfter"),
        ('{"type": "anything", "payload": null}', "/payload"),
        ('{"type": "anything", "payload": []}', "/payload"),
        ('{"type": 7}', "/type"),
        ("{}", "/type"),
        ('{"type": "anything", "typ": 1}', "/typ"),
        ('{"type": "anything", "run_after": "2999-01-01T00:00:00Z"}', "/run_after"),
        ('{"type": "anything", "a~b/c": 1}', "/a~0b~1c"),
        ('{"type": "%s"}' % ("x" * 129), "/type"),
        ('{"type": "%s"}' % ("🔑" * 128), "/type"),  # fault 020
        ('{"type": "anything", "delaySeconds": 1, "runAfter": "2999-01-01T00:00:00Z"}', ""),
        ("[]", ""),
        ("null", ""),
        ("7", ""),
        ("", ""),
        ("{", ""),
        ('{"type": "anything",}', ""),
        ("type=anything", ""),
    ],
)
async def test_what_cannot_be_taken_is_refused_by_its_place(client: AsyncClient, body: str, pointer: str) -> None:
    answer = await send(client, body)
    assert answer.status_code in {400, 422}, answer.text
    assert pointers(answer) == [pointer]
    assert (await client.get(TASKS)).json()["tasks"] == []


@pytest.mark.parametrize("body", [b"\xff\xfe{\x00}\x00", b'{"type": "\xff"}', b"\xef\xbb\xbf{}", b"\x00", b"\x80"])
async def test_what_is_not_utf8_json_is_refused(client: AsyncClient, body: bytes) -> None:
    assert (await send(client, body)).status_code == 400


@pytest.mark.parametrize(
    "value",
    [
        r'"\ud83d\udd11 \u00e9 \ufffe \u2028"',  # fault 006
        r'"\\u0000"',
        r'{"": {"a/b": "\u0001\u007f"}}',
        "9223372036854775807",
        "-9223372036854775809",
        "1" * 30,
        "1.5e20",
        "0.1",
        "-0.0",
        "[[], {}, null, true]",
    ],
)
async def test_what_can_be_taken_comes_back_whole(client: AsyncClient, value: str) -> None:
    answer = await send(client, task(value))
    assert answer.status_code == 201
    assert json.loads(answer.text)["payload"] == {"value": json.loads(value)}
    again = await client.get(f"{TASKS}/{answer.json()['id']}")
    assert json.loads(again.text)["payload"] == {"value": json.loads(value)}


@pytest.mark.parametrize(
    ("value", "is_taken"),
    [
        ("[" * 20_000 + "]" * 20_000, False),  # fault 009
        ('{"a":' * 1_000 + "1" + "}" * 1_000, False),
        ('{"a":' * 100 + "1" + "}" * 100, False),
        ('{"a":' * limits.PAYLOAD_DEPTH + "1" + "}" * limits.PAYLOAD_DEPTH, False),
        ('{"a":' * (limits.PAYLOAD_DEPTH - 1) + "1" + "}" * (limits.PAYLOAD_DEPTH - 1), True),
    ],
)
async def test_depth_has_one_limit(client: AsyncClient, value: str, is_taken: bool) -> None:
    answer = await send(client, task(value))
    assert (answer.status_code == 201) == is_taken
    if is_taken:
        assert (await client.get(TASKS)).json()["tasks"][0]["payload"] == {"value": json.loads(value)}
    else:
        assert pointers(answer)[0].startswith("/payload/value/")
        assert str(limits.PAYLOAD_DEPTH) in answer.json()["detail"]


async def test_a_payload_has_one_limit_of_bytes(client: AsyncClient) -> None:
    room = limits.PAYLOAD_BYTES - len('{"value":""}')
    assert (await send(client, task(f'"{"x" * room}"'))).status_code == 201
    for text in ("x" * (room + 1), "é" * (room // 2 + 1)):
        answer = await send(client, task(f'"{text}"'))
        assert 400 <= answer.status_code < 500
        assert pointers(answer) == ["/payload"]
    too_large = await send(client, task(f'"{"x" * limits.BODY_BYTES}"'))
    assert (too_large.status_code, too_large.json()["code"]) == (413, "body_too_large")


async def test_payloads_longer_than_a_notice_are_taken(client: AsyncClient) -> None:  # fault 020
    for text in ("x" * 7_900, "x" * 8_100, "🔑" * 2_500):
        answer = await send(client, task(json.dumps(text)))
        assert (answer.status_code, answer.json()["payload"]) == (201, {"value": text})


async def test_a_refusal_does_not_repeat_what_was_sent(client: AsyncClient) -> None:
    secret = "hunter2"
    for body in (
        {"type": "send_email", "payload": {"to": {"secret": secret}}},
        {"type": "anything", "priority": secret},
        {"type": secret + " "},
    ):
        answer = await send(client, json.dumps(body))
        assert answer.status_code == 422
        assert secret not in answer.text


@pytest.mark.parametrize(
    ("moment", "instant"),
    [  # fault 018
        ("2999-01-01T00:00:00Z", "2999-01-01T00:00:00Z"),
        ("2999-01-01t00:00:00z", "2999-01-01T00:00:00Z"),
        ("2999-01-01 00:00:00Z", "2999-01-01T00:00:00Z"),
        ("2999-01-01T00:00:00.1234567Z", "2999-01-01T00:00:00.123456Z"),
        ("2999-01-01T00:00:00+05:45", "2998-12-31T18:15:00Z"),
        ("2998-12-31T23:59:60Z", "2999-01-01T00:00:00Z"),
        ("2999-01-01T00:00:00", None),
        ("2999-01-01", None),
        ("2999-01-01T24:00:00Z", None),
        ("2999-01-01T00:00Z", None),
        ("2999-02-30T00:00:00Z", None),
        ("2999-01-01T00:00:00+99:99", None),
        ("٢999-01-01T00:00:00Z", None),
        ("0001-01-01T00:00:00+23:59", None),
        ("9999-12-31T23:59:59-23:59", None),
        ("", None),
        ("\0", None),
        (32472144000, None),
        (1e300, None),
    ],
)
async def test_times_have_a_zone_and_keep_their_instant(
    client: AsyncClient, moment: object, instant: str | None
) -> None:
    answer = await send(client, json.dumps({"type": "anything", "runAfter": moment}))
    if instant is None:
        assert answer.status_code == 422
        assert pointers(answer) == ["/runAfter"]
    else:
        assert (answer.status_code, answer.json()["runAfter"]) == (201, instant)


NUMBERS = ["-1", "2147483648", "9223372036854775807", "9223372036854775808", "1" + "0" * 40, "1e3", "", "abc", "%00"]


@pytest.mark.parametrize("number", [*NUMBERS, "0", "101"])
async def test_limits_out_of_range_are_refused(client: AsyncClient, number: str) -> None:  # fault 013
    for path in (TASKS, "/companies"):
        answer = await client.get(f"{path}?limit={number}")
        assert answer.status_code == 422
        assert pointers(answer) == ["limit"]


@pytest.mark.parametrize("value", ["null", "1", '"x"', "[]", "true"])
async def test_what_is_no_object_is_told_in_words_of_json(client: AsyncClient, value: str) -> None:
    for method, path, body, place in (
        ("POST", TASKS, value, "the body"),
        ("POST", f"{TASKS}/batch", value, "the body"),
        ("POST", f"{TASKS}/batch", f'{{"tasks": [{value}]}}', "/tasks/0"),
        ("POST", TASKS, f'{{"type": "anything", "payload": {value}}}', "/payload"),
        ("POST", "/companies", value, "the body"),
        ("POST", "/companies", f'{{"name": "Zeta", "quotas": {value}}}', "/quotas"),
        ("PATCH", "/companies/acme", value, "the body"),
        ("POST", "/companies/acme/schedules", value, "the body"),
        ("POST", "/workers/process", value, "the body"),
        ("POST", TASKS, f'{{"type": "place_order", "payload": {{"order": {value}}}}}', "/payload/order"),
        ("POST", TASKS, f'{{"type": "place_order", "payload": {{"prices": {value}}}}}', "/payload/prices"),
    ):
        if value == "null" and "place_order" in body:
            continue
        answer = await client.request(method, path, content=body, headers={"Content-Type": "application/json"})
        assert (answer.status_code, answer.json()["detail"]) == (422, f"{place}: must be an object"), (path, body)
        assert [error["code"] for error in answer.json()["errors"]] == ["object_type"]


async def test_what_is_no_array_is_told_in_words_of_json(client: AsyncClient) -> None:
    for path, body in (
        (f"{TASKS}/batch", {"tasks": {}}),
        (TASKS, {"type": "place_order", "payload": {"lines": 1}}),
        (TASKS, {"type": "place_order", "payload": {"tags": {}}}),
    ):
        answer = await client.post(path, json=body)
        assert answer.status_code == 422
        assert answer.json()["detail"].endswith(": must be an array")
        assert [error["code"] for error in answer.json()["errors"]] == ["array_type"]


@pytest.mark.parametrize("number", [*NUMBERS, "10001"])
async def test_offsets_out_of_range_are_refused(client: AsyncClient, number: str) -> None:  # fault 013
    for path in (TASKS, "/companies"):
        answer = await client.get(f"{path}?offset={number}")
        assert answer.status_code in {400, 422}
        assert "offset" in answer.json()["detail"]
        assert not number.isdecimal() or "cursor" in answer.json()["detail"]
    assert (await client.get(f"{TASKS}?offset=10000")).status_code == 200


@pytest.mark.parametrize(
    "query",
    [
        "status=%00",  # fault 004
        "type=a%00b",
        "cursor=%00",
        "status=",
        "status=done",
        "status=pending&status=PENDING",
        "status=%F0%9F%94%91",
        "type=",
        "type=a%20b",
        "sort=name",
        "sort=",
        "createdAfter=1e248",  # fault 017
        "createdAfter=99999999999999999999",
        "createdAfter=0001-01-01T00:00:00%2B23:59",
        "createdAfter=9999-12-31T23:59:59-23:59",
        "createdAfter=-1",
        "createdAfter=",
        "createdBefore=2026-01-01",
        "createdBefore=%00",
    ],
)
async def test_filters_that_cannot_be_are_refused_by_name(client: AsyncClient, query: str) -> None:
    answer = await client.get(f"{TASKS}?{query}")
    assert answer.status_code in {400, 422}
    assert query.partition("=")[0] in answer.json()["detail"]


async def test_a_plus_sign_that_was_not_escaped_is_understood(client: AsyncClient) -> None:
    assert (await client.get(f"{TASKS}?createdAfter=2026-01-01T00:00:00+05:45")).status_code == 200


@pytest.mark.parametrize("name", ["foo", "Status", "tags", "tag%00", "%F0%9F%94%91", "created_after"])
async def test_unknown_parameters_are_refused_with_the_known_ones(client: AsyncClient, name: str) -> None:
    answer = await client.get(f"{TASKS}?{name}=1")
    assert (answer.status_code, answer.json()["code"]) == (400, "unknown_parameter")
    assert "limit, offset, cursor, status, type, tag, errorFingerprint, createdAfter" in answer.json()["detail"]
    for method, path in [("POST", TASKS), ("GET", "/health"), ("GET", "/limits"), ("GET", "/companies/acme")]:
        body: dict[str, Any] = {"type": "anything"}
        answer = await client.request(method, f"{path}?{name}=1", json=body)
        assert (answer.status_code, answer.json()["code"]) == (400, "unknown_parameter"), path


@pytest.mark.parametrize(
    ("path", "query"),
    [
        (TASKS, "limit=1&limit=2"),
        (TASKS, "sort=createdAt&sort=createdAt"),
        (TASKS, "createdAfter=2026-01-01T00:00:00Z&status=pending&createdAfter=2026-01-02T00:00:00Z"),
        (TASKS, "includeTotal=exact&includeTotal="),
        (f"{TASKS}/{UUID(int=1)}/events", "after=1&after=2"),
        ("/companies/acme/schedules", "offset=1&offset=1"),
        ("/companies", "cursor=x&cursor=y"),
        ("/workers", "maxAgeSeconds=1&maxAgeSeconds=2"),
    ],
)
async def test_a_parameter_that_has_one_value_is_not_taken_twice(client: AsyncClient, path: str, query: str) -> None:
    name = query.partition("=")[0]
    answer = await client.get(f"{path}?{query}")
    assert (answer.status_code, answer.json()["code"], pointers(answer)) == (422, "invalid_request", [name])
    assert f"{name}: is given more than once" in answer.json()["detail"]


def test_every_route_with_parameters_refuses_those_that_are_repeated(app: FastAPI) -> None:
    routes = [route for route in app.routes if isinstance(route, APIRoute) and route.dependant.query_params]
    assert routes
    for route in routes:
        assert lists.refuse_repeated in [dependency.call for dependency in route.dependant.dependencies], route.path


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate, gzip"])
async def test_a_compressed_body_is_refused_as_such(client: AsyncClient, acme: Company, encoding: str) -> None:
    answer = await client.post(
        f"/companies/{acme.id}/tasks",
        content=b"{}",
        headers={"content-type": "application/json", "content-encoding": encoding},
    )
    assert answer.status_code == 415
    assert "Content-Encoding" in answer.json()["detail"]


@pytest.mark.usefixtures("acme")
async def test_no_parameter_of_any_list_takes_a_character_that_the_database_refuses(client: AsyncClient) -> None:
    """Fault 004, in whatever is asked for by text."""
    document = (await client.get("/openapi.json")).json()
    asked = []
    for path, operations in document["paths"].items():
        for parameter in operations.get("get", {}).get("parameters", ()):
            if parameter["in"] == "query":
                address = re.sub(r"{(?!companyId)\w+}", str(UUID(int=0)), path).format(companyId="acme")
                asked.append((address, parameter["name"]))
    assert ("/companies/acme/failures", "after") in asked
    for address, name in asked:
        answer = await client.get(f"{address}?{name}=a%00b")
        assert answer.status_code in {400, 404, 422}, (address, name, answer.text)
