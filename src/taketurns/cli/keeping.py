"""`taketurns retention`: for how long a company's tasks are kept after their end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace

import typer

from taketurns.cli.actor import actor
from taketurns.cli.database import with_database
from taketurns.companies import directory
from taketurns.companies.directory import Company
from taketurns.engine import durations
from taketurns.engine.errors import Unavailable
from taketurns.settings import Settings
from taketurns.storage.database import Database


def retention(settings: Settings, company: str, changes: Mapping[str, int | None], *, as_json: bool) -> int:
    """Change what is named, in seconds, None for what others have, and print how it stands; 1 without the company."""

    async def change(database: Database) -> Company | None:
        reference = directory.reference(company)
        found = reference and await directory.find(database, reference)
        if not found or not changes:
            return found or None
        own = replace(found.retention, **changes)
        return await directory.change(database, found.id, {"retention": own}, by=actor())

    try:
        found = with_database(settings, change)
    except Unavailable as error:
        typer.echo(str(error), err=True)
        return 1
    if found is None:
        typer.echo(f"there is no company {company!r}", err=True)
        return 1
    own = asdict(found.retention)
    if as_json:
        typer.echo(json.dumps({f"{status}Seconds": seconds for status, seconds in own.items()}, indent=2))
        return 0
    for status, seconds in own.items():
        typer.echo(f"{status:<9}  {'as the workers are set' if seconds is None else durations.told(seconds)}")
    return 0
