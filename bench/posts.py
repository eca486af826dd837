"""`POST` of one task beside a bare FastAPI route that inserts one row, on one PostgreSQL, 32 connections, in turn."""

from __future__ import annotations

import asyncio
import json
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from urllib.error import URLError

import psycopg

from bench import bare_api, processes, results
from bench.server import connect, described, measured_server
from scripts import perf_seed
from scripts.perf_seed import Backlog
from taketurns.storage import schema
from taketurns.storage.embedded import PostgresServer

CONNECTIONS: Final = 32
ROUNDS: Final = 7
REQUESTS: Final = 4_000
SMALL_REQUESTS: Final = 400
START_SECONDS: Final = 60.0
BAR: Final = 0.7
_HEAD: Final = (
    b"POST /companies/company-%d/tasks HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n"
)
BODY: Final = json.dumps({"type": "work", "payload": {"to": "somebody@example.com"}}).encode()


class Refused(RuntimeError):
    """A request was not answered as it has to be."""


@dataclass(slots=True)
class Side:
    """One API under load: requests a second of each round, and what its process and PostgreSQL used in all."""

    port: int
    pid: int
    companies: int = 1
    rates: list[float] = field(default_factory=list)
    api_seconds: float = 0.0
    server_seconds: float = 0.0

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)


def measured(server: PostgresServer, *, requests: int) -> dict[str, Side]:
    """Both sides, round by round in turn; the first round of each is not counted."""
    from bench.peers.stage import cpu_seconds  # noqa: PLC0415  what counts is not installed for the tests

    url = server.create_database("posts")
    schema.upgrade(url)
    with connect(url) as connection:
        perf_seed.seed_cell(connection, Backlog(50_000, 50))
        connection.execute("create schema bare")
        connection.execute("set search_path to bare")
        connection.execute(bare_api.TABLE)
    with ExitStack() as running:
        bare = running.enter_context(_bare(psycopg.conninfo.make_conninfo(url, options="-c search_path=bare")))
        port = _free_port()
        (ours,) = running.enter_context(processes.running(url, "api", port=port, authentication="off"))
        sides = {
            "a bare route": bare,
            "ours, of one company": Side(port, ours.pid),
            "ours, of as many companies as connections": Side(port, ours.pid, companies=CONNECTIONS),
        }
        for side in sides.values():
            processes.wait_until(partial(_is_ready, side.port), seconds=START_SECONDS, what="the start of an API")
        for round_number in range(ROUNDS + 1):
            for side in sides.values():
                used, used_by_server = cpu_seconds(side.pid), cpu_seconds(server.pid)
                rate = asyncio.run(requests_per_second(side.port, requests, companies=side.companies))
                if round_number:
                    side.rates.append(rate)
                    side.api_seconds += cpu_seconds(side.pid) - used
                    side.server_seconds += cpu_seconds(server.pid) - used_by_server
        return sides


async def requests_per_second(port: int, requests: int, *, companies: int) -> float:
    """How many tasks are created in a second by connections that each send when they were answered.

    Raises Refused at the first answer that is not `201 Created`.
    """
    left = iter(range(requests))
    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for connection in range(CONNECTIONS):
            request = _HEAD % (connection % companies + 1, len(BODY)) + BODY
            group.create_task(_post(port, request, left))
    return requests / (time.perf_counter() - began)


async def _post(port: int, request: bytes, left: Iterator[int]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in left:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 201 "):
            raise Refused(head.decode())
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length))
    writer.close()


@contextmanager
def _bare(url: str) -> Iterator[Side]:
    port = _free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.bare_api", url, str(port)], cwd=processes.ROOT, stdin=subprocess.DEVNULL
    )
    try:
        yield Side(port, process.pid)
    finally:
        process.terminate()
        process.wait(processes.STOP_SECONDS)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


def table(sides: dict[str, Side], requests: int) -> str:
    bare = sides["a bare route"].rate
    rows = [
        [
            name,
            f"{side.rate:,.0f}",
            f"{side.rate / bare:.2f} ×",
            f"{side.api_seconds / (ROUNDS * requests) * 1e6:.0f}",
            f"{side.server_seconds / (ROUNDS * requests) * 1e6:.0f}",
        ]
        for name, side in sides.items()
    ]
    header = ["", "requests a second", "to the bare one", "µs of the API's processor time each", "of PostgreSQL's"]
    ratio = min(side.rate for side in sides.values()) / bare
    return results.table(header, rows) + (
        f"\n\nMedians of {ROUNDS} rounds in turn of {requests:,} requests, {CONNECTIONS} connections, one process each,"
        f" no keys asked for. Bar: ≥ {BAR:g} ×: {'met' if ratio >= BAR else 'not met'}."
    )


def run(*, small: bool, command: str) -> None:
    """Measure, and record; a small run is a trial, which is printed only."""
    requests = SMALL_REQUESTS if small else REQUESTS
    with measured_server() as server:
        body = table(measured(server, requests=requests), requests)
        if small:
            print(body)
        else:
            results.record(
                "POST of one task, beside a bare route that inserts one row",
                command=command,
                machine=described(server),
                body=body,
            )
