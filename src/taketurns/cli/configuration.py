"""What commands are told by their options and the environment; who tells them wrong leaves with exit code 2."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import typer

from taketurns.engine.errors import ConfigurationError

if TYPE_CHECKING:
    from taketurns.settings import Settings

WRONG = 2
_DATABASE_URL = re.compile(r"postgresql(\+psycopg)?://")
_REDIS_URL = re.compile(r"(rediss?(\+cluster)?|unix)://")


def settings_with(**options: Any) -> Settings:
    """The settings of the environment, with the options that were given above them.

    Leaves with a line for each setting that is wrong.
    """
    from pydantic import ValidationError  # noqa: PLC0415

    from taketurns.settings import Settings  # noqa: PLC0415

    try:
        settings = Settings(**{name: value for name, value in options.items() if value is not None})
    except ValidationError as error:
        for wrong in error.errors(include_url=False, include_input=False):
            name = ".".join(str(part) for part in wrong["loc"])
            typer.echo(f"TAKETURNS_{name.upper().removeprefix('TAKETURNS_')}: {wrong['msg']}", err=True)
        raise typer.Exit(WRONG) from None
    if not _DATABASE_URL.match(settings.database_url):
        typer.echo("TAKETURNS_DATABASE_URL: a URL is needed: postgresql://user:password@host:5432/database", err=True)
        raise typer.Exit(WRONG)
    if settings.company_database_url is not None and not _DATABASE_URL.match(settings.company_database_url):
        typer.echo(
            "TAKETURNS_COMPANY_DATABASE_URL: a URL is needed: postgresql://role:password@host:5432/database", err=True
        )
        raise typer.Exit(WRONG)
    if settings.redis_url is not None and not _REDIS_URL.match(settings.redis_url):
        typer.echo("TAKETURNS_REDIS_URL: a URL is needed: redis://user:password@host:6379/0", err=True)
        raise typer.Exit(WRONG)
    return settings


def with_a_way_to_the_broker(settings: Settings) -> Settings:
    """The same settings. Leaves when a worker that goes by them would not know where its broker is."""
    if settings.broker == "redis" and settings.redis_url is None:
        typer.echo("TAKETURNS_REDIS_URL: must be set for a worker with --broker redis", err=True)
        raise typer.Exit(WRONG)
    return settings


def with_a_way_to_check_tokens(settings: Settings) -> Settings:
    """The same settings. Leaves when an API that goes by them could not check the tokens it is to take."""
    if settings.oidc_issuer is not None and not (find_spec("jwt") and find_spec("cryptography")):
        typer.echo("TAKETURNS_OIDC_ISSUER: tokens cannot be checked yet: pip install 'taketurns[oidc]'", err=True)
        raise typer.Exit(WRONG)
    return settings


def with_servers_of_its_own(settings: Settings) -> Settings:
    """The same settings. Leaves when they lead to servers of somebody's, which are not to be filled with play."""
    for name in ("database_url", "redis_url"):
        if name in settings.model_fields_set:
            typer.echo(f"TAKETURNS_{name.upper()}: must not be set, the demo has servers of its own", err=True)
            raise typer.Exit(WRONG)
    return settings


@contextmanager
def application_is_loaded() -> Iterator[None]:
    """Leave with the reason when the application that was named is none."""
    try:
        yield
    except ConfigurationError as error:
        typer.echo(f"TAKETURNS_APP or --app: {error}", err=True)
        raise typer.Exit(WRONG) from None
