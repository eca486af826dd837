"""Templates, and how values are written in them: escaped always, numbers and times one way everywhere."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final
from uuid import UUID
from zlib import crc32

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from taketurns.engine import durations
from taketurns.engine.key import Role
from taketurns.engine.task import Status

COLOURS: Final = 12
_LONGEST_PRETTY: Final = 64 * 1024
_JSON: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
_KINDS: Final = {'"': "text", "t": "word", "f": "word", "n": "word"}


def render(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("taketurns.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "ago": ago,
        "ahead": ahead,
        "colour": colour,
        "number": count,
        "json": pretty,
        "lasting": length,
        "moment": moment,
        "rate": rate,
        "short": short,
        "spark": spark,
    }
    environment.globals |= {"Role": Role, "Status": Status}
    return environment


def moment(at: datetime | None) -> Markup:
    """A time of day in UTC, that says so."""
    if at is None:
        return Markup('<span class="none">–</span>')
    at = at.astimezone(UTC)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        at.isoformat().replace("+00:00", "Z"),
        f"{at:%A, %d %B %Y, %H:%M:%S.%f}"[:-3] + " UTC",
        f"{at:%d %b %H:%M:%S} UTC",
    )


def ago(at: datetime | None, now: datetime) -> Markup:
    """How long ago something was, with its time to be seen. What came about while the page was made was just now."""
    return _beside(at, now if at is None else max(now, at))


def ahead(at: datetime | None, now: datetime) -> Markup:
    """How far ahead a time is, or how long ago it was."""
    return _beside(at, now)


def _beside(at: datetime | None, now: datetime) -> Markup:
    if at is None:
        return Markup('<span class="none">–</span>')
    at = at.astimezone(UTC)
    seconds = (now - at).total_seconds()
    told = "just now" if 0 <= seconds < 1 else f"{length(seconds)} ago" if seconds >= 0 else f"in {length(-seconds)}"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        at.isoformat().replace("+00:00", "Z"), f"{at:%A, %d %B %Y, %H:%M:%S} UTC", told
    )


def length(seconds: float | None) -> str:
    """A length of time, told as exactly as matters; below zero there is none."""
    if seconds is None:
        return "–"
    seconds = max(float(seconds), 0.0)
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    return durations.told(seconds).replace("s", " s").replace("m", " min").replace("h", " h").replace("d", " d")


def count(number: float | None, is_exact: bool = True) -> str:
    """A number with its thousands, and a sign where there may be more."""
    return "–" if number is None else f"{number:,.0f}{'' if is_exact else '+'}"


def rate(per_second: float | None) -> str:
    """How many in a minute, or in a second where those are many."""
    if not per_second:
        return "0"
    return f"{per_second:,.0f}/s" if per_second >= 10 else f"{per_second * 60:,.3g}/min"


def short(id: UUID | str) -> str:
    """The end of an id, which tells those apart that were made together."""
    return str(id)[-8:]


def colour(slug: str) -> str:
    """The class of a company's colour: the same everywhere, always."""
    return f"company-{crc32(slug.encode()) % COLOURS}"


def pretty(text: str | None) -> Markup:
    """JSON text on several lines, with every digit as it was."""
    if text is None:
        return Markup('<span class="none">none</span>')
    if len(text) > _LONGEST_PRETTY:
        return escape(text)
    return Markup("").join(_pretty(text))


def plain(text: str) -> str:
    """The same without colours, to be edited."""
    return "".join(part + space for part, space in _laid_out(text))


def _pretty(text: str) -> list[Markup]:
    parts = []
    laid_out = list(_laid_out(text))
    for number, (part, space) in enumerate(laid_out):
        is_key = part[0] == '"' and number + 1 < len(laid_out) and laid_out[number + 1][0] == ":"
        kind = "key" if is_key else _KINDS.get(part[0], "number" if part[0] in "-0123456789" else "")
        parts.append(Markup('<span class="json-{}">{}</span>{}').format(kind or "sign", part, space))
    return parts


def _laid_out(text: str) -> list[tuple[str, str]]:
    """Every part of a JSON text with the blanks that follow it."""
    parts = _JSON.findall(text)
    depth = 0
    laid_out: list[tuple[str, str]] = []
    for number, part in enumerate(parts):
        following = parts[number + 1] if number + 1 < len(parts) else ""
        depth += (part in "{[") - (part in "}]")
        if part == ":":
            space = " "
        elif following in {"", ",", ":"} or (part in "{[" and following in "}]"):
            space = ""
        else:
            space = "\n" + "  " * (depth - (following in "}]"))
        laid_out.append((part, space))
    return laid_out


def spark(values: Sequence[float], width: int = 96, height: int = 20) -> Markup:
    """A small line of how something went; the words beside it say what."""
    most = max([*values, 1])
    step = width / max(len(values) - 1, 1)
    points = " ".join(
        f"{number * step:.1f},{height - 1.5 - value / most * (height - 3):.1f}" for number, value in enumerate(values)
    )
    return Markup(
        '<svg class="spark" viewBox="0 0 {0} {1}" width="{0}" height="{1}" aria-hidden="true">'
        '<polyline points="{2}"/></svg>'
    ).format(width, height, points)
