"""Signing in with an operator's key, signing out, and how the pages look."""

from __future__ import annotations

import math

from starlette.responses import Response

from taketurns.companies import sessions
from taketurns.companies.access import OperatorPrincipal, Principal
from taketurns.companies.errors import InvalidKey, TooManyWrongKeys
from taketurns.dashboard.refusals import Refusal
from taketurns.dashboard.visits import THEME, THEMES, Visit, needs


@needs("anybody")
async def show_form(visit: Visit) -> Response:
    """The form for a key."""
    if not visit.parts.asks_for_keys:
        return visit.go(visit.link("/"))
    return visit.page("sign_in.html", next=visit.request.query_params.get("next", ""), complaint=None)


@needs("anybody")
async def sign_in(visit: Visit) -> Response:
    """Take a key in for a session."""
    if not visit.parts.asks_for_keys:
        return visit.go(visit.link("/"))
    try:
        principal = await _holder(visit, visit.form["key"].strip().encode())
    except InvalidKey as error:
        return _refused(visit, f"That key does not open anything: {error}.")
    if not isinstance(principal, OperatorPrincipal) or principal.key_id is None:
        return _refused(
            visit, "That is a company's key. Operators' keys open the dashboard: taketurns keys create makes them."
        )
    visit.token = await sessions.begin(visit.parts.database, principal.key_id)
    return visit.back(visit.link("/"))


@needs("anybody")
async def sign_out(visit: Visit) -> Response:
    """End the session."""
    await sessions.end(visit.parts.database, visit.token)
    visit.token = sessions.new_token()
    return visit.go(visit.link("/sign-in"), "You are signed out.")


@needs("anybody")
async def choose_theme(visit: Visit) -> Response:
    """Light, dark, or as the system has it."""
    chosen = visit.form["theme"]
    response = visit.back(visit.link("/"))
    if chosen in THEMES:
        visit.remember(response, THEME, chosen)
    return response


async def _holder(visit: Visit, key: bytes) -> Principal:
    """Who holds this key. Raises InvalidKey, and Refusal at an address that brought too many wrong ones, unless this
    one is known here already."""
    keyring, wrong_keys, client = visit.parts.keyring, visit.parts.wrong_keys, visit.request.client
    if wrong_keys is None or client is None or keyring.remembers(key):
        return await keyring.principal(key)
    try:
        async with wrong_keys.look(client.host) as count:
            try:
                return await keyring.principal(key)
            except InvalidKey:
                count()
                raise
    except TooManyWrongKeys as error:
        wait = math.ceil(error.wait_seconds)
        raise Refusal(
            429,
            "Too many keys did not work",
            "Too many requests came from your address without a key that works. This one was not looked at: try it"
            f" again in {wait} second{'' if wait == 1 else 's'}.",
            wait_seconds=error.wait_seconds,
        ) from None


def _refused(visit: Visit, complaint: str) -> Response:
    return visit.page("sign_in.html", status=401, next=visit.came_from, complaint=complaint)


PAGES = (
    ("GET", "/sign-in", show_form),
    ("POST", "/sign-in", sign_in),
    ("POST", "/sign-out", sign_out),
    ("POST", "/theme", choose_theme),
)
