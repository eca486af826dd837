"""Every answer, good or bad, has its form: problem details, a request id, what is allowed, and no place in a cache."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest
import structlog
from fastapi import FastAPI
from httpx2 import AsyncClient

from taketurns import telemetry
from taketurns.api import problems
from taketurns.brokers.postgres import PostgresBroker
from taketurns.companies.directory import Company

TASKS = "/companies/acme/tasks"
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize(
    ("method", "path", "options", "code"),
    [
        ("GET", "/nothing", {}, "not_found"),
        ("GET", "/companies/", {}, "not_found"),
        ("GET", "//companies", {}, "not_found"),
        ("GET", "/docs/../pyproject.toml", {}, "not_found"),
        ("GET", "/docs/%2e%2e/application.py", {}, "not_found"),
        ("GET", "/companies/nobody/tasks", {}, "company_not_found"),
        ("PUT", TASKS, {}, "method_not_allowed"),
        ("TRACE", TASKS, {}, "method_not_allowed"),
        ("POST", "/metrics", {}, "method_not_allowed"),
        ("POST", TASKS, {"content": b"{}"}, "unsupported_media_type"),
        ("POST", TASKS, {"data": {"type": "anything"}}, "unsupported_media_type"),
        ("POST", TASKS, {"content": b"{}", "headers": {"content-type": "text/json"}}, "unsupported_media_type"),
        ("POST", TASKS, {"content": b"x", "headers": {"content-type": "application/json"}}, "malformed_json"),
        ("POST", TASKS, {"json": {}}, "invalid_request"),
        ("GET", f"{TASKS}?x=1", {}, "unknown_parameter"),
    ],
)
async def test_every_refusal_is_a_problem(
    client: AsyncClient, acme: Company, method: str, path: str, options: dict[str, Any], code: str
) -> None:
    answer = await client.request(method, path, **options)
    (kind,) = [kind for kind in problems.KINDS if kind.code == code]
    assert answer.status_code == kind.status
    assert answer.headers["content-type"] == "application/problem+json"
    told = answer.json()
    assert set(told) == {
        "type", "title", "status", "detail", "instance", "code", "requestId", "retryable", "errors",
    }  # fmt: skip
    assert (told["type"], told["title"], told["status"], told["code"]) == (
        f"/docs/problems#{code}", kind.title, kind.status, code,
    )  # fmt: skip
    assert told["requestId"] == answer.headers["x-request-id"]
    assert told["instance"].startswith("/")
    assert told["retryable"] is kind.retryable


async def test_every_kind_of_problem_is_explained(client: AsyncClient) -> None:
    page = await client.get("/docs/problems")
    assert page.status_code == 200
    for kind in problems.KINDS:
        assert f'id="{kind.code}"' in page.text


async def test_json_of_other_names_is_taken(client: AsyncClient, acme: Company) -> None:
    for media_type in ("application/json; charset=utf-8", "application/vnd.acme+json", "Application/JSON"):
        answer = await client.post(TASKS, content=b'{"type": "anything"}', headers={"content-type": media_type})
        assert answer.status_code == 201, media_type


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        (TASKS, "GET, HEAD, OPTIONS, POST"),
        ("/companies/acme", "DELETE, GET, HEAD, OPTIONS, PATCH"),
        ("/companies/acme/tasks/batch", "DELETE, GET, HEAD, OPTIONS, POST"),
        ("/workers/process", "OPTIONS, POST"),
        ("/health", "GET, HEAD, OPTIONS"),
        ("/docs", "GET, HEAD, OPTIONS"),
    ],
)
async def test_what_a_path_takes_is_the_union_of_its_routes(client: AsyncClient, path: str, allowed: str) -> None:
    refused = await client.put(path)
    assert (refused.status_code, refused.headers["allow"]) == (405, allowed)
    asked = await client.options(path)
    assert (asked.status_code, asked.headers["allow"], asked.content) == (204, allowed, b"")
    assert (await client.options("/nothing")).status_code == 404


async def test_other_origins_are_given_nothing(client: AsyncClient, acme: Company) -> None:
    headers = {"Origin": "https://elsewhere.example", "Access-Control-Request-Method": "POST"}
    for method in ("OPTIONS", "GET", "POST"):
        answer = await client.request(method, TASKS, headers=headers)
        assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_head_is_get_without_a_body(client: AsyncClient, acme: Company) -> None:
    for path in ("/companies/acme", TASKS, "/health", "/docs", "/nothing", "/companies/nobody"):
        get, head = await client.get(path), await client.head(path)
        assert head.content == b""
        assert head.status_code == get.status_code
        for name in ("content-type", "content-length", "cache-control"):
            assert head.headers[name] == get.headers[name], (path, name)


def lists_of(task: dict[str, Any]) -> list[str]:
    return [TASKS, "/companies", f"{TASKS}/{task['id']}/events", "/task-types"]


@pytest.mark.parametrize("accepted", ["gzip", "GZIP", "br, gzip;q=0.001", "deflate,gzip ; q=1.0,*;q=0"])
async def test_long_lists_are_compressed_for_those_who_take_it(
    client: AsyncClient, acme: Company, accepted: str
) -> None:
    body = {"tasks": [{"type": "anything", "payload": {"value": "x" * 2000}}] * 3}
    made = await client.post(f"{TASKS}/batch", json=body, headers={"accept-encoding": accepted})
    assert "content-encoding" not in made.headers
    plain = await client.get(TASKS, headers={"accept-encoding": "identity"})
    zipped = await client.get(TASKS, headers={"accept-encoding": accepted})
    assert (plain.headers["vary"], zipped.headers["vary"]) == ("Accept-Encoding", "Accept-Encoding")
    assert ("content-encoding" in plain.headers, zipped.headers["content-encoding"]) == (False, "gzip")
    assert zipped.json() == plain.json() == {"tasks": plain.json()["tasks"], "hasMore": False, "nextCursor": None}
    assert int(zipped.headers["content-length"]) < int(plain.headers["content-length"]) / 3


@pytest.mark.parametrize("accepted", ["", "identity", "br", "*", "gzip;q=0", "gzip;q=0.000", "gzippy", "gzip;q=x"])
async def test_long_lists_are_sent_plain_to_those_who_do_not(client: AsyncClient, acme: Company, accepted: str) -> None:
    await client.post(TASKS, json={"type": "anything", "payload": {"value": "x" * 2000}})
    answer = await client.get(TASKS, headers={"accept-encoding": accepted})
    assert "content-encoding" not in answer.headers
    assert len(answer.json()["tasks"]) == 1


async def test_every_list_says_that_it_varies_and_short_ones_are_sent_plain(client: AsyncClient, acme: Company) -> None:
    made = (await client.post(TASKS, json={"type": "anything"})).json()
    for path in lists_of(made):
        answer = await client.get(path, headers={"accept-encoding": "gzip"})
        assert answer.headers["vary"] == "Accept-Encoding", path
        is_long = len(answer.content) > 1024
        assert (answer.headers.get("content-encoding") == "gzip") is is_long, path


async def test_nothing_but_the_files_of_the_documentation_is_kept_in_caches(client: AsyncClient, acme: Company) -> None:
    for path in ("/companies/acme", TASKS, "/nothing", "/docs", "/openapi.json", "/metrics"):
        assert (await client.get(path)).headers["cache-control"] == "no-store"
    assert (await client.get("/docs/swagger-ui.css")).headers["cache-control"] == "max-age=3600"


@pytest.mark.parametrize("given", ["abc", "x" * 128, "a.b_c~d:e/f+g=h@i-j", "01a22c88-1688-7635-9d2d-7343a10dfaad"])
async def test_a_safe_request_id_is_kept(client: AsyncClient, acme: Company, given: str) -> None:
    for method, path in [("GET", TASKS), ("GET", "/nothing"), ("PUT", TASKS), ("OPTIONS", TASKS), ("HEAD", TASKS)]:
        answer = await client.request(method, path, headers={"X-Request-Id": given})
        assert answer.headers.get_list("x-request-id") == [given]
    made = await client.post(TASKS, json={"type": "anything"}, headers={"X-Request-Id": given})
    assert made.json()["requestId"] == given


@pytest.mark.parametrize(
    "given",
    [b"", b"x" * 129, b"a b", b"a\tb", b'"a"', b"<script>", "clé-鍵-🔑".encode(), "clé".encode("latin-1")],
)
async def test_any_other_request_id_is_replaced(client: AsyncClient, acme: Company, given: bytes) -> None:  # fault 022
    answer = await client.get("/nothing", headers=[(b"X-Request-Id", given)])
    assert re.fullmatch("[0-9a-f-]{36}", answer.headers["x-request-id"])
    assert answer.json()["requestId"] == answer.headers["x-request-id"]


async def test_the_trace_of_a_request_is_kept_with_its_tasks(
    client: AsyncClient, broker: PostgresBroker, acme: Company
) -> None:
    told = {"traceparent": TRACE}
    one = (await client.post(TASKS, json={"type": "anything"}, headers=told)).json()
    batch = (await client.post(f"{TASKS}/batch", json={"tasks": [{"type": "anything"}] * 2}, headers=told)).json()
    made = [one, *batch["tasks"]]
    assert [task["traceparent"] for task in made] == [TRACE] * 3
    for task in made:
        assert (await client.get(f"{TASKS}/{task['id']}")).json()["traceparent"] == TRACE
    claimed = await broker.claim(uuid4(), queues=["default"], batch=3)
    assert [task.traceparent for task in claimed] == [TRACE] * 3


@pytest.mark.parametrize(
    "given",
    [
        [""],
        [TRACE.upper()],
        [f"{TRACE}-00"],
        [TRACE[:-1]],
        ["01" + TRACE[2:]],
        [f"00-{'0' * 32}-00f067aa0ba902b7-01"],
        [f"00-4bf92f3577b34da6a3ce929d0e0e4736-{'0' * 16}-01"],
        [TRACE, TRACE],
    ],
)
async def test_a_malformed_trace_is_ignored(client: AsyncClient, acme: Company, given: list[str]) -> None:
    headers = [("traceparent", value) for value in given]
    made = await client.post(TASKS, json={"type": "anything"}, headers=headers)
    assert (made.status_code, made.json()["traceparent"]) == (201, None)


async def test_a_broken_handler_is_answered_and_logged(app: FastAPI, client: AsyncClient) -> None:
    @app.get("/broken")
    async def broken() -> None:
        raise RuntimeError("a secret")

    stream = io.StringIO()
    with configured_logs(stream):
        answer = await client.get("/broken", headers={"X-Request-Id": "r-7"})
    assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
    assert answer.headers["x-request-id"] == "r-7"
    assert "a secret" not in answer.text
    lines = map(json.loads, stream.getvalue().splitlines())
    (line,) = [line for line in lines if line["event"] == telemetry.Event.REQUEST_FAILED]
    assert (line["level"], line["route"], line["request_id"]) == ("error", "/broken", "r-7")
    assert "a secret" in line["exception"]


@contextmanager
def configured_logs(stream: io.StringIO) -> Iterator[None]:
    """Logs as JSON in a stream, for a while."""
    root, before = logging.getLogger(), structlog.get_config()
    handlers, level = root.handlers, root.level
    telemetry.configure(form="json", level="info", stream=stream)
    try:
        yield
    finally:
        structlog.configure(**before)
        root.handlers, root.level = handlers, level
