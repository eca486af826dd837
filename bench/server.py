"""The server that measurements run on: one of their own, on disk, as durable as in production."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg

from taketurns.storage.embedded import PostgresServer

_MEGABYTE = 1024 * 1024
_MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // _MEGABYTE

SETTINGS: Final[Mapping[str, str]] = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": f"{min(_MEMORY // 4, 4096)}MB",
    "max_wal_size": "8GB",
    "max_connections": "100",
    "jit": "on",
}
"""A quarter of the memory, as is usual. JIT is on, as PostgreSQL ships; claims switch it off for themselves, and so
does the LATERAL one."""


@contextmanager
def measured_server() -> Iterator[PostgresServer]:
    """A new server, deleted in the end."""
    home = Path(tempfile.mkdtemp(prefix="taketurns-bench-", dir="/var/tmp"))  # on disk, and within reach of its user
    home.chmod(0o755)
    try:
        with PostgresServer(home / "server", settings=SETTINGS) as server:
            yield server
    finally:
        shutil.rmtree(home, ignore_errors=True)


def connect(url: str) -> psycopg.Connection[tuple[Any, ...]]:
    """A connection in autocommit whose names are the cell's."""
    connection = psycopg.connect(url, autocommit=True)
    connection.execute("set search_path to taketurns")
    return connection


def described(server: PostgresServer) -> str:
    """What was measured on, in one line."""
    with psycopg.connect(server.url()) as connection:
        version = connection.info.server_version
    settings = ", ".join(f"{name} {value}" for name, value in SETTINGS.items())
    return (
        f"PostgreSQL {version // 10_000}.{version % 10_000} ({settings}), Python {platform.python_version()},"
        f" {os.cpu_count()} cores, {platform.system()} {platform.machine()}"
    )
