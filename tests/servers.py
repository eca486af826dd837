"""The PostgreSQL that tests run on: one server for all processes of a run, one database for each test.

Its owner is the role that made it; companies have another one, which is the run's.
"""

import contextlib
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
from psycopg import sql
from sqlalchemy import make_url

from taketurns.storage import embedded, schema, walls

ADDRESS = "TAKETURNS_TEST_DATABASE_URL"


@dataclass(frozen=True)
class DatabaseServer:
    """A server on which tests may create databases and a role; needs no more than those rights."""

    address: str
    run: str
    connection: psycopg.Connection[tuple[object, ...]]
    strategy: str = "wal_log"

    @property
    def template(self) -> str:
        """The name of the database with the schema, which every test gets a copy of."""
        return f"taketurns_test_{self.run}_template"

    @property
    def company_role(self) -> str:
        """Who acts for companies in the copies of the template, with the owner's password."""
        return f"taketurns_test_{self.run}_company"

    def url(self, database: str) -> str:
        return make_url(self.address).set(database=database).render_as_string(hide_password=False)

    def company_url(self, url: str) -> str:
        """The address of the same database for the role of companies."""
        return make_url(url).set(username=self.company_role).render_as_string(hide_password=False)

    @contextlib.contextmanager
    def database(self, *, template: str = "template1") -> Iterator[str]:
        """The address of a new database, dropped at the end."""
        name = f"taketurns_test_{self.run}_{uuid.uuid4().hex[:12]}"
        self._execute(f"CREATE DATABASE {{}} TEMPLATE {{}} STRATEGY {self.strategy}", name, template)
        try:
            yield self.url(name)
        finally:
            self.drop(name)

    def make_template(self) -> str:
        """The name of the template, built by migrations, and by the first process of the run to ask."""
        with _locked(self.connection, self.template):
            if not self._has(self.template):
                unfinished = f"{self.template}_unfinished"
                self._execute("CREATE DATABASE {}", unfinished)
                try:
                    schema.upgrade(self.url(unfinished))
                    self.grant(self.url(unfinished))
                    self._execute("ALTER DATABASE {} RENAME TO {}", unfinished, self.template)
                except BaseException:
                    self.drop(unfinished)
                    raise
        return self.template

    def grant(self, url: str, *, schema: str = "taketurns") -> None:
        """Let the role of companies into a cell."""
        with psycopg.connect(url, autocommit=True) as connection:
            walls.grant(connection, self.company_role, schema=schema, password=make_url(self.address).password)

    def drop(self, name: str) -> None:
        self._execute("DROP DATABASE IF EXISTS {} WITH (FORCE)", name)

    def drop_role(self) -> None:
        self._execute("DROP ROLE IF EXISTS {}", self.company_role)

    def _execute(self, statement: str, *names: str) -> None:
        self.connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))

    def _has(self, name: str) -> bool:
        return bool(self.connection.execute("SELECT FROM pg_database WHERE datname = %s", [name]).rowcount)


@contextlib.contextmanager
def _locked(connection: psycopg.Connection[tuple[object, ...]], name: str) -> Iterator[None]:
    connection.execute("SELECT pg_advisory_lock(hashtext(%s))", [name])
    try:
        yield
    finally:
        connection.execute("SELECT pg_advisory_unlock(hashtext(%s))", [name])


@contextlib.contextmanager
def shared_server(run: str) -> Iterator[DatabaseServer]:
    """The server named in TAKETURNS_TEST_DATABASE_URL, or else the one that the processes of a run share.

    The latter and its home are gone when the last process is, however it ended.
    """
    if address := os.environ.get(ADDRESS):
        with _connect(address) as connection:
            yield DatabaseServer(address, run, connection)
    else:
        with embedded.throwaway(f"test-{run}") as server, _connect(server.url()) as connection:
            # In memory it takes a third of the time.
            yield DatabaseServer(server.url(), run, connection, strategy="file_copy")


def drop_template(run: str) -> None:
    """Leave nothing of a run on a server that stays."""
    if address := os.environ.get(ADDRESS):
        with _connect(address) as connection:
            server = DatabaseServer(address, run, connection)
            server.drop(server.template)
            server.drop_role()


def _connect(address: str) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(address, autocommit=True)
