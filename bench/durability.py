"""What a crash of Valkey loses of the jobs that it accepted, with WAITAOF and without.

Under load the server is killed with -9, started again by its keeper, and asked for every accepted job. A killed process
loses only what it has not handed to the kernel. A power cut loses what is not on the disk: how many jobs that would
have been is counted beside it, from above, by a probe that asks all the time how far the disk has come.
"""

from __future__ import annotations

import asyncio
import os
import platform
import random
import shutil
import signal
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import redis.asyncio

from bench import results
from taketurns.assembly.jobs import open_job_broker
from taketurns.brokers.redis import RedisBroker
from taketurns.engine.errors import Unavailable
from taketurns.engine.job import JobCompany
from taketurns.engine.task import NewTask
from taketurns.settings import Settings
from taketurns.storage.embedded import ValkeyServer, valkey
from taketurns.storage.ids import new_id

KILLS = 20
SUBMITTERS = 64
LOAD_SECONDS = (1.0, 3.0)


@dataclass
class Round:
    """What was accepted until one kill, each with the time of its answer."""

    accepted: dict[UUID, float] = field(default_factory=dict)
    on_disk_until: float = 0.0
    """Whatever was accepted before this is on the disk."""

    def at_risk(self) -> int:
        return sum(moment >= self.on_disk_until for moment in self.accepted.values())


async def _submit(broker: RedisBroker, company: UUID, into: Round) -> None:
    while True:
        job = NewTask(type="work", payload='{"to": "somebody@example.com"}', task_id=new_id())
        try:
            (made,) = await broker.enqueue(str(company), [job])
        except Unavailable:
            return
        into.accepted[made.task_id] = time.monotonic()


async def _probe(url: str, into: Round) -> None:
    """The append-only file is written in order: once a write of ours is on the disk, all before it are."""
    async with redis.asyncio.Redis.from_url(url) as client:
        with suppress(redis.RedisError, OSError):
            while True:
                began = time.monotonic()
                async with client.pipeline(transaction=False) as pipeline:
                    pipeline.execute_command("SET", "probe", "")
                    pipeline.execute_command("WAITAOF", 1, 0, 0)
                    await pipeline.execute()
                into.on_disk_until = began


async def _kill_once(server: ValkeyServer, broker: RedisBroker, company: UUID) -> Round:
    made = Round(on_disk_until=time.monotonic())
    work = [asyncio.create_task(_submit(broker, company, made)) for _ in range(SUBMITTERS)]
    work.append(asyncio.create_task(_probe(server.url, made)))
    await asyncio.sleep(random.uniform(*LOAD_SECONDS))
    before = server.pid
    os.kill(before, signal.SIGKILL)
    await asyncio.gather(*work)
    await asyncio.to_thread(_wait_for_another, server, before)
    return made


def _wait_for_another(server: ValkeyServer, pid: int) -> None:
    while not (server.answers() and server.pid != pid):
        time.sleep(0.01)


async def _missing(broker: RedisBroker, company: UUID, job_ids: list[UUID]) -> int:
    """How many of these jobs are not there any more."""
    missing = 0
    for start in range(0, len(job_ids), SUBMITTERS):
        some = job_ids[start : start + SUBMITTERS]
        missing += (await asyncio.gather(*(broker.job(company, job_id) for job_id in some))).count(None)
    return missing


async def _measured(server: ValkeyServer, *, waits: bool) -> list[str]:
    """One row: kills, accepted jobs, those that were gone, and those that a power cut would have taken."""
    settings = Settings(redis_url=server.url, redis_wait_aof=waits)
    company = new_id()
    accepted = lost = at_risk = most_at_risk = 0
    async with open_job_broker(settings, name="bench", pool_size=SUBMITTERS) as broker:
        for _ in range(KILLS):
            await broker.put_company(JobCompany(id=company, slug="acme", updated_at=datetime.now(UTC)))
            made = await _kill_once(server, broker, company)
            accepted += len(made.accepted)
            lost += await _missing(broker, company, list(made.accepted))
            risked = 0 if waits else made.at_risk()
            at_risk, most_at_risk = at_risk + risked, max(most_at_risk, risked)
            await broker.forget_company(company)
    mode = "everysec, WAITAOF" if waits else "everysec"
    return [mode, str(KILLS), f"{accepted:,}", f"{lost:,}", f"{at_risk / KILLS:,.0f}", f"{most_at_risk:,}"]


def run(*, command: str) -> None:
    """Both, each on a new server on disk."""
    rows = []
    for waits in (False, True):
        home = Path(tempfile.mkdtemp(prefix="taketurns-bench-", dir="/var/tmp"))
        try:
            with ValkeyServer(home / "valkey") as server:
                rows.append(asyncio.run(_measured(server, waits=waits)))
        finally:
            shutil.rmtree(home, ignore_errors=True)
    results.record(
        f"Accepted jobs that a crash of Valkey loses, {SUBMITTERS} submitters",
        command=command,
        machine=f"Valkey {valkey.find().version}, Python {platform.python_version()}, {os.cpu_count()} cores",
        body=results.table(
            ["append-only file", "kills", "jobs accepted", "lost", "not on disk at a kill, mean", "most"], rows
        )
        + "\n\nBar: none lost with WAITAOF. The last two: what a power cut would have taken at that moment.",
    )
