"""Places in the rotation as both brokers keep them, whole units of a round, and as the rule has them, exact."""

from __future__ import annotations

import random
from collections.abc import Iterator
from fractions import Fraction

from taketurns.engine import turns

ROUND = 32_768
LARGEST_WEIGHT = 100


def turns_of_a_round(weight: int) -> Iterator[Fraction]:
    """Where the turns of this weight are."""
    return (Fraction(2 * turn - 1, 2 * weight) for turn in range(1, weight + 1))


FRACTIONS = sorted({turn for weight in range(1, LARGEST_WEIGHT + 1) for turn in turns_of_a_round(weight)})
"""Every place within a round but its beginning."""

_PLACES = {int(place * ROUND): place for place in (Fraction(0), *FRACTIONS)}


def exact(units: int) -> Fraction:
    """A place in rounds."""
    rounds, within = divmod(units, ROUND)
    return rounds + _PLACES[within]


def steps_of_every_place() -> list[tuple[int, int]]:
    """Each place within a round with weights to go on by: the lightest, the heaviest and some others."""
    chance = random.Random(7)
    return [(place, weight) for place in _PLACES for weight in {1, 99, 100, *chance.choices(range(1, 101), k=5)}]


def is_the_next(after: int, *, place: int, weight: int, rounds: int) -> bool:
    """Whether what a broker tells is the place that the rule tells, so many rounds later."""
    return exact(after) == turns.place_after(exact(place) + rounds, weight)
