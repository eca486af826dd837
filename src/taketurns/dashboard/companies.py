"""The pages of companies: all side by side, one with its figures, and what an operator may set for it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from starlette.responses import Response

from taketurns.companies import pauses, quotas
from taketurns.companies.directory import Company
from taketurns.dashboard import actions, charts
from taketurns.dashboard.forms import Form
from taketurns.dashboard.refusals import Refusal
from taketurns.dashboard.tasks import company_of, types_to_choose
from taketurns.dashboard.visits import Visit, needs
from taketurns.engine import durations, limits
from taketurns.engine.key import Role
from taketurns.history import board, failures, series, stats, tasks, why
from taketurns.history.board import Standing
from taketurns.history.series import SPANS, Sum
from taketurns.history.tasks import Filter

LIMIT: Final = 100
LATEST: Final = 10
MOMENT_SECONDS: Final = 60.0
_NUMBER: Final = re.compile(r"[0-9]{1,12}")
_PERIODS: Final = ("hour", "day", "month")
_ENDINGS: Final = ("completed", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class Row:
    """A company in the list: how it stands, and what its attempts came to."""

    standing: Standing
    total: Sum
    steps: list[Sum]

    @property
    def share(self) -> float:
        """What it has of its fair share, up to twice as much, as a part of that."""
        fair = self.standing.fair_share
        return min(self.standing.in_flight / fair, 2.0) / 2 if fair else 0.0


@needs(Role.VIEWER)
async def list_companies(visit: Visit) -> Response:
    """Every company, those whose tasks wait longest first."""
    return await _listed(visit)


async def _listed(visit: Visit, *, complaint: str | None = None) -> Response:
    query = visit.request.query_params
    like, offset = query.get("q", "").strip(), _offset(visit)
    database, span = visit.parts.database, SPANS["15m"]
    standings = await board.read(database, limit=LIMIT + 1, offset=offset, like=like)
    shown = standings[:LIMIT]
    begun = await series.begun_at(database)
    told = await series.read(database, span, [one.id for one in shown], begun=begun)
    rows = [Row(one, told.total(one.id), told.of(one.id)) for one in shown]
    return visit.page(
        "companies.html",
        status=200 if complaint is None else 422,
        rows=rows,
        like=like,
        offset=offset,
        limit=LIMIT,
        has_more=len(standings) > LIMIT,
        span=span,
        seconds=told.seconds,
        complaint=complaint,
        pauses=await pauses.standing(database, None),
        types=await types_to_choose(visit),
    )


@needs(Role.VIEWER)
async def show_company(visit: Visit) -> Response:
    """A company, what holds it back, and what it may have."""
    return await _shown(visit, await company_of(visit, visit.request.path_params["company"]))


@needs(Role.OPERATOR)
async def create_company(visit: Visit) -> Response:
    named = {name: visit.form[name].strip() for name in ("name", "slug")}
    answer = await actions.ask(visit, "POST", "/companies", {name: text for name, text in named.items() if text})
    if not answer.is_done:
        return await _listed(visit, complaint=answer.complaint)
    return visit.go(visit.link(f"/companies/{answer.body['slug']}"), "The company is taken in.")


@needs(Role.OPERATOR)
async def change_company(visit: Visit) -> Response:
    """Set its weight, its limits and how long its tasks are kept; an empty field takes a limit away."""
    company = await company_of(visit, visit.request.path_params["company"])
    try:
        changes = _changes(visit)
    except ValueError as error:
        return await _shown(visit, company, complaint=f"{error}.")
    return await _changed(visit, company, changes, "Saved. It holds from the next claim on.")


@needs(Role.OPERATOR)
async def pause_company(visit: Visit) -> Response:
    company = await company_of(visit, visit.request.path_params["company"])
    length = visit.form["for"]
    if not length:
        return await _changed(visit, company, {"paused": True}, f"{company.name} is paused. What runs goes on.")
    try:
        until = visit.now + timedelta(seconds=durations.seconds(length))
    except (ValueError, OverflowError):
        raise Refusal(400, "That is no length of time", "Write it as 30m, 2h or 1d.") from None
    changes = {"pausedUntil": until.isoformat().replace("+00:00", "Z")}
    return await _changed(visit, company, changes, f"{company.name} is paused for {length}. What runs goes on.")


@needs(Role.OPERATOR)
async def resume_company(visit: Visit) -> Response:
    company = await company_of(visit, visit.request.path_params["company"])
    return await _changed(visit, company, {"paused": False}, f"{company.name} goes on.")


@needs(Role.ADMIN)
async def delete_company(visit: Visit) -> Response:
    """Delete a company whose slug was written out."""
    company = await company_of(visit, visit.request.path_params["company"])
    address = visit.link(f"/companies/{company.slug}")
    if visit.form["slug"].strip() != company.slug:
        return visit.go(address, f"Nothing was deleted: write {company.slug} to confirm.", failed=True)
    force = "?force=true" if visit.form["force"] == "yes" else ""
    answer = await actions.ask(visit, "DELETE", f"/companies/{company.id}{force}")
    if not answer.is_done:
        return visit.go(address, answer.complaint, failed=True)
    return visit.go(visit.link("/companies"), f"{company.name} is deleted, with all that it had.")


async def _shown(visit: Visit, company: Company, *, complaint: str | None = None) -> Response:
    database = visit.parts.database
    begun = await series.begun_at(database)
    span = charts.span_of(visit, begun)
    told = await stats.read(database, company.id, window_seconds=MOMENT_SECONDS)
    usage = await quotas.usage(database, company.id)
    over_time = await series.read(database, span, [company.id], begun=begun)
    reason = await why.of_company(database, company.id)
    groups = await failures.page(database, company.id, limit=5)
    latest = await tasks.page(database, company.id, Filter(), limit=LATEST)
    standing = await pauses.standing(database, company.id)
    if told is None or usage is None or groups is None or latest is None or standing is None:
        raise Refusal(404, "There is no such company", "It was deleted a moment ago.")
    steps = over_time.of(company.id)
    return visit.page(
        "company.html",
        status=200 if complaint is None else 422,
        company=company,
        stats=told,
        total=over_time.total(company.id),
        usage=usage,
        span=span,
        spans=SPANS,
        seconds=over_time.seconds,
        outcomes=charts.outcomes(over_time.starts, steps),
        waits=charts.waits(over_time.starts, steps),
        reason=reason,
        because=None if reason is None else why.told(company.slug, reason),
        failures=groups[0],
        latest=latest.tasks,
        pauses=standing,
        types=await types_to_choose(visit),
        periods=_PERIODS,
        endings=_ENDINGS,
        kept={ending: _written(getattr(company.retention, ending)) for ending in _ENDINGS},
        quotas=dict(zip(_PERIODS, (company.quotas.hour, company.quotas.day, company.quotas.month), strict=True)),
        form=visit.form,
        complaint=complaint,
    )


def _changes(visit: Visit) -> dict[str, Any]:
    """The body of a change, from a form. Raises ValueError for what is no number."""
    form = visit.form
    weight = _number(form["weight"], "Weight")
    if weight is None or not 1 <= weight <= limits.WEIGHT_MAX:
        raise ValueError(f"Weight is a number from 1 to {limits.WEIGHT_MAX}")
    wanted_quotas = {period: _number(form[f"quota_{period}"], f"Quota of the {period}") for period in _PERIODS}
    return {
        "weight": weight,
        "maxInFlight": _number(form["max_in_flight"], "Most at once"),
        "maxQueued": _number(form["max_queued"], "Most waiting"),
        "rate": _rate(form, "rate", "tasks"),
        "requestRate": _rate(form, "request_rate", "requests"),
        "quotas": {period: quota for period, quota in wanted_quotas.items() if quota is not None},
        "retention": {
            f"{ending}Seconds": _seconds(form[f"keep_{ending}"], f"{ending.capitalize()} tasks are kept")
            for ending in _ENDINGS
        },
    }


def _rate(form: Form, field: str, counted: str) -> dict[str, int] | None:
    """A rate of a form's three fields. Raises ValueError."""
    name = "Requests" if counted == "requests" else "Rate"
    most, seconds = _number(form[f"{field}_{counted}"], name), _number(form[f"{field}_seconds"], f"{name}: seconds")
    burst = _number(form[f"{field}_burst"], f"{name}: at once")
    if most is None and seconds is None:
        return None
    if most is None or seconds is None:
        raise ValueError(f"A rate is {counted} and seconds: fill in both, or neither")
    return {counted: most, "seconds": seconds} | ({} if burst is None else {"burst": burst})


def _seconds(text: str, name: str) -> int | None:
    try:
        return round(durations.seconds(text)) if text.strip() else None
    except ValueError:
        raise ValueError(f"{name} for a time such as 12h or 90d, or, when empty, as the workers are set") from None


def _written(seconds: int | None) -> str:
    """A time in the largest unit that is exact, as the form takes it."""
    units = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
    return (
        ""
        if seconds is None
        else next(f"{seconds // size}{unit}" for unit, size in units.items() if not seconds % size)
    )


def _number(text: str, name: str) -> int | None:
    text = text.strip().replace(",", "")
    if not text:
        return None
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{name} is a whole number, or empty")
    return int(text)


async def _changed(visit: Visit, company: Company, changes: dict[str, Any], done: str) -> Response:
    answer = await actions.ask(visit, "PATCH", f"/companies/{company.id}", changes)
    if not answer.is_done and "weight" in changes:
        return await _shown(visit, company, complaint=answer.complaint)
    address = visit.link(f"/companies/{company.slug}")
    return visit.back(address, done if answer.is_done else answer.complaint, failed=not answer.is_done)


def _offset(visit: Visit) -> int:
    text = visit.request.query_params.get("offset", "0")
    if not _NUMBER.fullmatch(text) or int(text) > limits.OFFSET_MAX:
        raise Refusal(400, "That is no place in a list", f"It may begin at 0 to {limits.OFFSET_MAX:,}.")
    return int(text)


PAGES = (
    ("GET", "/companies", list_companies),
    ("POST", "/companies", create_company),
    ("GET", "/companies/{company}", show_company),
    ("POST", "/companies/{company}/change", change_company),
    ("POST", "/companies/{company}/pause", pause_company),
    ("POST", "/companies/{company}/resume", resume_company),
    ("POST", "/companies/{company}/delete", delete_company),
)
