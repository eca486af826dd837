"""The documentation tells what the API does, and its pages load nothing from elsewhere."""

from __future__ import annotations

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from httpx2 import AsyncClient

from examples import handlers
from taketurns.api import documentation, problems
from taketurns.api.requests import CreateTask

SNAPSHOT = Path(__file__).parent / "openapi.json"


async def document(client: AsyncClient) -> dict[str, Any]:
    answer = await client.get("/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    made: dict[str, Any] = answer.json()
    return made


def test_the_example_of_a_task_is_one_that_its_handler_takes() -> None:
    (example,) = CreateTask.model_json_schema()["examples"]
    handlers.tt.registry.get(example["type"]).validate(example["payload"])


async def test_the_document_is_the_one_that_was_agreed(client: AsyncClient) -> None:
    """After a wanted change, run the tests once with WRITE_OPENAPI=1, and look at what changed."""
    told = json.dumps(await document(client), indent=1, ensure_ascii=False) + "\n"
    if os.environ.get("WRITE_OPENAPI"):
        SNAPSHOT.write_text(told, "utf-8")
    assert told == SNAPSHOT.read_text("utf-8")


async def test_operations_have_names_of_their_own(client: AsyncClient) -> None:
    operations = [operation for path in (await document(client))["paths"].values() for operation in path.values()]
    assert sorted(operation["operationId"] for operation in operations) == sorted(
        [
            "abortOperation",
            "cancelJob",
            "cancelOwnJob",
            "cancelOwnTask",
            "cancelTask",
            "changeCompany",
            "changeSchedule",
            "createBatch",
            "createCompany",
            "createJob",
            "createKey",
            "createOperation",
            "createOperatorKey",
            "createOwnBatch",
            "createOwnJob",
            "createOwnTask",
            "createSchedule",
            "createTask",
            "deleteCompany",
            "deleteOwnTask",
            "deleteSchedule",
            "deleteTask",
            "drainWorker",
            "exportCompany",
            "getCompany",
            "getHealth",
            "getJob",
            "getKey",
            "getLimits",
            "getMetrics",
            "getOperation",
            "getOperatorKey",
            "getOwnJob",
            "getOwnTask",
            "getReady",
            "getSchedule",
            "getStats",
            "getTask",
            "getUsage",
            "liftPause",
            "liftPauseOfCompany",
            "listAuditEntries",
            "listCompanies",
            "listFailures",
            "listKeys",
            "listOperations",
            "listOperatorKeys",
            "listOwnTaskEvents",
            "listOwnTasks",
            "listPauses",
            "listPausesOfCompany",
            "listSchedules",
            "listTaskEvents",
            "listTaskTypes",
            "listTasks",
            "listWorkers",
            "processTasks",
            "putPause",
            "putPauseOfCompany",
            "rescheduleOwnTask",
            "rescheduleTask",
            "resumeWorker",
            "retryJob",
            "retryOwnJob",
            "retryOwnTask",
            "retryTask",
            "revokeKey",
            "revokeOperatorKey",
            "rotateKey",
            "rotateOperatorKey",
            "stopWorker",
            "watchJob",
            "watchOwnJob",
        ]
    )
    assert all(operation["description"] for operation in operations)


async def test_every_refusal_is_documented_as_a_problem(client: AsyncClient) -> None:
    for path, operations in (await document(client))["paths"].items():
        for method, operation in operations.items():
            refusals = {status: answer for status, answer in operation["responses"].items() if status >= "400"}
            assert {"500", "503"} <= set(refusals), (method, path)
            is_about_something = "Id}" in path or path.split("/")[1] in {"tasks", "jobs"}
            is_about_something |= (method, path) == ("delete", "/pauses")
            assert ("404" in refusals) == is_about_something, (method, path)
            assert ({"401", "403"} <= set(refusals)) == bool(operation["security"]), (method, path)
            for answer in refusals.values():
                assert list(answer["content"]) == [problems.MEDIA_TYPE]


async def test_every_kind_of_problem_is_documented(client: AsyncClient) -> None:
    text = json.dumps(await document(client))
    everywhere = {problems.ROUTE_NOT_FOUND, problems.METHOD_NOT_ALLOWED}
    assert [kind.code for kind in problems.KINDS if kind not in everywhere and f"`{kind.code}`" not in text] == []


class Loads(HTMLParser):
    """What a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.inline: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = dict(attrs)
        if tag in {"script", "link", "img"}:
            self.found.append(told.get("src") or told.get("href") or "inline")
        self.inline += [name for name in told if name == "style" or name.startswith("on")]


async def test_the_pages_load_their_own_files_alone(client: AsyncClient) -> None:
    for page in ("/docs", "/docs/problems"):
        answer = await client.get(page)
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        policy = answer.headers["content-security-policy"]
        assert policy == documentation.CONTENT_SECURITY_POLICY
        assert "unsafe" not in policy
        assert "http" not in policy
        loads = Loads()
        loads.feed(answer.text)
        assert loads.found
        assert loads.inline == []
        for path in loads.found:
            assert re.match(r"/docs/[a-z0-9.-]+$", path)
            assert (await client.get(path)).status_code == 200
    start = (await client.get("/docs/start.js")).text
    assert re.findall(r'url: "([^"]*)"', start) == ["/openapi.json"]


async def test_files_from_others_come_with_their_licences() -> None:
    swagger = Path(documentation.__file__).parent / "swagger"
    assert "Apache License" in (swagger / "LICENSE").read_text("utf-8")
    assert (swagger / "NOTICE").is_file()
    assert (swagger / "swagger-ui-bundle.js.LICENSE.txt").is_file()
