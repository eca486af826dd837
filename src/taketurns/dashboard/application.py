"""The dashboard as an application of its own, and how it is mounted beside the API."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlencode

from fastapi import FastAPI
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Match, Mount, Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from taketurns import telemetry
from taketurns.companies.keyring import KeyRing
from taketurns.companies.wrong_keys import WrongKeys
from taketurns.dashboard import (
    companies,
    failures,
    live,
    operations,
    overview,
    pauses,
    schedules,
    search,
    settings,
    signing_in,
    tasks,
    visits,
    workers,
)
from taketurns.dashboard.parts import Parts, parts
from taketurns.dashboard.refusals import NotSignedIn, Refusal
from taketurns.dashboard.visits import Visit
from taketurns.engine.errors import ConfigurationError, InvalidData, Unavailable
from taketurns.storage.database import Database

PREFIX: Final = "/dashboard"
CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}

Page = tuple[str, str, Callable[[Visit], Awaitable[Response]]]
PAGES: Final[Sequence[Page]] = (
    *overview.PAGES,
    *tasks.PAGES,
    *companies.PAGES,
    *live.PAGES,
    *workers.PAGES,
    *schedules.PAGES,
    *pauses.PAGES,
    *failures.PAGES,
    *operations.PAGES,
    *settings.PAGES,
    *search.PAGES,
    *signing_in.PAGES,
)


class Dashboard:
    """The pages over a database and the keys of a cell. Where nobody is asked for a key, everybody may do everything.

    `wrong_keys` is what the form for keys is held to. `told` is what the page of settings shows of them.
    """

    def __init__(
        self,
        *,
        database: Database,
        keyring: KeyRing,
        asks_for_keys: bool = True,
        on_loopback_only: bool = False,
        wrong_keys: WrongKeys | None = None,
        prefix: str = PREFIX,
        version: str,
        told: Mapping[str, str] | None = None,
    ) -> None:
        self.parts = Parts(
            database=database,
            keyring=keyring,
            asks_for_keys=asks_for_keys,
            on_loopback_only=on_loopback_only,
            wrong_keys=wrong_keys,
            prefix=prefix,
            version=version,
            told=told or {},
        )
        pages = Router(list(_routes(prefix)), redirect_slashes=False)
        self._app = _Guarded(ExceptionMiddleware(pages, dict.fromkeys(_TOLD, _answer)), self.parts)

    def leave(self) -> None:
        """Let go of every stream, at once: the process is about to end."""
        self.parts.streams.leave()

    def mount(self, api: FastAPI) -> None:
        """Have the API answer for the dashboard under its prefix, and lead whoever asks for nothing at all there.

        Raises ConfigurationError when the prefix is taken.
        """
        self.parts.api = api
        api.state.dashboard = self
        prefix = self.parts.prefix
        if any(route.path.startswith((prefix, f"{prefix}/")) for route in api.routes if isinstance(route, Route)):
            raise ConfigurationError(f"TAKETURNS_DASHBOARD_PATH: the API has {prefix} itself, choose another path")

        async def lead(request: Request) -> Response:
            return RedirectResponse(f"{request.scope.get('root_path', '')}{prefix}/", 307)

        api.router.routes += [Route("/", lead), Route(prefix, lead), Mount(prefix, self._app)]


def _routes(prefix: str) -> Iterator[Route]:
    async def show_file(request: Request) -> Response:
        return parts(request).files.answer(request)

    yield _Route("/static/{edition}/{name:path}", show_file, methods=["GET"], prefix=prefix)
    for method, path, endpoint in PAGES:
        yield _Route(path, _visited(endpoint), methods=[method], prefix=prefix)


def _visited(endpoint: Callable[[Visit], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    who = visits.need_of(endpoint)

    async def visit(request: Request) -> Response:
        visit = await visits.begin(request, who)
        return visit.question() if visit.is_in_question else await endpoint(visit)

    return visit


class _Route(Route):
    """Known to the metrics by its whole path."""

    def __init__(self, path: str, endpoint: Callable[..., Any], *, methods: list[str], prefix: str) -> None:
        super().__init__(path, endpoint, methods=methods)
        self.path_format = f"{prefix}{self.path_format}"

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, child = super().matches(scope)
        return match, {**child, "route": self} if match is Match.FULL else child


class _Guarded:
    """Tells every request what the dashboard is made of, and every browser what its pages may do; whoever meets a fault
    of ours is told that in a page, too."""

    def __init__(self, app: ASGIApp, given: Parts) -> None:
        self._app = app
        self._given = given
        self._log = telemetry.logger("dashboard").bind()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def send_guarded(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        scope["dashboard"] = self._given
        try:
            await self._app(scope, receive, send_guarded)
        except ClientDisconnect:
            raise
        except Exception:
            if has_begun:
                raise
            self._log.exception(telemetry.Event.REQUEST_FAILED, path=scope["path"])
            visit = visits.anonymous(Request(scope))
            advice = f"It is no fault of yours. The log tells more, by the request {scope['request_id']}."
            page = visit.page("error.html", status=500, title="Something went wrong here", advice=advice)
            await page(scope, receive, send_guarded)


_TOLD: Final = (HTTPException, Refusal, NotSignedIn, Unavailable, InvalidData)


async def _answer(request: Request, error: Exception) -> Response:
    visit = visits.anonymous(request)
    visit.principal = request.scope.get("principal")
    match error:
        case NotSignedIn():
            return _to_sign_in(visit, error)
        case Refusal():
            status, title, advice = error.status, error.title, error.advice
        case InvalidData():
            status, title, advice = (
                400,
                "That cannot be looked for",
                "A part of the address is no text that can be stored.",
            )
        case Unavailable():
            telemetry.logger("dashboard").warning(telemetry.Event.DATABASE_UNAVAILABLE, error=str(error))
            status, title = 503, "The database is away"
            advice = (
                "It cannot be reached, or did not answer in time. What runs goes on; this page looks again by itself."
            )
        case HTTPException():
            status, title = error.status_code, HTTPStatus(error.status_code).phrase
            advice = "There is nothing at this address." if status == 404 else "That cannot be done at this address."
        case _:
            raise error
    response = visit.page("error.html", status=status, title=title, advice=advice)
    if status == 503:
        response.headers["retry-after"] = "5"
    elif isinstance(error, Refusal) and error.wait_seconds is not None:
        response.headers["retry-after"] = str(math.ceil(error.wait_seconds))
    return response


def _to_sign_in(visit: Visit, error: NotSignedIn) -> Response:
    """Lead to the form for keys, and from there to where the visitor was going."""
    request = visit.request
    wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    query = urlencode({"next": wanted}) if request.method == "GET" else ""
    return visit.go(visit.link("/sign-in") + (f"?{query}" if query else ""), error.why, failed=True)
