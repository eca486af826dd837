"""What makes a budget, and what a provider's Retry-After says. Fault 176."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from taketurns.engine import budget
from taketurns.engine.errors import ConfigurationError

WEDNESDAY = datetime(2026, 10, 21, 7, 28, tzinfo=UTC)


@pytest.mark.parametrize(
    ("said", "understood"),
    [
        ("120", 120.0),
        (" 1.5 ", 1.5),
        ("-5", -5.0),
        ("5, 10", 10.0),
        ("Wed, 21 Oct 2026 07:28:00 GMT", WEDNESDAY),
        (90, 90.0),
        (-90, 0.0),
        (math.inf, budget.COOLDOWN_SECONDS_MOST),
        (timedelta(minutes=1), 60.0),
        (WEDNESDAY, WEDNESDAY),
        (WEDNESDAY.replace(tzinfo=None), WEDNESDAY),
    ],
)
def test_a_wait_is_understood_as_seconds_or_a_moment(said: budget.RetryAfter, understood: budget.Wait) -> None:
    assert budget.asked(said) == understood


@pytest.mark.parametrize(
    "said", [None, "", " ", "soon", "1e9", "٣", "9" * 400, "5, soon", "Wed, 99 Oct 2026", math.nan, "\x00", b"5"]
)
def test_what_cannot_be_understood_says_nothing(said: Any) -> None:
    assert budget.asked(said) is None


def test_a_cooldown_has_bounds() -> None:
    assert [budget.bounded(seconds) for seconds in (-5, 0, 60, 1e9, math.inf)] == [1, 1, 60, 86_400, 86_400]


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": 1_000_001}, "limit"),
        ({"per": "0s"}, "per"),
        ({"per": "1 fortnight"}, "90s"),
        ({"per": math.nan}, "number of seconds"),
        ({"per": timedelta(days=32)}, "per"),
        ({"cooldown": "a while"}, "90s"),
        ({"name": ""}, "name"),
        ({"name": "a\x00b"}, "name"),
    ],
)
def test_a_budget_that_makes_no_sense_is_refused(wrong: dict[str, Any], complaint: str) -> None:
    given: dict[str, Any] = {"name": "mail", "limit": 100, "per": "1h", "cooldown": "1m", "is_per_company": False}
    with pytest.raises(ConfigurationError, match=complaint):
        budget.new(**{**given, **wrong})
