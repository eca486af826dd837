"""The processes of one measurement: a peer's producer and its workers, seen from outside, none of which outlives it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

import psutil

from bench.peers import records
from bench.peers.catalogue import Peer
from bench.peers.environments import Installed, last_words
from bench.peers.orders import Orders
from bench.peers.records import Run
from bench.peers.stores import Stores

ROOT: Final = Path(__file__).parents[2]
START_SECONDS: Final = 40.0
STOP_SECONDS: Final = 5.0
LOOK_SECONDS: Final = 0.005
SAMPLE_SECONDS: Final = 0.2
MEBIBYTE: Final = 2**20


class PeerFailed(RuntimeError):
    """A peer did not do what it was asked; the message says what, and ends with what its process said."""


def family(pid: int) -> list[psutil.Process]:
    """A process and all that come from it."""
    try:
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def cpu_seconds(pid: int) -> float:
    """What a process and all that come from it have used so far, those that have ended included."""
    total = 0.0
    for process in family(pid):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def busy_seconds() -> float:
    """What the whole machine has used so far."""
    times = psutil.cpu_times()
    return float(sum(times[:3]) + sum(getattr(times, name, 0.0) for name in ("irq", "softirq")))


def memory_mebibytes(pid: int) -> float:
    """What a process and all that come from it have in memory."""
    total = 0
    for process in family(pid):
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total / MEBIBYTE


class Worker:
    """A worker process: the records of its handlers, and the most memory that it was seen to have."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], path: Path, said: IO[bytes]) -> None:
        path.touch()
        self.path = path
        self.process = subprocess.Popen(
            command,
            env=environment,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
        self.peak_mebibytes = 0.0
        self._ends = threading.Event()
        self._watch = threading.Thread(target=self._sample, daemon=True)
        self._watch.start()

    @property
    def written(self) -> int:
        """How many handlers have ended."""
        return records.written(self.path)

    @property
    def runs(self) -> list[Run]:
        return records.read(self.path)

    @property
    def cpu_seconds(self) -> float:
        return cpu_seconds(self.process.pid)

    def signal(self, number: signal.Signals) -> None:
        """Send it to all of the worker's processes."""
        for process in family(self.process.pid):
            try:
                process.send_signal(number)
            except psutil.NoSuchProcess:
                continue

    def stop(self) -> None:
        """In good order if it will, and else not."""
        self._ends.set()
        self._watch.join()
        left = family(self.process.pid)
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for process in left:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue

    def _sample(self) -> None:
        while not self._ends.wait(SAMPLE_SECONDS):
            self.peak_mebibytes = max(self.peak_mebibytes, memory_mebibytes(self.process.pid))


class Producer:
    """The process that enqueues and counts, asked by a line of JSON and answering with one."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], said: IO[bytes]) -> None:
        self.process = subprocess.Popen(
            command,
            env=environment,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            start_new_session=True,
        )
        self.has_bulk = False

    def begin(self) -> None:
        """Wait until it is connected."""
        self.has_bulk = bool(self._answer()["batch"])

    def send_each(self, count: int, *, first: int = 0, company: str | None = None) -> float:
        """One by one; the seconds it took."""
        return float(self._ask("each", first=first, count=count, company=company)["seconds"])

    def send_many(self, count: int, *, first: int = 0, company: str | None = None) -> float:
        """In the fastest way there is; the seconds it took."""
        return float(
            self._ask("many" if self.has_bulk else "each", first=first, count=count, company=company)["seconds"]
        )

    def send_spaced(self, gaps: Sequence[float], *, first: int = 0) -> list[float]:
        """One after each of these gaps; when each was sent."""
        asked = self._ask("spaced", first=first, count=len(gaps), company=None, gaps=gaps)
        return [float(moment) for moment in asked["sent_at"]]

    def left(self) -> int:
        """How many tasks the store does not show as done."""
        return int(self._ask("left")["left"])

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _ask(self, do: str, **more: object) -> dict[str, Any]:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"do": do, **more}) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise PeerFailed(f"the producer was gone before {do!r}") from error
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise PeerFailed("the producer ended without an answer")
        answer: dict[str, Any] = json.loads(line)
        return answer


class Stage:
    """One measurement of one peer. All of its processes are ended once it takes longer than `seconds`."""

    def __init__(self, peer: Peer, installed: Installed, stores: Stores, *, seconds: float) -> None:
        self.peer = peer
        self.stores = stores
        self._installed = installed
        self._deadline = time.monotonic() + seconds
        self._seconds = seconds
        self._parts: list[Worker | Producer] = []

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="taketurns-peers-")
        self._path = Path(self._folder.name)
        self._said = (self._path / "said.log").open("ab")
        self._watchdog = threading.Timer(self._seconds, self._end_all)
        self._watchdog.daemon = True
        self._watchdog.start()
        self.stores.empty()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watchdog.cancel()
        for part in reversed(self._parts):
            part.stop()
        self._said.close()
        said = (self._path / "said.log").read_text(encoding="utf-8", errors="replace").strip()
        self._folder.cleanup()
        if isinstance(error, PeerFailed):
            late = "it took too long: " if self.is_late else ""
            raise PeerFailed(f"{late}{error}{f' ({last_words(said)})' if said else ''}") from error

    @property
    def is_late(self) -> bool:
        return time.monotonic() >= self._deadline

    @property
    def seconds_left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def install(self) -> None:
        """Give the peer its schema."""
        try:
            subprocess.run(
                self._installed.command(self.peer, "install"),
                env=self._environment(),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=self._said,
                timeout=min(START_SECONDS, self.seconds_left),
                check=True,
            )
        except subprocess.SubprocessError as error:
            raise PeerFailed("its schema could not be installed") from error

    def producer(self) -> Producer:
        producer = Producer(self._installed.command(self.peer, "produce"), self._environment(), self._said)
        self._parts.append(producer)
        producer.begin()
        return producer

    def worker(self, *, concurrency: int | None = None, sleep_seconds: float = 0.0) -> Worker:
        path = self._path / f"worker-{len(self._parts)}.records"
        environment = self._environment(
            concurrency=concurrency or self.peer.concurrency, records=str(path), sleep_seconds=sleep_seconds
        )
        worker = Worker(self._installed.command(self.peer, "work"), environment, path, self._said)
        self._parts.append(worker)
        return worker

    def until(self, holds: Callable[[], bool], *, seconds: float, watched: Sequence[Worker] = ()) -> bool:
        """Wait until it holds; whether it did so in time. Raises PeerFailed when a worker that is watched has ended."""
        deadline = min(time.monotonic() + seconds, self._deadline)
        while not holds():
            for worker in watched:
                if (code := worker.process.poll()) is not None:
                    raise PeerFailed(f"the worker ended with {code}")
            if time.monotonic() > deadline:
                return False
            time.sleep(LOOK_SECONDS)
        return True

    def until_written(self, worker: Worker, runs: int, *, seconds: float) -> None:
        """Wait until so many handlers have ended. Raises PeerFailed when they do not."""
        if not self.until(lambda: worker.written >= runs, seconds=seconds, watched=[worker]):
            raise PeerFailed(f"{worker.written:,} of {runs:,} tasks had run when it was waited for no longer")

    def server_cpu_seconds(self) -> float:
        return cpu_seconds(self.stores.pid(self.peer.store))

    def _environment(self, *, concurrency: int = 1, records: str = "", sleep_seconds: float = 0.0) -> dict[str, str]:
        orders = Orders(
            postgres=self.stores.postgres_url,
            redis=self.stores.redis_url,
            variant=self.peer.variant,
            concurrency=concurrency,
            records=records,
            sleep_seconds=sleep_seconds,
        )
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        packages = {"PEER_PACKAGES": str(self._installed.packages)} if self._installed.packages else {}
        return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **packages, **orders.environment()}

    def _end_all(self) -> None:
        for part in self._parts:
            for process in family(part.process.pid):
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    continue
