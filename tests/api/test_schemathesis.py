"""The API keeps to its document, whatever a client makes of that: no 5xx, no status and no body that is not there."""

from __future__ import annotations

import asyncio
import json
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Queue
from threading import Thread
from typing import Any

import pytest
import schemathesis
from httpx2 import AsyncClient
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance
from schemathesis.specs.openapi.schemas import OpenApiSchema

from taketurns.api import streams
from taketurns.api.application import create_api
from taketurns.api.guard import Guard
from taketurns.brokers.postgres import PostgresBroker
from taketurns.brokers.redis import RedisBroker
from taketurns.brokers.redis.server import Server
from taketurns.companies import directory, keys
from taketurns.companies.keyring import KeyRing
from taketurns.companies.keys import Stamp
from taketurns.engine.key import GRANTS, Role
from taketurns.engine.lease import Holder
from taketurns.engine.registry import Registry
from taketurns.storage.database import Database
from taketurns.storage.ids import new_id
from tests.api.conftest import anything, process_nothing, send_email
from tests.api.servers import served
from tests.api.test_documentation import SNAPSHOT
from tests.effort import examples
from tests.servers import DatabaseServer
from tests.valkeys import forget
from tests.waiting import PATIENCE

PATHS = {
    operation["operationId"]: path
    for path, operations in json.loads(SNAPSHOT.read_text("utf-8"))["paths"].items()
    for operation in operations.values()
}
# The routes of a company once more, without it: the same code behind other paths.
OWN_OPERATIONS = {
    operation_id for operation_id, path in PATHS.items() if "/companies/{companyId}" + path in PATHS.values()
}

# Beside what paths name: the keys that open them.
ADMIN, OWN = "admin", "own"

Started = Queue[tuple[str, dict[str, str], asyncio.AbstractEventLoop, asyncio.Event]]


async def serve(database_url: str, company_url: str, redis_url: str, cell: str, started: Started) -> None:
    """The API on a loop of its own, with a company, a task, a job and a schedule, until told to stop."""
    database = Database(database_url, pool_size=4, companies=Database(company_url, pool_size=4))
    broker = PostgresBroker(database)
    server = Server(redis_url, cell=cell)
    registry = Registry()
    registry.add(send_email, queue="mail")
    registry.add(anything)
    app = create_api(
        database=database,
        broker=broker,
        registry=registry,
        job_broker=RedisBroker(server),
        process_pass=process_nothing,
        version="0.1.0",
        cursor_secret=b"secret",
        guard=Guard(keyring=KeyRing(database)),
    )
    stop = asyncio.Event()
    await database.open()
    admin = await keys.create_for_operator(database, stamp=Stamp(), name="admin", role=Role.ADMIN)
    acme = await directory.create(database, name="Acme", slug="acme")
    own = await keys.create_for_company(database, acme.id, stamp=Stamp(), name="own", scopes=GRANTS)
    by_admin = {"Authorization": f"Bearer {admin.text}"}
    async with served(app) as address, AsyncClient(base_url=address, headers=by_admin) as client:
        task = await client.post("/companies/acme/tasks", json={"type": "anything"})
        job = await client.post("/companies/acme/jobs", json={"type": "anything"})
        weekly = {"name": "weekly", "type": "anything", "expression": "0 9 * * 1"}
        schedule = await client.post("/companies/acme/schedules", json=weekly)
        spare = await client.post("/companies/acme/keys", json={"name": "spare", "scopes": ["tasks:read"]})
        operation = await client.post(
            "/companies/acme/operations", json={"kind": "retry", "filter": {"status": ["failed"]}}
        )
        line = broker.lease_line(patience_seconds=5)
        line.take(new_id(), Holder(queues=(), types=(), concurrency=1, name="mail"), former=None)
        line.close()
        known = {
            "companyId": "acme",
            "taskId": task.json()["id"],
            "jobId": job.json()["jobId"],
            "operationId": operation.json()["id"],
            "scheduleId": schedule.json()["id"],
            "keyId": spare.json()["id"],
            "workerId": "mail",
            ADMIN: admin.text,
            OWN: own.text,
        }
        started.put((address, known, asyncio.get_running_loop(), stop))
        await stop.wait()
    await app.state.parts.guard.keyring.close()
    await server.close()
    await broker.notifier.flush()
    await database.close()


@contextmanager
def serving(database_url: str, company_url: str, redis_url: str) -> Iterator[tuple[str, dict[str, str]]]:
    started = Started()
    cell = f"test_{uuid.uuid4().hex[:12]}"
    thread = Thread(target=lambda: asyncio.run(serve(database_url, company_url, redis_url, cell, started)))
    thread.start()
    address, known, loop, stop = started.get(timeout=PATIENCE)
    try:
        yield address, known
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        forget(redis_url, cell)


@pytest.fixture(scope="module")
def schema(postgres_server: DatabaseServer, template_database: str, valkey_url: str) -> Iterator[OpenApiSchema]:
    """The document of a real API; most of the paths made from it name what is there of each.

    A stream of the job's events is soon an old one.
    """
    with (
        pytest.MonkeyPatch.context() as patch,
        postgres_server.database(template=template_database) as url,
        serving(url, postgres_server.company_url(url), valkey_url) as (address, known),
    ):
        patch.setattr(streams, "AGE_SECONDS", 0.1)
        schema = schemathesis.openapi.from_url(f"{address}/openapi.json")
        assert isinstance(schema, OpenApiSchema)

        @schema.auth()
        class ByKey:
            """The company's key where the path names no company, and an admin's elsewhere."""

            def get(self, case: schemathesis.Case[Any], _: object) -> str:
                return known[OWN if case.path.split("/")[1] in {"tasks", "jobs"} else ADMIN]

            def set(self, case: schemathesis.Case[Any], key: str, _: object) -> None:
                case.headers["Authorization"] = f"Bearer {key}"

        @schema.hook
        def map_path_parameters(context: object, path_parameters: dict[str, object] | None) -> dict[str, object]:
            return {
                name: known[name] if zlib.crc32(repr(value).encode()) % 4 else value
                for name, value in (path_parameters or {}).items()
            }

        yield schema


# The server runs in a thread of this process, and its pool draws random numbers of its own meanwhile.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")
@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.parametrize("operation_id", PATHS)
def test_the_api_keeps_to_its_document(schema: OpenApiSchema, operation_id: str, mode: GenerationMode) -> None:
    operation = schema.find_operation_by_id(operation_id)
    is_twin = operation_id in OWN_OPERATIONS

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=examples(3 if is_twin else 8),
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    def keeps_to_it(case: schemathesis.Case[Any]) -> None:
        # A schema cannot say which types are known, which cursors were given, or that 44.0 is no integer here.
        case.call_and_validate(excluded_checks=[positive_data_acceptance])

    keeps_to_it()
