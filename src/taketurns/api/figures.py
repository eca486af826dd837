"""The queue's figures at `/metrics`: read from the database at most once a second, however many ask."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from typing import Final

import psycopg
from prometheus_client import REGISTRY, CollectorRegistry, Metric, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from taketurns import telemetry
from taketurns.engine.errors import Unavailable
from taketurns.history import figures
from taketurns.storage.database import Database

FRESH_SECONDS: Final = 1.0
READ_SECONDS: Final = 0.9
OTHERS: Final = "_other"


class QueueFigures(Collector):
    """Tells how many tasks are in each status and how long the oldest has waited; nothing while that is not known."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._figures: figures.Figures | None = None
        self._fresh_until = float("-inf")
        self._reading: asyncio.Task[None] | None = None
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    async def exposition(self) -> bytes:
        """Every metric of this process, and the queue's, in Prometheus' text format."""
        if time.monotonic() >= self._fresh_until:
            if self._reading is None or self._reading.done():
                self._reading = asyncio.create_task(self._read())
            await asyncio.shield(self._reading)
        return generate_latest(REGISTRY) + generate_latest(self._registry)

    async def _read(self) -> None:
        try:
            async with asyncio.timeout(READ_SECONDS):
                self._figures = await figures.read(self._database)
        except (Unavailable, TimeoutError, psycopg.Error) as error:
            self._figures = None
            telemetry.logger("api").warning(telemetry.Event.FIGURES_UNAVAILABLE, error=str(error))
        self._fresh_until = time.monotonic() + FRESH_SECONDS

    def collect(self) -> Iterator[Metric]:
        if self._figures is None:
            return
        tasks = GaugeMetricFamily(
            "tasks_by_status",
            f"Tasks in each status. Those that wait or run are counted up to {figures.CAP}. With more records than"
            " that, those that ended are estimated from the planner's statistics.",
            labels=["status"],
        )
        for status, count in self._figures.tasks_by_status.items():
            tasks.add_metric([status], count)
        yield tasks
        ages = GaugeMetricFamily(
            "heartbeat_age_seconds",
            "Seconds since a worker or a pass of this name was last heard of, those left out that left in good order;"
            f" of {figures.NAMES_MOST} names at most.",
            labels=["name"],
        )
        for name, seconds in self._figures.heartbeat_ages.items():
            ages.add_metric([name], seconds)
        yield ages
        told = (
            f"of the {figures.COMPANIES_TOLD} companies that have the most, and of all others together as"
            f" {OTHERS}, which no slug is"
        )
        yield _by_company(
            "company_waiting_tasks",
            f"Tasks that wait for a turn, {told}. At most {figures.CAP} of a company are counted, and less where many"
            f" have that many; {figures.COMPANIES_MOST} companies are looked at.",
            self._figures.waiting,
        )
        yield _by_company("company_in_flight_tasks", f"Tasks in the hands of workers, {told}.", self._figures.in_flight)
        yield GaugeMetricFamily(
            "oldest_eligible_pending_age_seconds",
            "How long the oldest pending task has been due, those of paused companies left out; 0 when there is none."
            f" Looked for at the heads of {figures.CAP} lines of (queue, company, priority) at most.",
            value=self._figures.oldest_eligible_seconds,
        )


def _by_company(name: str, documentation: str, tasks: Mapping[str | None, int]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, documentation, labels=["company"])
    for slug, count in tasks.items():
        family.add_metric([slug or OTHERS], count)
    return family
