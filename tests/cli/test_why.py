"""What an operator is told when tasks do not run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from uuid import UUID, uuid4

import psycopg
import pytest

from taketurns.storage.database import conninfo
from tests.cli.test_commands import AWAY, run


@pytest.fixture
def connection(database_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(conninfo(database_url), autocommit=True) as connection:
        connection.execute("set search_path to taketurns")
        connection.execute("insert into companies (id, slug, name) values (gen_random_uuid(), 'acme', 'Acme')")
        yield connection


def add(connection: psycopg.Connection, *, delay_seconds: float = 0.0) -> UUID:
    task_id = uuid4()
    place = "scheduled_tasks" if delay_seconds else "pending_tasks"
    connection.execute(
        "insert into tasks (company_id, id, type, queue, priority, run_after, max_retries, payload, created_at)"
        " select id, %s, 'work', 'default', 5, now() + make_interval(secs => %s), 0, '{}', now() from companies",
        (task_id, delay_seconds),
    )
    connection.execute(
        f"insert into {place} (company_id, task_id, queue, priority, run_after, type)"
        " select company_id, id, queue, priority, run_after, type from tasks where id = %s".encode(),
        (task_id,),
    )
    return task_id


def add_worker(connection: psycopg.Connection, *, queue: str = "default") -> None:
    connection.execute("delete from workers")
    connection.execute(
        "insert into workers (id, name, host, version, queues, types, concurrency, started_at, beat_at)"
        " values (gen_random_uuid(), 'worker', 'host', '0.1.0', array[%s], '{work}', 4, now(), now())",
        (queue,),
    )


def test_one_sentence_says_why_a_task_waits(database_url: str, connection: psycopg.Connection) -> None:
    def told(task_id: UUID) -> str:
        shown = run("why", str(task_id), url=database_url)
        assert shown.exit_code == 0
        name, _, reason = shown.output.strip().partition(" waits ")
        assert name == f"task {task_id} of acme"
        return reason

    later, first, second = add(connection, delay_seconds=3600.0), add(connection), add(connection)
    assert told(first).startswith("because no living worker serves the queue 'default', and has been due for ")
    add_worker(connection, queue="mail")
    assert told(second).startswith("because no living worker serves the queue 'default', and")
    add_worker(connection)
    assert told(later).startswith("for its time, ")
    assert told(second).startswith("behind 1 other task of acme, and")
    connection.execute("update companies set paused = true")
    assert told(first).startswith("because acme is paused, and")


def test_a_task_that_does_not_wait_is_said_to_be_what_it_is(database_url: str, connection: psycopg.Connection) -> None:
    task_id = add(connection)
    connection.execute("delete from pending_tasks")
    connection.execute("update tasks set finished_at = now()")
    shown = run("why", str(task_id), "--company", "acme", url=database_url)
    assert shown.output == f"task {task_id} of acme does not wait: it is completed.\n"


def test_a_task_of_nobody_or_of_another_company_is_not_there(database_url: str, connection: psycopg.Connection) -> None:
    task_id = add(connection)
    assert run("why", str(uuid4()), url=database_url).exit_code == 1
    refused = run("why", str(task_id), "--company", "globex", url=database_url)
    assert (refused.exit_code, refused.stderr) == (1, f"there is no task {task_id} of 'globex'\n")
    assert run("why", "7", url=database_url).exit_code == 2


def test_a_companys_figures_are_shown(database_url: str, connection: psycopg.Connection) -> None:
    add_worker(connection)
    add(connection)
    connection.execute(
        "select tell_attempts('tasks', array(select id from companies), '{9}', '{1}', '{2}', array['{1}'], 1)"
    )
    shown = run("stats", "acme", "--window", "1m", url=database_url)
    assert shown.exit_code == 0
    waiting, in_flight, tasks, jobs = shown.output.splitlines()
    assert waiting.startswith("waiting    1, the oldest for ")
    assert in_flight == "in flight  0, of a fair share of 4"
    assert "9 completed" in tasks
    assert "2 failed, 1 tried again, waited 0.00084 s" in tasks
    assert jobs.endswith("0 completed (0/s), 0 failed, 0 tried again")
    as_json = json.loads(run("stats", "acme", "--json", url=database_url).output)
    assert (as_json["backlog"], as_json["tasks"]["completed"]) == (1, 9)


def test_figures_of_nobody_and_of_no_window_are_refused(database_url: str) -> None:
    refused = run("stats", "nobody", url=database_url)
    assert (refused.exit_code, refused.stderr) == (1, "there is no company 'nobody'\n")
    assert "must be from 10s to 7d" in run("stats", "acme", "--window", "1s", url=database_url).stderr


def test_a_database_that_is_away_is_said_to_be() -> None:
    assert run("stats", "acme", url=AWAY).exit_code == 1
