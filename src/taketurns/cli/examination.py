"""Commands that look at the servers and the schema, and say what they found."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict

import psycopg
import typer
from alembic.util.exc import CommandError
from sqlalchemy import make_url
from sqlalchemy.exc import DBAPIError

from taketurns.assembly import jobs
from taketurns.cli import admission
from taketurns.cli.configuration import WRONG
from taketurns.cli.database import refused
from taketurns.engine.errors import Unavailable
from taketurns.settings import Settings
from taketurns.storage import advice, schema, walls
from taketurns.storage.database import conninfo

_MARKS = {advice.Level.OK: "ok     ", advice.Level.ADVICE: "advice ", advice.Level.PROBLEM: "PROBLEM"}


def doctor(settings: Settings, *, as_json: bool) -> int:
    """Print the findings; 1 when one of them is a problem."""
    try:
        findings = list(
            advice.examine(
                settings.database_url,
                schema=settings.schema_name,
                connections_wanted=settings.pool_size,
                company_url=settings.company_database_url,
            )
        )
    except psycopg.Error as error:
        return refused(error)
    findings += admission.examine(settings)
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
    """Build or move the schema, and let the role of companies into it if one is set; 1 with the reason when the server
    will not have it."""
    try:
        schema.upgrade(settings.database_url, schema=settings.schema_name, revision=revision)
    except (schema.UnsupportedServer, CommandError) as error:
        typer.echo(str(error), err=True)
        return 1
    except DBAPIError as error:
        return refused(error.orig or error)
    if settings.company_database_url is not None and revision == "head":
        return check(settings) or grant(settings)
    return check(settings)


def grant(settings: Settings, role: str | None = None, password: str | None = None) -> int:
    """Let a role act for companies, the one that the settings name or another; 1 with the reason when it cannot."""
    url = None if settings.company_database_url is None else make_url(settings.company_database_url)
    named = role or (url and url.username)
    if named is None:
        typer.echo("name a role, or set TAKETURNS_COMPANY_DATABASE_URL", err=True)
        return WRONG
    if password is None and url is not None and url.username == named:
        password = url.password
    try:
        with psycopg.connect(conninfo(settings.database_url), autocommit=True, connect_timeout=5) as connection:
            is_new = walls.grant(connection, named, schema=settings.schema_name, password=password)
    except walls.RoleRefused as error:
        typer.echo(str(error), err=True)
        return 1
    except psycopg.Error as error:
        return refused(error)
    made = "was made, and acts" if is_new else "acts"
    typer.echo(f"the role {named!r} {made} for one company at a time in the schema {settings.schema_name!r}")
    return 0


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
