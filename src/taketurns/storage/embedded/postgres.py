"""PostgreSQL in a home: its data directory, whom it runs as, and how it is reached.

Joining, starting and leaving it are `home`'s.
"""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import urllib.parse
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import sql

from taketurns.storage.embedded import binaries, home, keeper
from taketurns.storage.embedded.errors import ServerNotStarted, WrongDataVersion

PUBLIC = Path("/var/lib/taketurns")
ROLE = "taketurns"
_PORT = "5432"  # of the socket's name only: nothing listens on the network
_LOCALE = {"LC_ALL": "C", "TZ": "UTC"}  # the keeper reads the server's messages
_IN_THE_WAY = ("lock file", "shared memory block", "could not bind")

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


class PostgresServer(home.EmbeddedServer):
    """A PostgreSQL server, shared with everybody who uses the same home.

    As root it runs as the owner of the data, or else as `nobody`; a home that this user may not reach is replaced by
    one below `public`.
    """

    product = "PostgreSQL"

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
        absolute = Path(os.path.abspath(home))  # noqa: PTH100  resolve() would follow links
        super().__init__(_reachable_home(absolute, public), discard=discard, start_seconds=start_seconds)
        self._settings = {**SETTINGS, **(settings or {})}
        self._binaries_directory = binaries_directory
        self._public = public
        self._address = (str(self.socket_directory), _PORT)

    @property
    def pid(self) -> int:
        return int(self._pid_file()[0])

    def restart(self) -> None:
        """Stop the server under its users and wait until it answers again."""
        before = self.pid
        os.kill(before, signal.SIGINT)
        self._wait_for_another(before)

    def url(self, database: str = "postgres", *, role: str = ROLE) -> str:
        """The address of a database of this server, for its owner or another role, which needs no password."""
        host, port = self._address
        query = {"host": host} if port == _PORT else {"host": host, "port": port}
        return f"postgresql://{role}@/{urllib.parse.quote(database)}?{urllib.parse.urlencode(query, safe='/')}"

    def create_database(self, name: str) -> str:
        """The address of the database of this name, which is made if it is not there."""
        taken = (psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation)  # the latter of two at once
        with self._connect() as connection, contextlib.suppress(*taken):
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.url(name)

    def answers(self) -> bool:
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

    def _orders(self, keeper_lock: int) -> keeper.Orders:
        runner = _runner(self.data_directory)
        found = binaries.reachable_by(
            binaries.find(self._binaries_directory), runner.effective_uid, public=self._public
        )
        self._initialise(found, runner)
        self._make_socket_directory(runner.uid, runner.gid)
        return keeper.Orders(
            command=self._command(found),
            environment=_LOCALE,
            uid=runner.uid,
            gid=runner.gid,
            stop_signal=signal.SIGQUIT if self._discard else signal.SIGINT,
            orphan_signal=signal.SIGINT,
            in_the_way=list(_IN_THE_WAY),
            users_lock=str(self.home / "users.lock"),
            keeper_lock=keeper_lock,
            server_lock=str(self.home / "server.lock"),
            discard=self._to_discard(),
        )

    def _pid_file(self) -> list[str]:
        return (self.data_directory / "postmaster.pid").read_text().splitlines()

    def _initialise(self, found: binaries.Binaries, runner: _Runner) -> None:
        if self.data_directory.exists():
            self._check_version(found)
            return
        for abandoned in self.home.glob("data.unfinished-*"):
            shutil.rmtree(abandoned, ignore_errors=True)
        unfinished = Path(tempfile.mkdtemp(dir=self.home, prefix="data.unfinished-"))
        home.give(unfinished, runner.uid, runner.gid)
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


def throwaway(name: str | None = None) -> PostgresServer:
    """A server for tests and measurements: quick, unsafe, and deleted with its last user.

    Users that give the same name share one.
    """
    place = home.quick_directory() / f"taketurns-throwaway-{name or uuid.uuid4().hex[:12]}"
    return PostgresServer(place, settings=UNSAFE_SETTINGS, discard=True)


def _reachable_home(place: Path, public: Path) -> Path:
    uid = _runner(place / "data").effective_uid
    closest = next(folder for folder in (place, *place.parents) if folder.exists())
    if os.geteuid() != 0 or binaries.can_reach(closest, uid):
        return place
    return public / f"{place.name}-{home.mark(place)}"


def _runner(data_directory: Path) -> _Runner:
    if os.geteuid() != 0:
        return _Runner(None, None)
    if data_directory.exists() and (owner := data_directory.stat()).st_uid != 0:
        return _Runner(owner.st_uid, owner.st_gid)
    nobody = pwd.getpwnam("nobody")
    return _Runner(nobody.pw_uid, nobody.pw_gid)
