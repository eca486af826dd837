"""The rule of taking turns: a smooth weighted rotation in which what a company already holds counts.

Place. The rotation of a queue is measured in rounds. In each round a company of weight w has w turns, at the places
(n - 1/2) / w for whole n. The turn with the smallest place is next; equal places go by company. The rotation's own
place is that of the furthest turn taken, and never goes back. Having taken a turn, a company's next one is its first
place after both that turn and the rotation: late turns are made up for within a round, never saved. A newcomer's
first turn is at the place that the rotation has reached. A company whose work has run out keeps its place until the
rotation has passed it, and is a newcomer after that; a rotation that finds nobody to serve goes on to the last such
place. (Start-time fair queuing, on a grid: Goyal, Vin, Cheng 1996.)

Share. Of the hands that the companies which wait hold, the batch being claimed included, each may hold
ceil(hands × weight / Σ weight), Σ over those companies, and is passed over while it holds as many; nor does any of them
take the last hand for itself while another waits. What is held by others, who want no more, is not shared: shares are
max-min. When nobody is found, it is counted anew who waits now that some have run out or reached a limit; when then
nobody is found either, shares are lifted for what is left of the batch. Limits (`max_in_flight`, rate, pause) are never
lifted: a company that has reached one is passed over, and does not count as one that waits. It keeps its place. So it
is with one whose line is paused, in that queue alone. Tasks of a paused type do not count as waiting; a line keeps its
place until they are set aside. (decisions/0023)

Queues. Each has a rotation of its own; a claim of several takes them in the order in which they are named. Hands and
limits are the company's, whatever the queue.

This is the rule as a plain model, exact and slow; `claim.sql` is the one that runs, held to this one by the tests.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction


@dataclass(slots=True)
class Company:
    """What the rule knows of one company. `starts_left` is what its rate leaves it in this claim: see `rate`."""

    weight: int = 1
    held: int = 0
    max_in_flight: int | None = None
    paused: bool = False
    starts_left: int | None = None

    @property
    def is_below_its_limits(self) -> bool:
        return (self.max_in_flight is None or self.held < self.max_in_flight) and self.starts_left != 0


@dataclass(slots=True)
class Rotation:
    """The rotation of one queue: the place it has reached, and how many tasks wait in each company's line, and where
    its next turn is. `paused` are the companies whose line is given no turn, `blocked` those in whose line tasks of a
    paused type stand that are not set aside."""

    place: Fraction = Fraction(0)
    waiting: dict[str, int] = field(default_factory=dict)
    places: dict[str, Fraction] = field(default_factory=dict)
    paused: frozenset[str] = frozenset()
    blocked: frozenset[str] = frozenset()

    def rests(self, name: str) -> bool:
        """Whether a line has tasks that wait for the end of a pause."""
        return name in self.blocked or (name in self.paused and self.waiting.get(name, 0) > 0)


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn taken."""

    queue: str
    company: str


def place_after(place: Fraction, weight: int) -> Fraction:
    """The first place of a company's turns after this one."""
    return (math.floor(place * weight + Fraction(1, 2)) + Fraction(1, 2)) / weight


def share(hands: int, weight: int, total_weight: int, *, others_wait: bool) -> int:
    """How many of the hands that are to be shared a company may hold while others wait."""
    fair = math.ceil(Fraction(hands * weight, total_weight))
    return min(fair, max(hands - 1, 1)) if others_wait else fair


def take(
    companies: Mapping[str, Company], rotations: Mapping[str, Rotation], queues: Sequence[str], batch: int
) -> list[Turn]:
    """The next `batch` turns, in order; moves companies and rotations as the claim would.

    `rotations` are all queues of the cell, `queues` those that are claimed from, in order.
    """
    for queue in queues:
        _meet_newcomers(companies, rotations[queue])
    turns: list[Turn] = []
    while found := _walk(companies, rotations, queues, left := batch - len(turns), _shares(companies, rotations, left)):
        turns += found
    return turns + _walk(companies, rotations, queues, batch - len(turns))


def _shares(companies: Mapping[str, Company], rotations: Mapping[str, Rotation], batch: int) -> dict[str, int]:
    waiting = {name for name in _waiting(companies, rotations.values()) if companies[name].is_below_its_limits}
    hands = sum(companies[name].held for name in waiting) + batch
    total_weight = sum(companies[name].weight for name in waiting)
    return {name: share(hands, companies[name].weight, total_weight, others_wait=len(waiting) > 1) for name in waiting}


def _walk(
    companies: Mapping[str, Company],
    rotations: Mapping[str, Rotation],
    queues: Sequence[str],
    batch: int,
    shares: Mapping[str, int] | None = None,
) -> list[Turn]:
    """Turns of those who are below their limits and shares, or below their limits alone if there are no shares."""
    turns: list[Turn] = []
    for queue in queues:
        while len(turns) < batch:
            able = [
                name
                for name in _waiting(companies, [rotations[queue]])
                if companies[name].is_below_its_limits and (shares is None or companies[name].held < shares[name])
            ]
            if not able:
                if shares is None:
                    _pass_idle_places(companies, rotations[queue])
                break
            turns.append(Turn(queue, _take_one(companies, rotations[queue], able)))
    return turns


def _waiting(companies: Mapping[str, Company], rotations: Iterable[Rotation]) -> set[str]:
    """The companies that have tasks waiting and may be served."""
    return {
        name
        for rotation in rotations
        for name, count in rotation.waiting.items()
        if count and not companies[name].paused and name not in rotation.paused
    }


def _meet_newcomers(companies: Mapping[str, Company], rotation: Rotation) -> None:
    waiting = _waiting(companies, [rotation])
    for name, place in list(rotation.places.items()):
        keeps = rotation.rests(name) and not companies[name].paused
        if name not in waiting and not keeps and place <= rotation.place:
            del rotation.places[name]
    for name in waiting:
        rotation.places.setdefault(name, rotation.place)


def _pass_idle_places(companies: Mapping[str, Company], rotation: Rotation) -> None:
    waiting = _waiting(companies, [rotation])
    idle = [
        name
        for name in rotation.places
        if name not in waiting
        and (companies[name].paused or (companies[name].is_below_its_limits and not rotation.rests(name)))
    ]
    rotation.place = max(rotation.place, *(rotation.places[name] for name in idle), rotation.place)


def _take_one(companies: Mapping[str, Company], rotation: Rotation, able: Iterable[str]) -> str:
    name = min(able, key=lambda name: (rotation.places[name], name))
    rotation.place = max(rotation.place, rotation.places[name])
    rotation.places[name] = place_after(rotation.place, companies[name].weight)
    rotation.waiting[name] -= 1
    company = companies[name]
    company.held += 1
    if company.starts_left is not None:
        company.starts_left -= 1
    return name
