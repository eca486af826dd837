"""Waits as counts in buckets that grow by the square root of 2, so that those of many workers and periods can be added
up, and a quantile of them is told within a fifth of itself, whatever their number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Final

FIRST_SECONDS: Final = 0.001
PER_DOUBLING: Final = 2
BUCKETS: Final = 64  # the last one holds every wait of more than three weeks


def seconds(*, claimed_at: datetime, run_after: datetime, created_at: datetime) -> float:
    """How long a task waited for its turn, from the moment that it was there and due."""
    return max((claimed_at - max(run_after, created_at)).total_seconds(), 0.0)


def bucket(seconds: float) -> int:
    """The bucket of a wait; the first one has those of up to `FIRST_SECONDS`."""
    if seconds <= FIRST_SECONDS:
        return 0
    return min(math.ceil(math.log2(seconds / FIRST_SECONDS) * PER_DOUBLING), BUCKETS - 1)


def upper_seconds(bucket: float) -> float:
    """The longest wait of a bucket."""
    return float(FIRST_SECONDS * 2 ** (bucket / PER_DOUBLING))


def quantile(counts: Sequence[int], share: float) -> float | None:
    """The seconds that this share of the waits does not exceed: the middle of their bucket, or None without waits."""
    left = math.ceil(sum(counts) * share)
    for number, count in enumerate(counts):
        left -= count
        if count and left <= 0:
            return upper_seconds(number - 0.5)
    return None
