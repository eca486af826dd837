"""Whether the tables stay as they are under a load that goes on: half of what one worker process gets done, with
autovacuum as PostgreSQL ships it.

The tables of what waits and what runs must be flat once the first minutes have passed. Records stay, so for them it is
what each takes that must be.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg

from bench import processes, results
from bench.growth import workers
from bench.server import connect, described, measured_server
from scripts import perf_seed
from scripts.perf_seed import Backlog
from taketurns.brokers.postgres import PostgresBroker
from taketurns.engine.task import NewTask
from taketurns.storage import schema
from taketurns.storage.database import Database
from taketurns.storage.embedded import PostgresServer

MINUTES: Final = 30.0
SMALL_MINUTES: Final = 0.5
TRIAL_TASKS: Final = 60_000
SMALL_TRIAL_TASKS: Final = 5_000
COMPANIES: Final = 20
CONCURRENCY: Final = 100
PART_OF_TOP: Final = 0.5
SETTLES: Final = 1 / 6
"""The part of the time after which it must be flat: five minutes of thirty."""
SAMPLES: Final = 180
TICK_SECONDS: Final = 0.05
MOST_GROWTH: Final = 0.10
A_FEW_PAGES: Final = 0.5
"""Megabytes: a table that small is not said to grow. A task takes more kilobytes."""
MEGABYTE: Final = 1024 * 1024
TASK: Final = NewTask(type="work", payload='{"to": "somebody@example.com"}')

PLOTS: Final = Path(__file__).parent / "plots"
PASSING: Final = (
    "pending_tasks",
    "processing_tasks",
    "scheduled_tasks",
    "lines",
    "turns",
    "rotations",
    "looks",
    "workers",
)
RECORDS: Final = "tasks"


@dataclass(frozen=True, slots=True)
class Sample:
    """One table at one moment, when so many tasks were submitted: megabytes of its rows and of its indexes, and how
    many rows are dead."""

    seconds: float
    submitted: int
    table: str
    rows: float
    indexes: float
    dead: int

    @property
    def size(self) -> float:
        """What must be flat: megabytes, or of the records kilobytes for each task."""
        size = self.rows + self.indexes
        return size * 1024 / max(1, self.submitted) if self.table == RECORDS else size


@dataclass(slots=True)
class Load:
    """How many tasks were submitted, and how many of them waited when it ended."""

    submitted: int = 0
    left: int = 0


def sampled(connection: psycopg.Connection[Any], *, seconds: float, submitted: int) -> list[Sample]:
    """All tables now."""
    rows = connection.execute(
        "select c.relname, pg_table_size(c.oid), pg_indexes_size(c.oid), s.n_dead_tup"
        " from pg_class c join pg_stat_user_tables s on s.relid = c.oid"
        " where c.relnamespace = 'taketurns'::regnamespace and c.relname = any (%s)",
        ([*PASSING, RECORDS],),
    ).fetchall()
    return [
        Sample(seconds, submitted, table, of_rows / MEGABYTE, of_indexes / MEGABYTE, dead)
        for table, of_rows, of_indexes, dead in rows
    ]


def first_and_last(sizes: Sequence[float]) -> tuple[float, float]:
    """The medians of the first third and of the last."""
    third = max(1, len(sizes) // 3)
    return statistics.median(sizes[:third]), statistics.median(sizes[-third:])


def is_flat(sizes: Sequence[float]) -> bool:
    """Whether the last third is no more than a tenth above the first, or next to nothing."""
    first, last = first_and_last(sizes)
    return last <= max(first * (1 + MOST_GROWTH), A_FEW_PAGES)


async def submit(url: str, per_second: float, *, seconds: float, load: Load) -> None:
    """That many tasks a second, by all companies in turn, whatever comes of them."""
    database = Database(url, pool_size=2)
    await database.open()
    broker = PostgresBroker(database)
    began = time.monotonic()
    company = 0
    while (passed := time.monotonic() - began) < seconds:
        if due := int(per_second * passed) - load.submitted:
            await broker.enqueue(f"company-{company % COMPANIES}", [TASK] * min(due, 1_000))
            load.submitted += min(due, 1_000)
            company += 1
        await asyncio.sleep(TICK_SECONDS)
    await broker.notifier.flush()
    await database.close()


async def soaked(url: str, per_second: float, *, seconds: float) -> tuple[list[Sample], Load]:
    """Samples, from the beginning to the end of the load."""
    load = Load()
    submitting = asyncio.create_task(submit(url, per_second, seconds=seconds, load=load))
    samples: list[Sample] = []
    began = time.monotonic()
    with connect(url) as connection:
        while not submitting.done():
            samples += sampled(connection, seconds=time.monotonic() - began, submitted=load.submitted)
            await asyncio.wait([submitting], timeout=seconds / SAMPLES)
        await submitting
        ((load.left,),) = connection.execute("select count(*) from pending_tasks").fetchall()
    return samples, load


def table(samples: Sequence[Sample], *, seconds: float) -> str:
    """A row for each table, and whether all are flat."""
    rows = []
    growing = []
    for name in (*PASSING, RECORDS):
        settled = [each for each in samples if each.table == name and each.seconds >= seconds * SETTLES]
        sizes = [each.size for each in settled]
        first, last = first_and_last(sizes)
        if not is_flat(sizes):
            growing.append(name)
        rows.append(
            [
                f"{name}, KB a task" if name == RECORDS else f"{name}, MB",
                f"{first:.2f}",
                f"{last:.2f}",
                f"{settled[-1].rows:.2f} / {settled[-1].indexes:.2f}",
                f"{statistics.median(each.dead for each in settled):,.0f}",
                f"{max(each.dead for each in settled):,}",
                "no" if name in growing else "yes",
            ]
        )
    header = [
        "table",
        "first third",
        "last third",
        "rows / indexes in the end, MB",
        "dead rows, median",
        "most",
        "flat",
    ]
    verdict = f"Not flat: {', '.join(growing)}." if growing else "All are flat."
    return results.table(header, rows) + (
        f"\n\nAfter the first {seconds * SETTLES / 60:.2g} of {seconds / 60:.2g} minutes; flat: the last third is no"
        f" more than {MOST_GROWTH:.0%} above the first, or below {A_FEW_PAGES:g} MB. {verdict}"
    )


def draw(samples: Sequence[Sample], into: Path) -> list[Path]:
    """`soak.png` and `soak.svg` in this directory."""
    from bench import plots  # noqa: PLC0415  what draws is not installed for the tests

    shown_from = samples[-1].seconds / 50  # at first the few tasks that there are seem to take much
    of_table = {
        name: [each for each in samples if each.table == name and each.seconds >= shown_from]
        for name in (*PASSING, RECORDS)
    }
    minutes = [each.seconds / 60 for each in of_table[RECORDS]]
    shown = ("pending_tasks", "processing_tasks", "turns")
    panels = {
        "Size of what passes, MB": {name: [each.size for each in of_table[name]] for name in shown},
        "Dead rows": {name: [float(each.dead) for each in of_table[name]] for name in (*shown, RECORDS)},
        "Size of the records, KB a task": {RECORDS: [each.size for each in of_table[RECORDS]]},
    }
    with plots.drawn("soak", into, size=(18, 4.5)) as (figure, paths):
        for axes, (title, lines) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
            plots.draw_lines(axes, minutes, lines)
            axes.set_xlabel("minutes")
            axes.set_title(title, loc="left")
    return paths


def measured(server: PostgresServer, *, minutes: float, trial_tasks: int) -> tuple[str, list[Sample]]:
    """The load, on tables that are empty at first."""
    url = server.create_database("soak")
    schema.upgrade(url)
    top = workers.drained_per_second(url, trial_tasks, workers=1, concurrency=CONCURRENCY)
    with psycopg.connect(url, autocommit=True) as connection:
        perf_seed.seed_cell(connection, Backlog(0, COMPANIES))
    with processes.running(url, "worker", concurrency=CONCURRENCY, batch=CONCURRENCY * 2):
        samples, load = asyncio.run(soaked(url, top * PART_OF_TOP, seconds=minutes * 60))
    told = (
        f"{load.submitted:,} tasks, {load.submitted / minutes / 60:,.0f} a second: {PART_OF_TOP:.0%} of the {top:,.0f}"
        f" that one worker process drains. {load.left:,} waited in the end."
    )
    return f"{told}\n\n{table(samples, seconds=minutes * 60)}", samples


def run(*, minutes: float, small: bool, command: str) -> None:
    """Measure, record and draw. A small run is a trial: it is printed, drawn elsewhere, and recorded nowhere."""
    with measured_server() as server:
        body, samples = measured(
            server,
            minutes=SMALL_MINUTES if small else minutes,
            trial_tasks=SMALL_TRIAL_TASKS if small else TRIAL_TASKS,
        )
        if small:
            print(body)
        else:
            results.record(
                "Soak: what the tables take under a load that goes on",
                command=command,
                machine=described(server),
                body=f"{body} Drawn: [plots/soak.png](plots/soak.png).",
            )
    for path in draw(samples, Path(tempfile.mkdtemp(prefix="taketurns-soak-")) if small else PLOTS):
        print(path)
