"""What each company got against what was its fair share, Jain's index of it, and percentiles of waits. Plain arithmetic
on what a run has recorded; `loads.py` makes the runs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Arrival:
    """So many tasks that a company submits at a moment."""

    at: int
    company: int
    tasks: int


@dataclass(frozen=True, slots=True)
class Held:
    """One task of a company, and the moments between which it held a hand."""

    company: int
    began_at: int
    ended_at: int


def jain(amounts: Collection[float]) -> float:
    """1 when everybody has the same, 1/n when one has everything (Jain, Chiu, Hawe 1984)."""
    squares = len(amounts) * sum(amount * amount for amount in amounts)
    return sum(amounts) ** 2 / squares if squares else 1.0


def percentile(figures: Collection[float], percent: float) -> float:
    """The smallest figure that `percent` of 100 do not exceed; a wait without an end may be infinite."""
    return sorted(figures)[max(math.ceil(len(figures) * percent / 100), 1) - 1]


def fair_hands(hands: float, weights: Mapping[int, int], open_tasks: Mapping[int, int]) -> dict[int, float]:
    """The hands that each company should hold: by weight, none more than it has tasks, and what one leaves goes to the
    others."""
    fair: dict[int, float] = {}
    wanting = {company: tasks for company, tasks in open_tasks.items() if tasks}
    while wanting:
        hand = hands / sum(weights[company] for company in wanting)
        content = [company for company, tasks in wanting.items() if tasks <= hand * weights[company]]
        if not content:
            return fair | {company: hand * weights[company] for company in wanting}
        for company in content:
            fair[company] = float(wanting.pop(company))
            hands -= fair[company]
    return fair


def served_against_fair(
    arrivals: Iterable[Arrival], held: Sequence[Held], weights: Mapping[int, int], *, until: int
) -> dict[int, float]:
    """The slot-seconds of each company that had work, over those that were its fair part of the slots in use, moment by
    moment, until then: 1 is its fair share."""
    changes = [(arrival.at, arrival.company, arrival.tasks, 0) for arrival in arrivals]
    for task in held:
        changes += [(task.began_at, task.company, 0, 1), (task.ended_at, task.company, -1, -1)]
    fair: dict[int, float] = {}
    open_tasks: dict[int, int] = {}
    in_use = 0
    changes.sort()
    for (at, company, tasks, hands), (next_at, *_) in pairwise([*changes, (until, 0, 0, 0)]):
        open_tasks[company] = open_tasks.get(company, 0) + tasks
        in_use += hands
        seconds = min(next_at, until) - at
        if seconds > 0:
            for entitled, part in fair_hands(in_use, weights, open_tasks).items():
                fair[entitled] = fair.get(entitled, 0.0) + part * seconds
    served = dict.fromkeys(fair, 0)
    for task in held:
        if task.began_at < until:
            served[task.company] += min(task.ended_at, until) - task.began_at
    return {company: served[company] / part for company, part in fair.items() if part}


def in_windows(held: Iterable[Held], weights: Mapping[int, int], *, rounds: int, after: int = 0) -> Iterator[float]:
    """Jain's index of the slot-seconds per weight, of the tasks begun in each window of so many rounds. In a round
    every company has as many turns as its weight; all of them have work throughout. Rounds that began before `after`
    are left out."""
    begun = sorted(held, key=lambda task: task.began_at)
    a_round = sum(weights.values())
    turns = rounds * a_round
    before = sum(task.began_at < after for task in begun)
    for first in range(math.ceil(before / a_round) * a_round, len(begun) - turns + 1, turns):
        served = dict.fromkeys(weights, 0)
        for task in begun[first : first + turns]:
            served[task.company] += task.ended_at - task.began_at
        yield jain([served[company] / weight for company, weight in weights.items()])
