"""Places of the rotation as whole units."""

from __future__ import annotations

from itertools import pairwise

from tests.brokers.places import FRACTIONS, ROUND


def test_places_are_ordered_and_told_apart_by_their_units() -> None:
    units = [int(place * ROUND) for place in FRACTIONS]
    assert all(earlier < later for earlier, later in pairwise(units))
