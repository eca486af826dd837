"""When the ticks of a schedule come, by a cron expression and a time zone, and what becomes of those that were missed.

An expression that names hours names times of day: one that does not exist, where clocks go forward, comes at the next
that does, and one that comes twice, where they go back, comes once. An expression for every hour comes whenever the
clock shows one of its minutes.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cache, lru_cache
from importlib import resources
from itertools import islice, takewhile
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from taketurns.engine import limits
from taketurns.engine.errors import InvalidOption

MISSED_AFTER: Final = timedelta(minutes=1)

_FIELDS: Final = re.compile(r"[0-9A-Za-z*/,#-]+(?: [0-9A-Za-z*/,#-]+){4}")
_FORM: Final = (
    f"must be a cron expression of at most {limits.EXPRESSION_LENGTH} characters in five fields (minute, hour, day of"
    " the month, month, day of the week), such as 0 9 * * 1-5: neither seconds, nor intervals, nor names such as @daily"
)
_PARSE_AT: Final = datetime(2000, 1, 1, tzinfo=UTC)
_FIRST_LOOK: Final = timedelta(hours=1)
_NO_ZONE: Final = "Factory"  # the database's name for a clock that nobody has set


class Missed(StrEnum):
    """Which ticks are made up for that came while nobody could make them: a tick is missed once it is a minute late.

    skip   none
    last   of those that are due together, the last
    all    all, the last 100 at most
    """

    SKIP = "skip"
    LAST = "last"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Cron:
    """An expression and the name of its time zone, known to be good."""

    expression: str
    time_zone: str
    _searched: str = field(repr=False, compare=False)

    @property
    def words(self) -> str:
        """What the expression says, in English."""
        return CronSim(self.expression, _PARSE_AT).explain()

    def ticks(self, *, after: datetime) -> Iterator[datetime]:
        """Its ticks later than a moment, in UTC, each later than the one before; ends when none comes for 50 years."""
        last = after
        for local in CronSim(self._searched, after.astimezone(ZoneInfo(self.time_zone))):
            # Times of day that do not exist fall together, and from one that comes twice the search begins before it.
            if (tick := local.astimezone(UTC)) > last:
                yield tick
                last = tick

    def next_tick(self, *, after: datetime) -> datetime | None:
        """The first one later than a moment."""
        return next(self.ticks(after=after), None)

    def next_ticks(self, count: int, *, after: datetime) -> list[datetime]:
        """The first ones later than a moment."""
        return list(islice(self.ticks(after=after), count))

    def last_ticks(self, count: int, *, since: datetime, until: datetime) -> list[datetime]:
        """The last ones of a time, its bounds included, in order; it may be long, for it is searched from its end."""
        before = since - timedelta(microseconds=1)
        looked = _FIRST_LOOK
        while True:
            start = until - min(looked, until - before)
            found = deque(takewhile(lambda tick: tick <= until, self.ticks(after=start)), maxlen=count)
            if len(found) == count or start == before:
                return list(found)
            looked *= 8

    def due(self, *, since: datetime, now: datetime, missed: Missed) -> list[datetime]:
        """The ticks to make now, in order, when none was made since the one at `since`."""
        if now < since:
            return []
        match missed:
            case Missed.ALL:
                return self.last_ticks(limits.MISSED_TICKS_MAX, since=since, until=now)
            case Missed.LAST:
                return self.last_ticks(1, since=since, until=now)
            case Missed.SKIP:
                return [tick for tick in self.last_ticks(1, since=since, until=now) if now - tick < MISSED_AFTER]


@lru_cache(maxsize=4096)
def read(expression: str, time_zone: str) -> Cron:
    """The schedule that these name. Raises InvalidOption, of `expression` or of `time_zone`."""
    check_time_zone(time_zone)
    text = " ".join(expression.split()) if len(expression) <= limits.EXPRESSION_LENGTH else ""
    if not _FIELDS.fullmatch(text):
        raise InvalidOption("expression", _FORM)
    try:
        cron = Cron(text, time_zone, _as_clocks_go(text))
    except CronSimError as error:
        told = f"{str(error).lower()}: cannot be read, or never comes, as 30 February; {_FORM}"
        raise InvalidOption("expression", told) from None
    if cron.next_tick(after=_PARSE_AT) is None:
        raise InvalidOption("expression", "names days that never come, as 30 February: correct its days or months")
    return cron


def check_time_zone(name: str) -> None:
    """Raises InvalidOption for what is not, letter by letter, a name in the IANA database."""
    if _time_zones().get(name.casefold()) == name:
        return
    meant = _time_zones().get(name.casefold())
    hint = f": {meant} is meant, perhaps" if meant else ""
    raise InvalidOption(
        "time_zone",
        f"must be a name of the IANA time zone database, such as Europe/Berlin or UTC, as it is there{hint}",
    )


def _as_clocks_go(expression: str) -> str:
    """The expression in the form whose search keeps this module's word on the hours that a change of clocks takes or
    repeats: cronsim follows the clock where the minute or the hour begins with a star, and elsewhere times of day."""
    minute, hour, *days = expression.split(" ")
    if CronSim(expression, _PARSE_AT).hours == set(range(24)):
        return " ".join([minute, "*", *days])
    return " ".join([re.sub(r"^\*", "0-59", minute), re.sub(r"^\*", "0-23", hour), *days])


@cache
def _time_zones() -> dict[str, str]:
    """Every name, by itself in lower case."""
    names = resources.files("tzdata").joinpath("zones").read_text("ascii").split()
    return {name.casefold(): name for name in names if name != _NO_ZONE}
