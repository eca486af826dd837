"""The page of schedules: what comes again and when, and what may be done with it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID
from zoneinfo import ZoneInfo

from starlette.responses import Response

from taketurns.companies import directory
from taketurns.dashboard import actions, forms, rendering
from taketurns.dashboard.forms import Form
from taketurns.dashboard.refusals import Refusal, not_found
from taketurns.dashboard.tasks import companies_to_choose, company_of, types_to_choose
from taketurns.dashboard.visits import Visit, needs
from taketurns.engine import limits, schedule
from taketurns.engine.errors import InvalidOption
from taketurns.engine.key import Role
from taketurns.schedules import timetable
from taketurns.schedules.timetable import Schedule

LIMIT: Final = 50
TICKS: Final = 5
_ID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


@dataclass(frozen=True, slots=True)
class Tick:
    """When a schedule ticks: the moment, the time that clocks show in its zone then, and whether they are changed
    between the tick before and this one."""

    at: datetime
    local: str
    clocks_change: bool


@dataclass(frozen=True, slots=True)
class Row:
    """A schedule in words. Where nobody can read its expression or its zone there are none, but a `complaint`."""

    schedule: Schedule
    words: str
    ticks: Sequence[Tick]
    complaint: str


@needs(Role.VIEWER)
async def list_schedules(visit: Visit) -> Response:
    """A company's schedules, or those of all."""
    query, database = visit.request.query_params, visit.parts.database
    slug, offset = query.get("company", "").strip(), _offset(query.get("offset", "0"))
    if slug:
        company = await company_of(visit, slug)
        page = await timetable.page(database, company.id, limit=LIMIT + 1, offset=offset)
        found = page.schedules if page else []
        slugs = {company.id: company.slug}
    else:
        found = await timetable.of_all(database, limit=LIMIT + 1, offset=offset)
        slugs = {one.id: one.slug for one in await directory.find_all(database, [one.company_id for one in found])}
    rows = await asyncio.to_thread(lambda: [_row(one) for one in found[:LIMIT]])
    return visit.page(
        "schedules.html",
        rows=rows,
        slug=slug,
        slugs=slugs,
        offset=offset,
        limit=LIMIT,
        has_more=len(found) > LIMIT,
        companies=await companies_to_choose(visit),
    )


@needs(Role.OPERATOR)
async def show_new(visit: Visit) -> Response:
    """The form for a new schedule."""
    slug = visit.request.query_params.get("company", "").strip()
    given = {"company": slug, "time_zone": "UTC", "missed": "last", "payload": "{}"}
    return await _edited(visit, Form(list(given.items())), slug)


@needs(Role.OPERATOR)
async def create_schedule(visit: Visit) -> Response:
    """Make a schedule of the form's fields; where it cannot be, say so beside them."""
    form = visit.form
    company = await company_of(visit, form["company"].strip())
    return await _save(visit, company.slug, None, path=f"/companies/{company.id}/schedules", done="It is made.")


@needs(Role.OPERATOR)
async def show_change(visit: Visit) -> Response:
    """The form of a schedule as it stands."""
    slug, known = await _known(visit)
    given = {name: getattr(known, name) for name in ("name", "queue", "expression", "time_zone", "missed")}
    return await _edited(visit, Form([*given.items(), ("payload", rendering.plain(known.payload))]), slug, known)


@needs(Role.OPERATOR)
async def change_schedule(visit: Visit) -> Response:
    slug, known = await _known(visit)
    path = f"/companies/{known.company_id}/schedules/{known.id}"
    return await _save(visit, slug, known, path=path, done="Saved. It holds from the next tick on.")


async def _known(visit: Visit) -> tuple[str, Schedule]:
    name, schedule_id = _named(visit)
    company = await company_of(visit, name)
    found = await timetable.find(visit.parts.database, company.id, UUID(schedule_id))
    if found is None:
        raise not_found("schedule")
    return company.slug, found


async def _save(visit: Visit, slug: str, known: Schedule | None, *, path: str, done: str) -> Response:
    form = visit.form
    names = {"name": "name", "expression": "expression", "timeZone": "time_zone", "missed": "missed"}
    names |= {"type": "type"} if known is None else {}
    body = {name: form[field].strip() for name, field in names.items()}
    if queue := form["queue"].strip():
        body["queue"] = queue
    try:
        payload = forms.payload(form["payload"])
    except ValueError as error:
        return await _edited(visit, form, slug, known, f"{error}.")
    method = "POST" if known is None else "PATCH"
    answer = await actions.ask(visit, method, path, text=f'{json.dumps(body)[:-1]}, "payload": {payload}}}')
    if not answer.is_done:
        return await _edited(visit, form, slug, known, answer.complaint)
    return visit.go(visit.link("/schedules", company=slug), done)


async def _edited(
    visit: Visit, form: Form, slug: str, known: Schedule | None = None, complaint: str | None = None
) -> Response:
    return visit.page(
        "schedule.html",
        status=200 if complaint is None else 422,
        form=form,
        slug=slug,
        known=known,
        complaint=complaint,
        companies=await companies_to_choose(visit),
        types=await types_to_choose(visit),
    )


@needs(Role.OPERATOR)
async def pause_schedule(visit: Visit) -> Response:
    return await _change(visit, {"paused": True}, "The schedule is paused.")


@needs(Role.OPERATOR)
async def resume_schedule(visit: Visit) -> Response:
    return await _change(visit, {"paused": False}, "The schedule goes on with its next tick.")


@needs(Role.OPERATOR)
async def delete_schedule(visit: Visit) -> Response:
    company, schedule_id = _named(visit)
    answer = await actions.ask(visit, "DELETE", f"/companies/{company}/schedules/{schedule_id}")
    notice = "The schedule is deleted. The tasks that it has made stay." if answer.is_done else answer.complaint
    return visit.back(visit.link("/schedules"), notice, failed=not answer.is_done)


@needs(Role.OPERATOR)
async def run_now(visit: Visit) -> Response:
    """Create a task as a tick would, beside the ticks."""
    company, schedule_id = _named(visit)
    found = await timetable.find(visit.parts.database, company, UUID(schedule_id))
    if found is None:
        raise not_found("schedule")
    rest = {
        "type": found.type,
        "queue": found.queue,
        "priority": found.priority,
        "maxRetries": found.max_retries,
    } | ({} if found.timeout_seconds is None else {"timeoutSeconds": found.timeout_seconds})
    text = f'{json.dumps(rest)[:-1]}, "payload": {found.payload}}}'
    answer = await actions.ask(visit, "POST", f"/companies/{company}/tasks", text=text)
    if not answer.is_done:
        return visit.back(visit.link("/schedules"), answer.complaint, failed=True)
    return visit.go(
        visit.link(f"/companies/{company}/tasks/{answer.body['id']}"), f"This task is one of {found.name}, made now."
    )


def _row(one: Schedule) -> Row:
    """Whatever stands in the row, for one that cannot be read must not take the others with it."""
    try:
        cron = schedule.read(one.expression, one.time_zone)
        return Row(one, cron.words, _ticks(one), "")
    except InvalidOption as error:
        return Row(one, "", (), str(error))


def _ticks(one: Schedule) -> list[Tick]:
    zone = ZoneInfo(one.time_zone)
    ticks = []
    before = one.read_at.astimezone(zone).utcoffset()
    for at in one.next_ticks(TICKS):
        local = at.astimezone(zone)
        ticks.append(Tick(at, f"{local:%a %d %b %H:%M %Z}", local.utcoffset() != before))
        before = local.utcoffset()
    return ticks


async def _change(visit: Visit, body: dict[str, bool], done: str) -> Response:
    company, schedule_id = _named(visit)
    answer = await actions.ask(visit, "PATCH", f"/companies/{company}/schedules/{schedule_id}", body)
    return visit.back(visit.link("/schedules"), done if answer.is_done else answer.complaint, failed=not answer.is_done)


def _named(visit: Visit) -> tuple[str, str]:
    """The company and the schedule that the path names. Raises Refusal."""
    company, schedule_id = visit.request.path_params["company"], visit.request.path_params["schedule"]
    if directory.reference(company) is None or not _ID.fullmatch(schedule_id):
        raise not_found("schedule")
    return company, schedule_id


def _offset(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 6 or int(text) > limits.OFFSET_MAX:
        raise Refusal(400, "That is no place in a list", f"It may begin at 0 to {limits.OFFSET_MAX:,}.")
    return int(text)


PAGES = (
    ("GET", "/schedules", list_schedules),
    ("POST", "/schedules", create_schedule),
    ("GET", "/schedules/new", show_new),
    ("GET", "/companies/{company}/schedules/{schedule}/change", show_change),
    ("POST", "/companies/{company}/schedules/{schedule}/change", change_schedule),
    ("POST", "/companies/{company}/schedules/{schedule}/pause", pause_schedule),
    ("POST", "/companies/{company}/schedules/{schedule}/resume", resume_schedule),
    ("POST", "/companies/{company}/schedules/{schedule}/delete", delete_schedule),
    ("POST", "/companies/{company}/schedules/{schedule}/run", run_now),
)
