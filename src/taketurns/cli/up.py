"""`taketurns up`: the whole service on this machine, with PostgreSQL, Valkey, mail and three companies of its own.

The API and the workers are child processes, as they would be elsewhere; this one looks after them.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import secrets
import shlex
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import httpx2
import typer

from taketurns import assembly
from taketurns.cli import examination, processes
from taketurns.cli.children import Children, Program, ProgramFailed
from taketurns.cli.configuration import application_is_loaded
from taketurns.companies import directory
from taketurns.companies.errors import SlugTaken
from taketurns.engine.addresses import is_loopback
from taketurns.engine.errors import Unavailable
from taketurns.settings import Settings
from taketurns.storage.database import Database
from taketurns.storage.embedded import BinariesNotFound, EmbeddedServerError, PostgresServer, ValkeyServer
from taketurns.storage.embedded.postgres import PUBLIC

Feed = Callable[[Settings], Awaitable[None]]
DATABASE = "taketurns"
COMPANY_ROLE = "taketurns_company"
COMPANIES = "TAKETURNS_COMPANY_DATABASE_URL"
REDIS = "TAKETURNS_REDIS_URL"
DEMO_TYPE = "send_email"
DEMO_COMPANIES = {"acme": "Acme", "globex": "Globex", "initech": "Initech"}
KEY = "TAKETURNS_KEY"
INTERRUPTED = 128 + signal.SIGINT
_LOOK_SECONDS = 0.1
_KEEPER_SECONDS = 1.0
_ASKS_FOR_NONE = "It asks for no keys, for it listens on loopback only: TAKETURNS_AUTHENTICATION=on changes that.\n"
_ASKS_NOBODY = "It asks for no keys, and whoever reaches it may do everything.\n"
_ASKS_FOR_KEYS = "It asks for keys: taketurns keys create makes them.\n"


class CannotListen(RuntimeError):
    """A port that was asked for cannot be had."""


@dataclass(frozen=True)
class _Server:
    """A server that the service uses; `own` is one that was started or joined here, `company_url` the address of a
    database for the role of companies."""

    variable: str
    url: str
    own: PostgresServer | ValkeyServer | None = None
    company_url: str | None = None

    @property
    def settings(self) -> dict[str, str]:
        return {self.variable: self.url} | ({COMPANIES: self.company_url} if self.company_url else {})


def run(
    settings: Settings,
    *,
    home: Path | None = None,
    programs: Path | None = None,
    valkey: Path | None = None,
    feed: Feed | None = None,
) -> int:
    """Run until told to stop: once drains, twice ends at once. `feed` gives the companies work meanwhile. The exit
    code."""
    if "authentication" not in settings.model_fields_set and is_loopback(settings.host):
        settings = settings.model_copy(update={"authentication": "off"})
    processes.refuse_to_be_open(settings)
    with application_is_loaded():
        types = assembly.load_application(settings.app).registry.names
    try:
        with _database(settings, home, programs) as database:
            urls = {"database_url": database.url, "company_database_url": database.company_url}
            if code := examination.upgrade(settings.model_copy(update=urls), "head"):
                return code
            with _redis(settings, home, valkey) as redis:
                servers = [database] if redis is None else [database, redis]
                hurried = asyncio.run(_serve(settings, servers, types, feed))
    except (EmbeddedServerError, CannotListen, ProgramFailed) as error:
        typer.echo(str(error), err=True)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    say("stopped")
    return INTERRUPTED if hurried else 0


def say(line: str) -> None:
    """Print a line. Once the terminal is closed, or nobody reads the pipe, nothing more is said, and nothing fails."""
    try:
        typer.echo(line)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def default_home() -> Path:
    """Where the embedded server keeps its data unless told otherwise."""
    if os.geteuid() == 0:
        return PUBLIC
    share = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(share) / "taketurns"


@contextlib.contextmanager
def _database(settings: Settings, home: Path | None, programs: Path | None) -> Iterator[_Server]:
    variable = "TAKETURNS_DATABASE_URL"
    if "database_url" in settings.model_fields_set:
        say(f"database: the one in {variable}")
        yield _Server(variable, settings.database_url, company_url=settings.company_database_url)
        return
    with PostgresServer(home or default_home(), binaries_directory=programs) as server:
        url = server.create_database(DATABASE)
        say(f"database: {_found(server)}")
        yield _Server(variable, url, server, server.url(DATABASE, role=COMPANY_ROLE))


@contextlib.contextmanager
def _redis(settings: Settings, home: Path | None, program: Path | None) -> Iterator[_Server | None]:
    """None where there is no program to be had and none was named."""
    if settings.redis_url is not None:
        say(f"jobs: the Redis in {REDIS}")
        yield _Server(REDIS, settings.redis_url)
        return
    server = ValkeyServer((home or default_home()) / "valkey", program=program)
    try:
        server.start()
    except BinariesNotFound as error:
        if program is not None:
            raise
        say(f"no jobs: {error}")
        yield None
        return
    with server:
        say(f"jobs: {_found(server)}")
        yield _Server(REDIS, server.url, server)


def _found(server: PostgresServer | ValkeyServer) -> str:
    how = "joined the {} that runs" if server.joined else "started {}"
    return f"{how.format(server.product)} in {server.home}"


async def _serve(settings: Settings, servers: Sequence[_Server], types: Sequence[str], feed: Feed | None) -> bool:
    """Serve until told to stop; answers whether it was told twice."""
    port = _port(settings, "port", settings.host)
    async with _mail(settings) as mail:
        environment = {
            "PYTHONUNBUFFERED": "1",  # what handlers print is seen when they print it, in a pipe too
            **os.environ,
            **{name: value for server in servers for name, value in server.settings.items()},
            "TAKETURNS_AUTHENTICATION": settings.authentication,
            "TAKETURNS_HOST": settings.host,
            "TAKETURNS_PORT": str(port),
            "TAKETURNS_METRICS_PORT": str(_port(settings, "metrics_port", settings.metrics_host)),
            **({"TAKETURNS_APP": settings.app} if settings.app else {}),
            **mail,
        }
        programs = [
            _program("api", environment, "api"),
            _program("worker", environment, "worker", "--broker", "postgres"),
        ]
        if any(server.variable == REDIS for server in servers):
            of_its_own = {"TAKETURNS_METRICS_PORT": str(_next_metrics_port(settings))}
            programs.append(_program("job worker", environment | of_its_own, "worker", "--broker", "redis"))
        own = [server.own for server in servers if server.own is not None]
        children = Children(
            programs,
            say=say,
            inherited=[server.users_lock for server in own],
        )
        welcome = asyncio.create_task(_welcome(settings, _address(settings.host, port), servers, types, feed))
        watch = asyncio.create_task(_start_again(own))
        _stop_on_signals(children, before=welcome)
        watch.add_done_callback(lambda _: None if children.stopping else children.stop())
        try:
            await children.run()
        finally:
            for task in (welcome, watch):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        return children.hurried


async def _start_again(servers: Sequence[PostgresServer | ValkeyServer]) -> None:
    """Look after servers whose keeper may be killed; of all who use one, the first to see it starts it again."""
    while True:
        await asyncio.sleep(_KEEPER_SECONDS)
        for server in servers:
            if await asyncio.to_thread(server.start_again_if_lost):
                say(f"{server.product} in {server.home} was gone and is started again")


def _program(name: str, environment: dict[str, str], *arguments: str) -> Program:
    return Program(name, [sys.executable, "-m", "taketurns.cli", *arguments], environment)


@contextlib.asynccontextmanager
async def _mail(settings: Settings) -> AsyncIterator[dict[str, str]]:
    """The settings that lead mail to the sink; none when mail was set up, or the sink is not installed."""
    if "smtp_host" in settings.model_fields_set or find_spec("aiosmtpd") is None:
        yield {}
        return
    from taketurns.cli.mail_sink import mail_sink  # noqa: PLC0415  comes with taketurns[mail]

    async with mail_sink(lambda letter: say(str(letter)), port=_port(settings, "smtp_port", "127.0.0.1")) as port:
        yield {"TAKETURNS_SMTP_HOST": "127.0.0.1", "TAKETURNS_SMTP_PORT": str(port)}


def _stop_on_signals(children: Children, *, before: asyncio.Task[None]) -> None:
    def stop() -> None:
        before.cancel()
        is_first = not children.stopping
        children.stop()
        if is_first:
            say("\nfinishing the tasks that run; once more ends at once")

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop)


def _port(settings: Settings, name: str, host: str) -> int:
    """The port of this setting, or a free one if it is 0, or is taken and was not asked for."""
    wanted: int = getattr(settings, name)
    try:
        return _bound(host, wanted)
    except OSError as error:
        if name in settings.model_fields_set or error.errno != errno.EADDRINUSE:
            raise CannotListen(
                f"{host}:{wanted} cannot be listened on ({error.strerror}): choose another TAKETURNS_{name.upper()}"
            ) from None
    free = _bound(host, 0)
    say(f"{host}:{wanted} is taken, using {free}")
    return free


def _next_metrics_port(settings: Settings) -> int:
    """The port after the worker's, or 0, for a free one, where that is taken."""
    try:
        return _bound(settings.metrics_host, settings.metrics_port + 1) if settings.metrics_port else 0
    except (OSError, OverflowError):
        return 0


def _bound(host: str, port: int) -> int:
    """The port, or a free one for 0, that was free a moment ago."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as candidate:
        candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        candidate.bind(address)
        return int(candidate.getsockname()[1])


def _address(host: str, port: int) -> str:
    """Where a client on this machine finds what listens there."""
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  not listened on
    return f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"


async def _welcome(
    settings: Settings, address: str, servers: Sequence[_Server], types: Sequence[str], feed: Feed | None
) -> None:
    """Wait for the API, see that the demo companies exist, say what to do with them, and feed them."""
    async with httpx2.AsyncClient(base_url=address) as client:
        await _answered(client)
    database = Database(servers[0].url, schema=settings.schema_name, pool_size=1)
    await database.open()
    try:
        companies = {slug: await _company(database, slug, name) for slug, name in DEMO_COMPANIES.items()}
    except (Unavailable, SlugTaken) as error:
        say(f"no demo companies: {error}")
    else:
        say("\n".join(_greeting(settings, address, companies, servers, types)))
    finally:
        await database.close()
    if feed is not None:
        await feed(settings.model_copy(update={"database_url": servers[0].url}))


async def _answered(client: httpx2.AsyncClient) -> None:
    while True:
        with contextlib.suppress(httpx2.TransportError):
            if (await client.get("/ready")).is_success:
                return
        await asyncio.sleep(_LOOK_SECONDS)


async def _company(database: Database, slug: str, name: str) -> str:
    found = await directory.find(database, slug)
    return str((found or await directory.create(database, name=name, slug=slug)).id)


def _greeting(
    settings: Settings, address: str, companies: dict[str, str], servers: Sequence[_Server], types: Sequence[str]
) -> Iterator[str]:
    asks_for_keys = settings.authentication == "on"
    yield f"\nTaketurns answers at {address}, its dashboard to a browser, its documentation at {address}/docs"
    yield {"on": _ASKS_FOR_KEYS, "off": _ASKS_FOR_NONE}.get(settings.authentication, _ASKS_NOBODY)
    yield "Three companies are there:"
    for slug, company_id in companies.items():
        yield f"  {slug:8} {company_id}"
    if asks_for_keys:
        yield "\nAn operator's key for the lines below, to be made where the database is known (see the end):"
        yield f"{KEY}=$(taketurns keys create --role operator --name trying)"
    header = f' -H "Authorization: Bearer ${KEY}"' if asks_for_keys else ""
    if DEMO_TYPE in types:
        yield from _lines_to_paste(address, companies, header)
    else:
        yield f"\nThe tasks that your handlers take ({', '.join(types) or 'none yet'}):"
        yield f"curl -s{header} '{address}/task-types'"
    if own := [server for server in servers if server.own is not None]:
        yield "\nPrograms and commands in other terminals find what was started here by"
        yield from (f"export {name}={shlex.quote(value)}" for server in own for name, value in server.settings.items())
    yield "\nCtrl-C finishes what runs and stops; the data stays.\n"


def _lines_to_paste(address: str, companies: dict[str, str], header: str) -> Iterator[str]:
    acme, globex = companies["acme"], companies["globex"]
    hello = _create(address, acme, "acme", key=f"hello-{secrets.token_hex(3)}")
    yield f"\nA task:\ncurl -s{header} {hello}"
    yield f"\nThe same once more: it answers the same task, with Idempotent-Replayed: true\ncurl -si{header} {hello}"
    yield "\nTen of another company, which acme does not wait for:"
    yield f"for i in $(seq 10); do curl -s -o /dev/null{header} {_create(address, globex, 'globex')}; done"
    yield f"\nHow they are:\ncurl -s{header} '{address}/companies/{acme}/tasks'"


def _create(address: str, company_id: str, slug: str, *, key: str | None = None) -> str:
    """What curl is told to create a task."""
    payload = {"to": f"ada@{slug}.example", "subject": "Hello", "body": "It is your turn."}
    task = json.dumps({"type": DEMO_TYPE, "payload": payload})
    header = f" -H 'Idempotency-Key: {key}'" if key else ""
    return f"'{address}/companies/{company_id}/tasks' -H 'Content-Type: application/json'{header} -d '{task}'"
