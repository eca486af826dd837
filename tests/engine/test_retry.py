"""Backoff doubles from its first wait to its ceiling, spread by its jitter."""

from __future__ import annotations

import random
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taketurns.engine.retry import Backoff

backoffs = st.builds(
    Backoff,
    first_seconds=st.floats(0.001, 1_000),
    ceiling_seconds=st.floats(0.001, 1_000_000),
    jitter=st.floats(0, 0.99),
)


@pytest.mark.parametrize(
    ("retry_count", "seconds"), [(0, 2), (1, 4), (2, 8), (3, 16), (10, 2048), (11, 2880), (12, 2880), (1_000, 2880)]
)
def test_waits_double_until_the_ceiling(retry_count: int, seconds: float) -> None:
    chance = random.Random(1)
    waits = [Backoff().delay(retry_count, chance=chance) for _ in range(2_000)]
    assert mean(waits) == pytest.approx(seconds, rel=0.02)
    assert min(waits) >= 0.75 * seconds
    assert max(waits) <= 1.25 * seconds


@given(backoffs, st.integers(0, 100_000), st.randoms())
def test_a_wait_is_above_zero_and_never_above_the_ceiling(
    backoff: Backoff, retry_count: int, chance: random.Random
) -> None:
    assert 0 < backoff.delay(retry_count, chance=chance) <= backoff.ceiling_seconds * (1 + 1e-9)


@given(backoffs, st.integers(0, 50))
def test_a_later_wait_is_not_shorter(backoff: Backoff, retry_count: int) -> None:
    def delay(count: int) -> float:
        return backoff.delay(count, chance=random.Random(0))

    assert delay(retry_count) <= delay(retry_count + 1) * (1 + 1e-9)


def test_attempts_that_failed_together_do_not_come_back_together() -> None:
    waits = {Backoff().delay(3) for _ in range(100)}
    assert len(waits) == 100
