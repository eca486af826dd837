"""A database for the worker that runs the examples."""

from collections.abc import Iterator

import pytest

from tests.servers import DatabaseServer


@pytest.fixture(scope="session")
def taketurns_database_url(postgres_server: DatabaseServer) -> Iterator[str]:
    with postgres_server.database() as url:
        yield url
