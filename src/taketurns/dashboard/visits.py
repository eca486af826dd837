"""One visit of one page: who comes, what they may do, and whether a form that they send is one of ours.

Every browser has a token in a cookie. Once somebody signs in it is a new one, that stands for their key; before that,
and where nobody is asked for a key, it only ties forms to the browser that they were made for.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeVar
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from taketurns.companies import directory, sessions
from taketurns.companies.access import OperatorPrincipal
from taketurns.companies.errors import InvalidKey
from taketurns.dashboard import forms, rendering
from taketurns.dashboard.forms import Form
from taketurns.dashboard.parts import Parts, parts
from taketurns.dashboard.refusals import NotSignedIn, Refusal
from taketurns.engine.addresses import comes_from_this_machine
from taketurns.engine.errors import Unavailable
from taketurns.engine.key import Role

COOKIE: Final = "taketurns_session"
NOTICE: Final = "taketurns_notice"
THEME: Final = "taketurns_theme"
COMPANY: Final = "taketurns_company"
TOKEN: Final = "token"  # noqa: S105  the name of a field
THEMES: Final = ("system", "light", "dark")
NAVIGATION: Final = (
    ("Overview", "/", "overview", "o"),
    ("Companies", "/companies", "companies", "c"),
    ("Tasks", "/tasks", "tasks", "t"),
    ("Live", "/live", "live", "l"),
    ("Workers", "/workers", "workers", "w"),
    ("Schedules", "/schedules", "schedules", "s"),
    ("Failures", "/failures", "failures", "f"),
    ("Operations", "/operations", "operations", "p"),
    ("Settings", "/settings", "settings", "e"),
)
"""The pages of the menu: name, path, icon, and the key after `g`."""
OF_A_COMPANY: Final = ("Tasks", "Schedules", "Failures", "Operations", "Settings")
"""Those that may be of one company alone."""
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{43}")
_LONGEST_NOTICE: Final = 400
_A_YEAR: Final = 365 * 86_400

Endpoint = TypeVar("Endpoint", bound=Callable[..., Awaitable[Response]])
Who = Role | Literal["anybody"]
_NEED: Final = "taketurns_dashboard_need"


@dataclass(slots=True)
class Visit:
    """A request of a page, once it is known who makes it. `form` is what a POST brought."""

    request: Request
    parts: Parts
    token: str
    principal: OperatorPrincipal | None = None
    form: Form = field(default_factory=lambda: Form([]))
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    told: str | None = None

    def may(self, role: Role) -> bool:
        """Whether the visitor has this role or more; everybody has every one where nobody is asked."""
        return not self.parts.asks_for_keys or (self.principal is not None and self.principal.role.includes(role))

    @property
    def form_token(self) -> str:
        """What every form of this visitor carries."""
        return hmac.digest(self.token.encode(), b"forms", hashlib.sha256).hex()

    @property
    def once(self) -> str:
        """A text for one form, so that the same form is known when it comes again."""
        return secrets.token_urlsafe(16)

    @property
    def is_in_question(self) -> bool:
        """Whether a form asks something that nobody has answered: no script did on the page that it comes from."""
        return bool(self.form["question"]) and self.form["sure"] != "yes"

    @property
    def is_known(self) -> bool:
        return self.principal is not None or not self.parts.asks_for_keys

    @property
    def theme(self) -> str:
        theme = self.request.cookies.get(THEME, "")
        return theme if theme in THEMES else THEMES[0]

    @property
    def company(self) -> str:
        """The slug of the company that the visitor looks at alone, if any."""
        slug = self.request.cookies.get(COMPANY, "")
        return slug if directory.is_slug(slug) else ""

    @property
    def pages(self) -> list[tuple[str, str, str, str]]:
        """The menu with its addresses, which are of the company that is looked at alone."""
        return [
            (name, self.link(path, company=self.company if name in OF_A_COMPANY else ""), icon, key)
            for name, path, icon, key in NAVIGATION
        ]

    @property
    def root(self) -> str:
        """What the addresses of all pages begin with: what a proxy took off the path, and the dashboard's own."""
        return str(self.request.scope.get("root_path", ""))

    def link(self, path: str, **query: Any) -> str:
        """The address of a page; what is None or empty is left out of its query."""
        named = [
            (name, value)
            for name, values in query.items()
            for value in (values if isinstance(values, list | tuple | set | frozenset) else [values])
            if value not in {None, ""}
        ]
        return f"{self.root}{path}" + (f"?{urlencode(named)}" if named else "")

    def file(self, name: str) -> str:
        """The address of a file that pages load."""
        return f"{self.root}{self.parts.files.path(name)}"

    def here(self) -> str:
        """The address of this page, for forms that lead back to it; of one that cannot be looked at again, none."""
        url = self.request.url
        return f"{url.path}?{url.query}" if url.query else url.path if self.request.method == "GET" else ""

    def with_query(self, **query: str) -> str:
        """This page with some of its query changed."""
        kept = [(name, value) for name, value in self.request.query_params.multi_items() if name not in query]
        return f"?{urlencode([*kept, *query.items()])}"

    @property
    def above(self) -> str:
        """What the addresses of the API begin with."""
        return self.root.removesuffix(self.parts.prefix)

    def page(self, template: str, *, status: int = 200, **values: Any) -> Response:
        """A page, with what was told of the action before it, once."""
        about = {"visit": self, "pages": self.pages, "status": status, "file": self.file, "here": self.here}
        response = HTMLResponse(rendering.render(template, **about, with_query=self.with_query, **values), status)
        response.headers["cache-control"] = "no-store"
        if NOTICE in self.request.cookies:
            response.delete_cookie(NOTICE, path=self.cookie_path)
        return self.with_cookie(response)

    def question(self) -> Response:
        """Ask what the form asks, and have it sent again if that is meant."""
        fields = [(name, value) for name, value in self.form if name not in {"question", "verb", "sure"}]
        return self.page("question.html", action=quote(self.request.scope["path"]), fields=fields)

    def go(self, address: str, notice: str = "", *, failed: bool = False) -> Response:
        """Lead the browser to a page, which will tell this."""
        response = RedirectResponse(address, 303)
        if notice:
            text = ("!" if failed else "") + notice[:_LONGEST_NOTICE]
            self._set(response, NOTICE, text.encode().hex(), max_age=60)
        return self.with_cookie(response)

    def back(self, fallback: str, notice: str = "", *, failed: bool = False) -> Response:
        """Lead the browser to the page that a form came from."""
        return self.go(self.came_from or fallback, notice, failed=failed)

    @property
    def came_from(self) -> str:
        """The page that a form came from, as it says; nothing when that is none of ours."""
        named = self.form["back"]
        is_ours = named.startswith(f"{self.root}/") and not named.startswith("//")
        return named if is_ours and named.isprintable() and "\\" not in named else ""

    @property
    def notice(self) -> tuple[bool, str] | None:
        """What the action before this page came to: whether it failed, and what is said of it."""
        if self.told is not None:
            return True, self.told
        try:
            text = bytes.fromhex(self.request.cookies.get(NOTICE, "")).decode()
        except ValueError:
            return None
        return (text.startswith("!"), text.removeprefix("!")) if text else None

    @property
    def cookie_path(self) -> str:
        return self.root or "/"

    def with_cookie(self, response: Response) -> Response:
        if self.request.cookies.get(COOKIE) != self.token:
            self._set(response, COOKIE, self.token)
        return response

    def remember(self, response: Response, name: str, value: str) -> None:
        """Have the browser know something for a year, or forget it."""
        response.set_cookie(
            name, value, max_age=_A_YEAR if value else 0, path=self.cookie_path, httponly=name != THEME, samesite="lax"
        )

    def _set(self, response: Response, name: str, value: str, *, max_age: int | None = None) -> None:
        response.set_cookie(
            name,
            value,
            max_age=max_age,
            path=self.cookie_path,
            secure=self.request.url.scheme == "https",
            httponly=True,
            samesite="lax",
        )


def needs(who: Who) -> Callable[[Endpoint], Endpoint]:
    """Say who may visit a page or do what it does."""

    def mark(endpoint: Endpoint) -> Endpoint:
        setattr(endpoint, _NEED, who)
        return endpoint

    return mark


def need_of(endpoint: Callable[..., Any]) -> Who:
    need: Who | None = getattr(endpoint, _NEED, None)
    if need is None:
        raise TypeError(f"{endpoint.__qualname__} does not say who may visit it: visits.needs(…)")
    return need


async def begin(request: Request, who: Who) -> Visit:
    """Let a visitor in. Raises Refusal, NotSignedIn and Unavailable."""
    given = parts(request)
    if given.on_loopback_only:
        _refuse_strangers(request)
    visit = anonymous(request)
    if given.asks_for_keys and who != "anybody":
        visit.principal = await _holder(visit)
        request.scope["principal"] = visit.principal
        if not visit.may(who):
            raise Refusal(
                403, "Your key may not do that", f"It takes the role {who}, and yours is {visit.principal.role}."
            )
    if request.method == "POST":
        await _take_form(visit)
    return visit


def anonymous(request: Request) -> Visit:
    """A visit of nobody in particular."""
    token = request.cookies.get(COOKIE, "")
    return Visit(request, parts(request), token if _TOKEN.fullmatch(token) else sessions.new_token())


async def may_stay(visit: Visit) -> bool:
    """Whether the session of a visitor who was let in lasts still, unless that cannot be told now."""
    if visit.principal is None:
        return True
    try:
        await _holder(visit)
    except NotSignedIn:
        return False
    except Unavailable:
        return True
    return True


async def _holder(visit: Visit) -> OperatorPrincipal:
    if COOKIE not in visit.request.cookies:
        raise NotSignedIn
    key_id = await sessions.key_of(visit.parts.database, visit.token)
    if key_id is None:
        raise NotSignedIn("Your session is over.")
    try:
        principal = await visit.parts.keyring.holder(key_id)
    except InvalidKey as error:
        raise NotSignedIn(f"You were signed out: {error}.") from None
    if not isinstance(principal, OperatorPrincipal):
        raise NotSignedIn
    return principal


async def _take_form(visit: Visit) -> None:
    """The form of a request, if it was made by one of our pages for this browser. Raises Refusal."""
    if visit.request.headers.get("sec-fetch-site") in {"cross-site", "same-site"}:
        raise _not_ours()
    visit.form = await forms.read(visit.request)
    if not hmac.compare_digest(visit.form[TOKEN].encode(), visit.form_token.encode()):
        raise _not_ours()


def _not_ours() -> Refusal:
    return Refusal(
        403, "That form is out of date", "Nothing was done. Go back, load the page again, and send the form once more."
    )


def _refuse_strangers(request: Request) -> None:
    """Where nobody is asked for a key, only this machine is let in. Raises Refusal."""
    reached = (request.scope.get("server") or (None, None))[0]
    if not comes_from_this_machine(reached=reached, named=",".join(request.headers.getlist("host"))):
        raise Refusal(
            403,
            "This service is for its own machine",
            "It asks for no keys, so it answers at 127.0.0.1 and localhost only. TAKETURNS_AUTHENTICATION=on opens it"
            " to those who have a key.",
        )
