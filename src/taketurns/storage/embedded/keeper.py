"""The parent of an embedded server: starts it again when it dies, stops it when its last user has gone.

A program of its own, run by path with the standard library alone, in a session of its own, so that neither
Ctrl-C in a terminal nor the death of the process that started it reaches the server. It holds the lock that
says that the server has a keeper, and asks for the one that every user holds a share of: the kernel grants it
when none is left (decisions/0006).
"""

import contextlib
import ctypes
import dataclasses
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

RETRY_SECONDS = 10.0  # how long a dead server's lock file or shared memory may stand in the way of a new one
_STARTED_SECONDS = 1.0  # a server that ran for so long had started: what ended it then is no reason to give up
_PAUSE_SECONDS = 0.25
_REFUSED = 1  # the server's exit status when it will not start
_LOG = 1  # standard output and error are the server's log, which it inherits
_PR_SET_PDEATHSIG = 1

STOP = signal.SIGUSR1  # sent by the last user, who holds the users' lock alone


@dataclasses.dataclass(frozen=True)
class Orders:
    """What a keeper is told, by the process that starts it.

    The server is stopped by `stop_signal`, and by `orphan_signal` when its keeper was killed. When it refuses to start
    and says one of the words `in_the_way`, it is tried again for a while.
    """

    command: list[str]
    environment: dict[str, str]
    uid: int | None
    gid: int | None
    stop_signal: int
    orphan_signal: int
    in_the_way: list[str]
    users_lock: str
    keeper_lock: int
    server_lock: str
    discard: list[str]

    def written(self) -> str:
        return json.dumps(dataclasses.asdict(self))


class Keeper:
    """Runs one server for as long as it has users."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._unused = False
        self._server: subprocess.Popen[bytes] | None = None
        self._users = os.open(orders.users_lock, os.O_RDWR)
        self._lock = os.open(orders.server_lock, os.O_RDWR | os.O_CREAT, 0o644)

    def run(self) -> None:
        threading.Thread(target=self._stop_when_unused, daemon=True).start()
        fcntl.flock(self._lock, fcntl.LOCK_EX)  # the server of a keeper that was killed may be ending still
        failing_since: float | None = None
        while not self._unused:
            started, log_size = time.monotonic(), os.fstat(_LOG).st_size
            code = self._run_once()
            ended = time.monotonic()
            if code == _REFUSED and not self._something_was_in_the_way(log_size):
                break
            if code == 0 or (code != _REFUSED and ended - started > _STARTED_SECONDS):
                failing_since = None
                continue
            failing_since = failing_since or started
            if ended - failing_since > RETRY_SECONDS:
                break
            time.sleep(_PAUSE_SECONDS)
        if self._unused:
            discard(self._orders.discard)

    def _run_once(self) -> int:
        orders = self._orders
        self._server = subprocess.Popen(
            orders.command,
            stdin=subprocess.DEVNULL,
            cwd="/",
            env=orders.environment,
            user=orders.uid,
            group=orders.gid,
            extra_groups=None if orders.uid is None else [],
            pass_fds=[self._lock],
            preexec_fn=signalled_when_parent_ends(orders.orphan_signal),  # noqa: PLW1509  the other thread waits in a system call
        )
        if self._unused:
            self._stop_server()
        return self._server.wait()

    def _stop_when_unused(self) -> None:
        fcntl.flock(self._users, fcntl.LOCK_EX)
        self.stop()

    def stop(self) -> None:
        """May interrupt `run` anywhere, as a signal handler."""
        self._unused = True
        self._stop_server()

    def _stop_server(self) -> None:
        if self._server is not None:
            self._server.send_signal(self._orders.stop_signal)

    def _something_was_in_the_way(self, log_size: int) -> bool:
        said = os.pread(_LOG, 1 << 16, log_size)
        return any(words.encode() in said for words in self._orders.in_the_way)


def discard(directories: list[str]) -> None:
    """Delete directories in such a way that a newcomer finds nothing half gone."""
    for directory in map(Path, directories):
        aside = directory.with_name(f"{directory.name}.discarded-{os.getpid()}")
        with contextlib.suppress(OSError):
            directory.rename(aside)
            shutil.rmtree(aside, ignore_errors=True)


def signalled_when_parent_ends(number: int) -> Callable[[], None] | None:
    """A `preexec_fn` for a child that the kernel signals when the thread that started it ends; Linux only."""
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None, use_errno=True)
    parent = os.getpid()

    def ask() -> None:
        library.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return ask


def main(written: str) -> None:
    orders = Orders(**json.loads(written))
    _leave_the_starter()
    keeper = Keeper(orders)
    signal.signal(STOP, lambda _number, _frame: keeper.stop())
    os.truncate(orders.keeper_lock, 0)
    os.write(orders.keeper_lock, str(os.getpid()).encode())
    keeper.run()
    os.close(orders.keeper_lock)  # before the users' lock, so that who gets that one finds no keeper


def _leave_the_starter() -> None:
    if os.fork():
        os._exit(0)
    os.setsid()
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, _ignored)


def _ignored(_number: int, _frame: object) -> None:
    """Who uses the server gets these signals too, and may need the server to end well."""


if __name__ == "__main__":
    main(sys.argv[1])
