"""A cell with companies, and the means to run workers on it and to see what became of its tasks."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import tempfile
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
from psycopg import sql

from taketurns.brokers.postgres import PostgresBroker
from taketurns.engine.broker import Broker
from taketurns.engine.registry import Registry
from taketurns.engine.task import NewTask
from taketurns.storage.database import Database
from taketurns.worker import Worker
from tests import forks
from tests.waiting import PATIENCE, Answer, soon
from tests.worker.process import work

QUICK: dict[str, Any] = {"beat_seconds": 0.2, "stale_after_seconds": 2.1, "poll_seconds": 0.2}

WITNESS = """
create schema witness;
create table witness.runs (
    task_id uuid not null, pid integer not null, began_at timestamptz not null default clock_timestamp(),
    ended_at timestamptz
);
create table witness.gates (name text primary key);
"""


class House:
    """`acme` and `zeta` are its companies."""

    def __init__(self, url: str, database: Database) -> None:
        self.url = url
        self.database = database
        self.broker = PostgresBroker(database)
        self._connection = psycopg.connect(url, autocommit=True)
        self.execute(WITNESS)
        for slug in ("acme", "zeta"):
            self.add_company(slug)

    def add_company(self, slug: str, *, max_in_flight: int | None = None) -> None:
        self.execute(
            "insert into taketurns.companies (id, slug, name, max_in_flight) values (%s, %s, %s, %s)",
            uuid.uuid4(),
            slug,
            slug,
            max_in_flight,
        )

    def execute(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        cursor = self._connection.execute(statement.encode(), values or None)
        return cursor.fetchall() if cursor.description else []

    def value(self, statement: str, *values: object) -> Any:
        return self.execute(statement, *values)[0][0]

    async def add(self, type: str, *, company: str = "acme", count: int = 1, **payload: Any) -> list[UUID]:
        """Enqueue tasks of a type."""
        return await self.add_tasks([NewTask(type=type, payload=json.dumps(payload))] * count, company=company)

    async def add_tasks(self, tasks: Sequence[NewTask], *, company: str = "acme") -> list[UUID]:
        return [task.task_id for task in await self.broker.enqueue(company, tasks)]

    def status(self, task_id: UUID) -> str:
        """Where the task stands, or how it ended."""
        (status,) = self.statuses([task_id])
        return status

    def statuses(self, task_ids: Sequence[UUID]) -> Counter[str]:
        rows = self.execute(
            "select case when t.finished_at is not null then coalesce(t.stopped_as, 'completed')"
            " when exists (select from taketurns.processing_tasks p where p.task_id = t.id) then 'processing'"
            " when exists (select from taketurns.pending_tasks p where p.task_id = t.id) then 'pending'"
            " else 'scheduled' end from taketurns.tasks t where t.id = any(%s)",
            list(task_ids),
        )
        return Counter(status for (status,) in rows)

    def are(self, status: str, task_ids: Sequence[UUID]) -> bool:
        return self.statuses(task_ids) == {status: len(task_ids)}

    def outcome(self, task_id: UUID) -> tuple[str, Any, str | None, int]:
        """Status, result, error and retry count of a task."""
        ((result, error, retry_count),) = self.execute(
            "select result, error, retry_count from taketurns.tasks where id = %s", task_id
        )
        return self.status(task_id), result, error, retry_count

    def events(self, task_id: UUID) -> list[str]:
        """The kinds of the moves before the last."""
        rows = self.execute("select kind from taketurns.task_events where task_id = %s order by number", task_id)
        return [kind for (kind,) in rows]

    def runs(self, task_id: UUID) -> list[int]:
        """The process of each time its handler began."""
        return [
            pid for (pid,) in self.execute("select pid from witness.runs where task_id = %s order by began_at", task_id)
        ]

    def runs_in_all(self) -> int:
        return int(self.value("select count(*) from witness.runs"))

    def has_run(self, *, more_than: int) -> bool:
        return self.runs_in_all() > more_than

    def open_gate(self, name: str) -> None:
        self.execute("insert into witness.gates values (%s)", name)

    def leases(self) -> list[UUID]:
        return [worker_id for (worker_id,) in self.execute("select id from taketurns.workers")]

    def held(self) -> int:
        return int(self.value("select count(*) from taketurns.processing_tasks"))

    def terminate(self, application: str) -> int:
        """Cut the sessions of that application name; answers how many there were."""
        return len(
            self.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and application_name = %s",
                application,
            )
        )

    def sessions(self, application: str) -> int:
        return int(
            self.value(
                "select count(*) from pg_stat_activity where datname = current_database() and application_name = %s",
                application,
            )
        )

    @contextlib.contextmanager
    def closed(self) -> Iterator[None]:
        """Nobody new is let into the database."""
        with psycopg.connect(self.url, dbname="template1", autocommit=True) as outside:
            name = sql.Identifier(self._connection.info.dbname)
            outside.execute(sql.SQL("alter database {} allow_connections false").format(name))
            try:
                yield
            finally:
                outside.execute(sql.SQL("alter database {} allow_connections true").format(name))

    def worker(self, registry: Registry, *, broker: Broker | None = None, **options: Any) -> Worker:
        """A worker in this process, that would not end it."""
        given = {**QUICK, "end_process": None, **options}
        return Worker(broker=broker or self.broker, registry=registry, **given)

    @contextlib.asynccontextmanager
    async def working(
        self, registry: Registry, *, broker: Broker | None = None, **options: Any
    ) -> AsyncIterator[Worker]:
        """A worker in this process, at work; stopped in good order on leaving."""
        worker = self.worker(registry, broker=broker, **options)
        running = asyncio.create_task(worker.run())
        await worker.lease.taken()
        try:
            yield worker
        finally:
            worker.stop()
            await running

    @contextlib.contextmanager
    def process(self, *, waits: bool = True, **options: Any) -> Iterator[WorkerProcess]:
        """A worker process of the handlers in app.py, with its lease taken if one `waits`; killed on leaving."""
        before = set(self.leases())
        with tempfile.NamedTemporaryFile() as log:
            process = forks.start(work, self.url, {**QUICK, **options}, log=Path(log.name))
            running = WorkerProcess(process, Path(log.name))
            try:
                if waits:
                    (running.worker_id,) = soon(lambda: running.checked(set(self.leases()) - before))
                yield running
            finally:
                forks.end(process)

    def close(self) -> None:
        self._connection.close()


class WorkerProcess:
    """A running worker process."""

    def __init__(self, process: BaseProcess, log: Path) -> None:
        self._process = process
        self._log = log
        self.worker_id: UUID

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def checked(self, answer: Answer) -> Answer:
        """The answer, of a process that has not ended."""
        if self.has_ended():
            raise AssertionError(f"the worker ended with {self._process.exitcode}:\n{self.log()}")
        return answer

    def send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # the fork server may have seen its end before we did
            os.kill(self.pid, number)

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        self._process.join(PATIENCE)
        assert self._process.exitcode is not None, f"the worker has not ended:\n{self.log()}"
        return self._process.exitcode

    def has_ended(self) -> bool:
        return not self._process.is_alive()

    def has_ended_after(self, number: signal.Signals) -> bool:
        """Whether it has ended; told to once more if not."""
        self.send(number)
        return self.has_ended()

    def log(self) -> str:
        return self._log.read_text()
