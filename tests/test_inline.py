"""Tasks that are run where they are asked for: recorded like any other, in nobody's line, and never left behind."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import psycopg
import pytest

from taketurns import (
    Context,
    IdempotencyConflict,
    InvalidOption,
    InvalidPayload,
    NotCompleted,
    Retry,
    Status,
    Taketurns,
    UnknownCompany,
)
from taketurns.brokers.postgres import PostgresBroker
from taketurns.engine.task import NewTask
from taketurns.storage.database import Database
from taketurns.storage.ids import new_id
from tests.waiting import eventually

Connection = psycopg.Connection[tuple[Any, ...]]
WORKER = UUID(int=1)


@pytest.fixture
def connection(database_url: str) -> Iterator[Connection]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("set search_path to taketurns")
        connection.execute(
            "insert into companies (id, slug, name, max_in_flight) values (%s, 'acme', 'Acme', 1)", (new_id(),)
        )
        yield connection


@pytest.fixture
async def tt(database_url: str, connection: Connection) -> AsyncIterator[Taketurns]:
    async with Taketurns(database_url=database_url) as application:
        yield application


@pytest.fixture
async def broker(database_url: str) -> AsyncIterator[PostgresBroker]:
    database = Database(database_url)
    await database.open()
    broker = PostgresBroker(database)
    yield broker
    await broker.notifier.flush()
    await database.close()


def rows(connection: Connection, statement: str) -> list[tuple[Any, ...]]:
    return connection.execute(statement.encode()).fetchall()


async def test_a_task_is_done_and_recorded_like_any_other(tt: Taketurns, connection: Connection) -> None:
    @tt.task(queue="mail", retries=3)
    async def greet(ctx: Context, name: str) -> str:
        assert ctx.is_last_attempt
        return f"hello {name}, {ctx.task_id}"

    task = await greet.run(company="acme", name="Ada")
    assert (task.status, task.returned()) == (Status.COMPLETED, f"hello Ada, {task.id}")
    assert (task.queue, task.max_retries, task.retry_count) == ("mail", 3, 0)
    assert task.finished_at >= task.started_at >= task.created_at  # type: ignore[operator]
    assert await tt.get("acme", task.id) == task
    assert rows(connection, "select event_number from tasks") == [(3,)]  # created, claimed, completed


@pytest.mark.parametrize("error", [ValueError("no"), Retry("later", after=1)])
async def test_a_handler_that_fails_has_failed_at_once(tt: Taketurns, error: Exception) -> None:
    attempts = []

    @tt.task
    async def fail() -> None:
        attempts.append(1)
        raise error

    task = await fail.run("acme")
    assert (task.status, len(attempts)) == (Status.FAILED, 1)
    assert str(error) in (task.error or "")
    with pytest.raises(NotCompleted, match=f"task {task.id} is failed: "):
        task.returned()


async def test_a_timeout_ends_it(tt: Taketurns) -> None:
    @tt.task(timeout=0.05)
    async def wait() -> None:
        await asyncio.Event().wait()

    task = await wait.run("acme")
    assert (task.status, task.error) == (Status.FAILED, "timed out: the handler was still running after 0.05 s")


async def test_a_budget_that_has_no_room_fails_it_and_says_when_to_try_again(
    tt: Taketurns, connection: Connection
) -> None:
    @tt.task
    async def send(ctx: Context) -> None:
        async with ctx.budget("mail", limit=2, per="1h"):
            pass

    @tt.task
    def send_in_a_thread(ctx: Context) -> None:
        with ctx.budget("mail", limit=2, per="1h"):
            pass

    @tt.task
    async def be_refused(ctx: Context) -> None:
        async with ctx.budget("chat", limit=2, per="1h") as budget:
            raise budget.cool_down("300")

    assert (await send.run("acme")).status is Status.COMPLETED
    assert (await send_in_a_thread.run("acme")).status is Status.COMPLETED
    for handler, said in ((send, "'mail' has no room"), (send_in_a_thread, "'mail'"), (be_refused, "'chat'")):
        task = await handler.run("acme")
        assert task.status is Status.FAILED
        assert re.search(rf"the budget {said}.*: try again in \d{{3,}} s$", task.error or ""), task.error
    assert rows(connection, "select from scheduled_tasks union all select from processing_tasks") == []


def test_a_program_without_a_loop_runs_tasks_too(tt: Taketurns) -> None:
    @tt.task
    def thread() -> str:
        return threading.current_thread().name

    assert thread.run_sync("acme").returned() != threading.current_thread().name
    with pytest.raises(UnknownCompany):
        thread.run_sync("nobody")


async def test_a_key_that_was_used_runs_nothing(tt: Taketurns) -> None:
    calls = []

    @tt.task
    async def count(number: int) -> int:
        calls.append(number)
        return number

    once = count.using(idempotency_key="once")
    first, again = await once.run("acme", number=1), await once.run("acme", number=1)
    assert (calls, again) == ([1], first)
    assert (await once.enqueue("acme", number=1)).replayed
    with pytest.raises(IdempotencyConflict):
        await once.run("acme", number=2)


async def test_what_cannot_be_run_leaves_no_record(tt: Taketurns, connection: Connection) -> None:
    @tt.task
    async def double(number: int) -> int:
        return 2 * number

    with pytest.raises(InvalidPayload):
        await double.run("acme", number="x")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="delay: cannot be combined with run"):
        await double.using(delay=5).run("acme", number=1)
    with pytest.raises(UnknownCompany):
        await double.run("nobody", number=1)
    with pytest.raises(TypeError, match="given by name"):
        await double.run("acme", 1)
    assert rows(connection, "select from tasks") == []


async def test_it_takes_nobodys_turn_and_no_hand(tt: Taketurns, connection: Connection, broker: PostgresBroker) -> None:
    let_go = asyncio.Event()

    @tt.task
    async def wait() -> None:
        await let_go.wait()

    running = [asyncio.create_task(wait.run("acme")) for _ in range(5)]
    await eventually(lambda: len(rows(connection, "select from processing_tasks")) == 5)
    assert rows(connection, "select from lines union all select from turns") == []
    assert len(rows(connection, "select from workers")) == 1
    await wait.enqueue("acme")
    assert len(await broker.claim(WORKER, queues=["default"], batch=10)) == 1  # of the one that its limit allows
    let_go.set()
    assert {task.status for task in await asyncio.gather(*running)} == {Status.COMPLETED}
    await tt.close()
    assert rows(connection, "select from workers") == []


async def test_it_is_processing_meanwhile_and_can_be_cancelled(tt: Taketurns, connection: Connection) -> None:
    let_go = asyncio.Event()

    @tt.task
    async def wait() -> None:
        await let_go.wait()

    running = asyncio.create_task(wait.run("acme"))
    ((task_id,),) = await eventually(lambda: rows(connection, "select task_id from processing_tasks"))
    task = await tt.get("acme", task_id)
    assert task is not None
    assert task.status is Status.PROCESSING
    assert await tt.cancel("acme", task_id) is Status.CANCELLED
    let_go.set()
    assert (await running).status is Status.CANCELLED


async def test_a_caller_that_is_cancelled_stops_the_handler(tt: Taketurns, connection: Connection) -> None:
    @tt.task
    async def wait() -> None:
        await asyncio.Event().wait()

    running = asyncio.create_task(wait.run("acme"))
    await eventually(lambda: rows(connection, "select from processing_tasks"))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await eventually(lambda: rows(connection, "select stopped_as from tasks") == [("cancelled",)])


async def test_what_a_lost_caller_ran_has_failed_and_is_nobodys_turn(
    broker: PostgresBroker, connection: Connection
) -> None:
    made, claimed = await broker.begin("acme", NewTask(type="work", payload="{}"), WORKER)
    assert claimed is not None
    assert await broker.beats() == {WORKER: None}
    (rescued,) = await broker.rescue(WORKER, watched_beat=None, max_rescues=3)
    assert (rescued.task_id, rescued.failed) == (made.task_id, True)
    assert rows(connection, "select stopped_as, error, event_number from tasks") == [
        ("failed", "caller lost: the process that ran this task was lost", 3)
    ]
    assert rows(connection, "select from processing_tasks union all select from pending_tasks") == []
    assert rows(connection, "select from lines union all select from turns") == []
    assert await broker.retry("acme", made.task_id) is Status.FAILED
    assert [task.task_id for task in await broker.claim(WORKER, queues=["default"], batch=1)] == [made.task_id]


LOST = """
import sys, time
from taketurns import Taketurns

tt = Taketurns(database_url=sys.argv[1])

@tt.task
def wait() -> None:
    time.sleep(600)

wait.run_sync("acme")
"""


@contextmanager
def killed_caller(url: str) -> Iterator[None]:
    """A process that runs a task inline, killed in the midst of it at the end."""
    caller = subprocess.Popen(
        [sys.executable, "-c", LOST, url],
        env={**os.environ, "TAKETURNS_BEAT_SECONDS": "0.1", "TAKETURNS_STALE_AFTER_SECONDS": "1"},
    )
    try:
        yield
    finally:
        caller.kill()
        caller.wait()


async def test_a_caller_that_is_killed_is_missed_by_its_lease(
    database_url: str, connection: Connection, broker: PostgresBroker
) -> None:
    with killed_caller(database_url):
        await eventually(lambda: rows(connection, "select from processing_tasks"))
        ((worker, beat),) = (await broker.beats()).items()
        await eventually(lambda: rows(connection, "select beat from workers") > [(beat,)])
        assert rows(connection, "select from heartbeats") == []  # it takes no turns, and is never late
    ((_, last_beat),) = (await broker.beats()).items()
    (rescued,) = await broker.rescue(worker, watched_beat=last_beat, max_rescues=3)
    assert rescued.failed
