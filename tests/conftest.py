"""The fixtures that every room shares: a PostgreSQL server and databases on it, and Valkey servers.

`TAKETURNS_TEST_DATABASE_URL` names another server than the embedded one, where the tests create databases and a role of
their own; its role needs no other rights than those. `TAKETURNS_TEST_REDIS_URL` does the same for Valkey.
"""

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import structlog

from taketurns.storage.embedded.home import quick_directory
from tests.servers import DatabaseServer, drop_template, shared_server
from tests.valkeys import ValkeyCluster, Valkeys, forget, shared_valkey

_RUN = "TAKETURNS_TEST_RUN"  # names one run to all its processes: pytest-xdist's workers inherit it
_BEGAN_THE_RUN = pytest.StashKey[str]()
JOURNEYS = Path(__file__).parent / "journeys"

# How long an example takes says how busy the machine is.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")


@pytest.fixture(autouse=True)
def logs_are_standard_ones_again() -> Iterator[None]:
    """Whatever a test made of structlog, the loggers of the next one are those that `caplog` hears."""
    yield
    structlog.reset_defaults()


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
def company_url(postgres_server: DatabaseServer, database_url: str) -> str:
    """The address of the same database for the role that acts for companies."""
    return postgres_server.company_url(database_url)


@pytest.fixture
def empty_database_url(postgres_server: DatabaseServer) -> Iterator[str]:
    """The address of a fresh database without the schema."""
    with postgres_server.database() as url:
        yield url


@pytest.fixture(scope="session")
def valkey_url(run_name: str) -> Iterator[str]:
    """The address of a Valkey that all processes of the run share: keep to keys with the name of the test's cell."""
    with shared_valkey(run_name) as url:
        yield url


@pytest.fixture
def valkey_cell(valkey_url: str) -> Iterator[str]:
    """The name of a cell that no other test has; keys with this name in them are deleted at the end."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    yield name
    forget(valkey_url, name)


@pytest.fixture
def valkey() -> Iterator[Valkeys]:
    """Makes servers of the test's own: `server = valkey(maxmemory="5mb")`, to kill, restart and set otherwise."""
    valkeys = Valkeys()
    yield valkeys
    valkeys.close()


@pytest.fixture(scope="session")
def valkey_cluster() -> Iterator[ValkeyCluster]:
    """Three nodes that share the slots out, for this process of tests: keep to keys with names of your own."""
    valkeys = Valkeys()
    yield valkeys.cluster()
    valkeys.close()


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


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Stories of whole services and of a browser begin first: they wait much, and at the end nobody else would work."""
    items.sort(key=lambda item: not (item.path.is_relative_to(JOURNEYS) or item.get_closest_marker("browser")))


def pytest_configure(config: pytest.Config) -> None:
    if _RUN not in os.environ:
        config.stash[_BEGAN_THE_RUN] = os.environ[_RUN] = uuid.uuid4().hex[:8]


def pytest_unconfigure(config: pytest.Config) -> None:
    if run := config.stash.get(_BEGAN_THE_RUN, None):
        del os.environ[_RUN]
        drop_template(run)
