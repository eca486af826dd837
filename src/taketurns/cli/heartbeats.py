"""`taketurns heartbeat check`: who is late, by the database's clock, for whoever sounds the alarm."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import psycopg
import typer

from taketurns.cli.database import refused
from taketurns.engine import durations
from taketurns.history import heartbeats
from taketurns.history.heartbeats import Heartbeat
from taketurns.settings import Settings
from taketurns.storage.database import compile_statement, conninfo


def check(settings: Settings, *, max_age_seconds: float, name: str | None, as_json: bool) -> int:
    """Print who is late and by how much; 1 when anybody is, or nobody was heard of in time at all."""
    query, parameters = compile_statement(settings.schema_name, heartbeats.statement(name=name))
    try:
        with psycopg.connect(conninfo(settings.database_url), connect_timeout=5) as connection:
            found = heartbeats.read(connection.execute(query.encode(), parameters).fetchall())
    except psycopg.Error as error:
        return refused(error)
    late = [one for one in found if one.is_late(max_age_seconds=max_age_seconds, is_asked_for=name is not None)]
    is_silent = not any(one.age_seconds <= max_age_seconds for one in found)
    if as_json:
        shown = [_shown(one, one in late, max_age_seconds) for one in found]
        document = {"ok": not (late or is_silent), "maxAgeSeconds": max_age_seconds, "heartbeats": shown}
        typer.echo(json.dumps(document, indent=2))
    else:
        _tell(found, late, is_silent=is_silent, max_age_seconds=max_age_seconds, name=name)
    return int(bool(late) or is_silent)


def _tell(
    found: Sequence[Heartbeat],
    late: Sequence[Heartbeat],
    *,
    is_silent: bool,
    max_age_seconds: float,
    name: str | None,
) -> None:
    allowed = durations.told(max_age_seconds)
    for one in late:
        age, over = durations.told(one.age_seconds), durations.told(one.age_seconds - max_age_seconds)
        typer.echo(f"{one.name} is late by {over}: this {one.kind} on {one.host} was last heard of {age} ago")
    if is_silent and not late:
        typer.echo(f"no heartbeat{'' if name is None else f' of {name!r}'} within {allowed}")
    elif not late:
        in_time = sum(one.age_seconds <= max_age_seconds for one in found)
        typer.echo(f"{in_time} heard of within {allowed}, nobody is late")


def _shown(one: Heartbeat, is_late: bool, max_age_seconds: float) -> dict[str, Any]:
    moments = {"startedAt": one.started_at, "lastBeatAt": one.beat_at, "lastClaimAt": one.last_claim_at}
    return {
        "name": one.name,
        "kind": one.kind,
        "host": one.host,
        "version": one.version,
        **{name: moment and moment.isoformat() for name, moment in {**moments, "leftAt": one.left_at}.items()},
        "ageSeconds": round(one.age_seconds, 3),
        "isLate": is_late,
        "lateBySeconds": round(one.age_seconds - max_age_seconds, 3) if is_late else 0,
    }
