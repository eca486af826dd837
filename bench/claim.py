"""What a claim costs: ours beside the two usual ones, and against the size of the backlog and the number of companies.

Everything that is compared is measured in turn, round by round, so that a machine that slows down slows all of it.
"""

from __future__ import annotations

import re
import statistics
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, LiteralString, cast

import psycopg

from bench import results
from bench.server import connect, described, measured_server
from scripts import perf_seed
from scripts.perf_seed import Backlog
from taketurns.storage import schema
from taketurns.storage.embedded import PostgresServer

SCRIPTS = Path(__file__).parents[1] / "scripts"
WORKER = uuid.UUID(int=1)

ROUNDS = 9
IN_A_ROW = 5

Connection = psycopg.Connection[tuple[Any, ...]]
Claim = Callable[[int], float]
"""Claims that many tasks and answers the seconds that it took."""


@dataclass(frozen=True, slots=True)
class Case:
    """One claim, of one size, on one backlog."""

    name: str
    backlog: Backlog
    batch: int
    claim: Claim


def ours(connection: Connection, *, settled: Callable[[Sequence[uuid.UUID]], object] | None = None) -> Claim:
    """Our claim; what it took is settled outside the measured time, so that every claim finds nothing in flight, and
    `settled` is told whose tasks they were."""

    def claim(batch: int) -> float:
        token = uuid.uuid4()
        began = time.perf_counter()
        taken = connection.execute(
            "select company_id, task_id from claim(%s, '{default}', %s, %s)", (WORKER, batch, token)
        ).fetchall()
        seconds = time.perf_counter() - began
        assert len(taken) == batch
        taken.sort()
        connection.execute(
            "select from settle(%s, %s, %s, %s, null, null, null)",
            ([row[0] for row in taken], [row[1] for row in taken], [token] * batch, ["completed"] * batch),
        )
        if settled is not None:
            settled([row[0] for row in taken])
        return seconds

    return claim


def usual(connection: Connection, script: str) -> Claim:
    """A usual claim, as its script says it."""
    statement_of = usual_statement(connection, script)

    def claim(batch: int) -> float:
        sized = statement_of(batch)
        began = time.perf_counter()
        taken = connection.execute(sized).fetchall()
        seconds = time.perf_counter() - began
        assert len(taken) == batch
        return seconds

    return claim


def usual_statement(connection: Connection, script: str) -> Callable[[int], LiteralString]:
    """The statement of a usual claim for a batch; the connection is set up as the script says."""
    text = (SCRIPTS / f"{script}.sql").read_text("utf-8")
    found = re.search(r"explain \(.*?\)\n(.*?);\nrollback;", text, re.DOTALL)
    assert found is not None
    statement = found[1]
    if "set jit = off;" in text:
        connection.execute("set jit = off")
    return lambda batch: cast(LiteralString, statement.replace("limit 10", f"limit {batch}"))


def measure(cases: Sequence[Case], *, rounds: int, in_a_row: int = 1) -> dict[Case, list[float]]:
    """The seconds that each case took, measured in turn, so many in a row: first those of the first claim of every row,
    then those of the second, and so on."""
    seconds: dict[Case, list[list[float]]] = {case: [] for case in cases}
    for number in range(rounds + 1):
        for case in cases:
            row = [case.claim(case.batch) for _ in range(in_a_row)]
            if number > 0:
                seconds[case].append(row)
    return {case: [took for nth in zip(*rows, strict=True) for took in nth] for case, rows in seconds.items()}


def medians_of(cases: Sequence[Case], *, rounds: int) -> dict[Case, float]:
    """The median seconds of each case, measured in turn."""
    return {case: statistics.median(seconds) for case, seconds in measure(cases, rounds=rounds).items()}


def seeded(server: PostgresServer, backlog: Backlog, *, with_usual: bool) -> str:
    """A database with this backlog."""
    name = f"backlog_{backlog.tasks}_{backlog.companies}_{backlog.heaviest}_{backlog.seed}"
    url = server.create_database(name)
    schema.upgrade(url)  # a database of this name is filled anew
    began = time.monotonic()
    with psycopg.connect(url, autocommit=True) as connection:
        perf_seed.seed_cell(connection, backlog)
        if with_usual:
            perf_seed.seed_usual(connection)
        connection.execute("checkpoint")
    print(f"seeded {backlog.tasks:,} tasks of {backlog.companies:,} companies in {time.monotonic() - began:.0f} s")
    return url


def beside_the_usual(server: PostgresServer, sizes: Sequence[int], *, command: str) -> None:
    """Ours, the window and LATERAL, claims of 10 and of 100."""
    rows = []
    for size in sizes:
        backlog = Backlog(size, 50)
        url = seeded(server, backlog, with_usual=True)
        claims = {
            "ours": ours(connect(url)),
            "LATERAL": usual(connect(url), "perf_explain_lateral"),
            "window": usual(connect(url), "perf_explain_window"),
        }
        for batch in (10, 100):
            cases = [Case(name, backlog, batch, claim) for name, claim in claims.items()]
            taken = {case.name: seconds for case, seconds in measure(cases, rounds=ROUNDS, in_a_row=IN_A_ROW).items()}
            medians = {name: statistics.median(seconds) for name, seconds in taken.items()}
            rows.append(
                [
                    f"{size:,}",
                    str(batch),
                    *(f"{medians[name] * 1000:.2f}" for name in claims),
                    f"{statistics.median(taken['ours'][:ROUNDS]) * 1000:.2f}",
                    f"{medians['LATERAL'] / medians['ours']:.0f} ×",
                    f"{medians['window'] / medians['ours']:.0f} ×",
                ]
            )
    header = [
        "tasks",
        "batch",
        "ours ms",
        "LATERAL ms",
        "window ms",
        "ours, first of a row",
        "LATERAL / ours",
        "window / ours",
    ]
    results.record(
        "Claim, beside the two usual ones (50 companies, one has 80 %)",
        command=command,
        machine=described(server),
        body=results.table(header, rows)
        + f"\n\nMedians of {ROUNDS * IN_A_ROW} claims each, committed, {IN_A_ROW} in a row and then the next kind, as a"
        " worker's claims follow each other. The first of a row finds the processor's caches full of what the other two"
        " kinds read. Bars at 1,000,000 and a batch of 10: LATERAL ≥ 50 ×, window ≥ 250 ×.",
    )


def against_size(server: PostgresServer, backlogs: Sequence[Backlog], *, command: str) -> None:
    """Our claim against the backlog and the companies, all of them in turn."""
    largest_first = sorted(
        backlogs, key=lambda backlog: -backlog.tasks
    )  # so that it does not turn out the others' pages
    urls = {backlog: seeded(server, backlog, with_usual=False) for backlog in largest_first}
    claims = {backlog: ours(connect(urls[backlog])) for backlog in backlogs}
    rows = list(_rows_against_size(claims))
    header = ["tasks", "companies", "weights", "of 10, ms", "to the first", "of 100, ms", "to the first"]
    results.record(
        "Claim, against the size of the backlog and the number of companies",
        command=command,
        machine=described(server),
        body=results.table(header, rows) + "\n\nMedians of 60 claims each, in turn, committed. Bar for a claim of 10 at"
        " 10,000,000 tasks, and at 10,000 companies: ≤ 1.5 ×.",
    )


def _rows_against_size(claims: dict[Backlog, Claim]) -> Iterator[list[str]]:
    medians: dict[int, dict[Backlog, float]] = {}
    for batch in (10, 100):
        cases = [Case("ours", backlog, batch, claim) for backlog, claim in claims.items()]
        medians[batch] = {case.backlog: taken for case, taken in medians_of(cases, rounds=60).items()}
    first = next(iter(claims))
    for backlog in claims:
        row = [f"{backlog.tasks:,}", f"{backlog.companies:,}", f"1 to {backlog.heaviest}"]
        for batch in (10, 100):
            taken = medians[batch][backlog]
            row += [f"{taken * 1000:.2f}", f"{taken / medians[batch][first]:.2f} ×"]
        yield row


def run(*, large: bool, command: str) -> None:
    """All of it, on one server."""
    with measured_server() as server:
        beside_the_usual(server, (100_000, 1_000_000), command=command)
        backlogs = [Backlog(100_000, 50), Backlog(1_000_000, 50), Backlog(1_000_000, 10_000)]
        backlogs += [Backlog(1_000_000, 10_000, 100), *([Backlog(10_000_000, 50)] if large else [])]
        against_size(server, backlogs, command=command)
