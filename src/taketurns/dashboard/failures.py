"""The page of failures: what has failed for good, by type and cause, with a way to run it again."""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.responses import Response

from taketurns.companies import directory
from taketurns.dashboard.refusals import not_found
from taketurns.dashboard.tasks import companies_to_choose, company_of
from taketurns.dashboard.visits import Visit, needs
from taketurns.engine.key import Role
from taketurns.history import board, failures, series
from taketurns.history.failures import Failure
from taketurns.history.series import SPANS

LIMIT: Final = 50
COMPANIES_MOST: Final = 20
OF_EACH: Final = 10


@needs(Role.VIEWER)
async def list_failures(visit: Visit) -> Response:
    """The failures of a company, or the first of those companies in which most failed in the last day."""
    slug = visit.request.query_params.get("company", "").strip()
    after = visit.request.query_params.get("after") or None
    found, more = await (_of_company(visit, slug, after) if slug else _of_those_that_fail(visit))
    return visit.page(
        "failures.html",
        slug=slug,
        failures=found,
        after=after,
        next_after=found[-1][1].id if more and found else None,
        companies=await companies_to_choose(visit),
    )


async def _of_company(visit: Visit, slug: str, after: str | None) -> tuple[list[tuple[str, Failure]], bool]:
    company = await company_of(visit, slug)
    page = await failures.page(visit.parts.database, company.id, limit=LIMIT, after=after)
    if page is None:
        raise not_found("company")
    return [(company.slug, group) for group in page[0]], page[1]


async def _of_those_that_fail(visit: Visit) -> tuple[list[tuple[str, Failure]], bool]:
    database = visit.parts.database
    standings, busiest = await asyncio.gather(
        board.read(database, limit=COMPANIES_MOST), series.busiest(database, SPANS["24h"])
    )
    failing = await directory.find_all(database, busiest.failing)
    slugs = {one.id: one.slug for one in failing} | {one.id: one.slug for one in standings}
    found: list[tuple[str, Failure]] = []
    for company_id in list(slugs)[:COMPANIES_MOST]:
        page = await failures.page(database, company_id, limit=OF_EACH)
        found += [(slugs[company_id], group) for group in (page[0] if page else ())]
    return sorted(found, key=lambda pair: pair[1].last_failed_at, reverse=True), False


PAGES = (("GET", "/failures", list_failures),)
