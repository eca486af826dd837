"""The pages that explain the API, from files of our own: they work offline and load nothing from elsewhere."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib import resources
from types import MappingProxyType
from typing import Any, Final

import orjson
from fastapi import APIRouter
from starlette.responses import Response

from taketurns.api import problems
from taketurns.api.guard import GuardedRoute, open_to_all

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
_FILES: Final = {
    "swagger-ui.css": ("swagger/swagger-ui.css", "text/css"),
    "swagger-ui-bundle.js": ("swagger/swagger-ui-bundle.js", "text/javascript"),
    "start.js": ("swagger/start.js", "text/javascript"),
    "favicon-32x32.png": ("swagger/favicon-32x32.png", "image/png"),
    "problems.css": ("problems.css", "text/css"),
}


def router(document: Callable[[], dict[str, Any]]) -> APIRouter:
    """`/docs`, the files it loads, the page of problems, and the OpenAPI document itself.

    Each is made when somebody first asks for it, for most processes are never asked.
    """
    pages = APIRouter(route_class=GuardedRoute)
    _add(pages, "/openapi.json", lambda: orjson.dumps(document()), "application/json")
    _add(pages, "/docs", partial(_read, "swagger/index.html"), "text/html")
    _add(pages, problems.PAGE, _problems_page, "text/html")
    for name, (file, media_type) in _FILES.items():
        _add(pages, f"/docs/{name}", partial(_read, file), media_type, {"cache-control": "max-age=3600"})
    return pages


def _add(
    pages: APIRouter,
    path: str,
    make: Callable[[], bytes],
    media_type: str,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> None:
    made = cache(make)

    @open_to_all
    def show() -> Response:  # in a thread: the document takes a while, and the loop has others to serve
        return Response(made(), headers={**_HEADERS, **headers}, media_type=media_type)

    pages.add_api_route(path, show, methods=["GET"], include_in_schema=False)


def _read(file: str) -> bytes:
    return resources.files("taketurns.api.documentation").joinpath(file).read_bytes()


def _problems_page() -> bytes:
    kinds = "".join(
        f'<h2 id="{kind.code}">{html.escape(kind.title)}</h2>'
        f"<p><code>{kind.code}</code>, status {kind.status}"
        f"{', the same request may pass later' if kind.retryable else ''}.</p>"
        f"<p>{html.escape(kind.advice)}</p>"
        for kind in problems.KINDS
    )
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><title>Problems</title>'
        '<link rel="stylesheet" href="/docs/problems.css"></head><body><main><h1>Problems</h1>'
        "<p>What the API answers when a request cannot be served, by its <code>code</code>.</p>"
        f"{kinds}</main></body></html>"
    )
    return page.encode()
