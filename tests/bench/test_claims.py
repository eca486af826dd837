"""The measurements measure what they say: each claim takes due tasks of every company in turn, on the same backlog."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

import psycopg
import pytest

from bench import claim
from bench.server import connect
from scripts import perf_seed
from scripts.perf_seed import Backlog

BACKLOG = Backlog(2_000, 10)


@pytest.fixture
def seeded_url(database_url: str) -> str:
    with psycopg.connect(database_url, autocommit=True) as connection:
        perf_seed.seed_cell(connection, BACKLOG)
        perf_seed.seed_usual(connection)
    return database_url


def test_the_seed_makes_the_same_skewed_backlog_in_both_forms(seeded_url: str) -> None:
    with connect(seeded_url) as connection:
        forms = [
            dict(connection.execute(f"select company_id, count(*) from {table} group by 1").fetchall())
            for table in ("tasks", "usual.tasks")
        ]
        delayed = [
            connection.execute(query).fetchone()
            for query in (
                "select count(*) from scheduled_tasks",
                "select count(*) from usual.tasks where run_after > clock_timestamp()",
            )
        ]
    assert forms[0] == forms[1]
    assert 0.75 < max(forms[0].values()) / BACKLOG.tasks < 0.85
    assert delayed[0] == delayed[1]
    assert 300 < int(str((delayed[0] or [0])[0])) < 500


@pytest.mark.parametrize("script", ["perf_explain_lateral", "perf_explain_window"])
def test_a_usual_claim_takes_one_of_each_company_first(seeded_url: str, script: str) -> None:
    with connect(seeded_url) as connection:
        claim.usual(connection, script)(10)
        taken = connection.execute("select company_id from usual.tasks where status = 'processing'").fetchall()
    assert Counter(company for (company,) in taken) == Counter(dict.fromkeys(_companies(), 1))


def test_our_claim_takes_one_of_each_company_first_and_leaves_nothing_in_flight(seeded_url: str) -> None:
    with connect(seeded_url) as connection:
        claim.ours(connection)(10)
        taken = connection.execute("select company_id from tasks where finished_at is not null").fetchall()
        assert connection.execute("select count(*) from processing_tasks").fetchone() == (0,)
    assert Counter(company for (company,) in taken) == Counter(dict.fromkeys(_companies(), 1))


def _companies() -> list[UUID]:
    return [company_id for company_id, _, _ in perf_seed.companies_of(BACKLOG)]
