"""Keeps the jobs' broker to what the database says of companies, whatever it was not told while it was away."""

from __future__ import annotations

from typing import Final

from taketurns import telemetry
from taketurns.companies import directory, pauses
from taketurns.companies.directory import Company
from taketurns.engine.job import JobBroker, JobCompany
from taketurns.storage.database import Database
from taketurns.telemetry import Event

EVERY_SECONDS: Final = 30.0
LOOKS: Final = 3


class Following:
    """A duty beside the jobs' broker. Companies that are gone are dropped with their jobs."""

    name = "companies of jobs"

    def __init__(self, database: Database, jobs: JobBroker, *, every_seconds: float = EVERY_SECONDS) -> None:
        self._database = database
        self._jobs = jobs
        self._every_seconds = every_seconds
        self._log = telemetry.logger("companies").bind()

    async def step(self) -> float:
        async for told in self._jobs.companies():
            found = await directory.find_all(self._database, [company.id for company in told])
            known = {company.id: company for company in found}
            for company in told:
                await self._compare(company, known.get(company.id))
        await follow_pauses(self._database, self._jobs)
        return self._every_seconds

    async def _compare(self, told: JobCompany, company: Company | None) -> None:
        if company is None:
            await self._jobs.forget_company(told.id)
            self._log.warning(Event.JOBS_OF_NO_COMPANY_DROPPED, company_id=str(told.id))
        elif told != as_told(company):
            # What was told is the older of the two, also where the database was put back to a time before it.
            await self._jobs.put_company(as_told(company), instead_of=told.updated_at)


async def follow_pauses(database: Database, jobs: JobBroker) -> None:
    """Tell the jobs' broker what the database says of pauses, where that is something else than it was told."""
    for _ in range(LOOKS):
        told = await jobs.pauses()
        standing = await pauses.of_jobs(database)
        revision: int | None = told.revision
        for company_id in told.by_company.keys() | standing.keys():
            now = standing.get(company_id, frozenset())
            if revision is not None and now != told.by_company.get(company_id, frozenset()):
                revision = await jobs.put_pauses(company_id, now, revision=revision)
        if revision is not None:
            return


def as_told(company: Company) -> JobCompany:
    """What the jobs' broker is to know of a company."""
    return JobCompany(
        id=company.id,
        slug=company.slug,
        weight=company.weight,
        max_in_flight=company.max_in_flight,
        paused=company.paused,
        updated_at=company.updated_at,
        rate=company.rate,
        max_queued=company.max_queued,
    )
