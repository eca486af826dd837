"""The servers that all peers share: a PostgreSQL and a Valkey of the measurement's own, as durable as in production."""

from __future__ import annotations

import contextlib
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg
import redis

from bench.peers.catalogue import Store
from bench.server import described, measured_server
from taketurns.storage.embedded import PostgresServer, ValkeyServer

DATABASE: Final = "peer"


@dataclass(frozen=True, slots=True)
class Stores:
    """Both servers: PostgreSQL by its socket, Valkey by loopback."""

    postgres: PostgresServer
    valkey: ValkeyServer
    redis_url: str

    @property
    def postgres_url(self) -> str:
        return self.postgres.url(DATABASE)

    def pid(self, store: Store) -> int:
        """The process, above all others, of the server that a peer's tasks wait in."""
        return self.postgres.pid if store == "PostgreSQL" else self.valkey.pid

    def empty(self) -> None:
        """Forget all that the peer before left."""
        with psycopg.connect(self.postgres.url(), autocommit=True) as connection:
            connection.execute(f"drop database if exists {DATABASE} with (force)")
            connection.execute(f"create database {DATABASE}")
            connection.execute("checkpoint")
        with contextlib.closing(redis.Redis.from_url(self.redis_url)) as client:
            client.flushall()

    def settle_down(self) -> None:
        """Let the planner know what is there, and the disk have it."""
        with psycopg.connect(self.postgres_url, autocommit=True) as connection:
            connection.execute("analyze")
            connection.execute("checkpoint")

    def described(self) -> str:
        with contextlib.closing(redis.Redis.from_url(self.redis_url)) as client:
            told = client.info("server")
            version = told.get("valkey_version") or told["redis_version"]
        return f"{described(self.postgres)}; Valkey {version} (append-only file, everysec)"


@contextmanager
def measured_stores() -> Iterator[Stores]:
    """New servers, deleted in the end."""
    with (
        measured_server() as postgres,
        tempfile.TemporaryDirectory(prefix="taketurns-bench-", dir="/var/tmp") as home,
        ValkeyServer(Path(home) / "valkey", settings={"bind": "127.0.0.1"}) as valkey,
    ):
        port = _free_port()
        with contextlib.closing(redis.Redis.from_url(valkey.url)) as client:
            client.config_set("port", port)
        yield Stores(postgres, valkey, f"redis://127.0.0.1:{port}/0")


def _free_port() -> int:
    with socket.socket() as line:
        line.bind(("127.0.0.1", 0))
        return int(line.getsockname()[1])
