"""The wall around each company: a role that sees of what companies own only the rows of the one that its transaction is
for, and may do no more than what is asked for in a company's name.

The policies are made by migrations, beside their tables. They do not hold for the owner of the tables and for
superusers, which workers and operators connect as.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg import sql

from taketurns.engine.errors import ConfigurationError
from taketurns.storage.database import COMPANY, Database

_CHANGED: Final = "select, insert, update, delete"

# To lock a row takes the right to update some column: that is the one named beside `delete`.
TABLES: Final[Mapping[str, str]] = {
    "audit_entries": "insert",
    "companies": "select",
    "idempotency_keys": _CHANGED,
    "job_reservations": _CHANGED,
    "lines": "select, insert",
    "operation_tasks": "select, insert",
    "operations": "select, insert, update",
    "pending_tasks": "select, insert, update (task_id), delete",
    "processing_tasks": "select, insert, update (task_id), delete",
    "quota_changes": "select, insert",
    "quota_usage": "select, insert, update",
    "rotations": "select (queue, place)",
    "scheduled_tasks": "select, insert, update (task_id), delete",
    "schedules": _CHANGED,
    "task_events": "select, insert, delete",
    "task_tags": "select, insert, delete",
    "tasks": _CHANGED,
    "turns": "insert (queue, place, company_id)",
    "unique_keys": _CHANGED,
    "watches": "select, insert, update",
}
"""What a company's role may do, in the words of GRANT; of other tables it knows nothing."""

FUNCTIONS: Final = frozenset(
    {
        "abort_operation",
        "allowances",
        "cancel",
        "cancel_waiting",
        "company_id",
        "company_lock",
        "company_of_slug",
        "confirm_jobs",
        "create_operation",
        "delete_task",
        "enqueue",
        "failures",
        "give_keys_back",
        "has_room",
        "has_started",
        "has_unique_key",
        "hold_queue",
        "join_rotation",
        "look_at_quotas",
        "place_reached",
        "quota_lock",
        "record_cancelled",
        "refund_jobs",
        "reschedule",
        "reserve",
        "reserve_jobs",
        "reserve_or_raise",
        "retry",
        "take_unique_key_again",
        "take_unique_keys",
        "task_status",
        "tell_moves",
        "wait_for_move",
        "watch",
    }
)
"""The functions that it may call: verbs in a company's name, and what those are made of."""

Connection = psycopg.Connection[Any]


class RoleRefused(ConfigurationError):
    """A role cannot be the one of companies."""


def grant(connection: Connection, role: str, *, schema: str, password: str | None = None) -> bool:
    """Let a role act for companies in a cell, and do nothing else there; whether the role was made.

    To be called as the owner of the cell. A role that is there keeps its password. Raises RoleRefused.
    """
    with connection.transaction():
        connection.execute("select pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"grants of {schema}"])
        is_new = _make_role(connection, role, password)
        _refuse_who_sees_all(connection, role, schema)
        if not _scalar(connection, "select has_database_privilege(%s, current_database(), 'connect')", role):
            database = sql.Identifier(connection.info.dbname)
            connection.execute(sql.SQL("grant connect on database {} to {}").format(database, sql.Identifier(role)))
        for statement in _grants(connection, schema):
            connection.execute(statement.format(role=sql.Identifier(role), schema=sql.Identifier(schema)))
    return is_new


async def check(companies: Database) -> None:
    """See that the role of companies may do what it must, and sees no more. Raises RoleRefused and Unavailable."""
    with _refusals():
        ((is_held, is_granted),) = await companies.run(_standing(companies.schema), _NAMES)
    _judge(is_held=is_held, is_granted=is_granted)


def check_sync(connection: Connection, *, schema: str) -> None:
    """The same on a connection of that role. Raises RoleRefused and psycopg.OperationalError."""
    with _refusals():
        ((is_held, is_granted),) = connection.execute(_standing(schema), _NAMES).fetchall()
    _judge(is_held=is_held, is_granted=is_granted)


def gaps(connection: Connection, *, schema: str) -> list[str]:
    """The tables of a cell whose rows are of companies, and which have no wall, or another one."""
    rows = connection.execute(_GAPS, {"schema": schema, "setting": COMPANY})
    return [name for (name,) in rows]


def _standing(schema: str) -> bytes:
    """Asks whether policies hold for who asks, and whether everything was granted that this version needs."""
    statement = """
        select row_security_active({tasks}),
            (select count(*) from pg_class c where c.relnamespace = {schema}::regnamespace
                and c.relname = any (%(tables)s) and has_any_column_privilege(c.oid, 'select, insert')
            ) = cardinality(%(tables)s::text[])
            and (select bool_and(has_function_privilege(p.oid, 'execute')) from pg_proc p
                where p.pronamespace = {schema}::regnamespace and p.proname = any (%(functions)s))
    """
    tasks = sql.Identifier(schema, "tasks").as_string()
    return sql.SQL(statement).format(tasks=tasks, schema=sql.Identifier(schema).as_string()).as_bytes()


_NAMES: Final = {"tables": list(TABLES), "functions": list(FUNCTIONS)}


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except psycopg.ProgrammingError:
        _judge(is_held=True, is_granted=False)


def _judge(*, is_held: bool, is_granted: bool) -> None:
    if not is_held:
        raise RoleRefused(
            "the role in TAKETURNS_COMPANY_DATABASE_URL sees every company, for it is a superuser or owns the tables:"
            " name another one"
        )
    if not is_granted:
        raise RoleRefused(
            "the role in TAKETURNS_COMPANY_DATABASE_URL may not do what this version needs: run taketurns db grant"
        )


def _make_role(connection: Connection, role: str, password: str | None) -> bool:
    can_login = _scalar(connection, "select rolcanlogin from pg_roles where rolname = %s", role)
    if can_login:
        return False
    if can_login is not None:
        raise RoleRefused(f"the role {role!r} may not log in: alter role {sql.Identifier(role).as_string()} login")
    name, secret = sql.Identifier(role), sql.SQL("") if password is None else sql.SQL(" password {}").format(password)
    try:
        with connection.transaction():
            connection.execute(sql.SQL("create role {} login").format(name) + secret)
    except (psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation):  # made meanwhile, for another database
        return False
    except psycopg.errors.InsufficientPrivilege as error:
        raise RoleRefused(
            f"the role {role!r} is not there, and {connection.info.user!r} may not make it. As an administrator:"
            f" create role {name.as_string()} login password '…'; and then run this again"
        ) from error
    return True


def _refuse_who_sees_all(connection: Connection, role: str, schema: str) -> None:
    sees_all = """
        select r.rolsuper or r.rolbypassrls or pg_has_role(r.oid, c.relowner, 'usage')
        from pg_roles r, pg_class c where r.rolname = %s and c.oid = to_regclass(format('%%I.tasks', %s::text))
    """
    found = _scalar(connection, sees_all, role, schema)
    if found is None:
        raise RoleRefused(f"there is no schema {schema!r} with tables, or no role {role!r}: run taketurns db upgrade")
    if found:
        raise RoleRefused(
            f"no wall holds for the role {role!r}: it is a superuser, has bypassrls, or owns the tables; name another"
        )


def _grants(connection: Connection, schema: str) -> Iterator[sql.SQL]:
    """Everything that was granted before, by another version maybe, is taken back first."""
    yield sql.SQL("revoke all on all tables in schema {schema} from {role}")
    yield sql.SQL("revoke all on all functions in schema {schema} from {role}")
    yield sql.SQL("revoke all on schema {schema} from {role}")
    yield sql.SQL("grant usage on schema {schema} to {role}")
    for table, privileges in TABLES.items():
        yield sql.SQL(f"grant {privileges} on {{schema}}.{table} to {{role}}")
    signatures = connection.execute(
        "select oid::regprocedure::text from pg_proc"
        " where pronamespace = %s::regnamespace and proname = any (%s) order by 1",
        [schema, list(FUNCTIONS)],
    )
    for (signature,) in signatures:
        yield sql.SQL(f"grant execute on function {signature} to {{role}}")


def _scalar(connection: Connection, query: str, *parameters: str) -> Any:
    row = connection.execute(query.encode(), parameters).fetchone()
    return row[0] if row else None


_GAPS: Final = """
select c.relname
from pg_class c join pg_attribute a on a.attrelid = c.oid
where c.relnamespace = to_regnamespace(%(schema)s) and c.relkind in ('r', 'p') and not a.attisdropped
    and (a.attname = 'company_id' or (c.relname = 'companies' and a.attname = 'id'))
    and not (c.relrowsecurity and array(
        select (p.polpermissive, p.polcmd, p.polroles, p.polwithcheck is null, pg_get_expr(p.polqual, p.polrelid))::text
        from pg_policy p where p.polrelid = c.oid
    ) = array[(true, '*'::"char", array[0]::oid[], true, format(
        '(%%I = (NULLIF(current_setting(%%L::text, true), %%L::text))::uuid)', a.attname, %(setting)s::text, '')
    )::text])
order by c.relname
"""
