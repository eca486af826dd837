"""What an installation uses that has nothing to do: its API, a worker and PostgreSQL, a minute long, as they are set up
by default, and how often the worker claims."""

from __future__ import annotations

import socket
import time
import urllib.request
from collections.abc import Mapping
from typing import Any, Final
from urllib.error import URLError

import psycopg

from bench import processes, results
from bench.server import connect, described, measured_server
from scripts import perf_seed
from scripts.perf_seed import Backlog
from taketurns.storage import schema
from taketurns.storage.embedded import PostgresServer

SECONDS: Final = 60.0
SETTLE_SECONDS: Final = 15.0
SMALL_SECONDS: Final = 5.0
START_SECONDS: Final = 60.0
COMPANIES: Final = 50
BAR_CPU: Final = 0.02
BAR_CLAIMS: Final = 1.0


def measured(server: PostgresServer, *, settle_seconds: float, seconds: float) -> tuple[dict[str, float], float]:
    """The part of one core that each process uses, and the claims of the worker a second."""
    from bench.peers.stage import cpu_seconds  # noqa: PLC0415  what counts is not installed for the tests

    url = server.create_database("idle")
    schema.upgrade(url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("alter database idle set track_functions = 'pl'")
        perf_seed.seed_cell(connection, Backlog(1, COMPANIES))
        connection.execute("truncate tasks, pending_tasks, scheduled_tasks, lines, turns")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with (
        processes.running(url, "api", port=port, authentication="off") as (api,),
        processes.running(url, "worker") as (worker,),
        connect(url) as connection,
    ):
        processes.wait_until(lambda: _is_ready(port), seconds=START_SECONDS, what="the start of the API")
        processes.wait_until(
            lambda: connection.execute("select count(*) from workers").fetchall() == [(1,)],
            seconds=START_SECONDS,
            what="the start of the worker",
        )
        pids = {"API": api.pid, "worker": worker.pid, "PostgreSQL": server.pid}
        time.sleep(settle_seconds)
        claims = _claims(connection)
        used = {name: cpu_seconds(pid) for name, pid in pids.items()}
        began = time.monotonic()
        time.sleep(seconds)
        lasted = time.monotonic() - began
        return (
            {name: (cpu_seconds(pid) - used[name]) / lasted for name, pid in pids.items()},
            (_claims(connection) - claims) / lasted,
        )


def table(used: Mapping[str, float], claims: float) -> str:
    together = sum(used.values())
    header = [*used, "together", "claims a second"]
    row = [*(f"{part:.2%}" for part in used.values()), f"{together:.2%}", f"{claims:.2f}"]
    met = "met" if together < BAR_CPU and claims <= BAR_CLAIMS else "not met"
    return results.table(header, [row]) + (
        f"\n\nOf one core, {COMPANIES} companies, nothing to do. Bar: < {BAR_CPU:.0%} together, and ≤ {BAR_CLAIMS:g}"
        f" claim a second: {met}."
    )


def run(*, small: bool, command: str) -> None:
    """Measure, and record; a small run is a trial, which is printed only."""
    with measured_server() as server:
        used, claims = measured(
            server,
            settle_seconds=SMALL_SECONDS if small else SETTLE_SECONDS,
            seconds=SMALL_SECONDS if small else SECONDS,
        )
        body = table(used, claims)
        if small:
            print(body)
        else:
            results.record(
                "At rest: what an idle installation uses", command=command, machine=described(server), body=body
            )


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


def _claims(connection: psycopg.Connection[Any]) -> int:
    ((calls,),) = connection.execute(
        "select coalesce(sum(calls), 0)::integer from pg_stat_user_functions where funcname = 'claim'"
    ).fetchall()
    return int(calls)
