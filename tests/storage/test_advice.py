"""What an operator is told about a server, asked of a real one."""

from __future__ import annotations

import psycopg
import pytest
from sqlalchemy import make_url

from taketurns.storage import advice, schema
from taketurns.storage.advice import Finding, Level
from tests.servers import DatabaseServer


def test_a_server_with_the_schema_has_no_problem(database_url: str) -> None:
    found = look(database_url)
    assert Level.PROBLEM not in {finding.level for finding in found.values()}
    assert all(finding.advice for finding in found.values() if finding.level is not Level.OK)
    assert found["migrations"].found == f"at {schema.head()}, the newest"
    assert found["server"].found.startswith("PostgreSQL 1")
    assert found["clock"].level is Level.OK


def test_a_database_without_the_schema_is_a_problem(empty_database_url: str) -> None:
    migrations = look(empty_database_url)["migrations"]
    assert migrations == Finding(
        Level.PROBLEM, "migrations", f"at none, not {schema.head()}", "run: taketurns db upgrade"
    )


def test_a_schema_of_another_name_is_looked_at(empty_database_url: str) -> None:
    schema.upgrade(empty_database_url, schema="north")
    assert look(empty_database_url, schema="north")["migrations"].level is Level.OK
    assert look(empty_database_url)["migrations"].level is Level.PROBLEM


def test_a_server_that_is_too_old_is_a_problem(empty_database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "OLDEST_SERVER", 99)
    server = look(empty_database_url)["server"]
    assert (server.level, server.advice) == (Level.PROBLEM, "Taketurns needs 99 or newer")


@pytest.mark.parametrize("statement", ["select 1", "select pg_current_xact_id()"])
def test_a_transaction_that_stays_open_is_named(
    database_url: str, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    monkeypatch.setattr(advice, "OLD_TRANSACTION_SECONDS", 0.0)
    with psycopg.connect(database_url, application_name="report") as report:
        report.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        report.execute(statement.encode())
        oldest = look(database_url)["oldest transaction"]
        assert oldest.level is Level.ADVICE
        assert oldest.found.endswith(f"s, pid {report.info.backend_pid} (report)")
    assert oldest.advice


def test_transactions_that_hold_nothing_back_are_not_named(
    database_url: str, empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has only begun, and one of another database."""
    monkeypatch.setattr(advice, "OLD_TRANSACTION_SECONDS", 0.001)
    with psycopg.connect(database_url) as begun, psycopg.connect(empty_database_url) as elsewhere:
        begun.execute("set local jit to off")
        elsewhere.execute("select pg_current_xact_id()")
        assert look(database_url)["oldest transaction"].level is Level.OK


def test_a_young_transaction_is_not_named(database_url: str) -> None:
    with psycopg.connect(database_url) as young:
        young.execute("select pg_current_xact_id()")
        assert look(database_url)["oldest transaction"].level is Level.OK


def test_a_setting_that_is_not_well_comes_with_the_reason(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(f'alter database "{connection.info.dbname}" set jit to on')
        connection.execute(f'alter database "{connection.info.dbname}" set synchronous_commit to on')
    found = look(database_url)
    assert (found["jit"].level, found["jit"].found) == (Level.ADVICE, "on")
    assert "compiling" in found["jit"].advice
    assert (found["synchronous_commit"].level, found["synchronous_commit"].advice) == (Level.OK, "")


def test_more_connections_than_the_server_gives_are_advised_against(database_url: str) -> None:
    assert look(database_url, connections_wanted=10)["connections"].level is Level.OK
    assert look(database_url, connections_wanted=100_000)["connections"].level is Level.ADVICE


def test_a_clock_that_is_off_is_told(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice, "time", lambda: 1_000_000_000.0)
    clock = look(database_url)["clock"]
    assert clock.level is Level.ADVICE
    assert clock.found.endswith("s from this host's")


def test_a_queue_of_notices_that_fills_up_is_a_problem(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert look(database_url)["notify queue"].level is Level.OK
    monkeypatch.setattr(advice, "NOTIFY_QUEUE_PART", -1.0)
    assert look(database_url)["notify queue"].level is Level.PROBLEM


def test_a_server_that_is_away_is_no_finding() -> None:
    with pytest.raises(psycopg.OperationalError):
        look("postgresql://nobody@127.0.0.1:1/none")


def test_whether_the_wall_around_each_company_stands_is_told(
    database_url: str, company_url: str, postgres_server: DatabaseServer
) -> None:
    assert look(database_url)["walls"].level is Level.ADVICE
    assert look(database_url, company_url=company_url)["walls"].level is Level.OK
    sees_all = look(database_url, company_url=database_url)["walls"]
    assert (sees_all.level, "sees every company" in sees_all.found) == (Level.PROBLEM, True)
    unknown = make_url(database_url).set(username="nobody_of_this_name").render_as_string(hide_password=False)
    assert look(database_url, company_url=unknown)["walls"].level is Level.PROBLEM
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(f'revoke execute on all functions in schema taketurns from "{postgres_server.company_role}"')
        assert look(database_url, company_url=company_url)["walls"].level is Level.PROBLEM
        postgres_server.grant(database_url)
        connection.execute("create table taketurns.invoices (company_id uuid)")
    open_table = look(database_url, company_url=company_url)["walls"]
    assert (open_table.level, open_table.found) == (Level.PROBLEM, "none around each company in invoices")


def look(
    url: str, *, schema: str = "taketurns", connections_wanted: int = 0, company_url: str | None = None
) -> dict[str, Finding]:
    found = advice.examine(url, schema=schema, connections_wanted=connections_wanted, company_url=company_url)
    return {finding.subject: finding for finding in found}
