"""What `alembic check` does not compare: the functions and triggers that a cell holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, text

from taketurns.storage import schema as cell

SCRATCH = "taketurns_drift_check"

Definition = tuple[Any, ...]


def functions(connection: Connection, *, schema: str) -> list[str]:
    """Complaints on functions that are missing, unknown, or not as their files say.

    The files are installed in a schema of their own beside the cell's, which is dropped again.
    """
    installed = _definitions(connection, schema)
    connection.execute(text(f"create schema {SCRATCH}"))
    connection.execute(text(f"set local search_path to {SCRATCH}, {schema}"))
    cell.install_functions(connection)
    wanted = _definitions(connection, SCRATCH)
    connection.execute(text(f"drop schema {SCRATCH} cascade"))
    return list(_compare(installed, wanted))


def triggers(connection: Connection, *, schema: str) -> list[str]:
    """Complaints on triggers that no migration makes, and on those that are missing."""
    rows = connection.execute(
        text(
            "select t.tgname, c.relname from pg_trigger t join pg_class c on c.oid = t.tgrelid"
            " where c.relnamespace = cast(:schema as regnamespace) and not t.tgisinternal order by 2, 1"
        ),
        {"schema": schema},
    )
    found = {(name, table) for name, table in rows}
    wanted = set(cell.TRIGGERS.items())
    return [
        *(f"trigger {name} on {table} is in no migration" for name, table in sorted(found - wanted)),
        *(f"trigger {name} on {table} is missing" for name, table in sorted(wanted - found)),
    ]


def _definitions(connection: Connection, schema: str) -> dict[str, Definition]:
    """Name and arguments of each function of a schema, and everything that a file decides about it."""
    rows = connection.execute(
        text(
            """
            select p.proname || '(' || pg_get_function_arguments(p.oid) || ')',
                pg_get_function_result(p.oid), p.prosrc, p.provolatile, l.lanname,
                array(select s from unnest(p.proconfig) s where s not like 'search_path=%' order by s),
                exists (select from unnest(p.proconfig) s where s like 'search_path=%')
            from pg_proc p join pg_language l on l.oid = p.prolang
            where p.pronamespace = cast(:schema as regnamespace)
            """
        ),
        {"schema": schema},
    )
    return {name: tuple(definition) for name, *definition in rows}


def _compare(installed: dict[str, Definition], wanted: dict[str, Definition]) -> Iterator[str]:
    for name in sorted(wanted.keys() - installed.keys()):
        yield f"function {name} has a file but no migration installs it"
    for name in sorted(installed.keys() - wanted.keys()):
        yield f"function {name} is installed but has no file"
    for name in sorted(wanted.keys() & installed.keys()):
        if wanted[name] != installed[name]:
            yield f"function {name} is not installed as its file says: add a migration that installs it"
