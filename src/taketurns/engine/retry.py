"""When a failed attempt is tried again: exponential backoff with jitter and a ceiling."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Final

from taketurns.engine import limits
from taketurns.engine.errors import ConfigurationError

SHORTEST_SECONDS: Final = 0.001


@dataclass(frozen=True, slots=True)
class Backoff:
    """`first_seconds` × 2ⁿ for the n-th retry (from 0), ± `jitter` of it, never above `ceiling_seconds`.

    Waits are from a millisecond to 366 days, the jitter is from 0 to below 1. Raises ConfigurationError.
    """

    first_seconds: float = 2.0
    ceiling_seconds: float = 3600.0
    jitter: float = 0.25

    def __post_init__(self) -> None:
        for name, wait in (("first_seconds", self.first_seconds), ("ceiling_seconds", self.ceiling_seconds)):
            if not (is_number(wait) and SHORTEST_SECONDS <= wait <= limits.DELAY_SECONDS_MAX):
                raise ConfigurationError(
                    f"backoff: {name} must be from {SHORTEST_SECONDS:g} to {limits.DELAY_SECONDS_MAX:.0f}, not {wait!r}"
                )
        if not (is_number(self.jitter) and 0 <= self.jitter < 1):
            raise ConfigurationError(f"backoff: jitter must be from 0 to below 1, not {self.jitter!r}")

    def delay(self, retry_count: int, *, chance: random.Random | None = None) -> float:
        """Seconds until the next attempt of a task that has been retried `retry_count` times."""
        doublings = min(retry_count, math.ceil(math.log2(self.ceiling_seconds / self.first_seconds)) + 1)
        wanted = min(self.first_seconds * float(2**doublings), self.ceiling_seconds / (1 + self.jitter))
        spread = (chance or random).uniform(1 - self.jitter, 1 + self.jitter)
        return wanted * spread


def is_number(value: object) -> bool:
    """Whether this is a number, which Python takes a boolean for."""
    return isinstance(value, int | float) and not isinstance(value, bool)
