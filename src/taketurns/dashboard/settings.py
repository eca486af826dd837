"""The page of settings: operators' keys and companies', how long things are kept, and what this service is."""

from __future__ import annotations

import re
from typing import Any, Final

from starlette.responses import Response

from taketurns.companies import keys
from taketurns.dashboard import actions
from taketurns.dashboard.refusals import not_found
from taketurns.dashboard.tasks import companies_to_choose, company_of
from taketurns.dashboard.visits import Visit, needs
from taketurns.engine.key import GRANTS, Role

LIMIT: Final = 100
_ID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


@needs(Role.VIEWER)
async def show(visit: Visit) -> Response:
    """Keys, retention, and what this is."""
    return await _shown(visit, visit.request.query_params.get("company", "").strip())


@needs(Role.ADMIN)
async def create_key(visit: Visit) -> Response:
    """Make a key, and show it this once."""
    slug, name = visit.form["company"], visit.form["name"].strip()
    body: dict[str, Any] = {"name": name}
    if slug:
        await company_of(visit, slug)
        body["scopes"] = visit.form.all("scope")
    else:
        body["role"] = visit.form["role"]
    answer = await actions.ask(visit, "POST", f"/companies/{slug}/keys" if slug else "/operators/keys", body)
    if not answer.is_done:
        visit.told = answer.complaint
        return await _shown(visit, slug, status=answer.status)
    return await _shown(visit, slug, made=answer.body["key"], name=name)


@needs(Role.ADMIN)
async def revoke_key(visit: Visit) -> Response:
    answer = await actions.ask(visit, "POST", f"{_path(visit)}/revoke")
    notice = (
        "The key is revoked: within five seconds nothing takes it any more." if answer.is_done else answer.complaint
    )
    return visit.go(visit.link("/settings", company=visit.form["company"]), notice, failed=not answer.is_done)


@needs(Role.ADMIN)
async def rotate_key(visit: Visit) -> Response:
    """Make the key that comes after another one, and show it this once."""
    slug = visit.form["company"]
    answer = await actions.ask(visit, "POST", f"{_path(visit)}/rotate")
    if not answer.is_done:
        visit.told = answer.complaint
        return await _shown(visit, slug, status=answer.status)
    return await _shown(visit, slug, made=answer.body["key"], name=answer.body["name"])


def _path(visit: Visit) -> str:
    """Where the API has the key. Raises Refusal."""
    key_id, slug = visit.request.path_params["key"], visit.form["company"]
    if not _ID.fullmatch(key_id) or (slug and not re.fullmatch(r"[A-Za-z0-9-]{1,64}", slug)):
        raise not_found("key")
    return f"/companies/{slug}/keys/{key_id}" if slug else f"/operators/keys/{key_id}"


async def _shown(visit: Visit, slug: str, *, made: str = "", name: str = "", status: int = 200) -> Response:
    company = await company_of(visit, slug) if slug else None
    page = await keys.page(visit.parts.database, None if company is None else company.id, limit=LIMIT)
    return visit.page(
        "settings.html",
        status=status,
        slug=slug,
        keys=page.keys if page else [],
        made=made,
        name=name,
        roles=list(Role),
        grants=GRANTS,
        told=visit.parts.told,
        version=visit.parts.version,
        companies=await companies_to_choose(visit),
    )


PAGES = (
    ("GET", "/settings", show),
    ("POST", "/settings/keys", create_key),
    ("POST", "/settings/keys/{key}/revoke", revoke_key),
    ("POST", "/settings/keys/{key}/rotate", rotate_key),
)
