"""What companies that may not be served cost the others: a thousand of them with a million tasks, and none of them.

All cells are measured in turn, round by round, so that a machine that slows down slows all of it.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from bench import results
from bench.claim import Case, medians_of, ours
from bench.server import connect, described, measured_server
from scripts.perf_seed import Backlog
from taketurns.storage import schema
from taketurns.storage.embedded import PostgresServer

WORKER = uuid.UUID(int=1)
OTHERS = Backlog(100_000, 50)

SEED: Final = """
    with company as (
        insert into companies (id, slug, name)
        select gen_random_uuid(), %(name)s || '-' || n, '' from generate_series(1, %(companies)s) n returning id
    ), task as (
        insert into tasks (company_id, id, type, queue, priority, run_after, max_retries, payload, created_at)
        select c.id, gen_random_uuid(), 'work', 'default', 5, clock_timestamp(), 0, '{}', clock_timestamp()
        from company c, generate_series(1, %(each)s) returning *
    ), pending as (
        insert into pending_tasks (queue, company_id, priority, run_after, task_id, type)
        select queue, company_id, priority, run_after, id, type from task
    )
    select join_rotation(id, '{default}') from company
"""
OF_LIMITED: Final = "company_id in (select id from companies where slug like 'limited-%')"


@dataclass(frozen=True, slots=True)
class Limited:
    """How the limited companies are kept from being served, and by which statement; `holds`: each has a hand in use."""

    name: str
    limit: str
    holds: bool = False
    waits: bool = True


CASES: Final = (
    Limited("none of them", "", waits=False),
    Limited("paused", "update companies set paused = true where slug like 'limited-%'"),
    Limited(
        "out of their rate",
        "update companies set rate_tasks = 1, rate_seconds = 86400, rate_burst = 1 where slug like 'limited-%'",
    ),
    Limited(
        "queue paused",
        "insert into pauses (company_id, queue) select id, 'default' from companies where slug like 'limited-%'",
    ),
    Limited("with a hand in use each, nothing waits", "", holds=True, waits=False),
    Limited(
        "at maxInFlight, one hand each",
        "update companies set max_in_flight = 1 where slug like 'limited-%'",
        holds=True,
    ),
)


def seeded(server: PostgresServer, case: Limited, *, companies: int, tasks: int) -> psycopg.Connection[Any]:
    """A cell of the others and of so many limited companies, as claims have left it."""
    url = server.create_database(f"limits_{CASES.index(case)}")
    schema.upgrade(url)
    connection = connect(url)
    connection.execute(SEED, {"name": "other", "companies": OTHERS.companies, "each": OTHERS.tasks // OTHERS.companies})
    each = tasks // companies if case.waits else int(case.holds)
    if each:
        connection.execute(SEED, {"name": "limited", "companies": companies, "each": each})
    if case.limit:
        connection.execute(case.limit.encode())
    connection.execute("vacuum (analyze)")
    quiet = 0
    while quiet < 50:  # until no claim has met a limited company for a while
        connection.execute("select from claim(%s, '{default}', 100, gen_random_uuid())", (WORKER,))
        kept = f"where not {OF_LIMITED}" if case.holds else ""
        connection.execute(
            "select settle(array_agg(p.company_id), array_agg(p.task_id), array_agg(p.claim_token),"
            " array_agg('completed'::text), null, null, null)"
            f" from (select * from processing_tasks {kept} order by company_id, task_id) p having count(*) > 0".encode()
        )
        walk = connection.execute(
            f"select count(*) from lines where rests_place is null and {OF_LIMITED}".encode()
        ).fetchall()
        quiet = quiet + 1 if walk == [(0,)] else 0
    connection.execute("vacuum (analyze)")
    connection.execute("checkpoint")
    return connection


def run(*, command: str, companies: int = 1_000, tasks: int = 1_000_000, rounds: int = 60) -> None:
    """Measure, and record."""
    with measured_server() as server:
        claims = {case.name: ours(seeded(server, case, companies=companies, tasks=tasks)) for case in CASES}
        rows = []
        medians = {
            batch: {
                case.name: taken
                for case, taken in medians_of(
                    [Case(name, OTHERS, batch, claim) for name, claim in claims.items()], rounds=rounds
                ).items()
            }
            for batch in (10, 100)
        }
        for case in CASES:
            beside = CASES[4].name if case.holds else CASES[0].name
            row = [case.name, f"{tasks if case.waits else 0:,}"]
            for batch in (10, 100):
                taken = medians[batch][case.name]
                row += [f"{taken * 1000:.2f}", f"{taken / medians[batch][beside]:.2f} ×"]
            rows.append(row)
        header = ["limited companies", "their tasks", "claim of 10, ms", "to without", "claim of 100, ms", "to without"]
        results.record(
            f"Claim of the others, beside {companies:,} companies that may not be served",
            command=command,
            machine=described(server),
            body=results.table(header, rows)
            + f"\n\nMedians of {rounds} claims each, in turn, committed, for {OTHERS.companies} others with"
            f" {OTHERS.tasks:,} tasks. Those that hold hands are compared with a fleet that runs as much, for a claim"
            " counts what runs. Bar: < 1.5 ×.",
        )
