"""How long a server asks to be left alone: the Retry-After header (RFC 9110, 10.2.3)."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

import httpx2

LONGEST_SECONDS: Final = 3_600.0


def retry_after(headers: httpx2.Headers, *, now: datetime | None = None) -> float | None:
    """Seconds to wait, an hour at most; None when the server does not say, or says nothing usable."""
    waits = [wait for said in headers.get_list("retry-after") if (wait := _seconds(said.strip(), now=now)) > 0]
    return min(max(waits), LONGEST_SECONDS) if waits else None


def _seconds(said: str, *, now: datetime | None) -> float:
    if re.fullmatch(r"[0-9]{1,12}", said):
        return float(said)
    try:
        moment = parsedate_to_datetime(said)
    except (ValueError, OverflowError):
        return 0.0
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - (now or datetime.now(UTC))).total_seconds()
