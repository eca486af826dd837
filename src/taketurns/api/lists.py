"""What a query asks for: where a list goes on, how a client gets to its next page, and how lists are sent."""

from __future__ import annotations

import asyncio
import gzip
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, get_origin
from urllib.parse import urlencode
from uuid import UUID

from fastapi import Depends
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from starlette.requests import Request
from starlette.responses import Response

from taketurns.api import answers, bodies, headers, problems
from taketurns.api.cursors import Cursors
from taketurns.api.problems import FieldError, Problem
from taketurns.api.requests import Query
from taketurns.engine import limits

COMPRESSED_BEYOND_BYTES: Final = 1024
_FASTEST: Final = 1


def start(query: Query, cursors: Cursors, *wanted: object) -> UUID | None:
    """The id to go on after, if the query has a cursor. Raises Problem when it asks for what a list cannot give."""
    if query.offset > limits.OFFSET_MAX:
        raise Problem(
            problems.OFFSET_TOO_LARGE, f"offset: may be at most {limits.OFFSET_MAX}; page with cursor to go further"
        )
    if query.cursor is None:
        return None
    if query.offset:
        raise Problem(problems.INVALID_CURSOR, "cursor and offset exclude each other: send one of them")
    return cursors.read(query.cursor, *wanted)


def refuse_query(request: Request) -> None:
    """Raises Problem when the query of a route without parameters has any."""
    if request.scope["query_string"] and request.query_params:
        raise Problem(problems.UNKNOWN_PARAMETER, "this route takes no query parameters")


async def refuse_repeated(request: Request) -> None:
    """Raises Problem when a parameter that has one value has several."""
    given = Counter(name for name, _ in request.query_params.multi_items())
    repeated = [name for name in _single(request.scope["route"]) if given[name] > 1]
    if repeated:
        errors = [
            FieldError(pointer=name, code="repeated", detail="is given more than once: send it once")
            for name in repeated
        ]
        raise Problem(problems.INVALID_REQUEST, bodies.told(errors), errors=errors)


ONE_OF_EACH: Final = [Depends(refuse_repeated)]
"""For every route that takes parameters."""


def parameters(route: APIRoute) -> dict[str, FieldInfo]:
    """The query parameters that a route takes, by the names that a client gives them."""
    models = [parameter.field_info.annotation for parameter in route.dependant.query_params]
    return {
        field.alias or name: field
        for model in models
        if isinstance(model, type) and issubclass(model, BaseModel)
        for name, field in model.model_fields.items()
    }


def _single(route: APIRoute) -> list[str]:
    return [name for name, field in parameters(route).items() if get_origin(field.annotation) is not list]


def _link(request: Request, cursor: str | None) -> dict[str, str]:
    """The Link header (RFC 8288) to the page after this one."""
    if cursor is None:
        return {}
    kept = [(name, value) for name, value in request.query_params.multi_items() if name not in {"cursor", "offset"}]
    return {"link": f'<{request.url.path}?{urlencode([*kept, ("cursor", cursor)])}>; rel="next"'}


async def send(request: Request, body: Mapping[str, Any], cursor: str | None = None) -> Response:
    """A list, compressed if it is worth it and the client takes it; in a thread, for a page may have megabytes."""
    told = {"vary": "Accept-Encoding", **_link(request, cursor)}
    content = answers.encode(body)
    if len(content) > COMPRESSED_BEYOND_BYTES and headers.takes_gzip(request.scope):
        content = await asyncio.to_thread(gzip.compress, content, _FASTEST, mtime=0)
        told["content-encoding"] = "gzip"
    return Response(content, headers=told, media_type=answers.MEDIA_TYPE)
