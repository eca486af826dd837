"""The companies of a cell: who may submit tasks, and how much of the fleet each may have."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from psycopg import AsyncConnection, sql
from sqlalchemy import ColumnElement, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert

from taketurns.companies import deletion
from taketurns.companies.errors import CompanyHasOpenTasks, SlugTaken
from taketurns.engine import limits
from taketurns.engine.errors import InvalidOption, Unavailable
from taketurns.engine.quota import Quotas
from taketurns.engine.rate import Rate
from taketurns.engine.retention import OwnRetention
from taketurns.storage import audit
from taketurns.storage.audit import Action, Actor
from taketurns.storage.database import Database, Row, call, fetch
from taketurns.storage.ids import new_id
from taketurns.storage.models import Company as CompanyTable

SLUG: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?")
LOCK_SECONDS: Final = 2.0
LIMITS: Final = frozenset(
    {"weight", "paused", "paused_until", "max_in_flight", "max_queued", "rate", "request_rate", "quotas"}
)
UNLIMITED: Final = Quotas()
AS_LONG_AS_OTHERS: Final = OwnRetention()
_A_MOMENT: Final = timedelta(microseconds=1)  # `updated_at` tells changes apart, whatever the clock does


@dataclass(frozen=True, slots=True)
class Company:
    """A tenant as it stands. `max_in_flight` None: as many as its share of the fleet; `max_queued`, `rate` and
    `request_rate` (of its keys' requests at the API) None: no limit. `limits_set_by`: who changed its weight or a limit
    last, if that is known."""

    id: UUID
    slug: str
    name: str
    weight: int
    paused: bool
    paused_until: datetime | None
    max_in_flight: int | None
    max_queued: int | None
    rate: Rate | None
    request_rate: Rate | None
    limits_set_by: str | None
    quotas: Quotas
    retention: OwnRetention
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class Page:
    """Some companies, and the id to go on after when there are more."""

    companies: list[Company]
    next_after: UUID | None


_COLUMNS: Final = (
    CompanyTable.id,
    CompanyTable.slug,
    CompanyTable.name,
    CompanyTable.weight,
    CompanyTable.paused,
    CompanyTable.paused_until,
    CompanyTable.max_in_flight,
    CompanyTable.max_queued,
    CompanyTable.rate_tasks,
    CompanyTable.rate_seconds,
    CompanyTable.rate_burst,
    CompanyTable.request_rate_requests,
    CompanyTable.request_rate_seconds,
    CompanyTable.request_rate_burst,
    CompanyTable.limits_set_by,
    CompanyTable.hourly_quota,
    CompanyTable.daily_quota,
    CompanyTable.monthly_quota,
    CompanyTable.keep_completed_seconds,
    CompanyTable.keep_failed_seconds,
    CompanyTable.keep_cancelled_seconds,
    CompanyTable.created_at,
    CompanyTable.updated_at,
)


def is_slug(text: str) -> bool:
    """Whether this may be a company's slug: lower-case letters, digits and hyphens within, and not like an id."""
    return len(text) <= limits.SLUG_LENGTH and SLUG.fullmatch(text) is not None and not _is_id(text)


def slug_for(name: str) -> str | None:
    """The slug that a name suggests, if its letters can be written in one."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    slug = "-".join(re.findall(r"[a-z0-9]+", plain))[: limits.SLUG_LENGTH].strip("-")
    return slug if is_slug(slug) else None


def reference(text: str) -> UUID | str | None:
    """The id or slug that a text from outside names a company by; None when it cannot be either."""
    if _is_id(text):
        return UUID(text)
    return text if is_slug(text) else None


def _is_id(text: str) -> bool:
    return re.fullmatch(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", text) is not None


async def create(
    database: Database,
    *,
    name: str,
    slug: str | None = None,
    weight: int = 1,
    paused: bool = False,
    paused_until: datetime | None = None,
    max_in_flight: int | None = None,
    max_queued: int | None = None,
    rate: Rate | None = None,
    request_rate: Rate | None = None,
    quotas: Quotas = UNLIMITED,
    retention: OwnRetention = AS_LONG_AS_OTHERS,
    by: Actor | None = None,
) -> Company:
    """Take in a company; a slug that was not given is made from the name, or else from the id. Raises SlugTaken, and
    InvalidOption of `paused_until` when that is over."""
    asked = {
        "weight": (weight, 1),
        "paused": (paused, False),
        "paused_until": (paused_until, None),
        "max_in_flight": (max_in_flight, None),
        "max_queued": (max_queued, None),
        "rate": (rate, None),
        "request_rate": (request_rate, None),
        "quotas": (quotas, UNLIMITED),
        "retention": (retention, AS_LONG_AS_OTHERS),
    }
    limits = {name: value for name, (value, usual) in asked.items() if value != usual}
    company_id = new_id()
    by_id = f"company-{company_id.hex[-12:]}"
    for attempt in [slug] if slug else [slug_for(name) or by_id, by_id]:
        values = {
            "id": company_id,
            "slug": attempt,
            "name": name,
            "weight": weight,
            "paused": paused or paused_until is not None,
            "paused_until": paused_until,
            "max_in_flight": max_in_flight,
            "max_queued": max_queued,
            "limits_set_by": by and by.name,
            **_rate_columns(rate),
            **_request_rate_columns(request_rate),
            **_quota_columns(quotas),
            **_retention_columns(retention),
        }
        statement = insert(CompanyTable).values(values).on_conflict_do_nothing().returning(*_COLUMNS)
        async with database.transaction() as connection:
            for row in await fetch(connection, database.schema, statement):
                company = _company(row)
                _refuse_over(company, paused_until)
                await audit.write(
                    connection,
                    database.schema,
                    by,
                    Action.CREATE_COMPANY,
                    target=company_id,
                    company_id=company_id,
                    details={"slug": company.slug, "name": name, **_for_the_audit(limits)},
                )
                return company
    raise SlugTaken(slug or by_id)


async def find(database: Database, company: UUID | str) -> Company | None:
    """The company of this id or slug."""
    rows = await database.fetch(select(*_COLUMNS).where(_is(company)))
    return _company(rows[0]) if rows else None


async def find_all(database: Database, company_ids: Sequence[UUID]) -> list[Company]:
    """Those of these companies that there are, in any order."""
    return [_company(row) for row in await database.fetch(select(*_COLUMNS).where(CompanyTable.id.in_(company_ids)))]


async def page(database: Database, *, limit: int, offset: int = 0, after: UUID | None = None) -> Page:
    """Companies, the newest first."""
    statement = select(*_COLUMNS).order_by(CompanyTable.id.desc()).limit(limit + 1).offset(offset)
    if after is not None:
        statement = statement.where(CompanyTable.id < after)
    companies = [_company(row) for row in await database.fetch(statement)]
    more = len(companies) > limit
    return Page(companies[:limit], companies[limit - 1].id if more else None)


async def search(database: Database, text: str, *, limit: int) -> list[tuple[str, str]]:
    """Slugs and names of companies that have a text in either, those that begin with it first."""
    slug, name = CompanyTable.slug, func.lower(CompanyTable.name)
    begins, has = (
        or_(slug.startswith(text.lower(), autoescape=True), name.startswith(text.lower(), autoescape=True)),
        or_(slug.contains(text.lower(), autoescape=True), name.contains(text.lower(), autoescape=True)),
    )
    statement = select(slug, CompanyTable.name).where(has).order_by(begins.desc(), slug).limit(limit)
    return [(row[0], row[1]) for row in await database.fetch(statement)]


async def change(
    database: Database, company: UUID | str, changes: Mapping[str, Any], *, by: Actor | None = None
) -> Company | None:
    """Change `name`, `weight`, `paused`, `paused_until`, `max_in_flight`, `max_queued`, `rate`, `request_rate`,
    `quotas` or `retention`; None when there is no such company.

    With `paused_until` a company is paused, with `paused` alone until it is told to go on. Weights and limits act at
    the next claim; workers that may have waited for the change are woken. A company that is no longer paused is given
    its turns back, and its schedules go on, in the same transaction, under the lock that keeps a claim from taking them
    out meanwhile: see `company_lock` in `locks.sql`. Raises InvalidOption of `paused_until` when that is over.
    """
    if not changes:
        return await find(database, company)
    columns = _columns(changes, by)
    statement = (
        update(CompanyTable)
        .where(_is(company))
        .values(**columns, updated_at=func.greatest(func.clock_timestamp(), CompanyTable.updated_at + _A_MOMENT))
        .returning(*_COLUMNS)
    )
    async with database.transaction() as connection:
        await _limit_waiting(connection)
        goes_on = columns.get("paused") is False
        if goes_on:
            await _hold_turns(connection, database.schema, company)
        rows = await fetch(connection, database.schema, statement)
        if rows:
            _refuse_over(_company(rows[0]), changes.get("paused_until"))
        if rows and goes_on:
            await call(connection, database.schema, "heal_rotation", rows[0][0])
            await call(connection, database.schema, "let_schedules_go_on", rows[0][0])
        if rows:
            await audit.write(
                connection,
                database.schema,
                by,
                Action.CHANGE_COMPANY,
                target=rows[0][0],
                company_id=rows[0][0],
                details=_for_the_audit(changes),
            )
    if rows and (goes_on or changes.keys() & {"max_in_flight", "rate"}):
        await database.call("wake", rows[0][0])
    return _company(rows[0]) if rows else None


async def delete(database: Database, company: UUID | str, *, is_forced: bool = False, by: Actor | None = None) -> bool:
    """Delete a company and all it owns; False when there is none. Raises CompanyHasOpenTasks and Unavailable.

    The company is gone at once, and so are its claims: with `is_forced` a handler that runs for it is told as if its
    task was cancelled, and nothing of it starts any more. What else it leaves is forgotten in batches: for a few
    seconds here, then by the workers.
    """
    found = await find(database, company)
    if found is None:
        return False
    async with database.transaction() as connection:
        ((outcome,),) = await call(
            connection, database.schema, "delete_company", found.id, int(LOCK_SECONDS * 1000), is_forced
        )
        if outcome == "deleted":
            await audit.write(
                connection,
                database.schema,
                by,
                Action.DELETE_COMPANY,
                target=found.id,
                company_id=found.id,
                details={"slug": found.slug, "name": found.name, "force": is_forced},
            )
    if outcome == "open":
        raise CompanyHasOpenTasks(str(company))
    with suppress(Unavailable):
        await deletion.forget(database, found.id)
    return bool(outcome == "deleted")


def _company(row: Row) -> Company:
    known, of_tasks, of_requests, others, times = row[:8], row[8:11], row[11:14], row[14:21], row[21:]
    rates = (None if rate[0] is None else Rate(*rate) for rate in (of_tasks, of_requests))
    set_by, *quotas, completed, failed, cancelled = others
    retention = OwnRetention(completed=completed, failed=failed, cancelled=cancelled)
    return Company(*known, *rates, set_by, Quotas(*quotas), retention, *times)  # type: ignore[call-arg]


def _refuse_over(company: Company, paused_until: datetime | None) -> None:
    """Raises InvalidOption unless a company that was just written is paused until a time to come."""
    if paused_until is not None and paused_until <= company.updated_at:
        raise InvalidOption("paused_until", "must be a time to come: paused: false lets the company go on")


def _for_the_audit(changes: Mapping[str, Any]) -> dict[str, Any]:
    """What was changed, by the names that the API has for its parts."""
    told = dict(changes)
    if (rate := changes.get("request_rate")) is not None:
        told["request_rate"] = {"requests": rate.tasks, "seconds": rate.seconds, "burst": rate.burst}
    if (kept := changes.get("retention")) is not None:
        told["retention"] = {f"{how}Seconds": seconds for how, seconds in asdict(kept).items()}
    return told


def _columns(changes: Mapping[str, Any], by: Actor | None) -> dict[str, Any]:
    """What is to be written for these changes."""
    columns = dict(changes)
    if "quotas" in columns:
        columns |= _quota_columns(columns.pop("quotas"))
    if "rate" in columns:
        columns |= _rate_columns(columns.pop("rate"))
    if "retention" in columns:
        columns |= _retention_columns(columns.pop("retention"))
    if "request_rate" in columns:
        columns |= _request_rate_columns(columns.pop("request_rate"))
    if columns.get("paused_until") is not None:
        columns["paused"] = True
    elif "paused" in columns:
        columns["paused_until"] = None
    if LIMITS & changes.keys():
        columns["limits_set_by"] = by and by.name
    return columns


def _rate_columns(rate: Rate | None) -> dict[str, int | None]:
    names = ("rate_tasks", "rate_seconds", "rate_burst")
    return dict(zip(names, (None,) * 3 if rate is None else astuple(rate), strict=True))


def _request_rate_columns(rate: Rate | None) -> dict[str, int | None]:
    names = ("request_rate_requests", "request_rate_seconds", "request_rate_burst")
    return dict(zip(names, (None,) * 3 if rate is None else astuple(rate), strict=True))


def _quota_columns(quotas: Quotas) -> dict[str, int | None]:
    return {"hourly_quota": quotas.hour, "daily_quota": quotas.day, "monthly_quota": quotas.month}


def _retention_columns(retention: OwnRetention) -> dict[str, int | None]:
    return {
        "keep_completed_seconds": retention.completed,
        "keep_failed_seconds": retention.failed,
        "keep_cancelled_seconds": retention.cancelled,
    }


def _is(company: UUID | str) -> ColumnElement[bool]:
    return CompanyTable.id == company if isinstance(company, UUID) else CompanyTable.slug == company


async def _limit_waiting(connection: AsyncConnection[Row]) -> None:
    await connection.execute("select set_config('lock_timeout', %s, true)", (str(int(LOCK_SECONDS * 1000)),))


async def _hold_turns(connection: AsyncConnection[Row], schema: str, company: UUID | str) -> None:
    """Share the company's lock until the end of the transaction."""
    lock = sql.SQL("select pg_advisory_xact_lock_shared({}(%s))").format(sql.Identifier(schema, "company_lock"))
    for (company_id,) in await fetch(connection, schema, select(CompanyTable.id).where(_is(company))):
        await connection.execute(lock, (company_id,))
