"""The fixtures that every room shares: a PostgreSQL server and databases on it.

`TAKETURNS_TEST_DATABASE_URL` names another server than the embedded one, where the tests create databases of
their own; its role needs no other right than that.
"""

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from taketurns.storage.embedded.server import quick_directory
from tests.servers import DatabaseServer, drop_template, shared_server

_RUN = "TAKETURNS_TEST_RUN"  # names one run to all its processes: pytest-xdist's workers inherit it
_BEGAN_THE_RUN = pytest.StashKey[str]()


@pytest.fixture(scope="session")
def postgres_server(run_name: str) -> Iterator[DatabaseServer]:
    """A server on which tests may create databases, shared by all processes of the run."""
    with shared_server(run_name) as server:
        yield server


@pytest.fixture(scope="session")
def template_database(postgres_server: DatabaseServer) -> str:
    """The name of a database with the schema as migrations build it, to make copies of."""
    return postgres_server.make_template()


@pytest.fixture
def database_url(postgres_server: DatabaseServer, template_database: str) -> Iterator[str]:
    """The address of a fresh database with the schema."""
    with postgres_server.database(template=template_database) as url:
        yield url


@pytest.fixture
def empty_database_url(postgres_server: DatabaseServer) -> Iterator[str]:
    """The address of a fresh database without the schema."""
    with postgres_server.database() as url:
        yield url


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """An empty directory that every user may enter: the server is not root when the tests are."""
    directory = Path(tempfile.mkdtemp(dir=quick_directory(), prefix="taketurns-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="session")
def taketurns_database_url(postgres_server: DatabaseServer) -> Iterator[str]:
    """Where the package's own pytest plugin makes its schema: one database for a process of tests."""
    with postgres_server.database() as url:
        yield url


@pytest.fixture(scope="session")
def run_name() -> str:
    """What tells this run from others on the same machine and the same server."""
    return os.environ[_RUN]


def pytest_configure(config: pytest.Config) -> None:
    if _RUN not in os.environ:
        config.stash[_BEGAN_THE_RUN] = os.environ[_RUN] = uuid.uuid4().hex[:8]


def pytest_unconfigure(config: pytest.Config) -> None:
    if run := config.stash.get(_BEGAN_THE_RUN, None):
        del os.environ[_RUN]
        drop_template(run)
