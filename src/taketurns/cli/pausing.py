"""`taketurns pause` and `resume`: an operator's hand on what is given turns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

import typer
from sqlalchemy import func, select

from taketurns.cli.actor import actor
from taketurns.cli.database import with_database
from taketurns.cli.telling import tell_jobs
from taketurns.companies import directory, pauses
from taketurns.engine.errors import Unavailable
from taketurns.settings import Settings
from taketurns.storage.database import Database


def pause(
    settings: Settings, company: str | None, *, queue: str | None, type: str | None, seconds: float | None
) -> int:
    """Pause a company, or tasks of a queue or type, of one or of all; 1 when there is no such company."""

    async def put(database: Database) -> bool:
        until = None if seconds is None else await _now(database) + timedelta(seconds=seconds)
        if queue is not None or type is not None:
            put = await pauses.put(database, company, queue=queue, type=type, until=until, by=actor())
            if put is not None:
                await tell_jobs(settings, database)
            return put is not None
        changes = {"paused": True} | ({} if until is None else {"paused_until": until})
        return await _change(settings, database, company, changes)

    return _told(settings, put, done="paused; what runs goes on", missing=f"there is no company {company!r}")


def resume(settings: Settings, company: str | None, *, queue: str | None, type: str | None) -> int:
    """Lift a pause; 1 when there is none."""

    async def lift(database: Database) -> bool:
        if queue is not None or type is not None:
            lifted = await pauses.lift(database, company, queue=queue, type=type, by=actor())
            if lifted:
                await tell_jobs(settings, database)
            return lifted
        return await _change(settings, database, company, {"paused": False})

    return _told(settings, lift, done="goes on", missing="there is no such pause, or no such company")


async def _change(settings: Settings, database: Database, company: str | None, changes: dict[str, Any]) -> bool:
    reference = directory.reference(company or "")
    changed = reference and await directory.change(database, reference, changes, by=actor())
    if not changed:
        return False
    await tell_jobs(settings, database, changed)
    return True


async def _now(database: Database) -> datetime:
    ((now,),) = await database.fetch(select(func.clock_timestamp()))
    return now  # type: ignore[no-any-return]


def _told(settings: Settings, act: Callable[[Database], Awaitable[bool]], *, done: str, missing: str) -> int:
    try:
        found = with_database(settings, act)
    except Unavailable as error:
        typer.echo(str(error), err=True)
        return 1
    typer.echo(done if found else missing, err=not found)
    return int(not found)
