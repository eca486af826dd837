"""A pytest plugin for applications: the real engine on a real database, with a clock that a test moves on.

    async def test_the_invoice_goes_out(taketurns):
        await send_invoice.enqueue(company="acme", invoice_id=7)
        await taketurns.drain()
        assert taketurns.finished(send_invoice)[0].result == "sent 7"

The tests of one process share a schema of their own, which each test finds empty, in the database that
TAKETURNS_TEST_DATABASE_URL or TAKETURNS_DATABASE_URL names, beside the application's own tables; without either, on an
embedded server. Every `Taketurns` of the process is led there while the fixture is in use.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from taketurns.settings import Settings
    from taketurns.testing.engine import Engine


@pytest.fixture(scope="session")
def taketurns_database_url() -> Iterator[str]:
    """Where the tests' schema is made; override this fixture to say it otherwise."""
    url = os.environ.get("TAKETURNS_TEST_DATABASE_URL") or os.environ.get("TAKETURNS_DATABASE_URL")
    if url:
        yield url
        return
    from taketurns.storage.embedded.postgres import throwaway  # noqa: PLC0415

    with throwaway(os.environ.get("PYTEST_XDIST_TESTRUNUID")) as server:
        yield server.url()


@pytest.fixture(scope="session")
def taketurns_settings(taketurns_database_url: str) -> Iterator[Settings]:
    """Settings that lead to a schema of this process's own, which is dropped in the end."""
    from taketurns.settings import Settings  # noqa: PLC0415
    from taketurns.testing import engine  # noqa: PLC0415

    schema = f"taketurns_test_{uuid.uuid4().hex[:12]}"
    with engine.schema(taketurns_database_url, schema):
        yield Settings().model_copy(
            update={"database_url": taketurns_database_url, "schema_name": schema, "listen_url": None}
        )


@pytest.fixture
def taketurns(taketurns_settings: Settings) -> Iterator[Engine]:
    """The engine, with no company and no task."""
    from taketurns.testing.engine import Engine  # noqa: PLC0415

    engine = Engine(taketurns_settings)
    with engine.in_use():
        yield engine
