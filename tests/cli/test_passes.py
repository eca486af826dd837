"""`taketurns worker --once` for cron, and `taketurns heartbeat check` for whoever wants to know that it runs."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from typer.testing import Result

from taketurns.brokers.postgres import PostgresBroker
from taketurns.engine.task import NewTask
from taketurns.storage.database import Database
from tests.cli import test_commands
from tests.waiting import soon

APP = {"TAKETURNS_APP": "tests.cli.pass_app:tt"}


class Cell:
    def __init__(self, url: str) -> None:
        self.url = url
        self.connection = psycopg.connect(url, autocommit=True)
        self.execute("insert into taketurns.companies (id, slug, name) values (%s, 'acme', 'Acme')", uuid4())

    def execute(self, statement: str, *values: object) -> list[tuple[object, ...]]:
        cursor = self.connection.execute(statement.encode(), values or None)
        return cursor.fetchall() if cursor.description else []

    def run(self, *arguments: str) -> Result:
        return test_commands.run(*arguments, url=self.url, env=APP)

    def submit(self, type: str, *arguments: dict[str, str]) -> None:
        tasks = [NewTask(type=type, payload=json.dumps(given)) for given in arguments]

        async def enqueue() -> None:
            database = Database(self.url, pool_size=2)
            await database.open()
            broker = PostgresBroker(database)
            await broker.enqueue("acme", tasks)
            await broker.notifier.flush()
            await database.close()

        asyncio.run(enqueue())

    def waiting(self) -> int:
        return len(self.execute("select task_id from taketurns.pending_tasks"))

    def grow_old(self) -> None:
        self.execute("update taketurns.heartbeats set beat_at = beat_at - interval '1 hour'")


@pytest.fixture(autouse=True)
def logs_are_written_as_before() -> Iterator[None]:
    """A command says how its process writes logs, and this process is not its own."""
    root, alembic = logging.getLogger(), logging.getLogger("alembic")
    handlers, levels = root.handlers, (root.level, alembic.level)
    yield
    root.handlers = handlers
    root.setLevel(levels[0])
    alembic.setLevel(levels[1])


@pytest.fixture
def cell(database_url: str) -> Iterator[Cell]:
    cell = Cell(database_url)
    yield cell
    cell.connection.close()


def test_a_pass_is_made_and_ends_well_though_tasks_failed(cell: Cell) -> None:
    cell.submit("work", {"how": "fail"}, {"how": "well"}, {"how": "well"})
    assert cell.run("worker", "--once").exit_code == 0
    assert cell.waiting() == 0
    assert cell.execute("select count(*) from taketurns.tasks where stopped_as = 'failed'") == [(1,)]


def test_a_pass_has_a_limit_and_a_drain_has_none(cell: Cell) -> None:
    cell.submit("work", *[{"how": "well"}] * 5)
    made = cell.run("worker", "--once", "--limit", "2", "-c", "1")
    assert made.exit_code == 0, made.stderr
    assert cell.waiting() == 3
    assert cell.run("worker", "--drain").exit_code == 0
    assert cell.waiting() == 0


def test_a_limit_is_a_passs(cell: Cell) -> None:
    refused = cell.run("worker", "--limit", "2")
    assert refused.exit_code == 2
    assert "--once" in refused.stderr


def test_a_pass_that_could_not_be_made_says_why_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taketurns.worker.worker.PASS_LEASE_SECONDS", 0.2)
    refused = test_commands.run("worker", "--once", env=APP)
    assert refused.exit_code == 1
    assert refused.stderr.splitlines()[-1].startswith("the pass could not be made: ")


def test_a_pass_that_is_told_to_stop_releases_what_waits_and_leaves_well(cell: Cell, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    cell.submit("wait", *[{"gate": str(gate)}] * 3)
    settings = {**APP, "TAKETURNS_CONCURRENCY": "1", "TAKETURNS_BATCH": "3"}
    with test_commands.process("worker", "--once", url=cell.url, **settings) as running:
        test_commands.said(running, "a handler waits")
        running.popen.send_signal(signal.SIGTERM)
        soon(lambda: cell.waiting() == 2)
        gate.touch()
        assert running.popen.wait(timeout=test_commands.PATIENCE_SECONDS) == 0
    assert cell.execute("select count(*) from taketurns.tasks where finished_at is not null") == [(1,)]


# Heartbeats


def test_a_pass_is_heard_of_and_missed_when_it_does_not_come_again(cell: Cell) -> None:
    assert cell.run("worker", "--once", "--name", "nightly").exit_code == 0
    heard = cell.run("heartbeat", "check", "--max-age", "10m")
    assert (heard.exit_code, heard.output) == (0, "1 heard of within 10m, nobody is late\n")
    cell.grow_old()
    late = cell.run("heartbeat", "check", "--max-age", "10m")
    assert late.exit_code == 1
    assert late.output.startswith("nightly is late by 50m")
    assert cell.run("heartbeat", "check", "--max-age", "2h").exit_code == 0


def test_only_the_name_that_is_asked_for_counts(cell: Cell) -> None:
    cell.run("worker", "--once", "--name", "nightly")
    cell.grow_old()
    cell.run("worker", "--once", "--name", "hourly")
    assert cell.run("heartbeat", "check", "--name", "hourly").exit_code == 0
    assert cell.run("heartbeat", "check", "--name", "nightly").exit_code == 1
    assert cell.run("heartbeat", "check").exit_code == 1


def test_no_heartbeat_at_all_is_an_alarm(cell: Cell) -> None:
    silent = cell.run("heartbeat", "check")
    assert (silent.exit_code, silent.output) == (1, "no heartbeat within 10m\n")
    cell.run("worker", "--once")
    silent = cell.run("heartbeat", "check", "--name", "nightly")
    assert (silent.exit_code, silent.output) == (1, "no heartbeat of 'nightly' within 10m\n")


def test_a_check_is_told_in_json(cell: Cell) -> None:
    cell.run("worker", "--once", "--name", "nightly")
    cell.grow_old()
    checked = cell.run("heartbeat", "check", "--max-age", "30m", "--json")
    told = json.loads(checked.output)
    (one,) = told["heartbeats"]
    assert (checked.exit_code, told["ok"], told["maxAgeSeconds"]) == (1, False, 1800)
    assert (one["name"], one["kind"], one["isLate"]) == ("nightly", "pass", True)
    assert one["lateBySeconds"] == pytest.approx(one["ageSeconds"] - 1800)


@pytest.mark.parametrize("wrong", [["--max-age", "soon"], ["--max-age", "10"], ["--until", "1h"]])
def test_a_check_that_is_asked_for_wrongly_is_no_alarm(cell: Cell, wrong: list[str]) -> None:
    assert cell.run("heartbeat", "check", *wrong).exit_code == 2


def test_a_check_without_a_database_says_so() -> None:
    refused = test_commands.run("heartbeat", "check")
    assert refused.exit_code == 1
    assert "cannot use the database" in refused.stderr
