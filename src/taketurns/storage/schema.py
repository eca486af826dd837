"""The schema of a cell: built and moved forward by migrations only, compared with what its server holds."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

MIGRATIONS = Path(__file__).parent / "migrations"
OLDEST_SERVER = 16

# One file a verb; the order is that of creation. They live beside the broker that calls them.
FUNCTIONS = (
    "locks",
    "turns",
    "floors",
    "watch",
    "reserve",
    "jobs",
    "tally",
    "unique",
    "enqueue",
    "rate",
    "rest",
    "weigh",
    "claim",
    "failures",
    "settle",
    "release",
    "rescue",
    "promote",
    "cancel",
    "retry",
    "reschedule",
    "delete_task",
    "operations",
    "prune",
    "heal",
    "park",
    "budget",
    "wake",
    "pause",
    "delete_company",
    "tick",
    "keep_audit",
    "roll_up",
    "stats",
    "why",
)
TRIGGERS = {"keep_audit": "audit_entries"}


class UnsupportedServer(RuntimeError):
    """The server is older than the oldest PostgreSQL that Taketurns runs on."""


def function_source(verb: str) -> str:
    """The `create or replace function` statements of a verb's file."""
    return resources.files("taketurns.brokers.postgres").joinpath(f"{verb}.sql").read_text("utf-8")


def install_functions(connection: Connection) -> None:
    """Create or replace every function in the first schema of the search path, to be called by nobody but their owner
    and those whom `taketurns.storage.walls` names."""
    for verb in FUNCTIONS:
        connection.exec_driver_sql(function_source(verb).replace("%", "%%"))
    for signature in _signatures(connection):
        connection.exec_driver_sql(f"revoke execute on function {signature} from public")


def drop_functions(connection: Connection) -> None:
    """Drop every function of the first schema of the search path."""
    for signature in _signatures(connection):
        connection.exec_driver_sql(f"drop function {signature}")


def _signatures(connection: Connection) -> Sequence[str]:
    every = "select oid::regprocedure::text from pg_proc where pronamespace = current_schema()::regnamespace"
    return connection.execute(text(every)).scalars().all()


def config(url: str, schema: str) -> Config:
    """An Alembic configuration for one cell; `url` is any that SQLAlchemy takes for psycopg."""
    settings = Config()
    settings.set_main_option("script_location", str(MIGRATIONS))
    settings.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
    settings.attributes["schema"] = schema
    return settings


def upgrade(url: str, *, schema: str = "taketurns", revision: str = "head") -> None:
    """Bring a cell to a revision; the schema is created when it is missing.

    Raises UnsupportedServer on a server older than 16.
    """
    command.upgrade(config(url, schema), revision)


def downgrade(url: str, *, schema: str = "taketurns", revision: str = "base") -> None:
    """Take a cell back to a revision."""
    command.downgrade(config(url, schema), revision)


def check(url: str, *, schema: str = "taketurns") -> None:
    """Raises alembic's CommandError when the models differ from what the migrations have built."""
    command.check(config(url, schema))


def head() -> str:
    """The newest revision that this code knows."""
    return ScriptDirectory(str(MIGRATIONS)).get_current_head() or ""


def refuse_old_server(connection: Connection) -> None:
    """Raises UnsupportedServer on a server older than 16."""
    version = int(connection.execute(text("show server_version_num")).scalar_one())
    if version < OLDEST_SERVER * 10_000:
        raise UnsupportedServer(
            f"PostgreSQL {version // 10_000} is too old: Taketurns needs {OLDEST_SERVER} or newer"
            f" (at {connection.engine.url.render_as_string()})"
        )
