"""Waits are counted in buckets, added up and asked for quantiles, and stay what they were within a fifth."""

from __future__ import annotations

import math
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taketurns.engine import waits

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
SECONDS = st.floats(min_value=0.0, max_value=14 * 24 * 3600.0)


@given(SECONDS)
def test_a_wait_lies_between_the_bounds_of_its_bucket(seconds: float) -> None:
    bucket = waits.bucket(seconds)
    assert seconds <= waits.upper_seconds(bucket) * (1 + 1e-9)
    assert bucket == 0 or seconds > waits.upper_seconds(bucket - 1) * (1 - 1e-9)


@given(
    st.lists(st.floats(min_value=0.001, max_value=1_000_000.0), min_size=1, max_size=200), st.sampled_from([0.5, 0.95])
)
def test_a_quantile_is_told_within_a_fifth(seconds: list[float], share: float) -> None:
    counts = Counter(map(waits.bucket, seconds))
    told = waits.quantile([counts[bucket] for bucket in range(waits.BUCKETS)], share)
    assert told == pytest.approx(sorted(seconds)[math.ceil(len(seconds) * share) - 1], rel=0.2)


def test_without_waits_there_is_no_quantile() -> None:
    assert waits.quantile([], 0.5) is None
    assert waits.quantile([0, 0], 0.95) is None


def test_a_wait_longer_than_all_buckets_is_in_the_last_one() -> None:
    assert waits.bucket(1e12) == waits.BUCKETS - 1


def test_a_task_waits_from_when_it_is_there_and_due() -> None:
    def waited(run_after: int, created_at: int) -> float:
        due, created = NOON + timedelta(seconds=run_after), NOON + timedelta(seconds=created_at)
        return waits.seconds(claimed_at=NOON, run_after=due, created_at=created)

    assert waited(-5, -60) == 5
    assert waited(-3600, -60) == 60
    assert waited(1, 0) == 0
