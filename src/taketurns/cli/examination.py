"""Commands that look at the servers and the schema, and say what they found."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict

import psycopg
import typer
from alembic.util.exc import CommandError
from sqlalchemy.exc import DBAPIError

from taketurns.assembly import jobs
from taketurns.engine.errors import Unavailable
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
        return refused(error)
    if settings.redis_url is not None:
        findings += asyncio.run(_jobs(settings))
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            typer.echo(f"{_MARKS[finding.level]}  {finding.subject}: {finding.found}")
            if finding.advice:
                typer.echo(f"         {finding.advice}")
    return int(any(finding.level is advice.Level.PROBLEM for finding in findings))


async def _jobs(settings: Settings) -> list[advice.Finding]:
    async with jobs.open_job_broker(settings, name="taketurns-doctor") as broker:
        try:
            complaints = await broker.check()
            told = await broker.server.inform("server") | await broker.server.inform("persistence")
        except Unavailable as error:
            return [advice.Finding(advice.Level.PROBLEM, "jobs", str(error), "until it is back, jobs get 503 and wait")]
    wrong = [complaint.partition(": ") for complaint in complaints]
    findings = [advice.Finding(advice.Level.PROBLEM, "jobs", found, mend) for found, _, mend in wrong]
    if not told["aof_enabled"]:
        found, mend = "no append-only file", "a crash of Redis loses every job: set appendonly to yes"
        findings.append(advice.Finding(advice.Level.ADVICE, "jobs", found, mend))
    version = told.get("valkey_version") or told["redis_version"]
    product = "Valkey" if "valkey_version" in told else "Redis"
    return findings or [advice.Finding(advice.Level.OK, "jobs", f"{product} {version}, append-only, drops nothing")]


def upgrade(settings: Settings, revision: str) -> int:
    """Build or move the schema; 1 with the reason when the server will not have it."""
    try:
        schema.upgrade(settings.database_url, schema=settings.schema_name, revision=revision)
    except (schema.UnsupportedServer, CommandError) as error:
        typer.echo(str(error), err=True)
        return 1
    except DBAPIError as error:
        return refused(error.orig or error)
    return check(settings)


def check(settings: Settings) -> int:
    """1 when the schema is not at the newest revision."""
    try:
        with psycopg.connect(conninfo(settings.database_url), connect_timeout=5) as connection:
            found = advice.revision(connection, settings.schema_name)
    except psycopg.Error as error:
        return refused(error)
    if found == schema.head():
        typer.echo(f"the schema {settings.schema_name!r} is at {found}, the newest revision")
        return 0
    typer.echo(
        f"the schema {settings.schema_name!r} is at {found or 'no revision'}; run: taketurns db upgrade", err=True
    )
    return 1


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
