"""Requests that wait: for a task's end or its next change, woken by the move itself, and let go in time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from uuid import UUID

import psycopg
import pytest
from fastapi import FastAPI
from httpx2 import AsyncClient, Response

from taketurns import telemetry
from taketurns.api import headers
from taketurns.brokers.postgres import PostgresBroker
from taketurns.companies import directory
from taketurns.engine.task import ClaimedTask, Outcome, Report
from taketurns.storage.database import Database, conninfo
from tests.api.test_connections import raw
from tests.waiting import PATIENCE, eventually

TASKS = "/companies/acme/tasks"
WORKER = UUID(int=1)
LONG = {"Prefer": "wait=60"}
SOON = {"Prefer": "wait=1"}

pytestmark = pytest.mark.usefixtures("acme")


async def create(client: AsyncClient, **headers: str) -> Response:
    return await client.post(TASKS, json={"type": "anything"}, headers=headers)


async def new_task(client: AsyncClient) -> str:
    return str((await create(client)).json()["id"])


async def claim(broker: PostgresBroker) -> ClaimedTask:
    (task,) = await broker.claim(WORKER, queues=["default"], batch=1)
    return task


async def finish(broker: PostgresBroker) -> None:
    await broker.settle([Report(await claim(broker), Outcome.COMPLETED, result="42")])


async def wait_for(client: AsyncClient, task_id: str, **headers: str) -> Response:
    return await client.get(f"{TASKS}/{task_id}", headers={**LONG, **headers})


async def until_waiting(app: FastAPI, count: int = 1, *, tasks: int = 1) -> None:
    """Until so many wait, and are told what moves."""
    await eventually(lambda: waiting(app) == count and app.state.parts.waiting.line_is_open.is_set())
    await until(lambda: all_watched(app.state.parts.database, tasks))


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            if await is_so():
                return
            await asyncio.sleep(0.01)


def waiting(app: FastAPI) -> int:
    return int(app.state.parts.waiting.count)


async def all_watched(database: Database, tasks: int) -> bool:
    return await watched(database) >= tasks


async def watched(database: Database) -> int:
    async with database.connection() as connection:
        return (await connection.execute(f"select from {database.schema}.watches".encode())).rowcount


async def listeners(database: Database) -> list[int]:
    """The connections of this database that listen."""
    async with await psycopg.AsyncConnection.connect(conninfo(database.url)) as connection:
        cursor = await connection.execute(
            "select pid from pg_stat_activity"
            " where datname = current_database() and application_name = 'taketurns-listen'"
        )
        return [pid for (pid,) in await cursor.fetchall()]


@pytest.mark.parametrize(
    ("values", "seconds"),
    [
        (["wait=7"], 7),
        (["WAIT = 7"], 7),
        (['wait="7"'], 7),
        (["wait=007"], 7),
        (["wait=61"], 60),
        (["wait=" + "9" * 5000], 60),
        (["respond-async, wait=7"], 7),
        (["respond-async; foo=bar, wait=7; x"], 7),
        (['note="wait=3, \\", ", wait=7'], 7),
        (["respond-async", "handling=lenient, wait=7"], 7),
        (["wait=7, wait=9", "wait=11"], 7),
        (["wait"], None),
        (["wait="], None),
        (["wait=0"], None),
        (["wait=-1"], None),
        (["wait=1.5"], None),
        (["wait=soon, wait=7"], None),
        (["waits=7"], None),
        (["wait 7"], None),
        (['wait="7'], None),
        (["\xb2", "wait=\xb2"], None),
        (["", ",,", ", ,wait=7"], 7),
        ([], None),
    ],
)
def test_a_preference_to_wait_is_understood_or_ignored(values: list[str], seconds: int | None) -> None:
    scope = {"headers": [(b"prefer", value.encode("latin-1")) for value in values]}
    assert headers.wait_seconds(scope) == seconds


async def test_a_look_waits_until_the_task_has_ended(app: FastAPI, client: AsyncClient, broker: PostgresBroker) -> None:
    task_id = await new_task(client)
    looking = asyncio.create_task(wait_for(client, task_id))
    await until_waiting(app)
    await finish(broker)
    answer = await asyncio.wait_for(looking, PATIENCE)
    assert (answer.status_code, answer.json()["status"], answer.json()["result"]) == (200, "completed", 42)
    assert answer.headers["preference-applied"] == "wait=60"


async def test_a_look_at_a_task_that_has_ended_waits_for_nothing(client: AsyncClient, broker: PostgresBroker) -> None:
    task_id = await new_task(client)
    await finish(broker)
    answer = await asyncio.wait_for(wait_for(client, task_id, Prefer="wait=1000"), 20)
    assert (answer.json()["status"], answer.headers["preference-applied"]) == ("completed", "wait=60")


async def test_a_look_that_has_waited_long_enough_tells_the_task_as_it_is(client: AsyncClient) -> None:
    task_id = await new_task(client)
    answer = await wait_for(client, task_id, **SOON)
    assert (answer.json()["status"], answer.headers["preference-applied"]) == ("pending", "wait=1")


async def test_a_look_without_a_preference_does_not_wait(client: AsyncClient) -> None:
    answer = await client.get(f"{TASKS}/{await new_task(client)}")
    assert (answer.json()["status"], answer.headers.get("preference-applied")) == ("pending", None)


async def test_a_task_that_was_seen_as_it_stands_is_not_sent_again(client: AsyncClient, broker: PostgresBroker) -> None:
    created = await create(client)
    seen = {"If-None-Match": f'"x", {created.headers["etag"]}'}
    answer = await client.get(created.headers["location"], headers=seen)
    assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", created.headers["etag"])
    await claim(broker)
    answer = await client.get(created.headers["location"], headers=seen)
    assert (answer.status_code, answer.json()["status"]) == (200, "processing")
    assert (await client.get(created.headers["location"], headers={"If-None-Match": "*"})).status_code == 304


async def test_a_task_that_becomes_due_is_another_version(client: AsyncClient, broker: PostgresBroker) -> None:
    created = await client.post(TASKS, json={"type": "anything", "delaySeconds": 0.001})

    async def is_due() -> bool:
        return (await broker.promote()).count == 1

    await until(is_due)
    answer = await client.get(created.headers["location"], headers={"If-None-Match": created.headers["etag"]})
    assert (answer.status_code, answer.json()["status"]) == (200, "pending")


async def test_a_look_waits_until_the_task_is_not_what_was_seen(
    app: FastAPI, client: AsyncClient, broker: PostgresBroker
) -> None:
    created = await create(client)
    looking = asyncio.create_task(wait_for(client, created.json()["id"], **{"If-None-Match": created.headers["etag"]}))
    await until_waiting(app)
    await claim(broker)
    answer = await asyncio.wait_for(looking, PATIENCE)
    assert (answer.status_code, answer.json()["status"]) == (200, "processing")
    seen = {"If-None-Match": answer.headers["etag"]}
    answer = await wait_for(client, created.json()["id"], **SOON, **seen)
    assert (answer.status_code, answer.headers["preference-applied"]) == (304, "wait=1")


async def test_a_task_is_created_and_waited_for(app: FastAPI, client: AsyncClient, broker: PostgresBroker) -> None:
    creating = asyncio.create_task(create(client, **LONG))
    await until_waiting(app)
    await finish(broker)
    answer = await asyncio.wait_for(creating, PATIENCE)
    assert (answer.status_code, answer.json()["status"]) == (201, "completed")
    assert answer.headers["preference-applied"] == "wait=60"
    assert answer.headers["location"].endswith(answer.json()["id"])


async def test_a_replay_waits_for_the_task_of_the_first(
    app: FastAPI, client: AsyncClient, broker: PostgresBroker
) -> None:
    key = {"Idempotency-Key": "once"}
    first = await create(client, **key)
    repeating = asyncio.create_task(create(client, **key, **LONG))
    await until_waiting(app)
    await finish(broker)
    answer = await asyncio.wait_for(repeating, PATIENCE)
    assert (answer.status_code, answer.json()["status"]) == (200, "completed")
    assert (answer.json()["id"], answer.headers["idempotent-replayed"]) == (first.json()["id"], "true")


async def test_all_who_wait_share_one_line_and_hold_no_connection(
    app: FastAPI, client: AsyncClient, broker: PostgresBroker, database: Database
) -> None:
    tasks = [await new_task(client) for _ in range(20)]
    looking = [asyncio.create_task(wait_for(client, task_id)) for task_id in tasks for _ in range(5)]
    await until_waiting(app, 100, tasks=len(tasks))
    assert telemetry.REQUESTS_WAITING._value.get() == 100
    assert len(await listeners(database)) == 1
    assert (await client.get("/companies")).status_code == 200
    for _ in tasks:
        await finish(broker)
    answers = await asyncio.wait_for(asyncio.gather(*looking), 20)
    assert {answer.json()["status"] for answer in answers} == {"completed"}
    assert waiting(app) == telemetry.REQUESTS_WAITING._value.get() == 0


async def test_nobody_listens_when_nobody_waits(
    app: FastAPI, client: AsyncClient, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taketurns.api.waiting.LINGER_SECONDS", 0.01)
    await wait_for(client, await new_task(client), **SOON)

    async def is_quiet() -> bool:
        return not await listeners(database)

    await until(is_quiet)


async def test_one_too_many_is_answered_at_once(app: FastAPI, client: AsyncClient) -> None:
    task_id = await new_task(client)
    app.state.parts.waiting.most = 1
    looking = asyncio.create_task(wait_for(client, task_id))
    await until_waiting(app)
    answer = await asyncio.wait_for(wait_for(client, task_id), 20)
    assert (answer.json()["status"], answer.headers.get("preference-applied")) == ("pending", None)
    looking.cancel()


async def test_a_company_that_waits_for_much_leaves_room_for_others(
    app: FastAPI, client: AsyncClient, database: Database
) -> None:
    await directory.create(database, name="Quiet", slug="quiet")
    quiet = (await client.post("/companies/quiet/tasks", json={"type": "anything"})).json()["id"]
    task_id = await new_task(client)
    app.state.parts.waiting.most = 9
    flood = [asyncio.create_task(wait_for(client, task_id)) for _ in range(9)]
    await until_waiting(app, 6)
    let_wait = [asyncio.create_task(client.get(f"/companies/quiet/tasks/{quiet}", headers=LONG)) for _ in range(2)]
    await until_waiting(app, 8, tasks=2)
    await client.post(f"{TASKS}/{task_id}/cancel")
    await client.post(f"/companies/quiet/tasks/{quiet}/cancel")
    answers = await asyncio.wait_for(asyncio.gather(*flood, *let_wait), PATIENCE)
    waited = [answer.headers.get("preference-applied") is not None for answer in answers]
    assert (sum(waited[:9]), sum(waited[9:])) == (6, 2)
    assert app.state.parts.waiting.of_company == {}


async def test_a_line_that_was_lost_is_opened_again_and_nothing_is_missed(
    app: FastAPI, client: AsyncClient, broker: PostgresBroker, database: Database
) -> None:
    task_id = await new_task(client)
    looking = asyncio.create_task(wait_for(client, task_id))
    await until_waiting(app)
    async with await psycopg.AsyncConnection.connect(conninfo(database.url)) as connection:
        # As after a crash of the server: what was watched is gone, before anybody can watch anew.
        await connection.execute(f"truncate {database.schema}.watches".encode())
        for pid in await listeners(database):
            await connection.execute("select pg_terminate_backend(%s, 5000)", (pid,))
    await eventually(lambda: app.state.parts.waiting.lines_opened == 2)
    await until_waiting(app)
    await finish(broker)
    assert (await asyncio.wait_for(looking, PATIENCE)).json()["status"] == "completed"


async def test_a_client_that_leaves_waits_no_longer(app: FastAPI, client: AsyncClient, address: str) -> None:
    task_id = await new_task(client)  # fault 041
    look = f"GET {TASKS}/{task_id} HTTP/1.1\r\nHost: api\r\nPrefer: wait=60\r\n\r\n".encode()
    await asyncio.gather(*(raw(address, look, leave_after=0.01 * number) for number in range(50)))
    await eventually(lambda: waiting(app) == 0)
    assert (await client.get(f"{TASKS}/{task_id}")).status_code == 200


async def test_who_waits_is_let_go_when_the_process_is_to_end(app: FastAPI, client: AsyncClient) -> None:
    task_id = await new_task(client)
    looking = asyncio.create_task(wait_for(client, task_id))
    creating = asyncio.create_task(create(client, **LONG))
    await until_waiting(app, 2)
    app.state.parts.waiting.leave()
    for answer in await asyncio.wait_for(asyncio.gather(looking, creating), PATIENCE):
        assert (answer.json()["status"], answer.headers.get("preference-applied")) == ("pending", None)
    assert (await asyncio.wait_for(wait_for(client, task_id), 20)).status_code == 200
