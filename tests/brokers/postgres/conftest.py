"""A cell in PostgreSQL: one with its broker for the contract, one shared by a module for rules that clear it."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.brokers.postgres.cell import TABLES, PostgresCell
from tests.servers import DatabaseServer


@pytest.fixture
async def cell(database_url: str) -> AsyncIterator[PostgresCell]:
    cell = await PostgresCell.open(database_url)
    yield cell
    await cell.close()


@pytest.fixture(scope="module")
def module_cell(postgres_server: DatabaseServer, template_database: str) -> Iterator[PostgresCell]:
    """Shared by a module's tests, without a broker."""
    with postgres_server.database(template=template_database) as url:
        cell = PostgresCell(url)
        yield cell
        cell.connection.close()


@pytest.fixture
def bare_cell(module_cell: PostgresCell) -> PostgresCell:
    """An empty cell without a broker, for the verbs by bare SQL."""
    module_cell.clear()
    return module_cell


@pytest.fixture
def new_cell(postgres_server: DatabaseServer, template_database: str) -> Iterator[PostgresCell]:
    """A cell without a broker whose statistics are nobody's but the test's."""
    with postgres_server.database(template=template_database) as url:
        cell = PostgresCell(url)
        for table in TABLES.split(", "):
            cell.connection.execute(f"alter table {table} set (autovacuum_enabled = off)".encode())
        yield cell
        cell.connection.close()
