"""The schema is what migrations build: tests run on it, models agree with it, and it can be built beside others."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from alembic import command
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import IntegrityError

from taketurns.storage import drift, schema
from taketurns.storage.migrations import template_path


@pytest.fixture
def connection(database_url: str) -> Iterator[Connection]:
    engine = create_engine(database_url)
    with engine.begin() as connection:
        connection.execute(text("set local search_path to taketurns"))
        yield connection
    engine.dispose()


def test_schema_built_by_migrations_not_create_all(connection: Connection) -> None:
    stamped = connection.execute(text("select version_num from alembic_version")).scalar_one()
    assert stamped == schema.head()


def test_models_are_what_migrations_build(database_url: str) -> None:
    schema.check(database_url)


def test_functions_are_what_their_files_say(connection: Connection) -> None:
    assert drift.functions(connection, schema="taketurns") == []
    assert drift.triggers(connection, schema="taketurns") == []


def test_a_function_changed_by_hand_is_drift(connection: Connection) -> None:
    connection.execute(
        text("create or replace function rescue_error(max_rescues integer) returns text language sql as 'select null'")
    )
    connection.execute(text("create function added() returns integer language sql as 'select 1'"))
    connection.execute(text("drop function heal_rotation(uuid)"))
    complaints = drift.functions(connection, schema="taketurns")
    assert [complaint.split("(")[0] for complaint in complaints] == [
        "function heal_rotation",
        "function added",
        "function rescue_error",
    ]


def test_a_trigger_added_by_hand_is_drift(connection: Connection) -> None:
    connection.execute(text("create function noop() returns trigger language plpgsql as 'begin return new; end'"))
    connection.execute(text("create trigger extra before insert on tasks for each row execute function noop()"))
    assert drift.triggers(connection, schema="taketurns") == ["trigger extra on tasks is in no migration"]


def test_a_trigger_taken_away_by_hand_is_drift(connection: Connection) -> None:
    connection.execute(text("drop trigger keep_audit on audit_entries"))
    assert drift.triggers(connection, schema="taketurns") == ["trigger keep_audit on audit_entries is missing"]


def test_nothing_is_put_into_public(connection: Connection) -> None:
    count = text("select count(*) from pg_class where relnamespace = 'public'::regnamespace")
    assert connection.execute(count).scalar_one() == 0
    count = text("select count(*) from pg_proc where pronamespace = 'public'::regnamespace")
    assert connection.execute(count).scalar_one() == 0


def test_two_cells_live_in_one_database(empty_database_url: str) -> None:
    for name in ("north", "south"):
        schema.upgrade(empty_database_url, schema=name)
    with psycopg.connect(empty_database_url) as connection:
        keys = {connection.execute(f"select {name}.cell_lock()").fetchone() for name in ("north", "south")}
        assert len(keys) == 2
        connection.execute("insert into north.companies (id, slug, name) values (gen_random_uuid(), 'acme', 'Acme')")
        assert connection.execute("select north.company_id('acme') is null").fetchone() == (False,)
        assert connection.execute("select south.company_id('acme') is null").fetchone() == (True,)


def test_a_role_without_superuser_builds_the_schema(empty_database_url: str) -> None:
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        is_super = connection.execute("select rolsuper from pg_roles where rolname = current_user").fetchone()
        if is_super == (False,):
            schema.upgrade(empty_database_url)
            return
        connection.execute("drop role if exists plain_builder")
        connection.execute("create role plain_builder login nosuperuser nocreaterole")
        name = connection.info.dbname
        connection.execute(f'grant create, connect on database "{name}" to plain_builder')
    url = psycopg.conninfo.conninfo_to_dict(empty_database_url)
    host = url.get("host", "")
    port = url.get("port", "5432")
    schema.upgrade(f"postgresql://plain_builder@/{name}?host={host}&port={port}")
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        owner = connection.execute("select tableowner from pg_tables where tablename = 'tasks'").fetchone()
        assert owner == ("plain_builder",)
        connection.execute("drop schema taketurns cascade")
        connection.execute("drop owned by plain_builder")
        connection.execute("drop role plain_builder")


@pytest.mark.parametrize("column", ["run_after", "created_at"])
@pytest.mark.parametrize("moment", ["infinity", "-infinity", "0044-03-15 BC", "10000-01-01"])
def test_no_task_has_a_time_that_programs_cannot_read(connection: Connection, column: str, moment: str) -> None:
    """Fault 078: a row that cannot be read is one that nobody may write."""
    values = {"run_after": "now", "created_at": "now"} | {column: moment}
    with pytest.raises(IntegrityError, match="tasks_times_are_readable"):
        connection.execute(
            text(
                "insert into tasks (company_id, id, type, queue, priority, run_after, max_retries, payload, created_at)"
                " values (gen_random_uuid(), gen_random_uuid(), 'work', 'default', 5, cast(:run_after as timestamptz),"
                " 0, '{}', cast(:created_at as timestamptz))"
            ),
            values,
        )


def test_down_and_up_again(database_url: str) -> None:
    schema.downgrade(database_url)
    with psycopg.connect(database_url) as connection:
        assert connection.execute(
            "select count(*) from pg_class c where relnamespace = 'taketurns'::regnamespace"
            " and relkind in ('r', 'S', 'v') and relname <> 'alembic_version'"
        ).fetchone() == (0,)
        assert connection.execute(
            "select count(*) from pg_proc where pronamespace = 'taketurns'::regnamespace"
        ).fetchone() == (0,)
    schema.upgrade(database_url)
    schema.check(database_url)


def test_a_url_on_the_configuration_wins_over_the_environment(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAKETURNS_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/nowhere")
    schema.upgrade(empty_database_url)
    with psycopg.connect(empty_database_url) as connection:
        assert connection.execute("select version_num from taketurns.alembic_version").fetchone() == (schema.head(),)


def test_an_old_server_is_refused(empty_database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with psycopg.connect(empty_database_url) as connection:
        running = connection.info.server_version // 10_000
    monkeypatch.setattr(schema, "OLDEST_SERVER", running + 1)
    with pytest.raises(
        schema.UnsupportedServer, match=f"PostgreSQL {running} is too old: Taketurns needs {running + 1}"
    ):
        schema.upgrade(empty_database_url)


def test_a_migration_gives_up_on_a_lock_instead_of_blocking_the_service(database_url: str) -> None:
    """Fault 165: a migration waits behind a reader, and everybody else waits behind the migration."""
    with psycopg.connect(database_url) as reader:
        reader.execute("begin; lock table taketurns.tasks in access share mode")
        configuration = schema.config(database_url, "taketurns")
        configuration.attributes["lock_timeout"] = "100ms"
        with pytest.raises(Exception, match="lock timeout"):
            command.downgrade(configuration, "base")
        assert reader.execute("select count(*) from taketurns.tasks").fetchone() == (0,)
    schema.check(database_url)


def test_the_migration_template_warns_of_the_running_release() -> None:
    assert "while the release before it serves" in template_path().read_text("utf-8")
