"""Finding a page, a company or a task by a few letters, and looking at one company alone: what the palette shows, and a
page of its own without it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import parse_qsl, urlsplit
from uuid import UUID

from starlette.responses import Response

from taketurns.companies import directory
from taketurns.dashboard.rendering import short
from taketurns.dashboard.tasks import company_of
from taketurns.dashboard.visits import COMPANY, OF_A_COMPANY, Visit, needs
from taketurns.engine.key import Role
from taketurns.history import everywhere

COMPANIES_MOST: Final = 8
LONGEST: Final = 200
_ID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_PLACES: Final = frozenset({"company", "after", "offset"})


@dataclass(frozen=True, slots=True)
class Found:
    """Something to go to. `slug` is the company that it is or belongs to."""

    kind: Literal["page", "company", "task"]
    name: str
    address: str
    icon: str = ""
    slug: str = ""


@needs(Role.VIEWER)
async def show(visit: Visit) -> Response:
    """Pages, companies and tasks that fit what was typed, or companies alone, to choose one of them."""
    query = visit.request.query_params
    text, is_choice = query.get("q", "").strip()[:LONGEST], query.get("for") == "company"
    found = await _companies(visit, text) if is_choice else await _everything(visit, text)
    return visit.page("search.html", text=text, is_choice=is_choice, found=found)


@needs(Role.VIEWER)
async def choose_company(visit: Visit) -> Response:
    """Look at one company alone from now on, or at all of them again."""
    slug = visit.form["company"].strip()
    if slug:
        slug = (await company_of(visit, slug)).slug
    response = visit.go(_led_to(visit, slug))
    visit.remember(response, COMPANY, slug)
    return response


async def _everything(visit: Visit, text: str) -> list[Found]:
    folded = text.lower()
    pages = [Found("page", name, address, icon) for name, address, icon, _ in visit.pages if folded in name.lower()]
    pages.sort(key=lambda page: not page.name.lower().startswith(folded))
    if not text:
        return pages
    if _ID.fullmatch(text):
        task_id = UUID(text)
        slug = await everywhere.owner_of(visit.parts.database, task_id)
        address = visit.link(f"/companies/{slug}/tasks/{task_id}")
        return [Found("task", short(task_id), address, "tasks", slug)] if slug else []
    return pages + await _companies(visit, text)


async def _companies(visit: Visit, text: str) -> list[Found]:
    found = await directory.search(visit.parts.database, text, limit=COMPANIES_MOST)
    return [Found("company", name, visit.link(f"/companies/{slug}"), slug=slug) for slug, name in found]


def _led_to(visit: Visit, slug: str) -> str:
    """The page that the choice was made on, of that company; or, where a page is not of one, the company's own."""
    came_from = urlsplit(visit.came_from)
    path = came_from.path.removeprefix(visit.root)
    if path.removeprefix("/") in {name.lower() for name in OF_A_COMPANY}:
        kept = {name: value for name, value in parse_qsl(came_from.query) if name not in _PLACES}
        return visit.link(path, **kept, company=slug)
    if slug:
        return visit.link(f"/companies/{slug}")
    return visit.link("/companies") if path.startswith("/companies/") else visit.came_from or visit.link("/")


PAGES = (
    ("GET", "/search", show),
    ("POST", "/company", choose_company),
)
