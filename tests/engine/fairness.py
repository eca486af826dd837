"""How even turns came out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction


def spread(taken: Sequence[str], weighted: Mapping[str, int]) -> Fraction:
    """How far turns / weight of any two companies ever were apart."""
    counts = dict.fromkeys(weighted, 0)
    widest = Fraction(0)
    for name in taken:
        counts[name] += 1
        levels = [Fraction(counts[other], weight) for other, weight in weighted.items()]
        widest = max(widest, max(levels) - min(levels))
    return widest
