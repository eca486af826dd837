"""What quiet companies wait beside a flood, in real time."""

from __future__ import annotations

import heapq
import math
import random
import time
from collections import deque
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event
from typing import Final
from uuid import UUID

from bench.fairness import shares
from bench.fairness.sides import SIDES, Side, Taken, built
from bench.server import connect
from taketurns.storage.embedded import PostgresServer


@dataclass(frozen=True, slots=True)
class Quiet:
    """Quiet companies beside a flood: theirs are numbers 1 to `companies`, the flood's is 0; each submits a task about
    every `every_seconds`. `workers` of so many hands hold each task for 100 to 300 ms."""

    seconds: float
    companies: int = 9
    every_seconds: float = 0.5
    workers: int = 4
    hands: int = 32
    floods: Sequence[int] = (0, 1_000, 10_000, 100_000)
    rounds: int = 2


class Fleet:
    """Workers in real time, at work from the beginning. One that has a free hand and nothing to do is woken by NOTIFY,
    and looks by itself now and then."""

    CHANNEL: Final = "bench_fairness"
    LOOK_SECONDS: Final = 0.25
    GATHER_SECONDS: Final = 0.002
    """What ends within this time of another is settled with it, as a worker does."""

    def __init__(self, side: type[Side], url: str, quiet: Quiet) -> None:
        self.claimed_at: dict[UUID, float] = {}
        self._side = side
        self._url = url
        self._hands = quiet.hands
        self._stopped = Event()
        self._workers = ThreadPoolExecutor(quiet.workers)
        self._working = [self._workers.submit(self._work, number) for number in range(quiet.workers)]

    def count_besides(self, tasks: Collection[UUID]) -> int:
        """How many were claimed that are none of these."""
        claimed = len(self.claimed_at)
        return claimed - sum(task in self.claimed_at for task in tasks)

    def stop(self) -> None:
        self._stopped.set()
        self._workers.shutdown()
        for worker in self._working:
            worker.result()

    def _work(self, number: int) -> None:
        chance = random.Random(number)
        side = self._side(self._url)
        running: list[tuple[float, UUID, Taken]] = []
        with connect(self._url) as listener:
            listener.execute(f"listen {self.CHANNEL}")
            while not self._stopped.is_set():
                ended = []
                while running and running[0][0] <= time.monotonic():
                    ended.append(heapq.heappop(running)[2])
                if ended:
                    side.settle(ended)
                is_full = len(running) == self._hands or self._claim(side, running, chance)
                until = running[0][0] + self.GATHER_SECONDS if running else math.inf
                seconds = min(max(until - time.monotonic(), 0), self.LOOK_SECONDS)
                if is_full:
                    self._stopped.wait(seconds)
                else:
                    deque(listener.notifies(timeout=seconds, stop_after=1), maxlen=0)
        side.settle([task for _, _, task in running])
        side.connection.close()

    def _claim(self, side: Side, running: list[tuple[float, UUID, Taken]], chance: random.Random) -> bool:
        """Take what the free hands can hold; whether all of them are in use then."""
        taken = side.claim(self._hands - len(running))
        now = time.monotonic()
        for task in taken:
            self.claimed_at[task.task_id] = now
            heapq.heappush(running, (now + chance.uniform(0.1, 0.3), task.task_id, task))
        return len(running) == self._hands


def waited(kind: type[Side], url: str, quiet: Quiet, *, flood: int, seed: int) -> list[float]:
    """Seconds from before a quiet task is submitted to when a worker has it; infinite for those that none had in the
    end. The flood is kept as large as it is; with one, waits begin to count when all hands are in use."""
    chance = random.Random(seed)
    side = kind(url)
    fleet = Fleet(kind, url, quiet)
    settled_in = time.monotonic() + 1.0
    end = settled_in + quiet.seconds
    next_at = {
        company: time.monotonic() + chance.uniform(0, quiet.every_seconds) for company in range(1, quiet.companies + 1)
    }
    submitted_at: dict[UUID, float] = {}
    replaced = 0
    while (now := time.monotonic()) < end:
        company = min(next_at, key=lambda company: next_at[company])
        if next_at[company] <= now:
            next_at[company] = now + chance.uniform(0.5, 1.5) * quiet.every_seconds
            began = time.monotonic()
            (task_id,) = side.enqueue(company, 1)
            submitted_at[task_id] = began
            side.connection.execute(f"notify {fleet.CHANNEL}")
        elif flood and (gone := fleet.count_besides(submitted_at) - replaced) > 50:
            side.enqueue(0, gone)
            replaced += gone
        else:
            time.sleep(min(next_at[company] - now, 0.01))
    time.sleep(1.0)
    fleet.stop()
    side.connection.close()
    return [
        fleet.claimed_at.get(task_id, float("inf")) - began
        for task_id, began in submitted_at.items()
        if began >= settled_in
    ]


@dataclass(frozen=True, slots=True)
class Waits:
    """What quiet companies waited on one side, beside a flood of one size."""

    side: str
    flood: int
    seconds: list[float]

    @property
    def median(self) -> float:
        return shares.percentile(self.seconds, 50)

    @property
    def p95(self) -> float:
        return shares.percentile(self.seconds, 95)


def measure(server: PostgresServer, quiet: Quiet) -> list[Waits]:
    """All sides and sizes in turn, round by round."""
    urls = {}
    for flood in quiet.floods:
        for kind in SIDES:
            url = urls[kind, flood] = built(kind, server, f"waits_{flood}", [1] * (quiet.companies + 1))
            side = kind(url)
            if flood:
                side.enqueue(0, flood)
            side.ready()
            side.connection.execute("checkpoint")
            side.connection.close()
    seconds: dict[tuple[type[Side], int], list[float]] = {which: [] for which in urls}
    for number in range(quiet.rounds):
        for (kind, flood), url in urls.items():
            seconds[kind, flood] += waited(kind, url, quiet, flood=flood, seed=number)
    return [Waits(kind.name, flood, taken) for (kind, flood), taken in seconds.items()]
