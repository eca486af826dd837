"""The rule of taking turns: a smooth weighted rotation in which what a company already holds counts.

Place. The rotation of a queue is measured in rounds. In each round a company of weight w has w turns, at the places
(n - 1/2) / w for whole n. The turn with the smallest place is next; equal places go by company. The rotation's own
place is that of the furthest turn taken, and never goes back. Having taken a turn, a company's next one is its first
place after both that turn and the rotation: late turns are made up for within a round, never saved. A newcomer's
first turn is at the place that the rotation has reached. (Start-time fair queuing, on a grid: Goyal, Vin, Cheng 1996.)

Share. `hands` are the task slots in use in the whole fleet, the batch being claimed included. A company is passed over
while it holds ceil(hands × weight / Σ weight) of them, Σ over the companies that have tasks waiting or running; nor
does any company take the last hand for itself while another waits. When nobody else is found, shares are lifted for
what is left of the batch. Limits (`max_in_flight`, pause) are never lifted.

This is the rule as a plain model, exact and slow; `claim.sql` is the one that runs, held to this one by the tests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction


@dataclass(slots=True)
class Line:
    """What the rule knows of one company in one queue."""

    company: str
    weight: int = 1
    waiting: int = 0
    held: int = 0
    max_in_flight: int | None = None
    paused: bool = False
    place: Fraction = Fraction(0)
    has_place: bool = False


def place_after(place: Fraction, weight: int) -> Fraction:
    """The first place of a company's turns after this one."""
    return (math.floor(place * weight + Fraction(1, 2)) + Fraction(1, 2)) / weight


def share(hands: int, weight: int, total_weight: int, *, others_wait: bool) -> int:
    """How many hands a company may hold while others wait."""
    fair = math.ceil(Fraction(hands * weight, total_weight))
    return min(fair, max(hands - 1, 1)) if others_wait else fair


@dataclass(slots=True)
class Rotation:
    """The rotation of one queue: `take` is the rule."""

    place: Fraction = Fraction(0)

    def take(self, lines: Sequence[Line], batch: int) -> list[str]:
        """The companies whose turns the next `batch` are, in order; updates the lines as the claim would."""
        hands = sum(line.held for line in lines) + batch
        waiting = [line for line in lines if line.waiting and not line.paused]
        total_weight = sum(line.weight for line in lines if line.held or line in waiting)
        allowed = {
            line.company: share(hands, line.weight, total_weight, others_wait=len(waiting) > 1) for line in waiting
        }
        for line in waiting:
            if not line.has_place:
                line.place, line.has_place = self.place, True
        turns: list[str] = []
        for lifted in (False, True):
            while len(turns) < batch:
                able = [
                    line
                    for line in waiting
                    if line.waiting
                    and (line.max_in_flight is None or line.held < line.max_in_flight)
                    and (lifted or line.held < allowed[line.company])
                ]
                if not able:
                    break
                line = min(able, key=lambda line: (line.place, line.company))
                self.place = max(self.place, line.place)
                line.place = place_after(self.place, line.weight)
                line.waiting -= 1
                line.held += 1
                turns.append(line.company)
        return turns
