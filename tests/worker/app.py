"""Handlers for worker processes: each writes down when it began and ended, on a connection of its own.

`gated` handlers go on until their gate is opened, so that a test decides how long they run.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from typing import Any

import psycopg

from taketurns.engine.errors import Retry
from taketurns.engine.registry import Registry
from taketurns.engine.retry import Backoff
from taketurns.execution import Context

URL = "TAKETURNS_WITNESS_URL"
AT_ONCE = Backoff(first_seconds=0.05, ceiling_seconds=0.1)

registry = Registry()


def task(handler: Any) -> Any:
    registry.add(handler, context_type=Context, backoff=AT_ONCE)
    return handler


class Witness:
    """What handlers did, kept apart from the cell."""

    def __init__(self, url: str) -> None:
        self.url = url

    def begin(self, ctx: Context) -> None:
        self._execute("insert into witness.runs (task_id, pid) values (%s, %s)", ctx.task_id, os.getpid())

    def end(self, ctx: Context) -> None:
        self._execute(
            "update witness.runs set ended_at = clock_timestamp() where task_id = %s and pid = %s",
            ctx.task_id,
            os.getpid(),
        )

    def is_open(self, gate: str) -> bool:
        return bool(self._execute("select 1 from witness.gates where name = %s", gate))

    def _execute(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), values)
            return cursor.fetchall() if cursor.description else []


def witness() -> Witness:
    return Witness(os.environ[URL])


@task
async def noop() -> None: ...


@task
async def note(ctx: Context) -> int:
    witness().begin(ctx)
    return os.getpid()


@task
async def gated(ctx: Context, gate: str, fails: bool = False) -> int:
    witness().begin(ctx)
    while not witness().is_open(gate):  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    return _leave(ctx, fails)


@task
def gated_sync(ctx: Context, gate: str, fails: bool = False) -> int:
    witness().begin(ctx)
    while not witness().is_open(gate):
        time.sleep(0.02)
    return _leave(ctx, fails)


@task
async def stubborn(ctx: Context, gate: str) -> int:
    """Swallows every cancellation."""
    witness().begin(ctx)
    while not witness().is_open(gate):
        try:
            await asyncio.sleep(0.02)
        except asyncio.CancelledError:
            continue
    return _leave(ctx, False)


@task
async def block(ctx: Context, seconds: float) -> int:
    """Holds up the event loop."""
    witness().begin(ctx)
    time.sleep(seconds)  # noqa: ASYNC251
    return _leave(ctx, False)


@task
def sleep(ctx: Context, seconds: float) -> int:
    """In a thread, deaf to whatever it is told, and needs no database meanwhile."""
    witness().begin(ctx)
    time.sleep(seconds)
    return _leave(ctx, False)


@task
async def die(ctx: Context) -> None:
    witness().begin(ctx)
    os.kill(os.getpid(), signal.SIGKILL)


@task
def leave(ctx: Context) -> None:
    witness().begin(ctx)
    os._exit(0)


@task
async def with_a_child(ctx: Context) -> int:
    witness().begin(ctx)
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", "print(6 * 7)", stdout=subprocess.PIPE)
    told, _ = await child.communicate()
    return int(told)


@task
async def twice(ctx: Context) -> int:
    """Fails at first."""
    witness().begin(ctx)
    if ctx.attempt == 1:
        raise Retry("not yet", after=0.01)
    return ctx.attempt


def _leave(ctx: Context, fails: bool) -> int:
    witness().end(ctx)
    if fails:
        raise RuntimeError("as asked")
    return os.getpid()
