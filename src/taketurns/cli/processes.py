"""Commands that serve: the API in uvicorn, the worker in its own event loop."""

from __future__ import annotations

import ipaddress

import typer
import uvicorn

from taketurns import assembly, telemetry
from taketurns.engine.errors import ConfigurationError
from taketurns.settings import Settings
from taketurns.worker import process

GRACE_SECONDS = 10


def serve_api(settings: Settings) -> None:
    """Serve the API until told to stop; requests under way are answered."""
    telemetry.configure(form=settings.log_format, level=settings.log_level)
    try:
        api = assembly.load_api(settings)
    except ConfigurationError as error:
        raise _wrong(error) from None
    log = telemetry.logger("api")
    if _is_loopback(settings.host):
        log.info(telemetry.Event.API_ON_LOOPBACK, host=settings.host, port=settings.port)
    else:
        log.warning(telemetry.Event.API_OPEN, host=settings.host, port=settings.port)
    uvicorn.run(
        api,
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )


def run_worker(settings: Settings) -> None:
    """Take turns until told to stop."""
    telemetry.configure(form=settings.log_format, level=settings.log_level)
    try:
        application = assembly.load_application(settings.app)
    except ConfigurationError as error:
        raise _wrong(error) from None
    process.run(lambda: assembly.serve_worker(settings, application))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _wrong(error: ConfigurationError) -> typer.Exit:
    typer.echo(str(error), err=True)
    return typer.Exit(2)
