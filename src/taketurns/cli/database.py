"""The database of a command: opened for it, and closed behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import psycopg
import typer

from taketurns.assembly.brokers import make_database
from taketurns.settings import Settings
from taketurns.storage.database import Database

Answer = TypeVar("Answer")


def with_database(settings: Settings, act: Callable[[Database], Awaitable[Answer]]) -> Answer:
    """What `act` answers, on connections of its own. Raises Unavailable, and what `act` raises."""

    async def run() -> Answer:
        database = make_database(settings, name="taketurns-command", pool_size=2)
        await database.open()
        try:
            return await act(database)
        finally:
            await database.close()

    return asyncio.run(run())


def refused(error: BaseException) -> int:
    """Say why the database did not do it, without its password, and what to do about that."""
    reason, *_ = str(error).strip().splitlines() or [type(error).__name__]
    typer.echo(f"cannot use the database: {reason}", err=True)
    match error:
        case psycopg.errors.LockNotAvailable():
            typer.echo("a session holds what is to be changed; `taketurns doctor` names the oldest", err=True)
        case psycopg.errors.InsufficientPrivilege():
            typer.echo("the role must own the schema, or may create it: grant create on database ... to ...", err=True)
        case psycopg.OperationalError():
            typer.echo("set TAKETURNS_DATABASE_URL, or run: taketurns up", err=True)
    return 1
