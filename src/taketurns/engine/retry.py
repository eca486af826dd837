"""When a failed attempt is tried again: exponential backoff with jitter and a ceiling."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """`first_seconds` × 2ⁿ for the n-th retry (from 0), ± `jitter` of it, never above `ceiling_seconds`."""

    first_seconds: float = 2.0
    ceiling_seconds: float = 3600.0
    jitter: float = 0.25

    def delay(self, retry_count: int, *, chance: random.Random | None = None) -> float:
        """Seconds until the next attempt of a task that has been retried `retry_count` times."""
        doublings = min(retry_count, math.ceil(math.log2(self.ceiling_seconds / self.first_seconds)) + 1)
        wanted = min(self.first_seconds * float(2**doublings), self.ceiling_seconds / (1 + self.jitter))
        spread = (chance or random).uniform(1 - self.jitter, 1 + self.jitter)
        return wanted * spread
