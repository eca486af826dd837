"""`taketurns up`: the whole service on this machine, with a database, a mail server and three companies of its own.

The API and the worker are child processes, as they would be elsewhere; this one looks after them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import httpx2
import typer

from taketurns.cli import examination
from taketurns.cli.children import Children, Program, ProgramFailed
from taketurns.settings import Settings
from taketurns.storage.embedded import EmbeddedServerError, PostgresServer
from taketurns.storage.embedded.server import PUBLIC

DATABASE = "taketurns"
DEMO_COMPANIES = {"acme": "Acme", "globex": "Globex", "initech": "Initech"}
_LOOK_SECONDS = 0.1


class PortTaken(RuntimeError):
    """A port that was asked for is in use."""


@dataclass(frozen=True)
class _Database:
    url: str
    told: str
    inherited: Sequence[int]


def run(settings: Settings, *, home: Path | None = None, programs: Path | None = None) -> int:
    """Run until told to stop: once drains, twice ends at once. The exit code."""
    try:
        with _database(settings, home, programs) as database:
            typer.echo(database.told)
            if code := examination.upgrade(settings.model_copy(update={"database_url": database.url}), "head"):
                return code
            asyncio.run(_serve(settings, database))
    except (EmbeddedServerError, PortTaken, ProgramFailed) as error:
        typer.echo(str(error), err=True)
        return 1
    except KeyboardInterrupt:
        return 130
    typer.echo("stopped")
    return 0


def default_home() -> Path:
    """Where the embedded server keeps its data unless told otherwise."""
    if os.geteuid() == 0:
        return PUBLIC
    share = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(share) / "taketurns"


@contextlib.contextmanager
def _database(settings: Settings, home: Path | None, programs: Path | None) -> Iterator[_Database]:
    if "database_url" in settings.model_fields_set:
        yield _Database(settings.database_url, "database: the one in TAKETURNS_DATABASE_URL", ())
        return
    with PostgresServer(home or default_home(), binaries_directory=programs) as server:
        found = "joined the PostgreSQL that runs" if server.joined else "started PostgreSQL"
        url = server.create_database(DATABASE)
        yield _Database(url, f"database: {found} in {server.home}", (server.users_lock,))


async def _serve(settings: Settings, database: _Database) -> None:
    port = _port(settings, "port", settings.host)
    async with _mail(settings) as mail:
        environment = {
            **os.environ,
            "TAKETURNS_DATABASE_URL": database.url,
            "TAKETURNS_HOST": settings.host,
            "TAKETURNS_PORT": str(port),
            "TAKETURNS_METRICS_PORT": str(_port(settings, "metrics_port", settings.metrics_host)),
            **mail,
        }
        children = Children(
            [Program(name, [sys.executable, "-m", "taketurns.cli", name], environment) for name in ("api", "worker")],
            say=typer.echo,
            inherited=database.inherited,
        )
        _stop_on_signals(children)
        welcome = asyncio.create_task(_welcome(f"http://{settings.host}:{port}", typer.echo))
        try:
            await children.run()
        finally:
            welcome.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await welcome


@contextlib.asynccontextmanager
async def _mail(settings: Settings) -> AsyncIterator[dict[str, str]]:
    """The settings that lead mail to the sink; none when mail was set up, or the sink is not installed."""
    if "smtp_host" in settings.model_fields_set or find_spec("aiosmtpd") is None:
        yield {}
        return
    from taketurns.cli.mail_sink import mail_sink  # noqa: PLC0415  comes with taketurns[embedded]

    async with mail_sink(
        lambda letter: typer.echo(str(letter)), port=_port(settings, "smtp_port", "127.0.0.1")
    ) as port:
        yield {"TAKETURNS_SMTP_HOST": "127.0.0.1", "TAKETURNS_SMTP_PORT": str(port)}


def _stop_on_signals(children: Children) -> None:
    def stop() -> None:
        if not children.stopping:
            typer.echo("\nfinishing the tasks that run; once more ends at once")
        children.stop()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop)


def _port(settings: Settings, name: str, host: str) -> int:
    """The port of this setting, or a free one if it is taken and was not asked for."""
    wanted: int = getattr(settings, name)
    if _is_free(host, wanted):
        return wanted
    if name in settings.model_fields_set:
        raise PortTaken(f"{host}:{wanted} is taken: choose another TAKETURNS_{name.upper()}")
    with socket.socket() as candidate:
        candidate.bind((host, 0))
        free: int = candidate.getsockname()[1]
    typer.echo(f"{host}:{wanted} is taken, using {free}")
    return free


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as candidate:
        candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            candidate.bind((host, port))
        except OSError:
            return False
    return True


async def _welcome(address: str, say: Callable[[str], None]) -> None:
    """Wait for the API, see that the demo companies exist, and say what to do with them."""
    async with httpx2.AsyncClient(base_url=address) as client:
        await _answered(client)
        try:
            companies = {slug: await _company(client, slug, name) for slug, name in DEMO_COMPANIES.items()}
        except httpx2.HTTPError as error:
            say(f"no demo companies: {error}")
        else:
            say("\n".join(_greeting(address, companies)))


async def _answered(client: httpx2.AsyncClient) -> None:
    while True:
        with contextlib.suppress(httpx2.TransportError):
            if (await client.get("/ready")).is_success:
                return
        await asyncio.sleep(_LOOK_SECONDS)


async def _company(client: httpx2.AsyncClient, slug: str, name: str) -> str:
    answer = await client.get(f"/companies/{slug}")
    if answer.status_code == httpx2.codes.NOT_FOUND:
        answer = await client.post("/companies", json={"name": name, "slug": slug})
    answer.raise_for_status()
    return str(answer.json()["id"])


def _greeting(address: str, companies: dict[str, str]) -> Iterator[str]:
    yield f"\nTaketurns answers at {address}, its documentation at {address}/docs\n"
    yield "Three companies are there:"
    for slug, company_id in companies.items():
        yield f"  {slug:8} {company_id}"
    acme, globex = companies["acme"], companies["globex"]
    yield "\nA task, and the same once more, which is not created twice:"
    yield _create(address, acme, "acme", key="hello-1")
    yield "\nTen of another company, which acme does not wait for:"
    yield f"for i in $(seq 10); do {_create(address, globex, 'globex')} -o /dev/null; done"
    yield "\nHow they are:"
    yield f"curl -s '{address}/companies/{acme}/tasks'"
    yield "\nCtrl-C finishes what runs and stops; the data stays.\n"


def _create(address: str, company_id: str, slug: str, *, key: str | None = None) -> str:
    payload = {"to": f"ada@{slug}.example", "subject": "Hello", "body": "It is your turn."}
    task = json.dumps({"type": "send_email", "payload": payload})
    header = f" -H 'Idempotency-Key: {key}'" if key else ""
    return f"curl -s '{address}/companies/{company_id}/tasks' -H 'Content-Type: application/json'{header} -d '{task}'"
