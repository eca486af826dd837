"""The commands, with their options, which stand above the environment."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated
from uuid import UUID

import typer

from taketurns.cli.configuration import (
    settings_with,
    with_a_way_to_check_tokens,
    with_a_way_to_the_broker,
    with_servers_of_its_own,
)

app = typer.Typer(
    name="taketurns",
    help="Background tasks for software that serves many companies: no company can starve another.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
db = typer.Typer(name="db", help="The schema of the database.", no_args_is_help=True)
app.add_typer(db)
keys = typer.Typer(name="keys", help="Keys to the API, of companies and of operators.", no_args_is_help=True)
app.add_typer(keys)
heartbeat = typer.Typer(name="heartbeat", help="When workers and passes were last heard of.", no_args_is_help=True)
app.add_typer(heartbeat)
workers = typer.Typer(
    name="workers", help="Workers: who there is, and having one drain, go on or stop.", no_args_is_help=True
)
app.add_typer(workers)
operations = typer.Typer(name="operations", help="One change of many tasks of a company.", no_args_is_help=True)
app.add_typer(operations)

App = Annotated[
    str | None,
    typer.Option("--app", metavar="MODULE:VARIABLE", help="Where the handlers are; TAKETURNS_APP otherwise."),
]
Home = Annotated[Path | None, typer.Option(envvar="TAKETURNS_HOME", help="Where the embedded servers keep their data.")]
PostgresPrograms = Annotated[
    Path | None, typer.Option(envvar="TAKETURNS_PG_BIN", help="Where PostgreSQL's programs are.")
]
ValkeyProgram = Annotated[
    Path | None, typer.Option(envvar="TAKETURNS_VALKEY_BIN", help="Valkey's program, valkey-server.")
]
Company = Annotated[str | None, typer.Option(help="Id or slug of the company whose keys they are.")]
NamedKey = Annotated[str, typer.Argument(metavar="KEY", help="Its id, or how it begins: tt_live_… up to the secret.")]
KEY_NAME = r"(?=.*\S)[^\x00-\x1F\x7F]{1,200}"
NamedWorker = Annotated[str, typer.Argument(metavar="WORKER", help="Its id, or the name that its processes have.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def up(
    application: App = None,
    home: Home = None,
    pg_bin: PostgresPrograms = None,
    valkey_bin: ValkeyProgram = None,
    port: Annotated[int | None, typer.Option(help="Port of the API.")] = None,
) -> None:
    """Run everything here: PostgreSQL, Valkey, API, workers, a mail sink, and three companies to try it with."""
    from taketurns.cli import up as everything  # noqa: PLC0415

    settings = with_a_way_to_check_tokens(settings_with(app=application, port=port, broker="postgres"))
    raise typer.Exit(everything.run(settings, home=home, programs=pg_bin, valkey=valkey_bin))


@app.command()
def demo(
    home: Home = None,
    pg_bin: PostgresPrograms = None,
    valkey_bin: ValkeyProgram = None,
    port: Annotated[int | None, typer.Option(help="Port of the API.")] = None,
) -> None:
    """Run everything here, as `up` does, and give three companies work: one floods, one is quiet, one is slow."""
    from taketurns.cli import demo as companies  # noqa: PLC0415
    from taketurns.cli import up as everything  # noqa: PLC0415

    settings = with_servers_of_its_own(
        with_a_way_to_check_tokens(settings_with(app=companies.APP, port=port, broker="postgres"))
    )
    home = home or everything.default_home() / "demo"
    raise typer.Exit(everything.run(settings, home=home, programs=pg_bin, valkey=valkey_bin, feed=companies.feed))


@app.command()
def api(
    application: App = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; loopback unless told otherwise.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.")] = None,
) -> None:
    """Serve the REST API."""
    from taketurns.cli import processes  # noqa: PLC0415

    processes.serve_api(with_a_way_to_check_tokens(settings_with(app=application, host=host, port=port)))


@app.command()
def worker(
    application: App = None,
    *,
    broker: Annotated[str | None, typer.Option(help="Where it takes turns: postgres (tasks) or redis (jobs).")] = None,
    queues: Annotated[str | None, typer.Option(help="Queues to serve, separated by commas.")] = None,
    concurrency: Annotated[int | None, typer.Option("--concurrency", "-c", help="Handlers that run at once.")] = None,
    metrics_port: Annotated[int | None, typer.Option(help="Port of the metrics; 0 picks a free one.")] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of its heartbeat, kept across deploys; TAKETURNS_WORKER_NAME otherwise.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Make one bounded pass and leave, for cron.")] = False,
    drain: Annotated[bool, typer.Option("--drain", help="Make a pass until nothing is due, and leave.")] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Most tasks of a pass; 100 with --once, none with --drain.")
    ] = None,
) -> None:
    """Take turns and run handlers until told to stop: once drains, twice leaves at once."""
    from taketurns.cli import processes  # noqa: PLC0415

    if limit is not None and not (once or drain):
        raise typer.BadParameter("is for a pass: add --once or --drain", param_hint="--limit")
    settings = with_a_way_to_the_broker(
        settings_with(
            app=application,
            broker=broker,
            queues=queues,
            concurrency=concurrency,
            metrics_port=metrics_port,
            worker_name=name,
        )
    )
    if once or drain:
        processes.run_pass(settings, limit=limit if drain else limit or 100, drains=drain)
    else:
        processes.run_worker(settings)


Paused = Annotated[str | None, typer.Argument(metavar="COMPANY", help="Its id or slug; every company if left out.")]
Queue = Annotated[str | None, typer.Option("--queue", help="Only tasks of this queue.")]
Type = Annotated[str | None, typer.Option("--type", help="Only tasks of this type.")]


@app.command()
def pause(
    company: Paused = None,
    queue: Queue = None,
    type: Type = None,
    duration: Annotated[
        str | None, typer.Option("--for", help="How long: 90s, 10m, 1h, 1d; until resumed otherwise.")
    ] = None,
) -> None:
    """Give no turns to a company, or to tasks of a queue or a type. What runs goes on, what is submitted waits."""
    from taketurns.cli import pausing  # noqa: PLC0415
    from taketurns.engine import durations, limits  # noqa: PLC0415

    _name_something(company, queue, type)
    try:
        seconds = None if duration is None else durations.seconds(duration)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--for") from None
    if seconds is not None and not 0 < seconds <= limits.DELAY_SECONDS_MAX:
        raise typer.BadParameter("must be more than nothing, and a year at most", param_hint="--for")
    raise typer.Exit(pausing.pause(settings_with(), company, queue=queue, type=type, seconds=seconds))


@app.command()
def resume(company: Paused = None, queue: Queue = None, type: Type = None) -> None:
    """Lift a pause: name what the pause named."""
    from taketurns.cli import pausing  # noqa: PLC0415

    _name_something(company, queue, type)
    raise typer.Exit(pausing.resume(settings_with(), company, queue=queue, type=type))


Kept = Annotated[
    str | None, typer.Option(metavar="LENGTH", help="1h, 30d, from 1m to 3650d; `default`: as the workers are set.")
]


@app.command()
def retention(
    company: Annotated[str, typer.Argument(help="Id or slug.")],
    completed: Kept = None,
    failed: Kept = None,
    cancelled: Kept = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Show or change for how long a company's tasks are kept after their end."""
    from taketurns.cli import keeping  # noqa: PLC0415

    told = {"completed": completed, "failed": failed, "cancelled": cancelled}
    changes = {status: _kept_seconds(length, f"--{status}") for status, length in told.items() if length is not None}
    raise typer.Exit(keeping.retention(settings_with(), company, changes, as_json=as_json))


def _kept_seconds(length: str, option: str) -> int | None:
    from taketurns.engine import limits  # noqa: PLC0415

    if length == "default":
        return None
    seconds = int(_seconds(length, option, most="3650d"))
    if seconds < limits.RETENTION_SECONDS_MIN:
        raise typer.BadParameter("must be 1m at least", param_hint=option)
    return seconds


def _name_something(*names: str | None) -> None:
    if not any(names):
        raise typer.BadParameter("name a company, a queue (--queue) or a type (--type)", param_hint="COMPANY")


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Look at the server's settings and at what holds it back; exits 1 when something must be mended."""
    from taketurns.cli import examination  # noqa: PLC0415

    raise typer.Exit(examination.doctor(settings_with(), as_json=as_json))


@app.command()
def why(
    task_id: Annotated[UUID, typer.Argument(help="The task's id.")],
    company: Annotated[
        str | None, typer.Option(help="Whose task it is, an id or a slug; looked for otherwise.")
    ] = None,
) -> None:
    """Say why a task waits; exits 1 when there is no such task."""
    from taketurns.cli import why as reasons  # noqa: PLC0415

    raise typer.Exit(reasons.why(settings_with(), task_id, company=company))


@app.command()
def stats(
    company: Annotated[str, typer.Argument(help="A company, an id or a slug.")],
    window: Annotated[str, typer.Option(help="How far back attempts are counted: 90s, 10m, 1h, 7d.")] = "10m",
    as_json: AsJson = False,
) -> None:
    """Say how it stands with a company: what waits and runs, its share, its waits, its failures."""
    from taketurns.cli import why as reasons  # noqa: PLC0415
    from taketurns.history.stats import window_seconds  # noqa: PLC0415

    try:
        seconds = window_seconds(window)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--window") from None
    raise typer.Exit(reasons.stats(settings_with(), company, window_seconds=seconds, as_json=as_json))


@app.command()
def openapi(application: App = None) -> None:
    """Print the OpenAPI document."""
    from taketurns.cli import processes  # noqa: PLC0415

    processes.print_openapi(settings_with(app=application))


@app.command()
def mail(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(help="Port to listen on; TAKETURNS_SMTP_PORT otherwise.")] = None,
) -> None:
    """Take in mail and print it, delivering nothing: a mail server to try handlers with."""
    from taketurns.cli import processes  # noqa: PLC0415

    processes.serve_mail(host, settings_with(smtp_port=port).smtp_port)


@app.command()
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as installed  # noqa: PLC0415

    typer.echo(installed("taketurns"))


@db.command()
def upgrade(revision: str = "head") -> None:
    """Build the schema, or bring it to the newest revision, and let the role of companies into it."""
    from taketurns.cli import examination  # noqa: PLC0415

    raise typer.Exit(examination.upgrade(settings_with(), revision))


@db.command()
def grant(
    role: Annotated[
        str | None, typer.Argument(help="The role; that of TAKETURNS_COMPANY_DATABASE_URL otherwise.")
    ] = None,
    password: Annotated[
        str | None,
        typer.Option(
            envvar="TAKETURNS_ROLE_PASSWORD",
            help="Its password, if it has to be made; that of TAKETURNS_COMPANY_DATABASE_URL otherwise.",
        ),
    ] = None,
) -> None:
    """Let a role act for one company at a time, and do nothing else in the schema; it is made if it is not there."""
    from taketurns.cli import examination  # noqa: PLC0415

    raise typer.Exit(examination.grant(settings_with(), role, password))


@db.command()
def check() -> None:
    """Say whether the schema is at the newest revision; exits 1 when it is not."""
    from taketurns.cli import examination  # noqa: PLC0415

    raise typer.Exit(examination.check(settings_with()))


@db.command()
def url() -> None:
    """Print the address of the database, without its password."""
    from sqlalchemy import make_url  # noqa: PLC0415

    typer.echo(make_url(settings_with().database_url).render_as_string(hide_password=True))


@keys.command("create")
def create_key(
    *,
    name: Annotated[str, typer.Option(help="What it is for, or who has it.")],
    company: Company = None,
    scope: Annotated[
        list[str] | None, typer.Option(help="What a company's key may do, tasks:read for instance; once for each.")
    ] = None,
    role: Annotated[str | None, typer.Option(help="Of an operator's key: viewer, operator or admin.")] = None,
    expires_in: Annotated[str | None, typer.Option(help="How long it works: 12h, 90d; for ever unless set.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make a key of a company (--company, --scope) or of an operator (--role), and print it: it is not shown again."""
    from taketurns.cli import keys as commands  # noqa: PLC0415
    from taketurns.engine.key import GRANTS, Role  # noqa: PLC0415

    if not re.fullmatch(KEY_NAME, name):
        raise typer.BadParameter("must be 1 to 200 characters, not all blank", param_hint="--name")
    if (company is None) == (role is None):
        raise typer.BadParameter("is needed, or --role: one of the two", param_hint="--company")
    if role is not None and role not in list(Role):
        raise typer.BadParameter(f"must be one of {', '.join(Role)}", param_hint="--role")
    if (company is None) != (scope is None) or not set(scope or ()) <= set(GRANTS):
        raise typer.BadParameter(f"go with --company, one or several of {', '.join(GRANTS)}", param_hint="--scope")
    raise typer.Exit(
        commands.create(
            settings_with(),
            name=name,
            company=company,
            scopes=scope or (),
            role=role,
            lifetime_seconds=None if expires_in is None else _seconds(expires_in, "--expires-in", most="36500d"),
            as_json=as_json,
        )
    )


@keys.command("list")
def list_keys(company: Company = None, as_json: AsJson = False) -> None:
    """List the keys of a company, or of operators without --company, those that work no more among them."""
    from taketurns.cli import keys as commands  # noqa: PLC0415

    raise typer.Exit(commands.show(settings_with(), company=company, as_json=as_json))


@keys.command("rotate")
def rotate_key(
    key: NamedKey,
    overlap: Annotated[str, typer.Option(help="How long the old key works beside the new one: 0s, 24h.")] = "24h",
    as_json: AsJson = False,
) -> None:
    """Make the key that takes another one's place, and print it: it is not shown again."""
    from taketurns.cli import keys as commands  # noqa: PLC0415

    seconds = _seconds(overlap, "--overlap", most="30d")
    raise typer.Exit(commands.rotate(settings_with(), key, overlap_seconds=seconds, as_json=as_json))


@keys.command("revoke")
def revoke_key(key: NamedKey, as_json: AsJson = False) -> None:
    """End a key; within five seconds no API takes it any more."""
    from taketurns.cli import keys as commands  # noqa: PLC0415

    raise typer.Exit(commands.revoke(settings_with(), key, as_json=as_json))


def _seconds(told: str, option: str, *, most: str) -> float:
    from taketurns.engine import durations  # noqa: PLC0415

    try:
        seconds = durations.seconds(told)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
    if seconds > durations.seconds(most):
        raise typer.BadParameter(f"may be {most} at most", param_hint=option)
    return seconds


@heartbeat.command("check")
def check_heartbeats(
    max_age: Annotated[str, typer.Option(help="The oldest that a last beat may be: 90s, 10m, 1h, 1d.")] = "10m",
    name: Annotated[str | None, typer.Option(help="Whose heartbeat; of everybody who is expected otherwise.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say who is late and by how much; exits 1 when anybody is, or when there is no heartbeat at all."""
    from taketurns.cli import heartbeats  # noqa: PLC0415

    max_age_seconds = _seconds(max_age, "--max-age", most="36500d")
    raise typer.Exit(heartbeats.check(settings_with(), max_age_seconds=max_age_seconds, name=name, as_json=as_json))


@workers.command("list")
def list_workers(as_json: AsJson = False) -> None:
    """List workers and passes, those that began last first: what each does, and what is wanted of it."""
    from taketurns.cli import workers as commands  # noqa: PLC0415

    raise typer.Exit(commands.show(settings_with(), as_json=as_json))


@workers.command("drain")
def drain_worker(worker: NamedWorker) -> None:
    """Have a worker take no more turns, until it is resumed or stopped. What it has begun, it runs to the end."""
    from taketurns.cli import workers as commands  # noqa: PLC0415

    raise typer.Exit(commands.drain(settings_with(), worker))


@workers.command("resume")
def resume_worker(worker: NamedWorker) -> None:
    """Have a worker that was drained take turns again."""
    from taketurns.cli import workers as commands  # noqa: PLC0415

    raise typer.Exit(commands.resume(settings_with(), worker))


@workers.command("stop")
def stop_worker(worker: NamedWorker) -> None:
    """End a worker as SIGTERM does: it drains, and then its process ends with 0."""
    from taketurns.cli import workers as commands  # noqa: PLC0415

    raise typer.Exit(commands.stop(settings_with(), worker))


@operations.command("create")
def create_operation(
    company: Annotated[str, typer.Argument(help="Id or slug.")],
    kind: Annotated[str, typer.Argument(help="cancel, retry, reschedule or delete.")],
    *,
    status: Annotated[list[str] | None, typer.Option(help="Tasks of this status; may be given again.")] = None,
    type: Annotated[list[str] | None, typer.Option(help="Tasks of this type; may be given again.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Tasks with this tag, and all others given.")] = None,
    created_after: Annotated[str | None, typer.Option(help="Tasks created later: 2026-01-31T12:00:00Z.")] = None,
    created_before: Annotated[str | None, typer.Option(help="Tasks created earlier.")] = None,
    error_fingerprint: Annotated[str | None, typer.Option(help="Failed tasks of one cause.")] = None,
    task: Annotated[list[str] | None, typer.Option(help="This task, whatever the filters; may be given again.")] = None,
    run_after: Annotated[str | None, typer.Option(help="For reschedule: not before this time.")] = None,
    rate: Annotated[float | None, typer.Option(help="Most tasks to change in a second.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell how many tasks there are.")] = False,
    as_json: AsJson = False,
) -> None:
    """Change many tasks. Workers do it, in steps; tasks that come later are left alone."""
    from pydantic import ValidationError  # noqa: PLC0415

    from taketurns.api.changes import new_operation  # noqa: PLC0415
    from taketurns.api.requests import CreateOperation  # noqa: PLC0415
    from taketurns.cli import operations as many  # noqa: PLC0415

    filters = {
        "status": status,
        "type": type,
        "tag": tag,
        "createdAfter": created_after,
        "createdBefore": created_before,
        "errorFingerprint": error_fingerprint,
    }
    named = {name: value for name, value in filters.items() if value}
    told = {"kind": kind, "taskIds": task or None, "filter": named or None, "runAfter": run_after, "rate": rate}
    try:
        body = CreateOperation.model_validate({name: value for name, value in told.items() if value is not None})
    except ValidationError as error:
        for wrong in error.errors(include_url=False, include_input=False):
            typer.echo(f"{'.'.join(map(str, wrong['loc'])) or 'which tasks'}: {wrong['msg']}", err=True)
        raise typer.Exit(2) from None
    raise typer.Exit(many.create(settings_with(), company, new_operation(body), dry_run=dry_run, as_json=as_json))


@operations.command("list")
def list_operations(company: Annotated[str, typer.Argument(help="Id or slug.")], *, as_json: AsJson = False) -> None:
    """Print the last operations of a company."""
    from taketurns.cli import operations as many  # noqa: PLC0415

    raise typer.Exit(many.show(settings_with(), company, as_json=as_json))


@operations.command("abort")
def abort_operation(
    company: Annotated[str, typer.Argument(help="Id or slug.")],
    operation: Annotated[UUID, typer.Argument(help="The operation's id.")],
) -> None:
    """End an operation early; what it has changed stays so."""
    from taketurns.cli import operations as many  # noqa: PLC0415

    raise typer.Exit(many.abort(settings_with(), company, operation))
