"""Reading a JSON body: how large, of which type, whether it is JSON at all, and where it is not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.requests import Request

from taketurns.api import problems
from taketurns.api.problems import FieldError, Problem
from taketurns.engine import limits
from taketurns.engine.errors import InvalidOption

Model = TypeVar("Model", bound=BaseModel)


async def read(request: Request, model: type[Model], *, most: int = limits.BODY_BYTES) -> Model:
    """The body as a model. Raises Problem: 400, 413, 415 or 422."""
    _refuse_other_types(request)
    return parse(await _body(request, most), model)


async def read_if_any(request: Request, model: type[Model], *, most: int = limits.BODY_BYTES) -> Model | None:
    """The body as a model, or None when there is none."""
    body = await _body(request, most)
    if not body:
        return None
    _refuse_other_types(request)
    return parse(body, model)


def parse(body: bytes, model: type[Model]) -> Model:
    """JSON text as a model. Raises Problem: 400 or 422."""
    try:
        return model.model_validate(_document(body))
    except ValidationError as error:
        errors = problems.field_errors(error.errors(include_url=False, include_input=False, include_context=False))
        raise Problem(problems.INVALID_REQUEST, told(errors), errors=errors) from None


def told(errors: list[FieldError]) -> str:
    """The errors in one line."""
    shown = "; ".join(f"{error['pointer'] or 'the body'}: {error['detail']}" for error in errors[:3])
    return shown + (f"; and {len(errors) - 3} more" if len(errors) > 3 else "")


def over(field: str, error: InvalidOption) -> Problem:
    """What is told of a field with a time that is over."""
    errors = [FieldError(pointer=problems.pointer((field,)), code="over", detail=error.message)]
    return Problem(problems.INVALID_REQUEST, told(errors), errors=errors)


def _refuse_other_types(request: Request) -> None:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json" and not (
        media_type.startswith("application/") and media_type.endswith("+json")
    ):
        raise Problem(problems.UNSUPPORTED_MEDIA_TYPE, "the body must be sent as Content-Type: application/json")
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise Problem(problems.UNSUPPORTED_MEDIA_TYPE, "the body must be sent without Content-Encoding")


async def _body(request: Request, most: int) -> bytes:
    """The body, of which no more is held than a client may send, whether it says how much will come or not."""
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > most:
        raise _too_large(most)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise _too_large(most)
    return bytes(body)


def _too_large(most: int) -> Problem:
    return Problem(problems.BODY_TOO_LARGE, f"the body of this request may have at most {most} bytes")


def _document(body: bytes) -> Any:
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError as error:
        complaint = str(error)
        place = problems.pointer(_path_at(body, _position(body, complaint)))
        if complaint.startswith("recursion limit"):
            complaint = f"nested far deeper than the {limits.PAYLOAD_DEPTH} levels that a payload may have"
        detail = f"the body is not JSON that can be taken: {complaint}" if body else "a JSON body is needed"
        raise Problem(
            problems.MALFORMED_JSON, detail, errors=[FieldError(pointer=place, code="malformed_json", detail=complaint)]
        ) from None


_PLACE: Final = re.compile(r"at line (\d+) column (\d+)$")
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*"?|[{}\[\],]|[^\s{}\[\],"]+', re.DOTALL)
_DEEPEST_TOLD: Final = 8


def _position(body: bytes, complaint: str) -> int:
    """Where in the body the parser stopped."""
    match = _PLACE.search(complaint)
    if match is None:
        return len(body)
    line, column = int(match[1]), int(match[2])
    lines_before = body.split(b"\n", line - 1)[: line - 1]
    return sum(len(before) + 1 for before in lines_before) + max(column - 1, 0)


def _path_at(body: bytes, position: int) -> Iterator[str | int]:
    """The path of the value that a position lies in, as far as the text before it tells."""
    path: list[str | int | None] = []
    is_key = False
    for token in _TOKEN.finditer(body, 0, position):
        match token[0]:
            case b"{":
                path.append(None)
                is_key = True
            case b"[":
                path.append(0)
                is_key = False
            case b"}" | b"]":
                path = path[:-1]
                is_key = False
            case b",":
                last = path.pop() if path else None
                is_key = not isinstance(last, int)
                path.append(None if is_key else last + 1 if isinstance(last, int) else 0)
            case text if is_key and path and text.startswith(b'"') and token.end() < position:
                path[-1] = _key(text)
                is_key = False
    for part in path[:_DEEPEST_TOLD]:
        if part is None:
            return
        yield part


def _key(text: bytes) -> str:
    try:
        key = str(json.loads(text, strict=False))
    except ValueError:
        key = text.strip(b'"').decode(errors="replace")
    return key.encode("ascii", "backslashreplace").decode() if not key.isprintable() else key
