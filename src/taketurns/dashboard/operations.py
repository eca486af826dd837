"""The pages of operations, each one change of many tasks, and of the audit: who changed what, and from where."""

from __future__ import annotations

import re
from typing import Final
from uuid import UUID

from starlette.responses import Response

from taketurns.companies import audit, directory
from taketurns.dashboard import actions
from taketurns.dashboard.refusals import Refusal, not_found
from taketurns.dashboard.tasks import companies_to_choose, company_of
from taketurns.dashboard.visits import Visit, needs
from taketurns.engine.key import Role
from taketurns.operations import ledger
from taketurns.operations.ledger import Operation
from taketurns.storage.audit import Action

LIMIT: Final = 50
LATEST: Final = 20
_ID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


@needs(Role.VIEWER)
async def list_operations(visit: Visit) -> Response:
    """The latest operations, and the audit."""
    query, database = visit.request.query_params, visit.parts.database
    slug, chosen, after = query.get("company", "").strip(), query.get("action", ""), query.get("after", "")
    if chosen and chosen not in set(Action):
        raise Refusal(400, "There is no such action", "Choose one from the list.")
    if after and not _ID.fullmatch(after):
        raise Refusal(400, "That is no place in a list", "Begin again at the newest.")
    company = await company_of(visit, slug) if slug else None
    if company is None:
        operations = await ledger.latest(database, limit=LATEST)
    else:
        page = await ledger.page(database, company.id, limit=LATEST)
        operations = page.operations if page else []
    entries = await audit.page(
        database,
        company_id=None if company is None else company.id,
        actions=[Action(chosen)] if chosen else (),
        limit=LIMIT,
        after=UUID(after) if after else None,
    )
    of = {one.company_id for one in operations} | {one.company_id for one in entries.entries if one.company_id}
    return visit.page(
        "operations.html",
        slug=slug,
        chosen=chosen,
        after=after,
        operations=operations,
        entries=entries.entries,
        next_after=entries.next_after,
        slugs={one.id: one.slug for one in await directory.find_all(database, list(of))},
        actions=sorted(Action),
        companies=await companies_to_choose(visit),
    )


@needs(Role.VIEWER)
async def show_operation(visit: Visit) -> Response:
    """An operation, and how far it is."""
    company = await company_of(visit, visit.request.path_params["company"])
    return visit.page("operation.html", company=company, operation=await _operation(visit, company.id))


@needs(Role.OPERATOR)
async def abort_operation(visit: Visit) -> Response:
    company = await company_of(visit, visit.request.path_params["company"])
    operation = await _operation(visit, company.id)
    answer = await actions.ask(visit, "POST", f"/companies/{company.id}/operations/{operation.id}/abort")
    notice = "The operation is aborted. What it has changed stays so." if answer.is_done else answer.complaint
    address = visit.link(f"/companies/{company.slug}/operations/{operation.id}")
    return visit.go(address, notice, failed=not answer.is_done)


async def _operation(visit: Visit, company_id: UUID) -> Operation:
    text = visit.request.path_params["operation"]
    found = await ledger.find(visit.parts.database, company_id, UUID(text)) if _ID.fullmatch(text) else None
    if found is None:
        raise not_found("operation")
    return found


PAGES = (
    ("GET", "/operations", list_operations),
    ("GET", "/companies/{company}/operations/{operation}", show_operation),
    ("POST", "/companies/{company}/operations/{operation}/abort", abort_operation),
)
