"""Has jobs follow at once what a command has changed in the database."""

from __future__ import annotations

import typer

from taketurns.companies import following
from taketurns.companies.directory import Company
from taketurns.engine.errors import Unavailable
from taketurns.settings import Settings
from taketurns.storage.database import Database


async def tell_jobs(settings: Settings, database: Database, company: Company | None = None) -> None:
    """Tell the jobs' broker how a company stands now, and of all pauses. Where that cannot be said, workers say it
    within half a minute, and the operator is told so."""
    if settings.redis_url is None:
        _warn("set TAKETURNS_REDIS_URL to have them follow at once")
        return
    from taketurns.assembly.jobs import open_job_broker  # noqa: PLC0415

    try:
        async with open_job_broker(settings, name="taketurns-command", pool_size=1) as broker:
            if company is not None:
                await broker.put_company(following.as_told(company))
            await following.follow_pauses(database, broker)
    except Unavailable as error:
        _warn(str(error))


def _warn(why: str) -> None:
    typer.echo(f"jobs, where there are any, follow within half a minute: {why}", err=True)
