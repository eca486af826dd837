"""The page of turns and its stream: what it tells, and that it holds nothing up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fastapi import FastAPI
from httpx2 import AsyncClient

from taketurns.brokers.postgres import PostgresBroker
from taketurns.companies import keys
from taketurns.companies.directory import Company
from taketurns.dashboard.streams import Streams
from taketurns.engine.key import Role, id_of
from taketurns.engine.task import NewTask, Outcome, Report
from taketurns.history import live
from taketurns.storage.database import Database
from taketurns.storage.ids import new_id
from tests.api.keyed import House
from tests.api.servers import served
from tests.dashboard.browsing import Browser
from tests.waiting import PATIENCE


async def moments(lines: AsyncIterator[str]) -> AsyncIterator[tuple[str, Any]]:
    """The events of a stream: their names and data."""
    name = ""
    async for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


async def test_the_stream_tells_of_turns_as_they_are_taken_and_ends_with_the_process(
    app: FastAPI, broker: PostgresBroker, acme: Company
) -> None:
    await broker.enqueue("acme", [NewTask(type="anything", payload="{}")])
    async with served(app) as address, AsyncClient(base_url=address, timeout=PATIENCE) as client:
        async with client.stream("GET", "/dashboard/live/stream") as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            told = moments(answer.aiter_lines())
            assert (await anext(told))[1]["attempts"] == []
            (task,) = await broker.claim(new_id(), queues=["default"], batch=1)
            one = await attempt(told, "processing")
            assert (one["company"], one["look"], one["id"]) == ("acme", "company-2", str(task.task_id))
            await broker.settle([Report(task, Outcome.COMPLETED)])
            assert (await attempt(told, "completed"))["to"] is not None
            app.state.dashboard.leave()
            async with asyncio.timeout(PATIENCE):
                assert [event async for event in told][-1][0] == "bye"
        async with client.stream("GET", "/dashboard/live/stream") as answer:
            assert [event async for event in moments(answer.aiter_lines())][-1] == (
                "bye",
                {"reason": "the process ends"},
            )


async def attempt(told: AsyncIterator[tuple[str, Any]], status: str) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE):
        async for _, moment in told:
            for one in moment.get("attempts", ()):
                if one["status"] == status:
                    return dict(one)
    raise AssertionError(status)


async def test_what_runs_now_is_a_table_too(browser: Browser, broker: PostgresBroker, acme: Company) -> None:
    await broker.enqueue("acme", [NewTask(type="anything", payload="{}")])
    (task,) = await broker.claim(new_id(), queues=["default"], batch=1)
    page = await browser.page("/live")
    assert [tag.attributes["id"] for tag in page.all("tr") if "id" in tag.attributes] == [f"now-{task.task_id}"]


async def test_what_a_flood_did_lately_is_found_behind_a_task_that_is_to_be_tried_again(
    broker: PostgresBroker, database: Database, acme: Company, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "EACH", 2)
    await broker.enqueue("acme", [NewTask(type="anything", payload="{}") for _ in range(40)])
    (first,) = await broker.claim(new_id(), queues=["default"], batch=1)
    await broker.settle([Report(first, Outcome.RETRY, error="no", delay_seconds=0.001)])
    assert (await broker.promote(at=datetime.now(UTC) + timedelta(seconds=5))).count == 1
    done = await broker.claim(new_id(), queues=["default"], batch=10)
    await broker.settle([Report(task, Outcome.COMPLETED) for task in done])
    moment = await live.read(database, lately=timedelta(minutes=1), most=12)
    assert {attempt.task_id for attempt in moment.attempts} == {task.task_id for task in done}


async def test_all_who_watch_share_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taketurns.dashboard.streams.LOOK_SECONDS", 0.01)
    streams, looks, is_seen = Streams(), 0, asyncio.Event()

    async def look() -> str:
        nonlocal looks
        looks += 1
        if looks == 3:
            is_seen.set()
        return f"[{looks}]"

    async def always() -> bool:
        return True

    async def seen() -> list[bytes]:
        response = streams.response("[0]", look, always)
        return [chunk async for chunk in response.body_iterator]  # type: ignore[attr-defined]

    watching = [asyncio.create_task(seen()) for _ in range(5)]
    async with asyncio.timeout(PATIENCE):
        await is_seen.wait()
        streams.leave()
        everything = await asyncio.gather(*watching)
    assert all(b"the process ends" in chunks[-1] for chunks in everything)
    assert len({b"".join(chunks) for chunks in everything}) == 1


@pytest.mark.parametrize("how", ["signed out", "key revoked"])
async def test_the_stream_ends_with_the_session_of_who_watches(
    guarded: FastAPI, house: House, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr("taketurns.dashboard.streams.LOOK_SECONDS", 0.01)
    monkeypatch.setattr("taketurns.dashboard.streams.VISITOR_SECONDS", 0.05)
    viewer = await house.operator_key(Role.VIEWER)
    async with served(guarded) as address, AsyncClient(base_url=address, timeout=PATIENCE) as client:
        browser = Browser(client)
        await browser.sign_in(viewer)
        async with client.stream("GET", "/dashboard/live/stream") as answer, asyncio.timeout(PATIENCE):
            told = moments(answer.aiter_lines())
            await anext(told)
            await anext(told)
            if how == "signed out":
                await browser.post("/sign-out", {"token": await browser.token()})
            else:
                key_id = id_of(viewer)
                assert key_id is not None
                await keys.revoke(house.database, None, key_id)
                guarded.state.parts.guard.keyring.forget(key_id)
            assert [event async for event in told][-1] == ("bye", {"reason": "the session is over"})
