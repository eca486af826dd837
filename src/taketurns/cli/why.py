"""`taketurns why` and `taketurns stats`: what an operator asks when somebody says that their tasks do not run."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from uuid import UUID

import typer
from sqlalchemy import exists, select

from taketurns.api import answers
from taketurns.cli.database import with_database
from taketurns.companies import directory
from taketurns.engine import durations
from taketurns.engine.errors import Unavailable
from taketurns.engine.task import Status
from taketurns.history import stats as figures
from taketurns.history import tasks
from taketurns.history import why as reasons
from taketurns.history.stats import Attempts, Stats
from taketurns.history.why import Waiting
from taketurns.settings import Settings
from taketurns.storage.database import Database
from taketurns.storage.models import Company, Task


def why(settings: Settings, task_id: UUID, *, company: str | None) -> int:
    """Print in a sentence why a task waits; 1 when there is no such task."""

    async def read(database: Database) -> str | None:
        owner = select(Company.id, Company.slug).where(
            exists().where(Task.company_id == Company.id, Task.id == task_id)
        )
        for company_id, slug in await database.fetch(owner):
            record = await tasks.find(database, company_id, task_id)
            if record is not None and company in {None, slug, str(company_id)}:
                waiting = await reasons.read(database, company_id, task_id)
                return _sentence(f"task {task_id} of {slug}", slug, record.status, waiting)
        return None

    return _told(settings, read, missing=f"there is no task {task_id}" + (f" of {company!r}" if company else ""))


def stats(settings: Settings, company: str, *, window_seconds: float, as_json: bool) -> int:
    """Print a company's figures; 1 when there is no such company."""

    async def read(database: Database) -> str | None:
        reference = directory.reference(company)
        told = reference and await figures.read(database, reference, window_seconds=window_seconds)
        if not told:
            return None
        return json.dumps(json.loads(answers.encode(answers.stats(told))), indent=2) if as_json else _figures(told)

    return _told(settings, read, missing=f"there is no company {company!r}")


def _sentence(name: str, slug: str, status: Status, waiting: Waiting | None) -> str:
    if waiting is None:
        return f"{name} does not wait: it is {status}."
    due = waiting.facts.pending_seconds
    so_far = f", and has been due for {durations.told(due)}" if waiting.facts.is_due else ""
    return f"{name} waits {reasons.told(slug, waiting)}{so_far}."


def _figures(told: Stats) -> str:
    backlog = f"{told.backlog:,}{'' if told.backlog_is_exact else ' or more'}"
    oldest = "" if told.oldest_age_seconds is None else f", the oldest for {durations.told(told.oldest_age_seconds)}"
    scheduled = f"{told.scheduled:,}{'' if told.scheduled_is_exact else ' or more'}"
    lines = [
        f"waiting    {backlog}{oldest}; {scheduled} for their time",
        f"in flight  {told.in_flight}, of a fair share of {told.fair_share}",
    ]
    for lane, attempts in (("tasks", told.tasks), ("jobs", told.jobs)):
        lines.append(f"{lane:<10} in {durations.told(told.seconds)}: {_attempts(attempts, seconds=told.seconds)}")
    return "\n".join(lines)


def _attempts(told: Attempts, *, seconds: float) -> str:
    done = f"{told.completed:,} completed ({told.completed / seconds:.3g}/s), {told.failed:,} failed"
    waits = (
        ""
        if told.wait_p50_seconds is None or told.wait_p95_seconds is None
        else f", waited {told.wait_p50_seconds:.2g} s (p95 {told.wait_p95_seconds:.2g} s)"
    )
    return f"{done}, {told.retried:,} tried again{waits}"


def _told(settings: Settings, read: Callable[[Database], Awaitable[str | None]], *, missing: str) -> int:
    try:
        found = with_database(settings, read)
    except Unavailable as error:
        typer.echo(str(error), err=True)
        return 1
    typer.echo(found or missing, err=found is None)
    return int(found is None)
