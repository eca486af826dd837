"""Lengths of time as people write them: 90s, 10m, 1h, 7d."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Final

_UNITS: Final = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_WRITTEN: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([smhd])")


def seconds(length: str | float | timedelta) -> float:
    """A length of time in seconds. Raises ValueError for what is none."""
    if isinstance(length, timedelta):
        return length.total_seconds()
    if isinstance(length, str):
        written = _WRITTEN.fullmatch(length.strip())
        if written is None:
            raise ValueError(f"a length of time is a number and a unit, such as 90s, 10m, 1h or 7d, not {length!r}")
        return float(written[1]) * _UNITS[written[2]]
    if not math.isfinite(length):
        raise ValueError(f"a length of time is a number of seconds, not {length}")
    return float(length)


def told(seconds: float) -> str:
    """A length of time in its two largest units: 2h 5m."""
    left = max(round(seconds), 0)
    parts = []
    for unit, size in _UNITS.items():
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2]) or "0s"
