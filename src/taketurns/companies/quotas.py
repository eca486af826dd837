"""What companies have used of their quotas, and what is reserved and given back for jobs, which wait elsewhere.

PostgreSQL's own tasks reserve and refund where they move: see `brokers/postgres/reserve.sql`. A job reserves here
before it is handed over, and its refund is told by its broker, once or several times. What was reserved for a run that
never arrived is found by asking for the job, which tells what it is charged for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, cast
from uuid import UUID

import psycopg
from psycopg import sql

from taketurns import telemetry
from taketurns.engine.errors import UnknownCompany
from taketurns.engine.job import Charge, JobBroker
from taketurns.engine.quota import Allowance, Period
from taketurns.storage import quotas
from taketurns.storage.database import Database
from taketurns.telemetry import Event

PAST: Final = {Period.HOUR: 24, Period.DAY: 31, Period.MONTH: 12}
UNCONFIRMED_SECONDS: Final = 60.0
MOST: Final = 1_000
MOST_COMPANIES: Final = 10

_CURRENT: Final = """
select l.told from {schema}.look_at_quotas({schema}.company_id(%(company)s), 0, coalesce(%(at)s, clock_timestamp())) l
"""
_PAST: Final = """
select u.period, u.starts_at, date_add(u.starts_at, ('1 ' || u.period)::interval, 'UTC'), u.reserved,
    u.refunded + coalesce((
        select sum(c.refunded) from {schema}.quota_changes c
        where c.company_id = u.company_id and c.hour_starts_at >= u.starts_at
            and c.hour_starts_at < date_add(u.starts_at, ('1 ' || u.period)::interval, 'UTC')), 0)::bigint
from unnest(%(periods)s::text[], %(starts)s::timestamptz[], %(most)s::integer[]) as p(period, starts_at, most)
cross join lateral (
    select * from {schema}.quota_usage u
    where u.company_id = {schema}.company_id(%(company)s) and u.period = p.period and u.starts_at < p.starts_at
    order by u.starts_at desc limit p.most
) u
order by u.starts_at desc, u.period
"""
_UNCONFIRMED: Final = """
select r.company_id, r.job_id, r.reserved_at from {schema}.job_reservations r
where not r.confirmed and r.reserved_at < coalesce(%(at)s, clock_timestamp()) - %(age)s
order by r.reserved_at limit %(most)s
"""


@dataclass(frozen=True, slots=True)
class PastPeriod:
    """What was submitted in a period that has ended."""

    period: Period
    starts_at: datetime
    ends_at: datetime
    reserved: int
    refunded: int

    @property
    def used(self) -> int:
        return self.reserved - self.refunded


@dataclass(frozen=True, slots=True)
class Usage:
    """How a company's quotas stand, the shortest period first, and up to 24 hours, 31 days and 12 months before."""

    current: tuple[Allowance, ...]
    past: tuple[PastPeriod, ...]


@dataclass(frozen=True, slots=True)
class Reservation:
    """What was reserved for jobs; `reserved_at` is for their payload, and None when their company has no quotas."""

    company_id: UUID
    reserved_at: datetime | None
    allowances: tuple[Allowance, ...]


async def usage(database: Database, company: UUID | str, *, at: datetime | None = None) -> Usage | None:
    """How the quotas of a company stand; None when there is none of this id or slug."""
    schema = sql.Identifier(database.schema)
    async with database.connection() as connection:
        cursor = await connection.execute(sql.SQL(_CURRENT).format(schema=schema), {"company": str(company), "at": at})
        ((told,),) = await cursor.fetchall()
        _, current = quotas.read(told)
        if not current:
            return None
        asked = {
            "company": str(company),
            "periods": [one.period.value for one in current],
            "starts": [one.starts_at for one in current],
            "most": [PAST[one.period] for one in current],
        }
        cursor = await connection.execute(sql.SQL(_PAST).format(schema=schema), asked)
        past = await cursor.fetchall()
    return Usage(current, tuple(PastPeriod(Period(period), *rest) for period, *rest in past))


async def reserve(
    database: Database,
    company: str,
    job_ids: Sequence[UUID],
    *,
    instead_of: datetime | None = None,
    at: datetime | None = None,
) -> Reservation:
    """Reserve for jobs that are about to be handed over, for all or none.

    A job whose hand-over is repeated is not charged twice; one that is run again after it arrived is, once for the
    charge that it had before (`instead_of`), however many ask for that at once. Raises UnknownCompany, QuotaExceeded
    and Unavailable.
    """
    try:
        with quotas.refusals():
            ((company_id, reserved_at, told),) = await database.call(
                "reserve_jobs", company, list(job_ids), at, instead_of
            )
    except psycopg.errors.NoDataFound as error:
        raise UnknownCompany(company) from error
    allowances = quotas.read(told)[1] if told else ()
    return Reservation(company_id, reserved_at, allowances)


async def confirm(database: Database, charges: Sequence[Charge]) -> None:
    """Take note that the jobs charged for arrived."""
    await database.call("confirm_jobs", *_columns(charges))


async def refund(database: Database, charges: Sequence[Charge]) -> int:
    """Give these charges back; answers how many that were. Each is given back once only."""
    ((refunded,),) = await database.call("refund_jobs", *_columns(charges))
    return int(refunded)


async def unconfirmed(
    database: Database, *, age: timedelta = timedelta(seconds=UNCONFIRMED_SECONDS), at: datetime | None = None
) -> list[Charge]:
    """What was reserved so long ago for jobs of which nobody said that they arrived."""
    statement = sql.SQL(_UNCONFIRMED).format(schema=sql.Identifier(database.schema))
    async with database.connection() as connection:
        cursor = await connection.execute(statement, {"at": at, "age": age, "most": MOST})
        return [Charge(*row) for row in await cursor.fetchall()]


class Tally:
    """A worker's duty: what was given back is added up, old periods are forgotten, and what differs is corrected."""

    name = "tally"

    def __init__(self, database: Database, *, every_seconds: float = 30.0) -> None:
        self._database = database
        self._every_seconds = every_seconds
        self._audited: UUID | None = None
        self._log = telemetry.logger("companies").bind()

    async def step(self) -> float:
        ((tallied,),) = await self._database.call("tally", MOST)
        await self._database.call("prune_quotas", MOST)
        ((self._audited, corrected),) = await self._database.call("audit_quotas", self._audited, MOST_COMPANIES)
        if corrected:
            telemetry.QUOTAS_CORRECTED.inc(corrected)
            self._log.warning(Event.QUOTAS_CORRECTED, periods=corrected)
        return 0.1 if cast(int, tallied) >= MOST else self._every_seconds


class JobRefunds:
    """A duty beside the jobs' broker: gives back what it says is due, and what was reserved for jobs that never came.

    While PostgreSQL is away, the broker keeps what is due.
    """

    name = "job refunds"

    def __init__(self, database: Database, jobs: JobBroker, *, every_seconds: float = 1.0) -> None:
        self._database = database
        self._jobs = jobs
        self._every_seconds = every_seconds
        self._log = telemetry.logger("companies").bind()

    async def step(self, *, at: datetime | None = None) -> float:
        due = await self._jobs.due_refunds(most=MOST)
        if due:
            await refund(self._database, due)
            await self._jobs.drop_refunds(due)
        missing: list[Charge] = []
        arrived: list[Charge] = []
        for charge in await unconfirmed(self._database, at=at):
            found = await self._jobs.job(charge.company_id, charge.job_id)
            has_arrived = found is not None and found.reserved_at == charge.reserved_at
            (arrived if has_arrived else missing).append(charge)
        if arrived:
            await confirm(self._database, arrived)
        if missing:
            lost = await refund(self._database, missing)
            self._log.warning(Event.RESERVATIONS_REFUNDED, jobs=lost)
        return 0.0 if len(due) >= MOST else self._every_seconds


def _columns(charges: Sequence[Charge]) -> tuple[list[UUID], list[UUID], list[datetime]]:
    return (
        [charge.company_id for charge in charges],
        [charge.job_id for charge in charges],
        [charge.reserved_at for charge in charges],
    )
