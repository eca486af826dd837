"""Budgets of providers that bear only so many calls in a time: what one is, and what a provider's Retry-After asks.

The calls of any window of `per_seconds`, wherever it begins, are never more than `limit`, whatever the interleaving of
workers; see decisions/0008 and `budget.sql`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final, Protocol
from uuid import UUID

from taketurns.engine import durations
from taketurns.engine.errors import ConfigurationError

NAME_LENGTH: Final = 128
LIMIT_MAX: Final = 1_000_000
PER_SECONDS_LEAST: Final = 0.1
PER_SECONDS_MOST: Final = 31 * 86_400.0
COOLDOWN_SECONDS_LEAST: Final = 1.0
COOLDOWN_SECONDS_MOST: Final = 86_400.0

_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,15}(\.[0-9]{1,9})?")

Wait = float | datetime
RetryAfter = str | float | timedelta | datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """`limit` calls in any `per_seconds`. Of one company each, or one for all the companies of the cell."""

    name: str
    limit: int
    per_seconds: float
    cooldown_seconds: float
    is_per_company: bool = False

    def __post_init__(self) -> None:
        if not (0 < len(self.name) <= NAME_LENGTH and self.name.isprintable()):
            raise ConfigurationError(f"a budget's name must be 1 to {NAME_LENGTH} printable characters")
        if not 1 <= self.limit <= LIMIT_MAX:
            raise ConfigurationError(f"budget {self.name!r}: limit must be 1 to {LIMIT_MAX:,}, not {self.limit}")
        if not PER_SECONDS_LEAST <= self.per_seconds <= PER_SECONDS_MOST:
            raise ConfigurationError(f"budget {self.name!r}: per must be 0.1 seconds to 31 days")


class Budgets(Protocol):
    """Where budgets are kept, for all workers, by one clock."""

    async def spend(self, budget: Budget, *, company_id: UUID) -> float | None:
        """Take one call out of the budget; None when it was had, else the seconds until it is worth asking again.

        Never sooner than the budget has room, and those who ask are sent apart. Raises Unavailable.
        """
        ...

    async def cool_down(self, budget: Budget, wait: Wait, *, company_id: UUID) -> float:
        """Let nobody spend for so long, or until that moment, within bounds; answers the seconds as from `spend`."""
        ...


def new(
    name: str,
    *,
    limit: int,
    per: str | float | timedelta,
    cooldown: str | float | timedelta,
    is_per_company: bool,
) -> Budget:
    """A budget as a handler describes it. Raises ConfigurationError."""
    try:
        per_seconds, cooldown_seconds = durations.seconds(per), durations.seconds(cooldown)
    except ValueError as error:
        raise ConfigurationError(f"budget {name!r}: {error}") from error
    return Budget(
        name=name,
        limit=limit,
        per_seconds=per_seconds,
        cooldown_seconds=bounded(cooldown_seconds),
        is_per_company=is_per_company,
    )


def asked(retry_after: RetryAfter) -> Wait | None:
    """What a provider asks for: seconds, or a moment; None when it says nothing that can be understood (fault 176)."""
    match retry_after:
        case str():
            return _read(retry_after.strip())
        case timedelta():
            return retry_after.total_seconds()
        case datetime():
            return retry_after if retry_after.tzinfo is not None else retry_after.replace(tzinfo=UTC)
        case int() | float() if not math.isnan(retry_after):
            return float(min(max(retry_after, 0), COOLDOWN_SECONDS_MOST))
    return None


def bounded(seconds: float) -> float:
    """A cooldown within its bounds."""
    return min(max(seconds, COOLDOWN_SECONDS_LEAST), COOLDOWN_SECONDS_MOST)


def _read(said: str) -> Wait | None:
    """Several headers come joined by commas; the longest wait counts."""
    numbers = [part.strip() for part in said.split(",")]
    if all(_NUMBER.fullmatch(number) for number in numbers):
        return max(float(number) for number in numbers)
    try:
        moment = parsedate_to_datetime(said)
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None
