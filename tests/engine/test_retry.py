"""Backoff doubles from its first wait to its ceiling, spread by its jitter."""

from __future__ import annotations

import random
from statistics import mean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taketurns.engine import limits
from taketurns.engine.errors import ConfigurationError
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


@pytest.mark.parametrize("name", ["first_seconds", "ceiling_seconds", "jitter"])
@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), 1e300, "2", None, True])
def test_a_backoff_out_of_bounds_is_refused_when_it_is_made(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=name):
        Backoff(**{name: value})


@pytest.mark.parametrize(
    "wrong", [{"first_seconds": 0}, {"first_seconds": 5e-324}, {"ceiling_seconds": 0}, {"jitter": 1}]
)
def test_a_backoff_waits_at_all(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        Backoff(**wrong)


@pytest.mark.parametrize("first", [0.001, limits.DELAY_SECONDS_MAX])
@pytest.mark.parametrize("ceiling", [0.001, limits.DELAY_SECONDS_MAX])
@pytest.mark.parametrize("jitter", [0, 0.999])
def test_a_backoff_at_its_bounds_waits(first: float, ceiling: float, jitter: float) -> None:
    assert 0 < Backoff(first, ceiling, jitter).delay(limits.MAX_RETRIES_MAX) <= ceiling * (1 + 1e-9)
