"""What is measured of a peer: six scenarios, each on an empty store, each with figures by name."""

from __future__ import annotations

import contextlib
import random
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import psycopg

from bench.peers import records
from bench.peers.catalogue import Scenario
from bench.peers.records import Run
from bench.peers.stage import Producer, Stage, Worker, busy_seconds

Figures = dict[str, float]

START_SECONDS: Final = 40.0
ACKNOWLEDGE_SECONDS: Final = 10.0
AGAIN_SECONDS: Final = 0.7  # in which a second run of a task would show
IDLE_SECONDS: Final = 3.0
WARMING: Final = -1_000
QUIET_TASKS: Final = 10
FLOOD_HANDS: Final = 10
FLOOD_SLEEP: Final = 0.001
CRASH_HANDS: Final = 50
CRASH_SLEEP: Final = 0.05
CRASH_SECONDS: Final = 130.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much of each scenario there is, and how often all of them are measured in turn."""

    rounds: int = 3
    singles: int = 2_000
    bulk: int = 20_000
    drained: int = 20_000
    pickups: int = 200
    flood: int = 10_000
    held: int = 220_000
    held_slow: int = 20_000
    held_part: int = 20_000
    crash: int = 4_000
    seconds: float = 170.0


SMALL: Final = Sizes(
    rounds=1,
    singles=100,
    bulk=1_000,
    drained=500,
    pickups=20,
    flood=500,
    held=2_000,
    held_slow=1_000,
    held_part=500,
    crash=400,
)


def enqueue(stage: Stage, sizes: Sizes) -> Figures:
    """Tasks a second over one connection: one by one, and by the bulk call if there is one."""
    stage.install()
    producer = stage.producer()
    producer.send_each(20, first=10 * sizes.bulk)
    figures = {"singles_per_second": sizes.singles / producer.send_each(sizes.singles)}
    if producer.has_bulk:
        figures["bulk_per_second"] = sizes.bulk / producer.send_many(sizes.bulk, first=sizes.bulk)
    return figures


def drain(stage: Stage, sizes: Sizes) -> Figures:
    """From the start of the first of many handlers that do nothing until the store shows all as done."""
    tasks = min(sizes.drained, stage.peer.drained)
    stage.install()
    producer = stage.producer()
    producer.send_many(tasks)
    stage.stores.settle_down()
    worker = stage.worker()
    stage.until_written(worker, 1, seconds=START_SECONDS)
    since, before, cpu, server = time.monotonic(), worker.written, worker.cpu_seconds, stage.server_cpu_seconds()
    busy, own = busy_seconds(), time.process_time()
    stage.until_written(worker, tasks, seconds=stage.seconds_left)
    is_settled = stage.until(lambda: not producer.left(), seconds=ACKNOWLEDGE_SECONDS)
    settled_at = time.monotonic()
    cpu, server = worker.cpu_seconds - cpu, stage.server_cpu_seconds() - server
    others = busy_seconds() - busy - cpu - server - (time.process_time() - own)
    time.sleep(AGAIN_SECONDS)
    runs = worker.runs
    counted = records.count(runs, tasks=tasks)
    thousands = max(tasks - before, 1) / 1_000
    ended_at = settled_at if is_settled else max(run.ended for run in runs)
    return {
        "tasks": tasks,
        "drained_per_second": tasks / (ended_at - min(run.began for run in runs)),
        "lost": counted.lost,
        "again": counted.again,
        "left": producer.left(),
        "worker_cpu_seconds": cpu / thousands,
        "server_cpu_seconds": server / thousands,
        "peak_mebibytes": worker.peak_mebibytes,
        "others_cores": max(0.0, others / (settled_at - since)),
    }


def pickup(stage: Stage, sizes: Sizes) -> Figures:
    """Milliseconds from before an enqueue to the start of its handler in an idle worker; what both use when idle."""
    stage.install()
    producer = stage.producer()
    worker = stage.worker()
    _warm_up(stage, producer, worker)
    chance = random.Random(42)
    gaps = [chance.uniform(0.01, 0.03) for _ in range(sizes.pickups)]
    sent_at = producer.send_spaced(gaps)
    stage.until_written(worker, 5 + sizes.pickups, seconds=20.0)
    cpu, server, since = worker.cpu_seconds, stage.server_cpu_seconds(), time.monotonic()
    time.sleep(IDLE_SECONDS)
    idle, idle_server = worker.cpu_seconds - cpu, stage.server_cpu_seconds() - server
    length = time.monotonic() - since
    return waits(sent_at, worker.runs) | {"idle_worker": idle / length, "idle_server": idle_server / length}


def waits(sent_at: Sequence[float], runs: Sequence[Run]) -> Figures:
    """The middle and the hundredth longest wait, in milliseconds; the first tenth only warms up."""
    began = {run.number: run.began for run in reversed(runs)}
    lengths = [
        (began[number] - moment) * 1_000 for number, moment in enumerate(sent_at) if number >= len(sent_at) // 10
    ]
    return {"p50_ms": statistics.median(lengths), "p99_ms": statistics.quantiles(lengths, n=100)[98]}


def flood(stage: Stage, sizes: Sizes) -> Figures:
    """Ten tasks of a quiet company behind many of another; handlers take a millisecond, ten at once.

    The worker is warm, and held still while all of them are enqueued.
    """
    stage.install()
    producer = stage.producer()
    worker = stage.worker(concurrency=FLOOD_HANDS, sleep_seconds=FLOOD_SLEEP)
    _warm_up(stage, producer, worker, company="flood")
    worker.signal(signal.SIGSTOP)
    try:
        producer.send_many(sizes.flood, company="flood")
        sent_at = time.monotonic()
        producer.send_many(QUIET_TASKS, first=sizes.flood, company="quiet")
    finally:
        worker.signal(signal.SIGCONT)
    quiet = range(sizes.flood, sizes.flood + QUIET_TASKS)
    stage.until(lambda: worker.written >= 5 + quiet.stop, seconds=stage.seconds_left - 5, watched=[worker])
    return behind(worker.runs, quiet, sent_at=sent_at)


def behind(runs: Sequence[Run], quiet: range, *, sent_at: float) -> Figures:
    """How long the quiet tasks took together, how much of the flood was done before them, and the rate of all."""
    ours = [run for run in runs if run.number in quiet]
    flooding = [run for run in runs if 0 <= run.number < quiet.start]
    counted = records.count(runs, tasks=quiet.stop)
    figures: Figures = {
        "flood_per_second": records.per_second([run.ended for run in (*ours, *flooding)]),
        "flood_lost": counted.lost,
        "flood_again": counted.again,
    }
    if len({run.number for run in ours}) == len(quiet):
        done_at = max(run.ended for run in ours)
        figures["quiet_seconds"] = done_at - sent_at
        figures["flood_before"] = sum(run.ended <= done_at for run in flooding) / quiet.start
    return figures


def snapshot(stage: Stage, sizes: Sizes) -> Figures:
    """The rate of the first tasks and of the last, while a transaction elsewhere keeps every row that ever was."""
    stage.install()
    producer = stage.producer()
    is_slow = stage.peer.drained < sizes.drained or not producer.has_bulk
    tasks = sizes.held_slow if is_slow else sizes.held
    with _old_snapshot(stage.stores.postgres_url):
        producer.send_many(tasks)
        stage.stores.settle_down()
        worker = stage.worker()
        stage.until_written(worker, 1, seconds=START_SECONDS)
        stage.until(lambda: worker.written >= tasks, seconds=stage.seconds_left - 5, watched=[worker])
        return first_and_last([run.ended for run in worker.runs], sizes.held_part)


def first_and_last(moments: Sequence[float], part: int) -> Figures:
    """How many there are, and the rates of the first and of the last of them, a third at most."""
    ordered = sorted(moments)
    part = max(2, min(part, len(ordered) // 3))
    first, last = records.per_second(ordered[:part]), records.per_second(ordered[-part:])
    return {"held_tasks": len(ordered), "held_first": first, "held_last": last, "held_ratio": last / first}


def crash(stage: Stage, sizes: Sizes) -> Figures:
    """Two workers of fifty hands; one is killed with its hands full."""
    stage.install()
    producer = stage.producer()
    workers = [stage.worker(concurrency=CRASH_HANDS, sleep_seconds=CRASH_SLEEP) for _ in range(2)]
    for worker in workers:
        stage.until(lambda: False, seconds=1.0, watched=[worker])
    producer.send_many(sizes.crash)

    def all_runs() -> list[Run]:
        return [run for worker in workers for run in worker.runs]

    killed, beside = workers
    stage.until(lambda: killed.written >= sizes.crash // 8, seconds=START_SECONDS, watched=workers)
    killed.signal(signal.SIGKILL)
    killed_at = time.monotonic()

    def are_all_done() -> bool:
        """The runs are read only when there are enough of them, for reading takes time that a worker could use."""
        is_near = sum(worker.written for worker in workers) >= sizes.crash
        return is_near and len({run.number for run in all_runs()}) >= sizes.crash

    stage.until(are_all_done, seconds=min(CRASH_SECONDS, stage.seconds_left - 10), watched=[beside])
    time.sleep(AGAIN_SECONDS)
    return recovery(all_runs(), tasks=sizes.crash, killed_at=killed_at)


def recovery(runs: Sequence[Run], *, tasks: int, killed_at: float) -> Figures:
    """Seconds from the kill until the last task was done for the first time; what was lost or run to its end again."""
    counted = records.count(runs, tasks=tasks)
    ended: dict[int, float] = {}
    for run in sorted(runs, key=lambda run: run.ended):
        ended.setdefault(run.number, run.ended)
    figures: Figures = {"crash_lost": counted.lost, "crash_again": counted.again}
    if not counted.lost:
        figures["recovered_seconds"] = max(0.0, max(ended.values()) - killed_at)
    return figures


SCENARIOS: Final[Mapping[Scenario, Callable[[Stage, Sizes], Figures]]] = {
    "enqueue": enqueue,
    "drain": drain,
    "pickup": pickup,
    "flood": flood,
    "snapshot": snapshot,
    "crash": crash,
}
ONCE: Final[frozenset[Scenario]] = frozenset({"snapshot", "crash"})
"""What is measured in the first round only: it takes long, and what it tells is not close."""


def _warm_up(stage: Stage, producer: Producer, worker: Worker, *, company: str | None = None) -> None:
    """Five tasks run, and then the worker has time to become idle."""
    producer.send_each(5, first=WARMING, company=company)
    stage.until_written(worker, 5, seconds=START_SECONDS)
    time.sleep(1.5)


@contextmanager
def _old_snapshot(url: str) -> Iterator[None]:
    with contextlib.closing(psycopg.connect(url)) as holder:
        holder.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        holder.execute("select count(*) from pg_class")
        yield
        holder.rollback()
