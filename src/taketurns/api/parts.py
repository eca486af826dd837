"""What the routes work with: handed in when the API is made, found again through the request.

Requests within a company get a database in which there is no other one: see `taketurns.storage.walls`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from starlette.requests import Request

from taketurns import telemetry
from taketurns.api.cursors import Cursors
from taketurns.api.figures import QueueFigures
from taketurns.api.task_types import TaskTypes
from taketurns.api.waiting import Waiting
from taketurns.companies import following
from taketurns.companies.access import CompanyPrincipal
from taketurns.companies.directory import Company
from taketurns.companies.errors import CompanyHasOpenTasks
from taketurns.engine.broker import DurableBroker
from taketurns.engine.errors import Unavailable
from taketurns.engine.job import JobBroker
from taketurns.engine.task import PassReport
from taketurns.storage.database import Database

if TYPE_CHECKING:
    from taketurns.api.guard import Guard

ProcessPass = Callable[..., Awaitable[PassReport]]


@dataclass(frozen=True, slots=True)
class Jobs:
    """The broker of jobs, and who waits for one of them."""

    broker: JobBroker
    waiting: Waiting

    async def put_company(self, company: Company) -> None:
        """Say how a company stands. Raises Unavailable."""
        await self.broker.put_company(following.as_told(company))

    async def follow_change(self, company: Company) -> None:
        """Say how a company stands now, if that can be said; the company's next job says it again."""
        try:
            await self.put_company(company)
        except Unavailable as error:
            _log_untold(company, error)

    async def follow_pauses(self, database: Database) -> None:
        """Say which queues and types are paused now, if that can be said; workers say it again within half a minute."""
        try:
            await following.follow_pauses(database, self.broker)
        except Unavailable as error:
            telemetry.logger("api").warning(telemetry.Event.PAUSES_NOT_TOLD, error=str(error))

    @asynccontextmanager
    async def closed(self, company: Company, *, is_forced: bool) -> AsyncIterator[None]:
        """Take no jobs of a company that is deleted in here, and drop those that it has had. Raises CompanyHasOpenTasks
        while some have not ended, and Unavailable. With `is_forced` it is deleted whatever can be said to the broker.
        """
        try:
            if not await self.broker.close_company(company.id, is_forced=is_forced):
                raise CompanyHasOpenTasks(company.slug, what="jobs")
        except Unavailable:
            if not is_forced:
                raise
        try:
            yield
        except BaseException:
            with suppress(Unavailable):  # it opens by itself in a while
                await self.broker.reopen_company(company.id)
            raise
        await self.follow_deletion(company)

    async def follow_deletion(self, company: Company) -> None:
        """Drop the jobs of a company that is gone, if that can be said; nobody can ask for them any more."""
        try:
            await self.broker.forget_company(company.id)
        except Unavailable as error:
            _log_untold(company, error)


def _log_untold(company: Company, error: Unavailable) -> None:
    telemetry.logger("api").warning(telemetry.Event.COMPANY_NOT_TOLD, company_id=str(company.id), error=str(error))


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of one API. `migration` is the newest revision that this version knows."""

    database: Database
    broker: DurableBroker
    jobs: Jobs | None
    task_types: TaskTypes
    figures: QueueFigures
    guard: Guard
    waiting: Waiting
    cursors: Cursors
    process_pass: ProcessPass | None
    version: str
    migration: str


def parts(request: Request) -> Parts:
    """The parts for a request: within a company, which its key or its path names, of that one alone."""
    given = operator_parts(request)
    principal = request.scope.get("principal")
    company = principal.company_id if isinstance(principal, CompanyPrincipal) else request.path_params.get("companyId")
    if company is None or given.database.companies is None:
        return given
    return replace(given, database=given.database.of(company))


def operator_parts(request: Request) -> Parts:
    """The parts for a request that an operator makes: they see every company."""
    return cast(Parts, request.app.state.parts)
