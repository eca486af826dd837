"""One embedded server from its user's side: join the one that runs in a home, or start it, and leave it.

A home holds the data, the log and three locks. Every user holds a share of `users.lock`, which the kernel takes
back when the process dies. Whoever gets `keeper.lock` prepares the data and hands the lock on to a keeper (see
`keeper`), which runs the server until nobody is left. The server itself holds `server.lock`.
"""

import contextlib
import fcntl
import functools
import hashlib
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, ClassVar, Self

from taketurns.storage.embedded import keeper
from taketurns.storage.embedded.errors import ServerNotStarted

_LONGEST_SOCKET_DIRECTORY = 85  # of the 104 bytes that every system allows for the path of a socket
_STOP_SECONDS = 60.0
_PAUSE_SECONDS = 0.01


class EmbeddedServer(ABC):
    """A server in a home directory, shared with everybody who uses the same home.

    The settings and programs are those of the user who happens to start it. With `discard` the home is deleted when
    the last user has gone.
    """

    product: ClassVar[str]

    def __init__(self, home: Path, *, discard: bool, start_seconds: float) -> None:
        self.home = home
        self.joined = False
        self._discard = discard
        self._start_seconds = start_seconds
        self._users_lock: int | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    @abstractmethod
    def pid(self) -> int:
        """The process id of the running server."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether the server of this home takes connections."""

    @abstractmethod
    def _orders(self, keeper_lock: int) -> keeper.Orders:
        """Prepare the data, and say how the server is run."""

    @property
    def data_directory(self) -> Path:
        return self.home / "data"

    @property
    def log_path(self) -> Path:
        return self.home / "server.log"

    @functools.cached_property
    def socket_directory(self) -> Path:
        beside = self.home / "run"
        if len(os.fsencode(beside)) <= _LONGEST_SOCKET_DIRECTORY:
            return beside
        return Path("/tmp") / f"taketurns-{mark(self.home)}"  # noqa: S108  its owner is checked

    @property
    def users_lock(self) -> int:
        """The file descriptor of this user's share: a child process that inherits it is a user too."""
        if self._users_lock is None:
            raise ServerNotStarted(f"the server in {self.home} was not started by this process")
        return self._users_lock

    def start(self) -> None:
        """Join the server of this home, or start it; returns when it answers."""
        if self._users_lock is None:
            self._users_lock = self._enter()
            try:
                self._join_or_start()
            except BaseException:
                self.stop()
                raise

    def start_again_if_lost(self) -> bool:
        """Start the server of this user again if its keeper was killed, and took it along; whether that was so."""
        if self._users_lock is None or self._is_kept():
            return False
        self._join_or_start()
        return not self.joined

    def stop(self) -> None:
        """Leave the server; the last user to leave waits until it has stopped."""
        if self._users_lock is None:
            return
        lock, self._users_lock = self._users_lock, None
        if _try_lock(lock, fcntl.LOCK_EX):
            self._stop_server()
        elif not _try_lock(lock, fcntl.LOCK_SH):
            self._wait_for_keeper()  # which has seen before us that nobody else is left
        os.close(lock)

    def _wait_for_another(self, pid: int) -> None:
        """Wait until a server answers that is not the one of this process id."""

        def is_there() -> bool:
            with contextlib.suppress(FileNotFoundError, ValueError):  # the old one takes its process id away
                return self.answers() and self.pid != pid
            return False

        if not _wait(is_there, self._start_seconds):
            raise self._not_started("did not come back after a restart")

    def _enter(self) -> int:
        """A share of the users' lock; waits while a keeper is stopping the server."""
        while True:
            _make_home(self.home)
            path = self.home / "users.lock"
            lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            fcntl.flock(lock, fcntl.LOCK_SH)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(lock), path.stat()):
                    return lock
            os.close(lock)  # the home was discarded in the meantime

    def _stop_server(self) -> None:
        """Nobody else can join meanwhile: the caller holds the users' lock alone."""
        if self._is_kept():
            with contextlib.suppress(ProcessLookupError, ValueError):
                os.kill(self._keeper_pid(), keeper.STOP)
                self._wait_for_keeper()
        elif self._discard:
            keeper.discard(self._whole_home())

    def _wait_for_keeper(self) -> None:
        with contextlib.suppress(FileNotFoundError, ValueError):
            leaving = self._keeper_pid()
            _wait(lambda: not self._is_kept() or self._keeper_pid() != leaving, _STOP_SECONDS)

    def _keeper_pid(self) -> int:
        return int((self.home / "keeper.lock").read_text())

    def _whole_home(self) -> list[str]:
        return [str(self.socket_directory), str(self.home)]

    def _to_discard(self) -> list[str]:
        return self._whole_home() if self._discard else []

    def _join_or_start(self) -> None:
        deadline = time.monotonic() + self._start_seconds
        launched = False
        while not self.answers():
            with self._keeper_lock() as lock:
                if lock is not None:
                    if launched:
                        raise self._not_started("did not start")
                    self._launch(lock)
                    launched = True
            if time.monotonic() > deadline:
                raise self._not_started(f"did not answer within {self._start_seconds:g} s")
            time.sleep(_PAUSE_SECONDS)
        self.joined = not launched

    @contextlib.contextmanager
    def _keeper_lock(self) -> Iterator[int | None]:
        """The lock, unless a keeper or somebody who is starting one has it."""
        lock = os.open(self.home / "keeper.lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            yield lock if _try_lock(lock, fcntl.LOCK_EX) else None
        finally:
            os.close(lock)

    def _is_kept(self) -> bool:
        if not self.home.exists():
            return False
        with self._keeper_lock() as lock:
            return lock is None

    def _launch(self, keeper_lock: int) -> None:
        """Start a keeper, which inherits the lock."""
        orders = self._orders(keeper_lock)
        with self._new_log() as log:
            subprocess.run(
                [sys.executable, "-I", "-S", keeper.__file__, orders.written()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                pass_fds=[keeper_lock],
                check=True,
            )

    def _new_log(self) -> BinaryIO:
        with contextlib.suppress(FileNotFoundError):
            self.log_path.replace(self.log_path.with_suffix(".log.1"))
        return self.log_path.open("ab+", buffering=0)

    def _make_socket_directory(self, uid: int | None = None, gid: int | None = None) -> None:
        directory = self.socket_directory
        try:
            directory.mkdir(mode=0o700)
            give(directory, uid, gid)
        except FileExistsError:
            status = directory.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != (os.geteuid() if uid is None else uid):
                raise ServerNotStarted(
                    f"{directory}, where the server's socket belongs, is somebody else's: "
                    "remove it or choose another home."
                ) from None

    def _not_started(self, what: str) -> ServerNotStarted:
        try:
            said = self.log_path.read_text(errors="replace").strip().splitlines()[-10:]
        except FileNotFoundError:
            said = ["(nothing)"]
        return ServerNotStarted("\n".join([f"{self.product} in {self.home} {what}. It said:", *said]))


def make_open_directory(path: Path) -> None:
    """Make a directory that every user may enter, and those above it that are missing, whatever the umask."""
    if path.exists():
        return
    make_open_directory(path.parent)
    with contextlib.suppress(FileExistsError):
        path.mkdir()
        path.chmod(0o755)


def give(path: Path, uid: int | None, gid: int | None) -> None:
    """Make a user the owner of a path; None: leave it as it is."""
    if uid is not None and gid is not None:
        os.chown(path, uid, gid)


def mark(path: Path) -> str:
    """A short name for a path, the same in every process."""
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:12]


def quick_directory() -> Path:
    """In memory if there is room, for to make a database is to make 300 files."""
    memory = Path("/dev/shm")  # noqa: S108  the home gets a name of its own
    if memory.is_dir() and shutil.disk_usage(memory).free > 2 * 1024**3:
        return memory
    return Path(tempfile.gettempdir())


def _make_home(home: Path) -> None:
    if os.geteuid() == 0:
        make_open_directory(home)
    else:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)


def _try_lock(lock: int, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE_SECONDS)
    return True
