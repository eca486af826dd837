"""The commands of an operator's and a developer's day: what they answer, and how they refuse."""

from __future__ import annotations

import getpass
import json
import os
import re
import signal
import smtplib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from uuid import UUID

import httpx2
import jsonschema_rs
import psycopg
import pytest
import typer
from alembic.config import Config
from sqlalchemy import make_url
from typer.testing import CliRunner, Result

from taketurns.brokers.redis.server import cell_key
from taketurns.cli import app, configuration
from taketurns.engine import key
from taketurns.storage import advice, schema
from tests.identity import AUDIENCE, DISCOVERY, IdentityProvider
from tests.servers import DatabaseServer
from tests.valkeys import Valkeys

ROOT = Path(__file__).parents[2]
AWAY = "postgresql://nobody@127.0.0.1:1/none"
PATIENCE_SECONDS = 60.0


def test_the_version_is_that_of_the_installation() -> None:
    assert run("version").output == version("taketurns") + "\n"


def test_help_is_there_before_anything_big_is_imported() -> None:
    script = "import runpy, sys; sys.argv = ['taketurns', '--help']; runpy.run_module('taketurns.cli', alter_sys=True)"
    watched = "atexit.register(lambda: print({'fastapi', 'sqlalchemy', 'psycopg', 'alembic'} & set(sys.modules)))"
    shown = python("-c", f"import atexit, sys; {watched}; {script}")
    assert shown.returncode == 0
    assert "no company can starve another" in " ".join(shown.stdout.split())
    assert shown.stdout.endswith("set()\n")


def test_every_command_and_option_is_explained() -> None:
    for command in (
        [],
        ["db"],
        ["up"],
        ["api"],
        ["worker"],
        ["doctor"],
        ["why"],
        ["stats"],
        ["openapi"],
        ["mail"],
        ["pause"],
        ["resume"],
        ["retention"],
        ["db", "upgrade"],
        ["db", "grant"],
        ["heartbeat"],
        ["heartbeat", "check"],
        ["keys"],
        ["keys", "create"],
        ["keys", "list"],
        ["keys", "rotate"],
        ["keys", "revoke"],
        ["workers"],
        ["workers", "list"],
        ["workers", "drain"],
        ["workers", "resume"],
        ["workers", "stop"],
        ["operations"],
        ["operations", "create"],
        ["operations", "list"],
        ["operations", "abort"],
    ):
        shown = run(*command, "--help")
        assert shown.exit_code == 0
        assert "Usage: " in shown.output


# Many tasks


def test_an_operation_is_tried_made_listed_and_aborted(database_url: str) -> None:
    unknown = run("operations", "list", "acme", url=database_url)
    assert (unknown.exit_code, "there is no company 'acme'" in unknown.stderr) == (1, True)
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            "insert into taketurns.companies (id, slug, name) values (gen_random_uuid(), 'acme', 'Acme')"
        )
    filters = ("--status", "pending", "--tag", "eu")
    tried = run("operations", "create", "acme", "cancel", *filters, "--dry-run", url=database_url)
    assert (tried.exit_code, tried.stdout) == (0, "0 tasks\n")
    made = run("operations", "create", "acme", "cancel", *filters, "--json", url=database_url)
    (operation,) = json.loads(made.stdout)
    assert (operation["status"], operation["filter"]) == ("matching", {"status": ["pending"], "tag": ["eu"]})
    aborted = run("operations", "abort", "acme", operation["id"], url=database_url)
    assert aborted.exit_code == 0
    listed = run("operations", "list", "acme", url=database_url)
    assert listed.stdout == f"{operation['id']}  cancel  aborted  0 of 0 done\n"


def test_an_operation_that_names_nothing_is_refused(database_url: str) -> None:
    refused = run("operations", "create", "acme", "cancel", url=database_url)
    assert (refused.exit_code, "taskIds or filter" in refused.stderr) == (2, True)
    refused = run("operations", "create", "acme", "cancel", "--tag", "a b", url=database_url)
    assert (refused.exit_code, refused.stderr.startswith("filter.tag.0: ")) == (2, True)


# Who did it


# Commands that show, serve, or build what there is to change; all others change something, and are in the test below.
CHANGE_NOTHING = {
    "api",
    "db check",
    "db grant",
    "db upgrade",
    "db url",
    "demo",
    "doctor",
    "heartbeat check",
    "keys list",
    "mail",
    "openapi",
    "operations list",
    "stats",
    "up",
    "version",
    "why",
    "worker",
    "workers list",
}


def commands(group: typer.core.TyperGroup, *names: str) -> Iterator[str]:
    for name, command in group.commands.items():
        if isinstance(command, typer.core.TyperGroup):
            yield from commands(command, *names, name)
        else:
            yield " ".join([*names, name])


def test_every_command_that_changes_something_is_in_the_audit(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("insert into taketurns.companies (id, slug, name) values (gen_random_uuid(), 'acme', 'A')")
        noted: list[tuple[str, bool]] = []

        def change(*command: str) -> str:
            changed = run(*command, url=database_url)
            assert changed.exit_code == 0, changed.output
            rows = connection.execute(
                "select action, actor_kind, actor_name, company_id is not null from taketurns.audit_entries"
                " order by id offset %s",
                [len(noted)],
            ).fetchall()
            assert [row[1:3] for row in rows] == [("command", getpass.getuser())], command
            noted.append((rows[0][0], rows[0][3]))
            return changed.stdout.split()[0]

        key = change("keys", "create", "--company", "acme", "--scope", "tasks:read", "--name", "shop")
        change("keys", "rotate", key)
        change("keys", "revoke", key)
        operator = change("keys", "create", "--role", "viewer", "--name", "ada")
        change("keys", "rotate", operator)
        change("keys", "revoke", operator)
        for named in (["acme"], ["acme", "--type", "mail"], ["acme", "--queue", "bulk"], ["--queue", "bulk"]):
            change("pause", *named)
            change("resume", *named)
        change("retention", "acme", "--failed", "90d")
        operation = change("operations", "create", "acme", "cancel", "--status", "pending")
        change("operations", "abort", "acme", operation)
        connection.execute(
            "insert into taketurns.workers (id, name, host, version, queues, types, concurrency, started_at, beat_at)"
            " values (gen_random_uuid(), 'mail', 'host', '0', '{}', '{}', 1, now(), now())"
        )
        for order in ("drain", "resume", "stop"):
            change("workers", order, "mail")

    of_keys = ["createKey", "rotateKey", "revokeKey", "createOperatorKey", "rotateOperatorKey", "revokeOperatorKey"]
    assert noted == [
        *zip(of_keys, [True] * 3 + [False] * 3, strict=True),
        *[("changeCompany", True)] * 2,
        *[("putPause", True), ("liftPause", True)] * 2,
        ("putPause", False),
        ("liftPause", False),
        ("changeCompany", True),
        ("createOperation", True),
        ("abortOperation", True),
        *[(action, False) for action in ("drainWorker", "resumeWorker", "stopWorker")],
    ]
    walked = {
        "keys create",
        "keys rotate",
        "keys revoke",
        "pause",
        "resume",
        "operations create",
        "operations abort",
        "retention",
        "workers drain",
        "workers resume",
        "workers stop",
    }
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    assert set(commands(group)) == CHANGE_NOTHING | walked


# The schema


def test_the_schema_is_built_and_found_to_be_the_newest(empty_database_url: str) -> None:
    before = run("db", "check", url=empty_database_url)
    assert (before.exit_code, before.stderr) == (
        1,
        "the schema 'taketurns' is at no revision; run: taketurns db upgrade\n",
    )
    for _ in range(2):
        built = run("db", "upgrade", url=empty_database_url)
        assert (built.exit_code, built.stdout) == (
            0,
            f"the schema 'taketurns' is at {schema.head()}, the newest revision\n",
        )
    assert run("db", "check", url=empty_database_url).exit_code == 0


def test_the_role_of_companies_is_let_in_with_the_schema_or_by_itself(
    empty_database_url: str, postgres_server: DatabaseServer
) -> None:
    role = postgres_server.company_role
    company_url = postgres_server.company_url(empty_database_url)
    told = "for one company at a time in the schema 'taketurns'\n"
    assert run("db", "grant", role, url=empty_database_url).stderr.endswith("run taketurns db upgrade\n")
    assert run("db", "grant", url=empty_database_url).exit_code == 2
    for command in (["db", "upgrade"], ["db", "grant"]):
        granted = run(*command, url=empty_database_url, env={"TAKETURNS_COMPANY_DATABASE_URL": company_url})
        assert (granted.exit_code, granted.stdout.endswith(told)) == (0, True), granted.output
        looked = run("doctor", url=empty_database_url, env={"TAKETURNS_COMPANY_DATABASE_URL": company_url})
        assert f"ok       walls: around each company, for the role '{role}'\n" in looked.output
    assert run("db", "grant", role, url=empty_database_url).exit_code == 0
    owner = make_url(empty_database_url).username
    refused = run("db", "grant", str(owner), url=empty_database_url)
    assert (refused.exit_code, "no wall holds" in refused.stderr) == (1, True)


def test_a_schema_that_a_newer_release_has_moved_is_left_alone(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("update taketurns.alembic_version set version_num = 'f00d'")
    refused = run("db", "upgrade", url=database_url)
    assert refused.exit_code == 1
    assert "'f00d'" in refused.stderr


def test_an_operator_pauses_and_resumes(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            "insert into taketurns.companies (id, slug, name) values (gen_random_uuid(), 'acme', 'Acme')"
        )

        def company() -> tuple[object, ...] | None:
            return connection.execute(
                "select paused, paused_until > clock_timestamp() + interval '59 m', limits_set_by"
                " from taketurns.companies"
            ).fetchone()

        assert run("pause", "acme", "--for", "1h", url=database_url).exit_code == 0
        assert company() == (True, True, getpass.getuser())
        assert run("resume", "acme", url=database_url).exit_code == 0
        assert company() == (False, None, getpass.getuser())
        for named in (["acme", "--type", "mail"], ["--queue", "bulk"]):
            assert run("pause", *named, url=database_url).exit_code == 0
        paused = connection.execute("select queue, type, set_by from taketurns.pauses order by queue").fetchall()
        assert paused == [("", "mail", getpass.getuser()), ("bulk", "", getpass.getuser())]
        assert run("resume", "acme", "--type", "mail", url=database_url).exit_code == 0
        again = run("resume", "acme", "--type", "mail", url=database_url)
        assert (again.exit_code, "no such pause" in again.output) == (1, True)


def test_a_pause_reaches_jobs_at_once_or_the_operator_is_told(database_url: str, valkey: Valkeys) -> None:
    server = valkey()
    with psycopg.connect(database_url, autocommit=True) as connection:
        (company,) = connection.execute(
            "insert into taketurns.companies (id, slug, name) values (gen_random_uuid(), 'acme', 'Acme') returning id"
        ).fetchone() or (None,)

    def told(*arguments: str) -> tuple[int, bool]:
        answer = run(*arguments, url=database_url, env={"TAKETURNS_REDIS_URL": server.url})
        return answer.exit_code, "within half a minute" in answer.stderr

    of_company, of_acme, of_all = (
        f"{cell_key('taketurns')}:{name}" for name in (f"company:{company}", f"pauses:{company}", "pauses:all")
    )
    assert told("pause", "acme") == (0, False)
    assert server.execute("HGET", of_company, "paused") == "1"
    assert told("resume", "acme") == (0, False)
    assert server.execute("HGET", of_company, "paused") == "0"
    assert told("pause", "acme", "--type", "mail") == told("pause", "--queue", "bulk", "--for", "1h") == (0, False)
    assert server.execute("HGET", of_acme, "!mail") == ""
    assert server.execute("HEXISTS", of_all, "bulk!")
    assert told("resume", "acme", "--type", "mail") == (0, False)
    assert not server.execute("EXISTS", of_acme)
    server.stop()
    assert told("resume", "--queue", "bulk") == told("pause", "acme") == (0, True)
    without = run("resume", "acme", url=database_url)
    assert (without.exit_code, "TAKETURNS_REDIS_URL" in without.stderr) == (0, True)


@pytest.mark.parametrize(
    "arguments", [[], ["acme", "--for", "soon"], ["acme", "--for", "0s"], ["acme", "--for", "1000000000d"]]
)
def test_a_pause_of_nothing_or_without_a_time_is_refused(arguments: list[str]) -> None:
    assert run("pause", *arguments).exit_code == 2


def test_an_operator_changes_for_how_long_tasks_are_kept(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            "insert into taketurns.companies (id, slug, name) values (gen_random_uuid(), 'acme', 'Acme')"
        )
        shown = run("retention", "acme", "--failed", "90d", "--completed", "1h", url=database_url)
        assert (shown.exit_code, [line.split(None, 1)[1] for line in shown.output.splitlines()]) == (
            0,
            ["1h", "90d", "as the workers are set"],
        )
        changed = run("retention", "acme", "--completed", "default", "--json", url=database_url)
        assert json.loads(changed.output) == {
            "completedSeconds": None,
            "failedSeconds": 90 * 86_400,
            "cancelledSeconds": None,
        }
        assert run("retention", "acme", "--json", url=database_url).output == changed.output
        written = connection.execute(
            "select actor_name, details -> 'retention' ->> 'failedSeconds' from taketurns.audit_entries order by id"
        ).fetchall()
        assert written == [(getpass.getuser(), "7776000")] * 2


@pytest.mark.parametrize("length", ["soon", "59s", "3651d", "-1d"])
def test_a_retention_out_of_bounds_is_refused(length: str) -> None:
    assert run("retention", "acme", "--failed", length).exit_code == 2


def test_a_company_that_is_not_there_has_no_retention(database_url: str) -> None:
    for options in ([], ["--failed", "1d"]):
        refused = run("retention", "nobody", *options, url=database_url)
        assert (refused.exit_code, "there is no company" in refused.output) == (1, True)


def test_a_company_that_is_not_there_cannot_be_paused(database_url: str) -> None:
    for name in ("nobody", "00000000-0000-0000-0000-000000000000", "No Body"):
        refused = run("pause", name, url=database_url)
        assert (refused.exit_code, "there is no company" in refused.output) == (1, True)


def test_a_database_that_only_reads_is_refused_with_its_reason(empty_database_url: str) -> None:
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        connection.execute(f'alter database "{connection.info.dbname}" set default_transaction_read_only to on')
    refused = run("db", "upgrade", url=empty_database_url)
    assert refused.exit_code == 1
    assert "cannot use the database: cannot execute CREATE SCHEMA in a read-only transaction" in refused.stderr


def test_a_lock_that_is_held_is_not_waited_for_long(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    configured = schema.config

    def impatient(url: str, name: str) -> Config:
        configuration = configured(url, name)
        configuration.attributes["lock_timeout"] = "50ms"
        return configuration

    monkeypatch.setattr(schema, "config", impatient)
    with psycopg.connect(database_url) as connection:
        connection.execute("lock table taketurns.alembic_version")
        refused = run("db", "upgrade", url=database_url)
    assert refused.exit_code == 1
    assert "due to lock timeout" in refused.stderr
    assert "`taketurns doctor` names the oldest" in refused.stderr


def test_a_server_that_is_too_old_is_refused(empty_database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "OLDEST_SERVER", 99)
    refused = run("db", "upgrade", url=empty_database_url)
    assert refused.exit_code == 1
    assert re.match(r"PostgreSQL \d+ is too old: Taketurns needs 99 or newer", refused.stderr)


def test_the_address_of_the_database_is_shown_without_its_password() -> None:
    shown = run("db", "url", url="postgresql://ada:secret@db.example:5433/shop")
    assert shown.output == "postgresql://ada:***@db.example:5433/shop\n"


@pytest.mark.parametrize("command", [["db", "upgrade"], ["db", "check"], ["doctor"]])
def test_a_database_that_is_away_is_said_to_be(command: list[str]) -> None:
    refused = run(*command, url=AWAY)
    assert refused.exit_code == 1
    assert refused.stderr.startswith("cannot use the database: connection failed")
    assert refused.stderr.endswith("set TAKETURNS_DATABASE_URL, or run: taketurns up\n")


# Doctor


def test_the_doctor_finds_a_server_that_is_well(database_url: str) -> None:
    looked = run("doctor", url=database_url)
    assert looked.exit_code == 0
    assert re.search(r"^ok       server: PostgreSQL \d+\.\d+$", looked.output, re.MULTILINE)
    assert "PROBLEM" not in looked.output


def test_the_doctor_fails_when_migrations_are_missing(empty_database_url: str) -> None:
    looked = run("doctor", url=empty_database_url)
    assert looked.exit_code == 1
    problem = f"PROBLEM  migrations: at none, not {schema.head()}\n         run: taketurns db upgrade\n"
    assert problem in looked.output


def test_the_doctor_names_an_old_transaction_for_programs_too(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advice, "OLD_TRANSACTION_SECONDS", 0.001)
    with psycopg.connect(database_url, application_name="report") as report:
        report.execute("select pg_current_xact_id()")
        looked = run("doctor", "--json", url=database_url)
    assert looked.exit_code == 0
    (found,) = [finding for finding in json.loads(looked.output) if finding["subject"] == "oldest transaction"]
    assert found["level"] == "advice"
    assert "(report)" in found["found"]
    assert found["advice"]


def test_the_doctor_looks_at_the_server_of_jobs_too(database_url: str, valkey: Valkeys) -> None:  # fault 147
    server = valkey()
    environment = {"TAKETURNS_REDIS_URL": server.url}
    looked = run("doctor", url=database_url, env=environment)
    assert looked.exit_code == 0
    assert re.search(r"^ok       jobs: Valkey \d+\.\d+\.\d+, append-only, drops nothing$", looked.output, re.MULTILINE)

    server.execute("CONFIG SET", "appendonly", "no")
    looked = run("doctor", url=database_url, env=environment)
    assert looked.exit_code == 0
    assert "advice   jobs: no append-only file\n         a crash of Redis loses every job" in looked.output
    looked = run("doctor", url=database_url, env={**environment, "TAKETURNS_REDIS_WAIT_AOF": "true"})
    assert looked.exit_code == 1
    assert "PROBLEM  jobs: there is no append-only file to wait for\n         set appendonly to yes" in looked.output

    server.execute("CONFIG SET", "maxmemory-policy", "allkeys-lru")
    looked = run("doctor", url=database_url, env=environment)
    assert looked.exit_code == 1
    assert "PROBLEM  jobs: maxmemory-policy is allkeys-lru, which drops jobs when memory is full\n" in looked.output

    server.kill()
    looked = run("doctor", url=database_url, env=environment)
    assert looked.exit_code == 1
    assert f"PROBLEM  jobs: Redis at {server.url} is not available: " in looked.output


def told_by_the_doctor(database_url: str, **settings: str) -> tuple[int, dict[str, tuple[str, str]]]:
    looked = run("doctor", "--json", url=database_url, env=settings)
    return looked.exit_code, {one["subject"]: (one["level"], one["found"]) for one in json.loads(looked.output)}


def test_the_doctor_says_how_keys_are_kept(database_url: str) -> None:
    for peppers, level, found in [
        ("", "advice", "none: whoever can write to the database can plant a key"),
        ("pepper pepper pepper,", "advice", "keys that were made without one work"),
        ("pepper pepper pepper", "ok", "1"),
    ]:
        code, told = told_by_the_doctor(database_url, TAKETURNS_KEY_PEPPERS=peppers)
        assert (code, told["key peppers"][0]) == (0, level)
        assert told["key peppers"][1].startswith(found)


@pytest.mark.parametrize(
    ("settings", "code", "level", "found"),
    [
        ({}, 0, "ok", "on: the API asks for keys"),
        ({"TAKETURNS_AUTHENTICATION": "off"}, 0, "advice", "off: whoever is on this machine may do everything"),
        (
            {"TAKETURNS_AUTHENTICATION": "off", "TAKETURNS_HOST": "0.0.0.0"},
            1,
            "problem",
            "off, and TAKETURNS_HOST is 0.0.0.0",
        ),
        (
            {"TAKETURNS_AUTHENTICATION": "off-on-any-address", "TAKETURNS_HOST": "0.0.0.0"},
            0,
            "advice",
            "off: whoever reaches 0.0.0.0:8000 may do everything",
        ),
    ],
)
def test_the_doctor_says_who_is_let_in(
    database_url: str, settings: dict[str, str], code: int, level: str, found: str
) -> None:
    answer, told = told_by_the_doctor(database_url, **settings)
    assert (answer, told["authentication"]) == (code, (level, found))


def test_the_doctor_says_where_workers_show_their_metrics(database_url: str) -> None:
    assert "metrics of workers" not in told_by_the_doctor(database_url)[1]
    _, told = told_by_the_doctor(database_url, TAKETURNS_METRICS_HOST="0.0.0.0")
    assert told["metrics of workers"] == ("advice", "served to whoever reaches 0.0.0.0:9100")


def test_the_doctor_asks_the_identity_provider(database_url: str, provider: IdentityProvider) -> None:
    settings = {"TAKETURNS_OIDC_ISSUER": provider.issuer, "TAKETURNS_OIDC_AUDIENCE": AUDIENCE}
    code, told = told_by_the_doctor(database_url, **settings)
    assert (code, told["identity provider"]) == (0, ("ok", f"{provider.issuer}, 1 keys"))
    code, told = told_by_the_doctor(database_url, **settings, TAKETURNS_OIDC_ALGORITHMS="ES256")
    assert (code, told["identity provider"]) == (1, ("problem", f"{provider.issuer} has no key for ES256"))
    _, told = told_by_the_doctor(database_url, **settings, TAKETURNS_AUTHENTICATION="off")
    assert told["identity provider"] == ("advice", "not asked: authentication is off")
    provider.answers[DISCOVERY] = (404, b"")
    code, told = told_by_the_doctor(database_url, **settings)
    assert (code, told["identity provider"][0]) == (1, "problem")
    assert f"{provider.issuer}{DISCOVERY} answers 404" in told["identity provider"][1]


# The document


def test_the_document_is_openapi_and_holds_together() -> None:
    document = json.loads(run("openapi").output)
    assert document["openapi"].startswith("3.1.")
    assert document["info"]["version"] == version("taketurns")
    assert "/companies/{companyId}/tasks" in document["paths"]
    names = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document)))
    assert names
    assert names <= set(document["components"]["schemas"])
    for part in document["components"]["schemas"].values():
        jsonschema_rs.meta.validate(part)


# What is refused


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TAKETURNS_DATABASE_URL", "nonsense"),
        ("TAKETURNS_DATABASE_URL", "mysql://localhost/shop"),
        ("TAKETURNS_REDIS_URL", "localhost:6379"),
        ("TAKETURNS_PORT", "http"),
        ("TAKETURNS_CONCURRENCY", "0"),
        ("TAKETURNS_SCHEMA", "No-Schema"),
        ("TAKETURNS_LOG_LEVEL", "loud"),
        ("TAKETURNS_QUEUES", " , "),
        ("TAKETURNS_QUEUES", "default,no queue"),
        ("TAKETURNS_STALE_AFTER_SECONDS", "8.9"),
        ("TAKETURNS_KEEP_COMPLETED_DAYS", "inf"),
        ("TAKETURNS_IDEMPOTENCY_HOURS", "1e12"),
        ("TAKETURNS_STATEMENT_TIMEOUT", "1e9"),
    ],
)
@pytest.mark.parametrize("command", [["api"], ["worker"], ["up"], ["db", "upgrade"]], ids=" ".join)
def test_a_wrong_setting_is_named(command: list[str], variable: str, value: str) -> None:
    refused = run(*command, env={variable: value})
    assert refused.exit_code == 2
    assert refused.stderr.startswith(f"{variable}: ")
    assert refused.stderr.count("\n") == 1


def test_a_worker_that_takes_its_turns_in_redis_needs_to_know_where_that_is() -> None:
    refused = run("worker", "--broker", "redis")
    assert refused.exit_code == 2
    assert refused.stderr == "TAKETURNS_REDIS_URL: must be set for a worker with --broker redis\n"
    refused = run("worker", "--broker", "rabbit")
    assert refused.exit_code == 2
    assert refused.stderr == "TAKETURNS_BROKER: Input should be 'postgres' or 'redis'\n"


@pytest.mark.parametrize("command", ["openapi", "up"])
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nowhere:tt", "there is no module 'nowhere'"),
        ("examples.handlers", "an application is named as module:variable"),
        ("examples.handlers:shop", "has no Taketurns called 'shop', but examples.handlers:tt"),
    ],
)
def test_an_application_that_is_none_is_refused(command: str, name: str, reason: str) -> None:
    refused = run(command, "--app", name)
    assert refused.exit_code == 2
    assert refused.stderr.startswith("TAKETURNS_APP or --app: ")
    assert reason in refused.stderr


@pytest.mark.parametrize("command", ["api", "worker"])
def test_processes_refuse_an_application_that_is_none(command: str) -> None:
    refused = python("-m", "taketurns.cli", command, "--app", "nowhere:tt")
    assert refused.returncode == 2
    assert refused.stderr.startswith("TAKETURNS_APP or --app: cannot load 'nowhere:tt'")


# Keys


def test_keys_are_made_listed_rotated_and_revoked_without_an_api(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("insert into taketurns.companies (id, slug, name) values (gen_random_uuid(), 'acme', 'A')")
    made = run("keys", "create", "--role", "admin", "--name", "ada", url=database_url)
    assert made.exit_code == 0
    assert re.fullmatch(r"tt_live_[0-9A-Za-z]{22}_[0-9A-Za-z]{49}\n", made.stdout)
    assert made.stderr == "ada: keep it, for it is not shown again (never expires)\n"
    options = [
        "--company",
        "acme",
        "--scope",
        "tasks:read",
        "--scope",
        "jobs:*",
        "--name",
        "shop",
        "--expires-in",
        "90d",
    ]
    told = json.loads(run("keys", "create", *options, "--json", url=database_url).stdout)
    assert told["scopes"] == ["tasks:read", "jobs:*"]
    assert told["key"].startswith(told["prefix"])

    rotated = json.loads(run("keys", "rotate", told["prefix"], "--overlap", "1h", "--json", url=database_url).stdout)
    assert (rotated["replaces"], rotated["name"]) == (told["id"], "shop")
    revoked = run("keys", "revoke", told["key"], url=database_url)
    assert revoked.exit_code == 0
    assert revoked.stdout.startswith(f"{told['prefix']}…{told['lastFour']} is revoked")
    again = run("keys", "rotate", told["id"], url=database_url)
    assert (again.exit_code, again.stderr) == (
        1,
        "the key 'shop' was revoked or has expired: make a new one\n",
    )

    listed = json.loads(run("keys", "list", "--company", "acme", "--json", url=database_url).stdout)["keys"]
    assert [(one["id"], one["isActive"]) for one in listed] == [(rotated["id"], True), (told["id"], False)]
    assert "key" not in listed[0]
    shown = run("keys", "list", url=database_url).stdout
    assert re.fullmatch(r"\S{36}  tt_live_\w{22}…\w{4}  admin  never expires  ada\n", shown)

    with psycopg.connect(database_url) as connection:
        audit = connection.execute(
            "select action, actor_kind, actor_name from taketurns.audit_entries order by id"
        ).fetchall()
    assert [row[0] for row in audit] == ["createOperatorKey", "createKey", "rotateKey", "revokeKey"]
    assert {row[1:] for row in audit} == {("command", getpass.getuser())}


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["create", "--name", "x"], "--company"),
        (["create", "--name", "x", "--company", "acme", "--role", "admin"], "--company"),
        (["create", "--name", "x", "--company", "acme"], "--scope"),
        (["create", "--name", "x", "--company", "acme", "--scope", "root"], "--scope"),
        (["create", "--name", "x", "--role", "king"], "--role"),
        (["create", "--name", " ", "--role", "admin"], "--name"),
        (["create", "--name", "x", "--role", "admin", "--expires-in", "soon"], "--expires-in"),
        (["create", "--name", "x", "--role", "admin", "--expires-in", "99999d"], "--expires-in"),
        (["rotate", "x", "--overlap", "31d"], "--overlap"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_key_that_cannot_be_is_refused(options: list[str], complaint: str) -> None:
    refused = run("keys", *options)
    assert refused.exit_code == 2
    assert complaint in refused.stderr


def test_keys_of_nobody_are_said_to_be(database_url: str) -> None:
    nobody = run("keys", "create", "--company", "nobody", "--scope", "tasks:read", "--name", "x", url=database_url)
    assert (nobody.exit_code, nobody.stdout) == (1, "")
    assert "there is no company 'nobody'" in nobody.stderr
    assert run("keys", "list", "--company", "nobody", url=database_url).exit_code == 1
    text = key.make("live", UUID(int=7)).text
    unknown = run("keys", "revoke", text, url=database_url)
    assert unknown.exit_code == 1
    assert text[:30] in unknown.stderr
    assert text.split("_")[3] not in unknown.stderr
    away = run("keys", "list")
    assert (away.exit_code, away.stderr.split(":")[0]) == (1, "cannot use the database")


# Who is asked for keys


@pytest.mark.parametrize("command", ["api", "up"])
def test_an_api_that_asks_for_no_keys_refuses_other_addresses_than_loopback(command: str) -> None:
    refused = run(command, env={"TAKETURNS_HOST": "0.0.0.0", "TAKETURNS_AUTHENTICATION": "off"})
    assert refused.exit_code == 2
    assert refused.stderr.startswith("TAKETURNS_AUTHENTICATION: off is for loopback, and 0.0.0.0 is not")


@pytest.mark.parametrize(
    ("environment", "said_so", "status"),
    [
        ({}, "the API listens, and asks for keys", 401),
        ({"TAKETURNS_AUTHENTICATION": "off"}, "the API asks for no keys, and listens on loopback only", 200),
        (
            {"TAKETURNS_AUTHENTICATION": "off-on-any-address", "TAKETURNS_HOST": "0.0.0.0"},
            "the API asks for no keys: whoever reaches this address may use it",
            200,
        ),
    ],
    ids=["on", "off", "off on any address"],
)
def test_an_api_says_whether_it_asks_for_keys(
    database_url: str, environment: dict[str, str], said_so: str, status: int
) -> None:
    with process("api", url=database_url, TAKETURNS_PORT="0", **environment) as api:
        said(api, re.escape(said_so))
        port = said(api, r"running on http://\S+:(\d+)")[1]
        assert httpx2.get(f"http://127.0.0.1:{port}/companies").status_code == status


@pytest.mark.parametrize(
    ("proxies", "address"),
    [({}, "127.0.0.1"), ({"TAKETURNS_TRUSTED_PROXIES": "10.0.0.0/8, 127.0.0.1"}, "192.0.2.7")],
    ids=["nobody trusted", "by a proxy"],
)
def test_where_a_change_came_from_is_told_by_trusted_proxies_alone(
    database_url: str, proxies: dict[str, str], address: str
) -> None:
    key = run("keys", "create", "--role", "admin", "--name", "me", url=database_url).stdout.strip()
    forged = {"X-Forwarded-For": "203.0.113.9, 192.0.2.7, 10.1.2.3"}
    with process("api", url=database_url, TAKETURNS_PORT="0", **proxies) as api:
        port = said(api, r"running on http://\S+:(\d+)")[1]
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {key}"}) as client:
            made = client.post("/companies", json={"name": "Acme", "slug": "acme"}, headers=forged)
            assert made.status_code == 201
            (entry, *_) = client.get("/audit", params={"companyId": made.json()["id"]}).json()["entries"]
    assert (entry["action"], entry["address"]) == ("createCompany", address)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TAKETURNS_AUTHENTICATION", "maybe"),
        ("TAKETURNS_KEY_ENVIRONMENT", "Live_1"),
        ("TAKETURNS_KEY_PEPPERS", "short"),
        ("TAKETURNS_METRICS_TOKEN", "short"),
        ("TAKETURNS_METRICS_TOKEN", "long enough, but with blanks"),
        ("TAKETURNS_OIDC_ISSUER", "http://id.example"),
        ("TAKETURNS_OIDC_JWKS_URL", "http://id.example/keys"),
        ("TAKETURNS_TRUSTED_PROXIES", "*"),
        ("TAKETURNS_TRUSTED_PROXIES", "127.0.0.1,proxy.example"),
    ],
)
def test_settings_of_keys_that_are_wrong_are_named_and_not_repeated(name: str, value: str) -> None:
    refused = run("db", "check", env={name: value})
    assert refused.exit_code == 2
    assert refused.stderr.startswith(name)
    assert value not in refused.stderr.replace("TAKETURNS_", "")


# Tokens


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    provider = IdentityProvider()
    yield provider
    provider.stop()


@pytest.mark.parametrize("algorithm", ["none", "HS256", "RS256,HS512", "rs256"])
def test_an_algorithm_that_needs_no_private_key_is_refused(algorithm: str) -> None:
    refused = run("api", env={"TAKETURNS_OIDC_ALGORITHMS": algorithm})
    assert refused.exit_code == 2
    wrong = algorithm.removeprefix("RS256,")
    told = f"TAKETURNS_OIDC_ALGORITHMS: {wrong} cannot be taken: a signature must need a private key, as with RS256, "
    assert refused.stderr.startswith(told)


def test_an_identity_provider_without_an_audience_is_refused() -> None:
    refused = run("api", env={"TAKETURNS_OIDC_ISSUER": "https://id.example"})
    assert refused.exit_code == 2
    assert refused.stderr == "TAKETURNS_OIDC_AUDIENCE: must be set with TAKETURNS_OIDC_ISSUER\n"


@pytest.mark.parametrize("command", ["api", "up"])
def test_without_what_checks_tokens_an_api_that_is_to_take_them_does_not_start(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(configuration, "find_spec", lambda name: None)
    refused = run(
        command, env={"TAKETURNS_OIDC_ISSUER": "https://id.example", "TAKETURNS_OIDC_AUDIENCE": "https://api.example"}
    )
    assert refused.exit_code == 2
    assert refused.stderr.startswith("TAKETURNS_OIDC_ISSUER: tokens cannot be checked yet: pip install")


def test_an_api_takes_the_tokens_of_the_identity_provider_that_is_set(
    database_url: str, provider: IdentityProvider
) -> None:
    settings = {
        "TAKETURNS_PORT": "0",
        "TAKETURNS_OIDC_ISSUER": provider.issuer,
        "TAKETURNS_OIDC_AUDIENCE": AUDIENCE,
        "TAKETURNS_OIDC_COMPANY_CLAIM": "org.slug",
        "TAKETURNS_OIDC_SCOPE_CLAIM": "permissions",
        "TAKETURNS_OIDC_ROLE_CLAIM": "roles",
    }
    with process("api", url=database_url, **settings) as api, httpx2.Client() as client:
        address = said(api, r"running on (http://\S+)")[1]

        def status(method: str, path: str, body: object = None, **claims: object) -> int:
            token = {"authorization": f"Bearer {provider.token(company=None, **claims)}"}
            return client.request(method, address + path, headers=token, json=body).status_code

        assert status("POST", "/companies", {"name": "Acme", "slug": "acme"}, roles=["operator"]) == 201
        assert status("GET", "/tasks", org={"slug": "acme"}, permissions=["tasks:read"]) == 200
        assert status("GET", "/tasks", org={"slug": "acme"}, permissions=[]) == 403
        assert status("GET", "/tasks", org={"slug": "globex"}, permissions=["tasks:read"]) == 401


# A day


def test_the_commands_of_a_day_work_as_written(empty_database_url: str) -> None:
    """`alembic upgrade head`, an API and a worker; both leave well when told to, and name a port that is taken."""
    assert python("-m", "alembic", "upgrade", "head", url=empty_database_url).returncode == 0
    with (
        process("api", url=empty_database_url, TAKETURNS_PORT="0") as api,
        process("worker", url=empty_database_url, TAKETURNS_METRICS_PORT="0") as worker,
        httpx2.Client() as client,  # which keeps its connection (fault 170)
    ):
        address = said(api, r"running on (http://\S+)")[1]
        metrics_port = said(worker, r"metrics served .* port=(\d+)")[1]
        said(worker, "worker started")
        assert client.get(f"{address}/ready").status_code == 200
        assert "types=['http_request', 'send_email']" in worker.heard
        second = python("-m", "taketurns.cli", "worker", "--metrics-port", metrics_port, url=empty_database_url)
        assert second.returncode == 1
        assert f"127.0.0.1:{metrics_port} is taken: choose another TAKETURNS_METRICS_PORT" in second.stderr
        for running in (api, worker):
            running.popen.send_signal(signal.SIGTERM)
            assert running.popen.wait(PATIENCE_SECONDS) == 0


def test_mail_is_taken_in_and_printed_until_told_to_stop() -> None:
    with process("mail", url=AWAY, TAKETURNS_SMTP_PORT="0") as sink:
        port = said(sink, r"mail is taken in at 127\.0\.0\.1:(\d+)")[1]
        with smtplib.SMTP("127.0.0.1", int(port), timeout=PATIENCE_SECONDS) as client:
            client.sendmail("us@taketurns.example", ["ada@acme.example"], "Subject: Hello\r\n\r\n")
        said(sink, "mail from us@taketurns.example to ada@acme.example: Hello")
        sink.popen.send_signal(signal.SIGTERM)
        assert sink.popen.wait(PATIENCE_SECONDS) == 0


class Running:
    """A process and what it has said."""

    def __init__(self, popen: subprocess.Popen[str]) -> None:
        self.popen = popen
        self.heard = ""


def said(running: Running, pattern: str) -> re.Match[str]:
    """Reads on until the pattern was said."""
    assert running.popen.stdout
    while not (match := re.search(pattern, running.heard)):
        line = running.popen.stdout.readline()
        assert line, f"ended without it:\n{running.heard}"
        running.heard += line
    return match


@contextmanager
def process(*command: str, url: str, **environment: str) -> Iterator[Running]:
    """A process of the service; killed when the test has not ended it."""
    popen = subprocess.Popen(
        [sys.executable, "-m", "taketurns.cli", *command],
        env=clean_environment(url) | environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield Running(popen)
    finally:
        popen.kill()
        popen.communicate()


def run(*arguments: str, url: str = AWAY, env: dict[str, str] | None = None) -> Result:
    """What a command answers, within this process."""
    own = dict.fromkeys((name for name in os.environ if name.startswith("TAKETURNS_")), None)
    return CliRunner().invoke(app, arguments, env={**own, "TAKETURNS_DATABASE_URL": url, **(env or {})})


def python(*arguments: str, url: str = AWAY) -> subprocess.CompletedProcess[str]:
    """What a process answers that ends by itself."""
    return subprocess.run(
        [sys.executable, *arguments],
        env=clean_environment(url),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )


def clean_environment(url: str) -> dict[str, str]:
    """That of this process, without settings."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("TAKETURNS_")}
    return {**others, "TAKETURNS_DATABASE_URL": url}
