"""One embedded server from its user's side: join the one that runs in a home, or start it, and leave it.

A home holds the data, the log and two locks. Every user holds a share of `users.lock`, which the kernel takes
back when the process dies. Whoever gets `keeper.lock` makes the data directory if there is none and hands
it on to a keeper (see `keeper`), which runs the server until nobody is left.
"""

import contextlib
import fcntl
import functools
import hashlib
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import urllib.parse
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import psycopg
from psycopg import sql

from taketurns.storage.embedded import binaries, keeper
from taketurns.storage.embedded.errors import ServerNotStarted, WrongDataVersion

PUBLIC = Path("/var/lib/taketurns")
ROLE = "taketurns"
_PORT = "5432"  # of the socket's name only: nothing listens on the network
_LONGEST_SOCKET_DIRECTORY = 85  # of the 104 bytes that every system allows for "DIRECTORY/.s.PGSQL.5432"
_LOCALE = {"LC_ALL": "C", "TZ": "UTC"}  # the keeper reads the server's messages
_STOP_SECONDS = 60.0
_PAUSE_SECONDS = 0.01

SETTINGS: Mapping[str, str] = {
    "cluster_name": "taketurns",
    "jit": "off",
    "log_line_prefix": "%m [%p] %d ",
    "log_timezone": "UTC",
    "max_connections": "100",
    "timezone": "UTC",
}
UNSAFE_SETTINGS: Mapping[str, str] = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "max_connections": "200",
}
"""For data that may be lost."""


@dataclass(frozen=True)
class _Runner:
    """Who runs the server: PostgreSQL refuses to be root."""

    uid: int | None
    gid: int | None

    @property
    def effective_uid(self) -> int:
        return os.geteuid() if self.uid is None else self.uid


class PostgresServer:
    """A server in a home directory, shared with everybody who uses the same home.

    The settings and programs are those of the user who happens to start it. As root the server runs as the
    owner of the data, or else as `nobody`; a home that this user may not reach is replaced by one below
    `public`. With `discard` the home is deleted when the last user has gone.
    """

    def __init__(
        self,
        home: Path,
        *,
        settings: Mapping[str, str] | None = None,
        binaries_directory: Path | None = None,
        public: Path = PUBLIC,
        discard: bool = False,
        start_seconds: float = 60.0,
    ) -> None:
        self.home = _reachable_home(Path(os.path.abspath(home)), public)  # noqa: PTH100  resolve() would follow links
        self.joined = False
        self._settings = {**SETTINGS, **(settings or {})}
        self._binaries_directory = binaries_directory
        self._public = public
        self._discard = discard
        self._start_seconds = start_seconds
        self._users_lock: int | None = None
        self._address = (str(self.socket_directory), _PORT)

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
        return Path("/tmp") / f"taketurns-{_mark(self.home)}"  # noqa: S108  its owner is checked

    @property
    def users_lock(self) -> int:
        """The file descriptor of this user's share: a child process that inherits it is a user too."""
        if self._users_lock is None:
            raise ServerNotStarted(f"the server in {self.home} was not started by this process")
        return self._users_lock

    @property
    def postmaster_pid(self) -> int:
        """The process id of the running server."""
        return int(self._pid_file()[0])

    def start(self) -> None:
        """Join the server of this home, or start it; returns when it answers."""
        if self._users_lock is None:
            self._users_lock = self._enter()
            try:
                self._join_or_start()
            except BaseException:
                self.stop()
                raise

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

    def restart(self) -> None:
        """Stop the server under its users and wait until it answers again."""
        before = self.postmaster_pid
        os.kill(before, signal.SIGINT)
        if not _wait(lambda: self._answers() and self.postmaster_pid != before, self._start_seconds):
            raise self._not_started("did not come back after a restart")

    def url(self, database: str = "postgres") -> str:
        """The address of a database of this server."""
        host, port = self._address
        query = {"host": host} if port == _PORT else {"host": host, "port": port}
        return f"postgresql://{ROLE}@/{urllib.parse.quote(database)}?{urllib.parse.urlencode(query, safe='/')}"

    def create_database(self, name: str) -> str:
        """The address of the database of this name, which is made if it is not there."""
        taken = (psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation)  # the latter of two at once
        with self._connect() as connection, contextlib.suppress(*taken):
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.url(name)

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

    def _join_or_start(self) -> None:
        deadline = time.monotonic() + self._start_seconds
        launched = False
        while not self._answers():
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

    def _answers(self) -> bool:
        """Whether the server that the data directory names takes connections, at the address named there."""
        try:
            _, _, _, port, host, _, _, status = self._pid_file()
            if status.strip() != "ready" or not host:
                return False
            self._address = (host, port)
            self._connect().close()
        except (FileNotFoundError, ValueError, psycopg.OperationalError):
            return False
        return True

    def _connect(self) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(self.url(), autocommit=True, connect_timeout=10)

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
        runner = _runner(self.data_directory)
        found = binaries.reachable_by(
            binaries.find(self._binaries_directory), runner.effective_uid, public=self._public
        )
        self._initialise(found, runner)
        self._make_socket_directory(runner)
        orders = keeper.Orders(
            command=self._command(found),
            environment=_LOCALE,
            uid=runner.uid,
            gid=runner.gid,
            users_lock=str(self.home / "users.lock"),
            keeper_lock=keeper_lock,
            discard=self._whole_home() if self._discard else [],
        )
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

    def _pid_file(self) -> list[str]:
        return (self.data_directory / "postmaster.pid").read_text().splitlines()

    def _initialise(self, found: binaries.Binaries, runner: _Runner) -> None:
        if self.data_directory.exists():
            self._check_version(found)
            return
        for abandoned in self.home.glob("data.unfinished-*"):
            shutil.rmtree(abandoned, ignore_errors=True)
        unfinished = Path(tempfile.mkdtemp(dir=self.home, prefix="data.unfinished-"))
        _give(unfinished, runner)
        options = ["-D", str(unfinished), "-U", ROLE, "-A", "trust", "--encoding=UTF8"]
        if found.major >= 17:
            options += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        else:
            options += ["--locale=C"]
        if self._discard:
            options += ["--no-sync"]
        made = subprocess.run(
            [found.initdb, *options],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
            env=_LOCALE,
            user=runner.uid,
            group=runner.gid,
            extra_groups=None if runner.uid is None else [],
        )
        if made.returncode != 0:
            raise ServerNotStarted(f"initdb could not make {self.data_directory}:\n{made.stderr.strip()}")
        unfinished.rename(self.data_directory)

    def _check_version(self, found: binaries.Binaries) -> None:
        made_by = (self.data_directory / "PG_VERSION").read_text().strip()
        if made_by != str(found.major):
            raise WrongDataVersion(
                f"{self.data_directory} was written by PostgreSQL {made_by}, and the programs found are "
                f"{found.version} in {found.directory}. To go on with {made_by}, name the directory of its "
                f"programs in TAKETURNS_PG_BIN. To move to {found.major}, dump with pg_dumpall of {made_by}, "
                f"move the directory away, start again and restore with psql."
            )

    def _make_socket_directory(self, runner: _Runner) -> None:
        directory = self.socket_directory
        try:
            directory.mkdir(mode=0o700)
            _give(directory, runner)
        except FileExistsError:
            status = directory.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != runner.effective_uid:
                raise ServerNotStarted(
                    f"{directory}, where the server's socket belongs, is somebody else's: "
                    "remove it or choose another home."
                ) from None

    def _command(self, found: binaries.Binaries) -> list[str]:
        settings = {
            **self._settings,
            "listen_addresses": "",
            "unix_socket_directories": str(self.socket_directory),
            "unix_socket_permissions": "0700",
        }
        if found.has_library("pg_stat_statements"):
            settings.setdefault("shared_preload_libraries", "pg_stat_statements")
        command = [str(found.postgres), "-D", str(self.data_directory), "-p", _PORT]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        return command

    def _not_started(self, what: str) -> ServerNotStarted:
        try:
            said = self.log_path.read_text(errors="replace").strip().splitlines()[-10:]
        except FileNotFoundError:
            said = ["(nothing)"]
        return ServerNotStarted("\n".join([f"PostgreSQL in {self.home} {what}. It said:", *said]))


def throwaway(name: str | None = None) -> PostgresServer:
    """A server for tests and measurements: quick, unsafe, and deleted with its last user.

    Users that give the same name share one.
    """
    home = quick_directory() / f"taketurns-throwaway-{name or uuid.uuid4().hex[:12]}"
    return PostgresServer(home, settings=UNSAFE_SETTINGS, discard=True)


def quick_directory() -> Path:
    """In memory if there is room, for to make a database is to make 300 files."""
    memory = Path("/dev/shm")  # noqa: S108  the home gets a name of its own
    if memory.is_dir() and shutil.disk_usage(memory).free > 2 * 1024**3:
        return memory
    return Path(tempfile.gettempdir())


def _reachable_home(home: Path, public: Path) -> Path:
    uid = _runner(home / "data").effective_uid
    closest = next(folder for folder in (home, *home.parents) if folder.exists())
    if os.geteuid() != 0 or binaries.can_reach(closest, uid):
        return home
    return public / f"{home.name}-{_mark(home)}"


def _runner(data_directory: Path) -> _Runner:
    if os.geteuid() != 0:
        return _Runner(None, None)
    if data_directory.exists() and (owner := data_directory.stat()).st_uid != 0:
        return _Runner(owner.st_uid, owner.st_gid)
    nobody = pwd.getpwnam("nobody")
    return _Runner(nobody.pw_uid, nobody.pw_gid)


def _make_home(home: Path) -> None:
    if os.geteuid() == 0:
        binaries.make_open_directory(home)
    else:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)


def _give(path: Path, runner: _Runner) -> None:
    if runner.uid is not None and runner.gid is not None:
        os.chown(path, runner.uid, runner.gid)


def _mark(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:12]


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
