"""Alembic's entry: which database, which schema, and what counts as drift."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection, create_engine, pool, text

from taketurns.settings import Settings
from taketurns.storage import schema as cell
from taketurns.storage.models import Base

LOCK_TIMEOUT = "5s"

config = context.config
url = config.get_main_option("sqlalchemy.url") or Settings().database_url
schema = config.attributes.get("schema") or Settings().schema_name
lock_timeout = config.attributes.get("lock_timeout", LOCK_TIMEOUT)


def run(connection: Connection) -> None:
    cell.refuse_old_server(connection)
    connection.execute(text("select pg_advisory_lock(hashtextextended(:name, 0))"), {"name": f"migrations of {schema}"})
    quoted = connection.dialect.identifier_preparer.quote(schema)
    connection.execute(text(f"create schema if not exists {quoted}"))
    # Functions keep this path: nobody's temporary table may stand in for one of theirs.
    connection.execute(text(f"set search_path to {quoted}, pg_temp"))
    connection.execute(text("select set_config('lock_timeout', :timeout, false)"), {"timeout": lock_timeout})
    connection.commit()
    connection.dialect.default_schema_name = schema
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        compare_server_default=True,
        transaction_per_migration=True,
    )
    with context.begin_transaction():
        context.run_migrations()
    connection.execute(text("select pg_advisory_unlock_all()"))


def run_offline() -> None:
    context.configure(url=url, target_metadata=Base.metadata, literal_binds=True, version_table_schema=schema)
    with context.begin_transaction():
        context.execute(f"set search_path to {schema}, pg_temp")
        context.run_migrations()


if context.is_offline_mode():
    run_offline()
elif connection := config.attributes.get("connection"):
    run(connection)
else:
    engine = create_engine(url, poolclass=pool.NullPool)
    with engine.connect() as connection:
        run(connection)
    engine.dispose()
