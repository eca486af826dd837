"""`taketurns workers`: workers of tasks and of jobs are told to drain, to go on and to stop, and do."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest
from typer.testing import Result

from taketurns.assembly.jobs import make_job_broker
from taketurns.brokers.postgres import PostgresBroker
from taketurns.engine.job import JobCompany
from taketurns.engine.task import NewTask
from taketurns.settings import Settings
from taketurns.storage.database import Database
from taketurns.storage.ids import new_id
from tests.cli import test_commands
from tests.valkeys import Valkeys
from tests.waiting import PATIENCE, soon

WORKER = {
    "TAKETURNS_APP": "tests.journeys.app:tt",
    "TAKETURNS_METRICS_PORT": "0",
    "TAKETURNS_BEAT_SECONDS": "0.3",
    "TAKETURNS_STALE_AFTER_SECONDS": "3",
    "TAKETURNS_CONCURRENCY": "2",
}


class Cell:
    """A cell with a company, its workers' processes, and what their handlers left behind."""

    def __init__(self, url: str, valkey_url: str, lane: str, directory: Path) -> None:
        self.url = url
        self.lane = lane
        self.company_id = new_id()
        self._runs = directory / "runs"
        self._runs.touch()
        self._settings = {"TAKETURNS_BROKER": lane, "TAKETURNS_REDIS_URL": valkey_url}
        self._directory = directory
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                "insert into taketurns.companies (id, slug, name) values (%s, 'acme', 'Acme')", [self.company_id]
            )

    def run(self, *arguments: str) -> Result:
        return test_commands.run("workers", *arguments, url=self.url, env=self._settings)

    @contextmanager
    def working(self, name: str) -> Iterator[subprocess.Popen[bytes]]:
        """The process of a worker that has been heard of."""
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("TAKETURNS_")},
            **WORKER,
            **self._settings,
            "TAKETURNS_DATABASE_URL": self.url,
            "TAKETURNS_WORKER_NAME": name,
            "JOURNEY_RUNS": str(self._runs),
        }
        with (self._directory / f"{name}.log").open("wb") as log:
            command = [sys.executable, "-m", "taketurns.cli", "worker"]
            process = subprocess.Popen(command, env=environment, cwd=test_commands.ROOT, stdout=log, stderr=log)
        try:
            soon(lambda: self.shown().get(name) == ("run", "running"))
            yield process
        finally:
            process.kill()
            process.wait()

    def shown(self) -> dict[str, tuple[str, str]]:
        """What is wanted of each worker, and what it does."""
        listed = json.loads(self.run("list", "--json").stdout)
        return {one["name"]: (one["wanted"], one["state"]) for one in listed}

    def submit(self, count: int, *, seconds: float = 0.0) -> None:
        tasks = [
            NewTask(type="count", payload=json.dumps({"number": number, "seconds": seconds}), task_id=new_id())
            for number in range(count)
        ]

        async def in_postgres() -> None:
            database = Database(self.url, pool_size=2)
            await database.open()
            broker = PostgresBroker(database)
            await broker.enqueue("acme", tasks)
            await broker.notifier.flush()
            await database.close()

        async def in_redis() -> None:
            broker = make_job_broker(Settings(redis_url=self._settings["TAKETURNS_REDIS_URL"]), name="test")
            company = JobCompany(id=self.company_id, slug="acme", updated_at=datetime.now(UTC))
            await broker.put_company(company)
            await broker.enqueue("acme", tasks)
            await broker.server.close()

        asyncio.run(in_postgres() if self.lane == "postgres" else in_redis())

    def runs(self) -> list[int]:
        """The processes of the runs that have begun."""
        return [int(line.split()[1]) for line in self._runs.read_text().splitlines()]


@pytest.fixture(params=["postgres", "redis"])
def cell(database_url: str, valkey: Valkeys, tmp_path: Path, request: pytest.FixtureRequest) -> Cell:
    return Cell(database_url, valkey().url, request.param, tmp_path)


def test_a_worker_is_drained_goes_on_and_is_stopped_and_nothing_is_lost(cell: Cell) -> None:
    with cell.working("first") as first, cell.working("second") as second:
        assert cell.run("drain", "first").exit_code == 0
        soon(lambda: cell.shown()["first"] == ("drain", "draining"))
        cell.submit(20)
        soon(lambda: len(cell.runs()) == 20)
        assert set(cell.runs()) == {second.pid}
        assert cell.run("resume", "first").exit_code == 0
        soon(lambda: cell.shown()["first"] == ("run", "running"))
        cell.submit(2, seconds=0.5)
        cell.submit(20)
        soon(lambda: len(cell.runs()) > 21)
        assert cell.run("stop", "second").exit_code == 0
        assert second.wait(PATIENCE) == 0
        soon(lambda: len(cell.runs()) == 42)
        cell.submit(20)
        soon(lambda: len(cell.runs()) == 62)
        assert set(cell.runs()[-20:]) == {first.pid}
        assert cell.run("stop", "first").exit_code == 0
        assert first.wait(PATIENCE) == 0
    for name in ("first", "nobody"):
        refused = cell.run("drain", name)
        assert (refused.exit_code, refused.stderr.startswith(f"no process of worker '{name}' takes orders")) == (
            1,
            True,
        )


def test_the_list_says_what_each_does(cell: Cell) -> None:
    assert cell.run("list").output == ""
    with cell.working("mail") as worker:
        assert "  mail  running, heard of " in cell.run("list").output
        (one,) = json.loads(cell.run("list", "--json").stdout)
        assert cell.run("stop", one["id"]).exit_code == 0
        assert worker.wait(PATIENCE) == 0
        assert "  mail  left, heard of " in cell.run("list").output
