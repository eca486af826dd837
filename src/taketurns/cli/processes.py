"""Commands that serve: the API in uvicorn, the worker in its own event loop, the mail sink."""

from __future__ import annotations

import asyncio
import errno
import json
import signal
from typing import TYPE_CHECKING

import typer

from taketurns import assembly, telemetry
from taketurns.cli.configuration import WRONG, application_is_loaded
from taketurns.engine.addresses import is_loopback
from taketurns.engine.errors import Unavailable
from taketurns.settings import Settings
from taketurns.worker import process

if TYPE_CHECKING:
    from types import FrameType

GRACE_SECONDS = 10


def serve_api(settings: Settings) -> None:
    """Serve the API until told to stop; requests under way are answered."""
    import uvicorn  # noqa: PLC0415  a worker does without

    refuse_to_be_open(settings)
    telemetry.configure(form=settings.log_format, level=settings.log_level)
    with application_is_loaded():
        api = assembly.load_api(settings)
    log = telemetry.logger("api")
    match settings.authentication:
        case "on":
            log.info(telemetry.Event.API_LISTENS, host=settings.host, port=settings.port)
        case "off":
            log.info(telemetry.Event.API_ON_LOOPBACK, host=settings.host, port=settings.port)
        case _:
            log.warning(telemetry.Event.API_OPEN, host=settings.host, port=settings.port)
    _leave_well_on_signals()
    uvicorn.run(
        api,
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=settings.trusted_proxies,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )


def refuse_to_be_open(settings: Settings) -> None:
    """Leave with the reason when everybody who reaches the address could do everything, and nobody said so."""
    if settings.authentication == "off" and not is_loopback(settings.host):
        typer.echo(
            f"TAKETURNS_AUTHENTICATION: off is for loopback, and {settings.host} is not: switch it on, or say"
            " off-on-any-address if something in front of the API keeps strangers out",
            err=True,
        )
        raise typer.Exit(WRONG)


def run_worker(settings: Settings) -> None:
    """Take turns until told to stop."""
    telemetry.configure(form=settings.log_format, level=settings.log_level)
    with application_is_loaded():
        application = assembly.load_application(settings.app)
    try:
        process.run(lambda: assembly.serve_worker(settings, application))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        address = f"{settings.metrics_host}:{settings.metrics_port}"
        typer.echo(f"{address} is taken: choose another TAKETURNS_METRICS_PORT", err=True)
        raise typer.Exit(1) from None


def run_pass(settings: Settings, *, limit: int | None, drains: bool) -> None:
    """Make one pass; leaves with 1 and the reason when it could not be made."""
    telemetry.configure(form=settings.log_format, level=settings.log_level)
    with application_is_loaded():
        application = assembly.load_application(settings.app)
    try:
        process.run(lambda: assembly.serve_pass(settings, application, limit=limit, drains=drains))
    except Unavailable as error:
        typer.echo(f"the pass could not be made: {error}", err=True)
        raise typer.Exit(1) from None


def serve_mail(host: str, port: int) -> None:
    """Take in mail until told to stop, and print a line for each letter."""
    try:
        from taketurns.cli.mail_sink import mail_sink  # noqa: PLC0415
    except ModuleNotFoundError:
        typer.echo("the mail sink is not installed: pip install 'taketurns[mail]'", err=True)
        raise typer.Exit(1) from None

    async def serve() -> None:
        async with mail_sink(lambda letter: typer.echo(str(letter)), host=host, port=port) as taken:
            typer.echo(f"mail is taken in at {host}:{taken}")
            await asyncio.Event().wait()

    _leave_well_on_signals()
    asyncio.run(serve())


def print_openapi(settings: Settings) -> None:
    """Print the document that the API serves for the application that the settings name."""
    import httpx2  # noqa: PLC0415  a worker does without

    with application_is_loaded():
        api = assembly.load_api(settings)

    async def served() -> object:
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(api), base_url="http://api") as client:
            return (await client.get("/openapi.json")).raise_for_status().json()

    typer.echo(json.dumps(asyncio.run(served()), indent=2))


def _leave_well_on_signals() -> None:
    """To have been told to stop is no failure; uvicorn raises the signals that it took again at its end."""

    def leave(_number: int, _frame: FrameType | None) -> None:
        raise SystemExit(0)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, leave)
