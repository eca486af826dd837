"""Valkey is killed, restarted and meddled with under load: no accepted job is lost, and nobody has to be restarted."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from taketurns.assembly.jobs import open_job_broker
from taketurns.brokers.redis import RedisBroker
from taketurns.engine.errors import Unavailable
from taketurns.engine.job import JobCompany
from taketurns.engine.task import NewTask, Status
from taketurns.settings import Settings
from taketurns.storage.ids import new_id
from taketurns.telemetry import Event
from tests.valkeys import Valkey, Valkeys

PATIENCE_SECONDS = 60.0
SUBMITTERS = 64
SETTINGS = {
    "TAKETURNS_APP": "tests.journeys.app:tt",
    "TAKETURNS_BROKER": "redis",
    "TAKETURNS_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none",
    "TAKETURNS_METRICS_PORT": "0",
    "TAKETURNS_BEAT_SECONDS": "0.3",
    "TAKETURNS_STALE_AFTER_SECONDS": "1.5",
    "TAKETURNS_LOG_LEVEL": "warning",
}


class Jobs:
    """The jobs of one company: those that were accepted, and those of which nobody said what became of them."""

    def __init__(self, broker: RedisBroker) -> None:
        self.broker = broker
        self.company_id = new_id()
        self.accepted: list[UUID] = []
        self.unanswered: list[UUID] = []

    async def open(self) -> None:
        await self.broker.put_company(JobCompany(id=self.company_id, slug="acme", updated_at=datetime.now(UTC)))

    async def submit(self) -> UUID:
        """A job under an id of its own, so that it can be looked for when the answer is lost."""
        job_id = new_id()
        number = len(self.accepted) + len(self.unanswered)
        job = NewTask(type="count", payload=f'{{"number": {number}}}', task_id=job_id)
        try:
            await self.broker.enqueue(str(self.company_id), [job])
        except Unavailable:
            self.unanswered.append(job_id)
            raise
        self.accepted.append(job_id)
        return job_id

    async def submit_until(self, enough: asyncio.Event) -> None:
        while not enough.is_set():
            with suppress(Unavailable):
                await self.submit()
                continue
            await asyncio.sleep(0.05)

    def has_accepted(self, count: int) -> bool:
        return len(self.accepted) >= count

    async def status(self, job_id: UUID) -> Status | None:
        job = await self.broker.job(self.company_id, job_id)
        return None if job is None else job.status

    async def statuses(self, job_ids: list[UUID]) -> Counter[Status | None]:
        return Counter([await self.status(job_id) for job_id in job_ids])

    async def is_done(self, job_id: UUID) -> bool:
        with suppress(Unavailable):
            return await self.status(job_id) is Status.COMPLETED
        return False


class Worker:
    """The process of a worker that takes its turns in a Valkey; its database is away."""

    def __init__(self, server: Valkey, directory: Path) -> None:
        self._log_path = directory / "log"
        environment = {**os.environ, **SETTINGS, "TAKETURNS_REDIS_URL": server.url}
        environment["JOURNEY_RUNS"] = str(directory / "runs")
        with self._log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "taketurns.cli", "worker"],
                env=environment,
                cwd=Path(__file__).parents[2],
                stdout=log,
                stderr=log,
            )

    @property
    def leases_lost(self) -> int:
        return self._log_path.read_text().count(Event.LEASE_LOST)

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def server(valkey: Valkeys) -> Valkey:
    return valkey()


@pytest.fixture
def worker(server: Valkey, tmp_path: Path) -> Iterator[Worker]:
    worker = Worker(server, tmp_path)
    yield worker
    worker.close()


@asynccontextmanager
async def jobs_in(server: Valkey, **settings: Any) -> AsyncIterator[Jobs]:
    given = Settings().model_copy(update={"redis_url": server.url, **settings})
    async with open_job_broker(given, name="journey", pool_size=SUBMITTERS) as broker:
        jobs = Jobs(broker)
        await jobs.open()
        yield jobs


async def test_jobs_that_were_accepted_when_they_were_on_the_disk_outlive_every_kill_of_valkey(
    server: Valkey, worker: Worker
) -> None:
    async with jobs_in(server, redis_wait_aof=True) as jobs:
        enough = asyncio.Event()
        submitting = [asyncio.create_task(jobs.submit_until(enough)) for _ in range(SUBMITTERS)]
        for _ in range(3):
            more = len(jobs.accepted) + SUBMITTERS
            await eventually(functools.partial(jobs.has_accepted, more), "jobs are accepted")
            server.kill()
            await eventually(lambda: jobs.unanswered, "answers are lost")
            server.start()
        enough.set()
        await asyncio.gather(*submitting)

        assert None not in await jobs.statuses(jobs.accepted)
        for job_id in jobs.accepted:
            await eventually(functools.partial(jobs.is_done, job_id), "every accepted job is done")
        resolved = await jobs.statuses(jobs.unanswered)  # each is there, or it is not: none is half there
        assert set(resolved) <= {None, Status.PENDING, Status.PROCESSING, Status.COMPLETED}
        assert await jobs.broker.beats()
        assert worker.is_running
        leases = server.execute("KEYS", "*:lease:*")
        assert leases
        assert all(server.execute("PTTL", lease) > 0 for lease in leases)  # fault 155


async def test_a_worker_comes_back_by_itself_from_whatever_valkey_goes_through(  # faults 110, 148
    server: Valkey, worker: Worker
) -> None:
    async with jobs_in(server) as jobs:
        await done(jobs)
        for trouble in (restarted, cut_off, read_only, locked, paused):
            await trouble(server, jobs, worker)
            await done(jobs)
            assert worker.is_running, trouble
        worker.process.send_signal(signal.SIGTERM)
        await eventually(lambda: worker.process.poll() == 0, "the worker leaves in good order")
        assert server.execute("KEYS", "*:lease:*") == []


async def restarted(server: Valkey, jobs: Jobs, worker: Worker) -> None:
    server.kill()
    with pytest.raises(Unavailable):
        await jobs.submit()
    server.start()


async def cut_off(server: Valkey, jobs: Jobs, worker: Worker) -> None:
    for _ in range(20):
        server.execute("CLIENT KILL", "TYPE", "normal", "SKIPME", "yes")
        server.execute("CLIENT KILL", "TYPE", "pubsub")
        with suppress(Unavailable):
            await jobs.submit()


async def read_only(server: Valkey, jobs: Jobs, worker: Worker) -> None:
    server.execute("REPLICAOF", "127.0.0.1", 1)
    with pytest.raises(Unavailable, match="read only replica"):
        await jobs.submit()
    await lease_is_lost(worker)
    server.execute("REPLICAOF", "NO", "ONE")


async def locked(server: Valkey, jobs: Jobs, worker: Worker) -> None:
    with server.client() as client:
        client.config_set("requirepass", "secret")
        client.execute_command("AUTH", "secret")
        client.execute_command("CLIENT KILL", "TYPE", "normal", "SKIPME", "yes")
        with pytest.raises(Unavailable):
            await jobs.submit()
        client.config_set("requirepass", "")


async def paused(server: Valkey, jobs: Jobs, worker: Worker) -> None:
    server.pause()
    await lease_is_lost(worker)
    server.go_on()


async def lease_is_lost(worker: Worker) -> None:
    lost = worker.leases_lost
    await eventually(lambda: worker.leases_lost > lost, "the worker gives its lease up")


async def done(jobs: Jobs) -> None:
    """A new job is accepted as soon as Valkey answers, and done."""
    submitted: list[UUID] = []

    async def is_accepted() -> bool:
        with suppress(Unavailable):
            submitted.append(await jobs.submit())
        return bool(submitted)

    await eventually(is_accepted, "a job is accepted")
    await eventually(lambda: jobs.is_done(submitted[0]), "the job is done")


async def eventually(condition: Callable[[], Any], what: str) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE_SECONDS
    while True:
        answer = condition()
        if await answer if asyncio.iscoroutine(answer) else answer:
            return
        assert loop.time() < deadline, f"waited too long: {what}"
        await asyncio.sleep(0.02)
