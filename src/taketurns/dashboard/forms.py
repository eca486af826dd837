"""What browsers send: the bodies of forms, read whole and bounded, without a file in them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import parse_qsl

from starlette.requests import Request

from taketurns.dashboard.refusals import Refusal
from taketurns.engine import durations, limits

MEDIA_TYPE: Final = "application/x-www-form-urlencoded"
MOST_BYTES: Final = 4 * limits.BODY_BYTES  # a character may take three times its bytes
MOST_FIELDS: Final = 2_000


class Form:
    """Fields by name, in the order in which they came. What is missing is an empty text."""

    def __init__(self, fields: list[tuple[str, str]]) -> None:
        self._fields = fields

    def __getitem__(self, name: str) -> str:
        return next((value for field, value in self._fields if field == name), "")

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._fields)

    def __contains__(self, name: str) -> bool:
        return any(field == name for field, _ in self._fields)

    def all(self, name: str) -> list[str]:
        return [value for field, value in self._fields if field == name and value]


def moment(text: str, *, now: datetime) -> datetime:
    """A moment as people write it: now, a length of time from now on, or a time, which is in UTC if it does not say.

    Raises ValueError for what is none.
    """
    text = text.strip()
    if text == "now":
        return now
    try:
        return now + timedelta(seconds=durations.seconds(text))
    except (ValueError, OverflowError):
        pass
    try:
        written = datetime.fromisoformat(text)
        return (written if written.tzinfo else written.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError("A time is now, a length such as 30m, 2h or 1d, or 2030-01-31 12:00, in UTC") from None


def payload(text: str) -> str:
    """A text that is a JSON object, every digit as it was written; nothing is an empty one.

    Raises ValueError for what is none.
    """
    try:
        is_object = isinstance(json.loads(text or "{}"), dict)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"The payload is not JSON: {error}") from None
    if not is_object:
        raise ValueError("The payload is a JSON object: arguments by name")
    return text.strip() or "{}"


async def read(request: Request) -> Form:
    """The form that a request brings. Raises Refusal."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != MEDIA_TYPE:
        raise Refusal(415, "That was no form", f"send fields as {MEDIA_TYPE}")
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > MOST_BYTES:
            raise Refusal(413, "That is too much at once", f"a form may have {MOST_BYTES:,} bytes")
    try:
        fields = parse_qsl(content.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MOST_FIELDS)
    except ValueError:
        raise Refusal(400, "That form cannot be read", "send its fields in UTF-8, and not so many") from None
    return Form([(name, value.replace("\r\n", "\n")) for name, value in fields])
