"""Pauses of queues and types, of one company or of all: how they are set and lifted."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response

from taketurns.dashboard import actions
from taketurns.dashboard.refusals import Refusal
from taketurns.dashboard.tasks import company_of
from taketurns.dashboard.visits import Visit, needs
from taketurns.engine import durations
from taketurns.engine.key import Role


@needs(Role.OPERATOR)
async def put_pause(visit: Visit) -> Response:
    """Pause a queue, a type, or a type in a queue, until somebody lifts the pause or a time is over."""
    body: dict[str, Any] = _named(visit)
    if length := visit.form["for"]:
        try:
            until = visit.now + timedelta(seconds=durations.seconds(length))
        except (ValueError, OverflowError):
            raise Refusal(400, "That is no length of time", "Write it as 30m, 2h or 1d.") from None
        body["until"] = until.isoformat().replace("+00:00", "Z")
    return await _change(visit, "PUT", "", body, "It is paused. What runs goes on, and what is submitted waits.")


@needs(Role.OPERATOR)
async def lift_pause(visit: Visit) -> Response:
    query = urlencode(_named(visit))
    return await _change(visit, "DELETE", f"?{query}" if query else "", None, "It goes on.")


def _named(visit: Visit) -> dict[str, Any]:
    named = {name: visit.form[name].strip() for name in ("queue", "type")}
    return {name: text for name, text in named.items() if text}


async def _change(visit: Visit, method: str, query: str, body: object, done: str) -> Response:
    name = visit.request.path_params.get("company")
    company = None if name is None else await company_of(visit, name)
    path, page = ("", "/companies") if company is None else (f"/companies/{company.id}", f"/companies/{company.slug}")
    answer = await actions.ask(visit, method, f"{path}/pauses{query}", body)
    return visit.back(visit.link(page), done if answer.is_done else answer.complaint, failed=not answer.is_done)


PAGES = (
    ("POST", "/pauses", put_pause),
    ("POST", "/pauses/lift", lift_pause),
    ("POST", "/companies/{company}/pauses", put_pause),
    ("POST", "/companies/{company}/pauses/lift", lift_pause),
)
