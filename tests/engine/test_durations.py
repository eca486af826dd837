"""Lengths of time as people write them."""

from datetime import timedelta

import pytest

from taketurns.engine import durations


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("90s", 90), ("10m", 600), ("1.5h", 5400), (" 7d ", 604_800), (12, 12), (timedelta(minutes=2), 120)],
)
def test_a_length_is_a_number_and_a_unit(written: str | float | timedelta, seconds: float) -> None:
    assert durations.seconds(written) == seconds


@pytest.mark.parametrize("written", ["", "10", "10 minutes", "-5m", "1h30m", "m", "1e3s", float("inf")])
def test_anything_else_is_refused(written: str | float) -> None:
    with pytest.raises(ValueError, match="length of time"):
        durations.seconds(written)


@pytest.mark.parametrize(
    ("seconds", "told"), [(0, "0s"), (-3, "0s"), (59.4, "59s"), (3_600, "1h"), (7_503, "2h 5m"), (90_061, "1d 1h")]
)
def test_a_length_is_told_in_its_two_largest_units(seconds: float, told: str) -> None:
    assert durations.told(seconds) == told
