"""`taketurns operations`: one change of many tasks of a company, for operators."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import typer

from taketurns.cli.actor import actor
from taketurns.cli.database import with_database
from taketurns.engine.errors import TaketurnsError, UnknownCompany
from taketurns.operations import ledger
from taketurns.operations.ledger import NewOperation, Operation
from taketurns.settings import Settings
from taketurns.storage.database import Database

SHOWN = 50


def create(settings: Settings, company: str, new: NewOperation, *, dry_run: bool, as_json: bool) -> int:
    """Take in an operation and print its id, or how many tasks there are to change."""

    async def made(database: Database) -> None:
        if dry_run:
            total = await ledger.count(database, company, new)
            if total is None:
                raise UnknownCompany(company)
            told = {"matched": total.count, "matchedIsExact": total.is_exact}
            bound = "" if total.is_exact else "at least "
            typer.echo(json.dumps(told) if as_json else f"{bound}{total.count} tasks")
        else:
            operation, _ = await ledger.create(database, company, new, by=actor())
            _tell([operation], as_json=as_json)

    return _run(settings, made)


def show(settings: Settings, company: str, *, as_json: bool) -> int:
    """Print a company's last operations."""

    async def shown(database: Database) -> None:
        page = await ledger.page(database, company, limit=SHOWN)
        if page is None:
            raise UnknownCompany(company)
        _tell(page.operations, as_json=as_json)

    return _run(settings, shown)


def abort(settings: Settings, company: str, operation_id: UUID) -> int:
    """End an operation early."""

    async def aborted(database: Database) -> None:
        if await ledger.abort(database, company, operation_id, by=actor()) is None:
            raise TaketurnsError(f"company {company!r} has no operation {operation_id}")
        typer.echo("aborted: what was changed stays so")

    return _run(settings, aborted)


def _run(settings: Settings, act: Callable[[Database], Awaitable[None]]) -> int:
    try:
        with_database(settings, act)
    except TaketurnsError as error:
        typer.echo(str(error), err=True)
        return 1
    return 0


def _tell(operations: list[Operation], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([_shown(operation) for operation in operations], indent=2))
        return
    for one in operations:
        skipped = "".join(f", {count} skipped: {reason}" for reason, count in sorted(one.skipped.items()))
        typer.echo(f"{one.id}  {one.kind}  {one.stage}  {one.done} of {one.matched} done{skipped}")


def _shown(operation: Operation) -> dict[str, Any]:
    return {
        "id": str(operation.id),
        "kind": operation.kind,
        "filter": operation.filter,
        "status": operation.stage,
        "matched": operation.matched,
        "done": operation.done,
        "skipped": operation.skipped,
        "createdAt": operation.created_at.isoformat(),
        "finishedAt": operation.finished_at and operation.finished_at.isoformat(),
    }
