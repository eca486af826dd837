"""Workers and servers die under load, and every task ends once as completed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from taketurns.storage import schema
from taketurns.storage.embedded import PostgresServer
from taketurns.storage.embedded.postgres import UNSAFE_SETTINGS

COMPANIES = ("acme", "globex", "initech")
PATIENCE_SECONDS = 60.0


class Journey:
    """A cell, the workers on it, and what they did."""

    def __init__(self, url: str, directory: Path) -> None:
        self.url = url
        self.runs_path = directory / "runs"
        self.runs_path.touch()
        self.workers: list[subprocess.Popen[bytes]] = []
        with self.connect() as connection:
            for slug in COMPANIES:
                connection.execute(
                    "insert into companies (id, slug, name) values (gen_random_uuid(), %s, %s)", (slug, slug)
                )

    def connect(self) -> psycopg.Connection[tuple[object, ...]]:
        connection = psycopg.connect(self.url, autocommit=True)
        connection.execute("set search_path to taketurns")
        return connection

    def start_worker(self, *, stale_after_seconds: float = 1.5) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "TAKETURNS_DATABASE_URL": self.url,
            "TAKETURNS_APP": "tests.journeys.app:tt",
            "TAKETURNS_METRICS_PORT": "0",
            "TAKETURNS_CONCURRENCY": "8",
            "TAKETURNS_BATCH": "32",
            "TAKETURNS_BEAT_SECONDS": "0.3",
            "TAKETURNS_STALE_AFTER_SECONDS": str(stale_after_seconds),
            "TAKETURNS_LOG_LEVEL": "warning",
            "JOURNEY_RUNS": str(self.runs_path),
        }
        worker = subprocess.Popen(
            [sys.executable, "-m", "taketurns.cli", "worker"], env=environment, cwd=Path(__file__).parents[2]
        )
        self.workers.append(worker)
        return worker

    def submit(self, tasks: int, *, seconds: float = 0.0) -> None:
        """That many tasks for each company, numbered through, of both kinds of handlers."""
        with self.connect() as connection:
            for place, company in enumerate(COMPANIES):
                numbers = range(place * tasks, (place + 1) * tasks)
                connection.execute(
                    "select from enqueue(%s, array(select gen_random_uuid() from generate_series(1, %s)), %s, %s,"
                    " array_fill('default'::text, array[%s]), array_fill(5::smallint, array[%s]), null, null,"
                    " array_fill(0, array[%s]), null)",
                    (
                        company,
                        tasks,
                        ["count" if number % 2 else "count_in_thread" for number in numbers],
                        [
                            f'{{"number": {number}, "seconds": {seconds}}}' if number % 2 else f'{{"number": {number}}}'
                            for number in numbers
                        ],
                        tasks,
                        tasks,
                        tasks,
                    ),
                )

    def number(self, query: str) -> int:
        with self.connect() as connection:
            row = connection.execute(query).fetchone()
        return int(str(row[0])) if row else 0

    def completed(self) -> int:
        return self.number("select count(*) from tasks where finished_at is not null and stopped_as is null")

    def runs(self) -> Counter[int]:
        """How often each number's handler was begun."""
        return Counter(int(line.split()[0]) for line in self.runs_path.read_text().splitlines())

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < give_up_at, f"waited too long: {what}"
            time.sleep(0.05)

    def assert_all_completed_once(self, tasks: int) -> None:
        """In the database: each ended once, nothing is left anywhere, and every number was run."""
        assert self.completed() == tasks
        assert self.number("select count(*) from tasks") == tasks
        for place in ("scheduled_tasks", "pending_tasks", "processing_tasks"):
            assert self.number(f"select count(*) from {place}") == 0
        assert self.number("select count(*) from task_events where kind in ('completed', 'failed', 'cancelled')") == 0
        assert set(self.runs()) == set(range(tasks))

    def close(self) -> None:
        for worker in self.workers:
            if worker.poll() is None:
                worker.kill()
            worker.wait()


@pytest.fixture
def journey(database_url: str, tmp_path: Path) -> Iterator[Journey]:
    with closing(Journey(database_url, tmp_path)) as journey:
        yield journey


@pytest.fixture
def server(open_directory: Path) -> Iterator[PostgresServer]:
    """One that nobody else uses."""
    with PostgresServer(open_directory / "server", settings=UNSAFE_SETTINGS) as server:
        yield server


def test_a_worker_killed_in_mid_batch_loses_no_task_and_repeats_only_what_it_held(journey: Journey) -> None:
    journey.submit(400, seconds=0.02)
    victim, _ = journey.start_worker(), journey.start_worker()
    journey.wait(lambda: journey.completed() > 100, "the first hundred")
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    journey.wait(lambda: journey.completed() == 1200, "all tasks")
    journey.assert_all_completed_once(1200)
    repeated = [number for number, times in journey.runs().items() if times > 1]
    rescued = journey.number("select count(*) from task_events where kind = 'rescued'")
    assert len(repeated) <= rescued


def test_a_restart_of_the_database_under_load_loses_no_task(server: PostgresServer, tmp_path: Path) -> None:
    url = server.create_database("journey")
    schema.upgrade(url)
    with closing(Journey(url, tmp_path)) as journey:
        journey.submit(400, seconds=0.02)
        workers = [journey.start_worker(), journey.start_worker()]
        journey.wait(lambda: journey.completed() > 100, "the first hundred")
        server.restart()
        journey.submit(50)
        journey.wait(lambda: journey.completed() == 1350, "all tasks")
        assert journey.completed() == journey.number("select count(*) from tasks")
        assert all(worker.poll() is None for worker in workers)
        for place in ("pending_tasks", "processing_tasks"):
            assert journey.number(f"select count(*) from {place}") == 0


def test_a_worker_told_to_stop_under_load_gives_back_what_it_has_not_begun(journey: Journey) -> None:
    journey.submit(150, seconds=0.05)
    leaver = journey.start_worker(stale_after_seconds=15)
    journey.wait(lambda: journey.completed() > 50, "the first fifty")
    leaver.send_signal(signal.SIGTERM)
    assert leaver.wait(20) == 0
    assert journey.number("select count(*) from processing_tasks") == 0
    assert journey.number("select count(*) from workers") == 0
    released = journey.number("select count(*) from task_events where kind = 'released'")
    assert released > 0
    journey.start_worker(stale_after_seconds=15)
    journey.wait(lambda: journey.completed() == 450, "all tasks")
    journey.assert_all_completed_once(450)
    assert max(journey.runs().values()) == 1
    assert journey.number("select max(retry_count) from tasks") == 0
