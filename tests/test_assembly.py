"""The parts, put together: an application is found by its name, and served by an API and by workers."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx2
import psycopg
import pytest
from fastapi import FastAPI

from taketurns import ConfigurationError, Context, Taketurns, TaskState, assembly
from taketurns.assembly.jobs import open_job_broker
from taketurns.engine.job import JobCompany
from taketurns.engine.task import NewTask, Status
from taketurns.history import heartbeats
from taketurns.history.heartbeats import Heartbeat
from taketurns.settings import Settings
from taketurns.storage.ids import new_id
from tests.valkeys import Valkeys

PATIENCE_SECONDS = 90.0
BYE = 'event: bye\ndata: {"reason":"the process ends"}\n\n'


@pytest.fixture
def settings(database_url: str) -> Settings:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("insert into taketurns.companies (id, slug, name) values (%s, 'acme', 'Acme')", [new_id()])
    return Settings().model_copy(
        update={"database_url": database_url, "beat_seconds": 0.5, "authentication": "off-on-any-address"}
    )


@pytest.fixture
async def tt(settings: Settings) -> AsyncIterator[Taketurns]:
    application = Taketurns()
    application.adopt(settings)
    application.task(double)
    application.task(greet)
    async with application:
        yield application


def double(number: int) -> int:
    return 2 * number


async def greet(ctx: Context, name: str = "you") -> str:
    return f"{name}, attempt {ctx.attempt}"


# Applications by name.


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory that a user works in, with an application in it."""
    (tmp_path / "shop.py").write_text("from taketurns import Taketurns\ntt = Taketurns()\ntax = 7\n")
    (tmp_path / "broken.py").write_text("import no_such_module\n")
    (tmp_path / "empty.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    yield tmp_path
    for name in ("shop", "broken", "empty"):
        sys.modules.pop(name, None)


def test_an_application_is_found_in_the_working_directory(project: Path) -> None:
    application = assembly.load_application("shop:tt")
    assert application is sys.modules["shop"].tt
    assert assembly.load_application("shop:tt") is application
    assert assembly.load_registry(Settings(app="shop:tt")) is application.registry


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("shop", "named as module:variable"),
        (":tt", "named as module:variable"),
        ("shop:", "named as module:variable"),
        ("no_such_shop:tt", "no module 'no_such_shop'"),
        ("shop.cart:tt", "no module 'shop.cart'"),
        ("shop:app", "no Taketurns called 'app', but shop:tt"),
        ("shop:tax", "no Taketurns called 'tax', but shop:tt"),
        ("empty:tt", "write `tt = Taketurns\\(\\)` in it"),
    ],
)
def test_a_name_that_leads_to_no_application_says_what_is_wrong(project: Path, name: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        assembly.load_application(name)


def test_what_an_application_lacks_itself_is_not_mistaken_for_the_application(project: Path) -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        assembly.load_application("broken:tt")


def test_a_checkout_has_the_examples_unless_told_otherwise() -> None:
    assert assembly.load_application(None).registry.names == ["http_request", "send_email"]


def test_what_an_application_says_itself_stands_above_the_settings_of_its_process() -> None:
    settings = Settings(database_url="postgresql://here/shop", smtp_port=26)
    plain, choosy = Taketurns(), Taketurns(database_url="postgresql://there/shop", schema="tasks")
    assert plain.adopt(settings) == settings
    adopted = choosy.adopt(settings)
    assert (adopted.database_url, adopted.schema_name, adopted.smtp_port) == ("postgresql://there/shop", "tasks", 26)
    assert choosy.settings is adopted


# The API.


@asynccontextmanager
async def served(api: FastAPI) -> AsyncIterator[httpx2.AsyncClient]:
    async with (
        api.router.lifespan_context(api),
        httpx2.AsyncClient(transport=httpx2.ASGITransport(api), base_url="http://api") as client,
    ):
        yield client


async def test_the_api_takes_tasks_and_runs_a_pass(settings: Settings, tt: Taketurns) -> None:
    async with served(assembly.build_api(settings, tt.registry)) as client:
        made = await client.post("/companies/acme/tasks", json={"type": "double", "payload": {"number": 4}})
        assert made.status_code == 201
        report = (await client.post("/workers/process")).json()
        assert (report["claimed"], report["completed"]) == (1, 1)
        task = (await client.get(made.headers["location"])).json()
    assert (task["status"], task["result"]) == ("completed", 8)


async def test_a_pass_carries_operations_on(settings: Settings, tt: Taketurns) -> None:
    await tt.task(name="again")(double).enqueue_many("acme", [{"number": 1}] * 3)
    async with served(assembly.build_api(settings, tt.registry)) as client:
        cancel = {"kind": "cancel", "filter": {"type": ["again"]}}
        made = await client.post("/companies/acme/operations", json=cancel)
        assert (await client.post("/workers/process")).json()["claimed"] == 0
        operation = (await client.get(made.headers["location"])).json()
    assert (operation["done"], operation["finishedAt"] is None) == (3, False)


async def test_a_pass_ends_at_its_limit(settings: Settings, tt: Taketurns) -> None:
    registered = tt.task(name="again")(double)
    await registered.enqueue_many("acme", [{"number": number} for number in range(3)])
    async with served(assembly.build_api(settings, tt.registry)) as client:
        report = (await client.post("/workers/process", json={"limit": 2})).json()
    assert (report["claimed"], report["completed"]) == (2, 2)


async def test_a_key_stands_for_one_request_whether_it_came_by_python_or_by_the_api(
    settings: Settings, tt: Taketurns
) -> None:
    handler = tt.task(name="welcome")(greet)
    request = {"type": "welcome", "payload": {"name": "Ada"}, "priority": 3, "delaySeconds": 60}
    headers = {"Idempotency-Key": "order-7"}
    keyed = handler.using(priority=3, delay=60, idempotency_key="order-7")
    async with served(assembly.build_api(settings, tt.registry)) as client:
        task = await keyed.enqueue("acme", name="Ada")
        again = await client.post("/companies/acme/tasks", json=request, headers=headers)
        assert (again.status_code, again.json()["id"]) == (200, str(task.id))
        other = await client.post("/companies/acme/tasks", json={**request, "priority": 4}, headers=headers)
        assert other.status_code == 422


async def test_the_apis_of_one_cell_read_each_others_cursors(settings: Settings, tt: Taketurns) -> None:
    await tt.task(name="again")(double).enqueue_many("acme", [{"number": number} for number in range(3)])
    async with (
        served(assembly.build_api(settings, tt.registry)) as one,
        served(assembly.build_api(settings, tt.registry)) as other,
    ):
        page = (await one.get("/companies/acme/tasks", params={"limit": 2})).json()
        rest = (await other.get("/companies/acme/tasks", params={"limit": 2, "cursor": page["nextCursor"]})).json()
    assert len({task["id"] for task in page["tasks"] + rest["tasks"]}) == 3


# Workers.


async def ended(tt: Taketurns, task_id: UUID) -> TaskState:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        state = await tt.get("acme", task_id)
        assert state is not None
        if state.status.is_terminal:
            return state
        await asyncio.sleep(0.01)
    raise TimeoutError("the task did not end")


async def test_a_worker_runs_what_is_enqueued(settings: Settings, tt: Taketurns) -> None:
    handler = tt.task(name="welcome")(greet)
    async with assembly.build_worker(settings, tt.registry) as worker:
        working = asyncio.create_task(worker.run())
        task = await handler.enqueue("acme", name="Ada")
        assert (await ended(tt, task.id)).result == "Ada, attempt 1"
        worker.stop()
        await working


async def test_a_worker_of_tasks_needs_no_redis(settings: Settings, tt: Taketurns) -> None:  # fault 149
    stranded = settings.model_copy(update={"redis_url": "redis://127.0.0.1:1"})
    handler = tt.task(name="twice")(double)
    async with assembly.build_worker(stranded, tt.registry) as worker:
        working = asyncio.create_task(worker.run())
        tasks = [await handler.enqueue("acme", number=number) for number in range(20)]
        assert [(await ended(tt, task.id)).result for task in tasks] == [2 * number for number in range(20)]
        worker.stop()
        await working


def test_a_worker_of_tasks_does_not_load_what_jobs_need() -> None:
    script = "import sys; from taketurns.assembly import build_worker; sys.exit('redis' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


async def test_a_worker_of_jobs_needs_no_database(tt: Taketurns, valkey_url: str, valkey_cell: str) -> None:
    settings = Settings().model_copy(
        update={
            "database_url": "postgresql://nobody@127.0.0.1:1/none",
            "redis_url": valkey_url,
            "schema_name": valkey_cell,
            "broker": "redis",
        }
    )
    company_id, job = new_id(), NewTask(type="double", payload='{"number": 21}')
    async with (
        open_job_broker(settings, name="test") as broker,
        assembly.build_worker(settings, tt.registry) as worker,
    ):
        working = asyncio.create_task(worker.run())
        await broker.put_company(JobCompany(id=company_id, slug="acme", updated_at=datetime.now(UTC)))
        (made,) = await broker.enqueue("acme", [job])
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (state := await broker.job(company_id, made.task_id)) and not state.status.is_terminal:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        assert state
        assert (state.status, state.result) == (Status.COMPLETED, "42")
        assert state.expires_at
        assert state.finished_at
        assert state.expires_at - state.finished_at == timedelta(hours=24)
        worker.stop()
        await working


async def test_a_worker_of_jobs_is_heard_of_in_the_database(settings: Settings, tt: Taketurns, valkey: Valkeys) -> None:
    named = settings.model_copy(
        update={"redis_url": valkey().url, "broker": "redis", "worker_name": "jobs", "beat_seconds": 0.1}
    )

    async with tt.client.broker() as broker:

        async def heard_of(fits: Callable[[Heartbeat], bool]) -> Heartbeat:
            deadline = time.monotonic() + PATIENCE_SECONDS
            while time.monotonic() < deadline:
                for heartbeat in (await heartbeats.page(broker.database, limit=10)).heartbeats:
                    if fits(heartbeat):
                        return heartbeat
                await asyncio.sleep(0.01)
            raise TimeoutError("the worker was not heard of")

        async with assembly.build_worker(named, tt.registry) as worker:
            working = asyncio.create_task(worker.run())
            first = await heard_of(lambda heartbeat: heartbeat.name == "jobs")
            assert first.left_at is None
            later = await heard_of(lambda heartbeat: heartbeat.beat_at > first.beat_at)
            assert abs(later.started_at - first.started_at) < timedelta(seconds=5)
            worker.stop()
            await working
        await heard_of(lambda heartbeat: heartbeat.left_at is not None)


@contextmanager
def process(*command: str, settings: Settings, cwd: Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A process of the service; ended when the test has not."""
    running = subprocess.Popen(
        [sys.executable, *command],
        cwd=cwd,
        env={**os.environ, "TAKETURNS_DATABASE_URL": settings.database_url, "TAKETURNS_AUTHENTICATION": "off"}
        | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield running
    finally:
        if running.poll() is None:
            running.kill()
        running.communicate()


SHOP = """
    from taketurns import Context, Taketurns

    tt = Taketurns()

    @tt.task
    async def order(ctx: Context, number: int) -> int:
        if number > 1:
            await order.enqueue(ctx.company_id, number=number - 1)
        return number
"""

SERVE_WORKER = """
import asyncio
from taketurns import assembly, settings
asyncio.run(assembly.serve_worker(settings.current(), assembly.load_application(settings.current().app)))
"""


async def test_a_worker_process_serves_its_application_until_it_is_told_to_stop(
    settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(textwrap.dedent(SHOP))
    shop = Taketurns()
    shop.adopt(settings)

    @shop.task
    def order(number: int) -> None: ...

    task = await order.enqueue("acme", number=3)
    with process(
        "-c", SERVE_WORKER, settings=settings, cwd=tmp_path, TAKETURNS_APP="shop:tt", TAKETURNS_METRICS_PORT="0"
    ) as worker:
        assert (await ended(shop, task.id)).result == 3
        await until_completed(settings, 3)
        worker.send_signal(signal.SIGTERM)
        output, _ = await asyncio.to_thread(worker.communicate, timeout=PATIENCE_SECONDS)
        assert worker.returncode == 0, output
    await shop.close()


async def until_completed(settings: Settings, count: int) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    async with await psycopg.AsyncConnection.connect(settings.database_url, autocommit=True) as connection:
        while time.monotonic() < deadline:
            cursor = await connection.execute("select count(*) from taketurns.tasks where finished_at is not null")
            if await cursor.fetchone() == (count,):
                return
            await asyncio.sleep(0.01)
    raise TimeoutError(f"{count} tasks did not end")


async def test_uvicorn_serves_the_application_of_the_environment(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(textwrap.dedent(SHOP))
    socket = tmp_path / "api.sock"
    command = ["-m", "uvicorn", "taketurns.main:app", "--uds", str(socket)]
    with process(*command, settings=settings, cwd=tmp_path, TAKETURNS_APP="shop:tt") as server:
        transport = httpx2.AsyncHTTPTransport(uds=str(socket))
        async with httpx2.AsyncClient(transport=transport, base_url="http://api") as client:
            await answering(client, server)
            made = await client.post("/companies/acme/tasks", json={"type": "order", "payload": {"number": 2}})
            assert made.status_code == 201
            for _ in range(2):
                await client.post("/workers/process")
            tasks = (await client.get("/companies/acme/tasks")).json()["tasks"]
            assert [(task["status"], task["result"]) for task in tasks] == [("completed", 1), ("completed", 2)]
        server.send_signal(signal.SIGTERM)
        output, _ = await asyncio.to_thread(server.communicate, timeout=PATIENCE_SECONDS)
        assert server.returncode in {0, -signal.SIGTERM}, output
        assert "Application shutdown complete" in output


async def test_an_api_that_is_to_end_lets_go_who_waits_and_who_watches(  # fault 170
    settings: Settings, tmp_path: Path, valkey: Valkeys
) -> None:
    (tmp_path / "shop.py").write_text(textwrap.dedent(SHOP))
    socket = tmp_path / "api.sock"
    command = ["-m", "uvicorn", "taketurns.main:app", "--uds", str(socket)]
    environment = {"TAKETURNS_APP": "shop:tt", "TAKETURNS_REDIS_URL": valkey().url}
    with process(*command, settings=settings, cwd=tmp_path, **environment) as server:
        transport = httpx2.AsyncHTTPTransport(uds=str(socket))
        async with httpx2.AsyncClient(transport=transport, base_url="http://api", timeout=PATIENCE_SECONDS) as client:
            await answering(client, server)
            order = {"type": "order", "payload": {"number": 1}}
            waiting = [
                asyncio.create_task(client.post("/companies/acme/tasks", json=order, headers={"Prefer": "wait=60"}))
                for _ in range(5)
            ]
            made = await client.post("/companies/acme/jobs", json=order)
            streams = [asyncio.create_task(client.get(f"{made.headers['location']}/events")) for _ in range(20)]
            host = {"host": "localhost"}
            streams += [asyncio.create_task(client.get("/dashboard/live/stream", headers=host)) for _ in range(3)]
            await until_told(client, f"requests_waiting {len(waiting) + 20}.0")
            await until_told(client, f"streams_open {len(streams)}.0")
            server.send_signal(signal.SIGTERM)
            answers = await asyncio.gather(*waiting)
            assert {(await stream).text[-len(BYE) :] for stream in streams} == {BYE}
            assert {(answer.status_code, answer.json()["status"]) for answer in answers} == {(201, "pending")}
            assert not any("preference-applied" in answer.headers for answer in answers)
        output, _ = await asyncio.to_thread(server.communicate, timeout=PATIENCE_SECONDS)
        assert "Application shutdown complete" in output


async def until_told(client: httpx2.AsyncClient, figure: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if figure in (await client.get("/metrics")).text:
            return
        await asyncio.sleep(0.05)
    raise TimeoutError(f"the metrics do not tell {figure}")


async def answering(client: httpx2.AsyncClient, server: subprocess.Popen[Any]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        try:
            if (await client.get("/ready")).is_success:
                return
        except httpx2.TransportError:
            await asyncio.sleep(0.05)
    raise TimeoutError("the API did not answer")
