"""Commands that look at the database and its schema, and say what they found."""

from __future__ import annotations

import json
from dataclasses import asdict

import psycopg
import typer
from alembic.util.exc import CommandError
from sqlalchemy.exc import DBAPIError

from taketurns.settings import Settings
from taketurns.storage import advice, schema
from taketurns.storage.database import conninfo

_MARKS = {advice.Level.OK: "ok     ", advice.Level.ADVICE: "advice ", advice.Level.PROBLEM: "PROBLEM"}


def doctor(settings: Settings, *, as_json: bool) -> int:
    """Print the findings; 1 when one of them is a problem."""
    try:
        findings = list(
            advice.examine(settings.database_url, schema=settings.schema_name, connections_wanted=settings.pool_size)
        )
    except psycopg.Error as error:
        return _refused(error)
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            typer.echo(f"{_MARKS[finding.level]}  {finding.subject}: {finding.found}")
            if finding.advice:
                typer.echo(f"         {finding.advice}")
    return int(any(finding.level is advice.Level.PROBLEM for finding in findings))


def upgrade(settings: Settings, revision: str) -> int:
    """Build or move the schema; 1 with the reason when the server will not have it."""
    try:
        schema.upgrade(settings.database_url, schema=settings.schema_name, revision=revision)
    except (schema.UnsupportedServer, CommandError) as error:
        typer.echo(str(error), err=True)
        return 1
    except DBAPIError as error:
        return _refused(error.orig or error)
    return check(settings)


def check(settings: Settings) -> int:
    """1 when the schema is not at the newest revision."""
    try:
        with psycopg.connect(conninfo(settings.database_url), connect_timeout=5) as connection:
            found = advice.revision(connection, settings.schema_name)
    except psycopg.Error as error:
        return _refused(error)
    if found == schema.head():
        typer.echo(f"the schema {settings.schema_name!r} is at {found}, the newest revision")
        return 0
    typer.echo(
        f"the schema {settings.schema_name!r} is at {found or 'no revision'}; run: taketurns db upgrade", err=True
    )
    return 1


def _refused(error: BaseException) -> int:
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
