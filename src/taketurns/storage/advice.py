"""What an operator should know about a server: settings that matter here, and what holds it back at the moment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from time import time

import psycopg
from sqlalchemy import make_url

from taketurns.storage import schema as cell
from taketurns.storage import walls
from taketurns.storage.database import conninfo

SKEW_SECONDS = 2.0
OLD_TRANSACTION_SECONDS = 60.0
NOTIFY_QUEUE_PART = 0.5

Connection = psycopg.Connection[tuple[object, ...]]


class Level(StrEnum):
    OK = "ok"
    ADVICE = "advice"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at: what was found, and what to do about it when it is not as it should be."""

    level: Level
    subject: str
    found: str
    advice: str = ""


def examine(
    url: str, *, schema: str = "taketurns", connections_wanted: int = 0, company_url: str | None = None
) -> Iterator[Finding]:
    """Look at a server and a cell on it. Raises psycopg.OperationalError when it cannot be reached.

    `connections_wanted` is how many connections the installation's pools may open in all; `company_url` is the address
    for the role of companies, if there is one.
    """
    with psycopg.connect(conninfo(url), autocommit=True, connect_timeout=5) as connection:
        yield _version(connection)
        yield _migrations(connection, schema)
        yield _walls(connection, schema, company_url)
        yield _clock(connection)
        yield from _settings(connection)
        yield _connections(connection, connections_wanted)
        yield _oldest_transaction(connection)
        yield _notify_queue(connection)


def _version(connection: Connection) -> Finding:
    version = connection.info.server_version
    found = f"PostgreSQL {version // 10_000}.{version % 10_000}"
    if version < cell.OLDEST_SERVER * 10_000:
        return Finding(Level.PROBLEM, "server", found, f"Taketurns needs {cell.OLDEST_SERVER} or newer")
    return Finding(Level.OK, "server", found)


def _migrations(connection: Connection, schema: str) -> Finding:
    found = revision(connection, schema)
    if found == cell.head():
        return Finding(Level.OK, "migrations", f"at {found}, the newest")
    return Finding(Level.PROBLEM, "migrations", f"at {found or 'none'}, not {cell.head()}", "run: taketurns db upgrade")


def _walls(connection: Connection, schema: str, company_url: str | None) -> Finding:
    if gaps := walls.gaps(connection, schema=schema):
        found = f"none around each company in {', '.join(gaps)}"
        return Finding(Level.PROBLEM, "walls", found, "a migration must enable row-level security there, with a policy")
    if company_url is None:
        return Finding(
            Level.ADVICE,
            "walls",
            "one role acts for all companies",
            "set TAKETURNS_COMPANY_DATABASE_URL for another role in the API, and run: taketurns db upgrade",
        )
    role = make_url(company_url).username
    try:
        with psycopg.connect(conninfo(company_url), autocommit=True, connect_timeout=5) as companies:
            walls.check_sync(companies, schema=schema)
    except psycopg.OperationalError as error:
        reason, *_ = str(error).strip().splitlines()
        return Finding(Level.PROBLEM, "walls", reason, f"the role {role!r} must be let in: run taketurns db grant")
    except walls.RoleRefused as error:
        return Finding(Level.PROBLEM, "walls", str(error), "until then requests find no company or all of them")
    return Finding(Level.OK, "walls", f"around each company, for the role {role!r}")


def revision(connection: Connection, schema: str) -> str | None:
    """The revision that a cell is at, or None before the first."""
    if connection.execute("select to_regclass(format('%%I.alembic_version', %s::text))", [schema]).fetchone() == (
        None,
    ):
        return None
    row = connection.execute(
        psycopg.sql.SQL("select version_num from {}").format(psycopg.sql.Identifier(schema, "alembic_version"))
    ).fetchone()
    return str(row[0]) if row else None


def _clock(connection: Connection) -> Finding:
    before = time()
    row = connection.execute("select extract(epoch from clock_timestamp())::float8").fetchone()
    here = (before + time()) / 2
    skew = abs(here - float(str(row[0]))) if row else 0.0
    if skew > SKEW_SECONDS:
        return Finding(
            Level.ADVICE,
            "clock",
            f"{skew:.1f} s from this host's",
            "tasks go by the database's clock; set this one right",
        )
    return Finding(Level.OK, "clock", f"{skew * 1000:.0f} ms from this host's")


# Setting, the values that are well, and why.
_SETTINGS = (
    ("autovacuum", {"on"}, "claims slow down as dead rows stay; see decisions/0004-table-settings.md"),
    ("jit", {"off"}, "compiling costs more than any statement here takes; claims switch it off for themselves"),
    ("synchronous_commit", {"on", "remote_write", "remote_apply", "local"}, "an accepted task can be lost in a crash"),
    ("fsync", {"on"}, "everything can be lost in a crash"),
    ("track_counts", {"on"}, "autovacuum does not see what changed"),
)


def _settings(connection: Connection) -> Iterator[Finding]:
    for name, well, why in _SETTINGS:
        row = connection.execute("select current_setting(%s)", [name]).fetchone()
        value = str(row[0]) if row else ""
        level = Level.OK if value in well else Level.ADVICE
        yield Finding(level, name, value, "" if level is Level.OK else why)


def _connections(connection: Connection, wanted: int) -> Finding:
    row = connection.execute(
        "select current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int,"
        " (select count(*) from pg_stat_activity where backend_type = 'client backend')::int"
    ).fetchone()
    most, used = (int(str(value)) for value in row) if row else (0, 0)
    found = f"{used} of {most} in use"
    if wanted > most or used > most * 0.9:
        return Finding(
            Level.ADVICE,
            "connections",
            found,
            "raise max_connections, lower TAKETURNS_POOL_SIZE, or put PgBouncer between",
        )
    return Finding(Level.OK, "connections", found)


# A transaction that has read or written, of this database or of none (a standby that feeds back), or a prepared one.
_HOLDING_BACK = """
    select extract(epoch from clock_timestamp() - began)::float8, who
    from (
        select xact_start, format('pid %s (%s)', pid, coalesce(nullif(application_name, ''), 'no name'))
        from pg_stat_activity
        where (backend_xmin is not null or backend_xid is not null) and pid <> pg_backend_pid()
            and (datname is null or datname = current_database())
        union all
        select prepared, format('prepared transaction %L', gid) from pg_prepared_xacts
        where database = current_database()
    ) held (began, who)
    where began is not null
    order by began
    limit 1
"""


def _oldest_transaction(connection: Connection) -> Finding:
    row = connection.execute(_HOLDING_BACK).fetchone()
    seconds, who = (float(str(row[0])), row[1]) if row else (0.0, None)
    if seconds < OLD_TRANSACTION_SECONDS:
        return Finding(Level.OK, "oldest transaction", "none that holds back vacuum")
    return Finding(
        Level.ADVICE,
        "oldest transaction",
        f"{seconds:.0f} s, {who}",
        "while it lasts, dead rows stay and claims step over them: end it, or set idle_in_transaction_session_timeout",
    )


def _notify_queue(connection: Connection) -> Finding:
    row = connection.execute("select pg_notification_queue_usage()").fetchone()
    part = float(str(row[0])) if row else 0.0
    if part > NOTIFY_QUEUE_PART:
        return Finding(
            Level.PROBLEM, "notify queue", f"{part:.0%} full", "some listener sits in a transaction: end its session"
        )
    return Finding(Level.OK, "notify queue", f"{part:.0%} full")
