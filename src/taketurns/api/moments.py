"""Times as they are written in requests and responses: RFC 3339, always with a zone, sent in UTC."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

from pydantic import BeforeValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

# A plus sign that was not escaped in a query arrives as a space.
_FORM: Final = re.compile(
    r"(\d{4}-\d{2}-\d{2})[Tt ](\d{2}:\d{2}):(\d{2})(?:\.(\d{1,9}))?([Zz]|[+\- ]\d{2}:\d{2})", re.ASCII
)
_EARLIEST: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST: Final = datetime(9998, 12, 31, tzinfo=UTC)


def read(text: object) -> datetime:
    """The moment that a text names, in UTC. A leap second is taken as the one after it."""
    match = _FORM.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise _invalid()
    date, minute, second, fraction, offset = match.groups()
    is_leap = second == "60"
    offset = "+00:00" if offset in "Zz" else offset.replace(" ", "+")
    try:
        moment = datetime.fromisoformat(
            f"{date}T{minute}:{'59' if is_leap else second}.{(fraction or '').ljust(6, '0')[:6]}{offset}"
        ) + timedelta(seconds=is_leap)
        moment = moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise _invalid() from None
    if not _EARLIEST <= moment <= _LATEST:
        raise PydanticCustomError("moment_out_of_range", "must be a time from the years 1970 to 9998")
    return moment


def _invalid() -> PydanticCustomError:
    return PydanticCustomError("invalid_moment", "must be a time with a zone, such as 2026-01-31T12:00:00Z")


Moment = Annotated[datetime, BeforeValidator(read), WithJsonSchema({"type": "string", "format": "date-time"})]
