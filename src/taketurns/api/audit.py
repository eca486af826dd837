"""The route of the audit, and how requests are noted in it whose change is not the database's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter
from fastapi import Query as QueryParameters
from starlette.requests import Request
from starlette.responses import Response

from taketurns import telemetry
from taketurns.api import answers, guard, lists, problems
from taketurns.api.guard import GuardedRoute, needs
from taketurns.api.openapi import operation_id
from taketurns.api.parts import parts
from taketurns.api.problems import documented
from taketurns.api.requests import AuditQuery
from taketurns.companies import audit
from taketurns.engine.errors import Unavailable
from taketurns.engine.key import Role
from taketurns.storage.audit import Action, write

router = APIRouter(route_class=GuardedRoute, generate_unique_id_function=operation_id, tags=["operations"])


@router.get(
    "/audit",
    response_model=answers.AuditPage,
    responses=documented(
        problems.UNKNOWN_PARAMETER, problems.INVALID_CURSOR, problems.OFFSET_TOO_LARGE, problems.INVALID_REQUEST
    ),
    dependencies=lists.ONE_OF_EACH,
)
@needs(operator=Role.VIEWER)
async def list_audit_entries(request: Request, query: Annotated[AuditQuery, QueryParameters()]) -> Response:
    """Changes that were made by a key or at the command line, the newest first. Entries are never changed."""
    given = parts(request)
    wanted = ("audit", query.company_id, sorted(query.action), query.since)
    after = lists.start(query, given.cursors, *wanted)
    page = await audit.page(
        given.database,
        company_id=None if query.company_id is None else UUID(query.company_id),
        actions=query.action,
        since=query.since,
        limit=query.limit,
        offset=query.offset,
        after=after,
    )
    cursor = given.cursors.write(page.next_after, *wanted) if page.next_after else None
    body = answers.AuditPage(
        entries=[answers.audit_entry(entry) for entry in page.entries], hasMore=cursor is not None, nextCursor=cursor
    )
    return await lists.send(request, body, cursor)


async def note(
    request: Request,
    action: Action,
    *,
    target: object,
    company_id: UUID | None = None,
    details: Mapping[str, Any] | None = None,
) -> None:
    """Note what a request has changed already. If that cannot be stored, the log has it instead."""
    actor = guard.actor_of(request)
    if actor is None:
        return
    database = parts(request).database
    try:
        async with database.connection() as connection:
            await write(
                connection, database.schema, actor, action, target=target, company_id=company_id, details=details
            )
    except Unavailable as error:
        telemetry.logger("api").error(
            telemetry.Event.AUDIT_NOT_WRITTEN,
            actor=actor.name,
            key_id=str(actor.key_id),
            issuer=actor.issuer,
            action=action.value,
            target=str(target),
            company_id=str(company_id),
            address=actor.address,
            error=str(error),
        )
