"""What a payload must be so that PostgreSQL takes it as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from taketurns.engine import limits
from taketurns.engine.errors import InvalidPayload

TOO_LARGE: Final = "payload_too_large"
LONGEST_INTEGER_BITS: Final = 4096  # Python itself neither reads nor writes integers of more than 4,300 digits


def encode(name: str, payload: Mapping[str, Any]) -> str:
    """The JSON text of a payload of type `name`, which holds JSON values.

    Raises InvalidPayload for what PostgreSQL or a reader could not hold (a NUL character, half of a surrogate pair,
    NaN, an infinity, an integer of thousands of digits), for more than 64 levels and for more than 256 KiB, naming the
    place.
    """
    complaints = [{"loc": path, "msg": message, "type": "payload"} for path, message in _complaints(payload)]
    if not complaints:
        text = json.dumps(payload, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        size = len(text.encode())
        if size <= limits.PAYLOAD_BYTES:
            return text
        message = f"{size} bytes of JSON are more than the {limits.PAYLOAD_BYTES} that a payload may have"
        complaints.append({"loc": (), "msg": message, "type": TOO_LARGE})
    raise InvalidPayload(name, complaints)


def _complaints(payload: object) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """The first thing that is wrong, and where; walks without recursion, for depth is one of the things."""
    ahead: list[tuple[tuple[str | int, ...], object]] = [((), payload)]
    while ahead:
        path, value = ahead.pop()
        if message := _wrong(value, depth=len(path)):
            yield tuple(_printable(part) for part in path[:8]), message
            return
        if isinstance(value, Mapping):
            ahead.extend(((*path, key), inner) for key, inner in value.items())
        elif isinstance(value, list | tuple):
            ahead.extend(((*path, index), inner) for index, inner in enumerate(value))


def _wrong(value: object, *, depth: int) -> str | None:
    match value:
        case str():
            return _wrong_text(value)
        case float() if not math.isfinite(value):
            return "must be a finite number: JSON has no NaN and no infinity"
        case int() if value.bit_length() > LONGEST_INTEGER_BITS:
            return "must be an integer of fewer digits"
        case Mapping() | list() | tuple() if depth >= limits.PAYLOAD_DEPTH:
            return f"must not be nested deeper than {limits.PAYLOAD_DEPTH} levels"
        case Mapping():
            complaints = (f"the key {_printable(key)!r} {message}" for key in value if (message := _wrong_text(key)))
            return next(complaints, None)
        case _:
            return None


def _wrong_text(text: str) -> str | None:
    if "\0" in text:
        return "must not contain the character U+0000, which PostgreSQL cannot store"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "must be valid Unicode: it contains half of a surrogate pair"
    return None


def _printable(part: str | int) -> str | int:
    return part if isinstance(part, int) else part.encode("ascii", "backslashreplace").decode().replace("\0", "\\x00")
