"""Both lanes in turn: what one worker process drains, and how soon an idle one begins what is enqueued."""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Final

from bench import results
from bench.server import described, measured_server
from taketurns.brokers.postgres import PostgresBroker
from taketurns.brokers.redis import RedisBroker
from taketurns.brokers.redis.server import Server
from taketurns.companies import directory
from taketurns.engine.broker import Broker
from taketurns.engine.job import JobCompany
from taketurns.engine.task import NewTask
from taketurns.storage import schema
from taketurns.storage.database import Database
from taketurns.storage.embedded import ValkeyServer
from taketurns.storage.ids import new_id

TASKS: Final = 20_000
COMPANIES: Final = 20
CONCURRENCY: Final = 100
CLAIM: Final = 1_000
ROUNDS: Final = 3
PICKUPS: Final = 200
NOTHING: Final = NewTask(type="nothing", payload="{}")


@asynccontextmanager
async def open_broker(url: str) -> AsyncIterator[Broker]:
    """The broker of a lane: PostgreSQL's or Redis', as the address says."""
    if not url.startswith("postgresql"):
        server = Server(url)
        try:
            yield RedisBroker(server)
        finally:
            await server.close()
        return
    database = Database(url)
    await database.open()
    broker = PostgresBroker(database)
    try:
        yield broker
    finally:
        await broker.notifier.flush()
        await database.close()


@contextmanager
def valkey() -> Iterator[str]:
    """A Valkey server with its append-only file on disk, fsynced every second."""
    with (
        tempfile.TemporaryDirectory(prefix="taketurns-bench-", dir="/var/tmp") as home,
        ValkeyServer(Path(home) / "valkey") as server,
    ):
        yield server.url


def drained_per_second(url: str) -> float:
    """Enqueue, then let one worker process run everything: tasks a second, settlements included."""
    asyncio.run(_enqueue(url))
    answer = subprocess.run(
        [sys.executable, "-m", "bench.lane_worker", json.dumps({"url": url, "tasks": TASKS})],
        stdout=subprocess.PIPE,
        check=True,
    )
    report = json.loads(answer.stdout.splitlines()[-1])
    if report["completed"] != TASKS:
        raise RuntimeError(f"{report['completed']} tasks were completed, not {TASKS}")
    return float(TASKS / report["seconds"])


async def _enqueue(url: str) -> None:
    async with open_broker(url) as broker:
        companies = [await _company(broker, f"company-{number}") for number in range(COMPANIES)]
        for company in companies:
            await broker.enqueue(company, [NOTHING] * (TASKS // COMPANIES))


async def _company(broker: Broker, slug: str) -> str:
    """The company of this slug, made if it is not there."""
    if isinstance(broker, RedisBroker):
        company_id = new_id()
        await broker.put_company(JobCompany(id=company_id, slug=slug, updated_at=datetime.now(UTC)))
        return str(company_id)
    if not isinstance(broker, PostgresBroker):
        raise TypeError(f"no lane has a {type(broker).__name__}")
    found = await directory.find(broker.database, slug)
    company = found or await directory.create(broker.database, name=slug, slug=slug)
    return str(company.id)


def pickups(url: str) -> list[float]:
    """Seconds from before an enqueue to the start of its handler, one task at a time, in a worker that is idle."""
    worker = subprocess.Popen(
        [sys.executable, "-m", "bench.lane_worker", json.dumps({"url": url})], stdout=subprocess.PIPE, text=True
    )
    try:
        return asyncio.run(_pick_up(url, worker))
    finally:
        worker.terminate()
        worker.wait()


async def _pick_up(url: str, worker: subprocess.Popen[str]) -> list[float]:
    async def said() -> str:
        assert worker.stdout is not None
        return await asyncio.to_thread(worker.stdout.readline)

    await said()
    lengths = []
    chance = random.Random(42)
    async with open_broker(url) as broker:
        company = await _company(broker, "company-0")
        for _ in range(PICKUPS):
            await asyncio.sleep(chance.uniform(0.01, 0.03))
            began = monotonic()
            await broker.enqueue(company, [NOTHING])
            lengths.append(float(await said()) - began)
    return lengths[PICKUPS // 10 :]


def run(*, command: str) -> None:
    """Round by round, one lane after the other."""
    with measured_server() as server, valkey() as redis_url:
        url = server.create_database("lanes")
        schema.upgrade(url)
        lanes = {"postgres": url, "redis": redis_url}
        rates: dict[str, list[float]] = {name: [] for name in lanes}
        waits: dict[str, list[float]] = {name: [] for name in lanes}
        for _ in range(ROUNDS):
            for name, address in lanes.items():
                rates[name].append(drained_per_second(address))
        for _ in range(ROUNDS):
            for name, address in lanes.items():
                waits[name] += pickups(address)
        results.record(
            f"The two lanes: {TASKS:,} tasks that do nothing, {COMPANIES} companies, one worker process; idle pickup",
            command=command,
            machine=described(server) + "; Valkey with its append-only file, everysec",
            body=_table(rates, waits),
        )


def _table(rates: Mapping[str, list[float]], waits: Mapping[str, list[float]]) -> str:
    medians = {name: statistics.median(figures) for name, figures in rates.items()}
    rows = []
    for name, figures in waits.items():
        hundredths = statistics.quantiles(figures, n=100)
        rows.append(
            [
                name,
                f"{medians[name]:,.0f}",
                f"{medians[name] / medians['postgres']:.2f} ×",
                f"{hundredths[49] * 1000:.2f}",
                f"{hundredths[98] * 1000:.2f}",
            ]
        )
    header = ["lane", "drained, tasks/s", "to postgres", "pickup p50, ms", "p99, ms"]
    return results.table(header, rows) + (
        f"\n\nConcurrency {CONCURRENCY}, claims of up to {CLAIM:,}. Medians of {ROUNDS} rounds in turn; pickups are"
        f" {PICKUPS} a round, from before the enqueue to the start of the handler, the first tenth left out."
    )
