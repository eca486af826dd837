"""What companies submit to a fleet, and who holds a hand when: real claims and settlements, by workers whose hands hold
their tasks on a simulated clock."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from bench.fairness.shares import Arrival, Held
from bench.fairness.sides import Side, Taken, company_number


@dataclass(frozen=True, slots=True)
class Company:
    """How much of the fleet is its part, and how long each of its tasks takes, in milliseconds."""

    weight: int = 1
    milliseconds: int = 1_000


@dataclass(frozen=True, slots=True)
class Load:
    """What the companies submit to how many workers, and for how many milliseconds they are watched."""

    name: str
    companies: Sequence[Company]
    workers: int
    hands: int
    arrivals: Sequence[Arrival]
    until: int

    @property
    def weights(self) -> dict[int, int]:
        return {number: company.weight for number, company in enumerate(self.companies)}

    @property
    def all_there_at(self) -> int:
        """When the last worker has begun: they do so one after another, within the first task."""
        return min(company.milliseconds for company in self.companies)

    @property
    def is_equal_work(self) -> bool:
        """Whether every company has tasks of one length, from the beginning to the end."""
        return len({company.milliseconds for company in self.companies}) == 1 and not any(
            arrival.at for arrival in self.arrivals
        )


def at_once(name: str, companies: Sequence[Company], *, workers: int, hands: int, rounds: int, tasks: int) -> Load:
    """Every company has so many tasks from the beginning, one company's after another's, for at least so many rounds
    once all workers are there."""
    work = (rounds + 1) * sum(company.weight * company.milliseconds for company in companies)
    arrivals = [Arrival(0, number, tasks) for number in range(len(companies))]
    beginning = 2 * min(company.milliseconds for company in companies)
    return Load(name, companies, workers, hands, arrivals, beginning + work // (workers * hands))


def bursts(*, workers: int, hands: int, until: int) -> Load:
    """One company has more than can be done, nine others come with forty tasks a minute, each at its own time."""
    flood = Arrival(0, 0, until * workers * hands // 1_000)
    quiet = [Arrival(number * 6_000 + at, number, 40) for number in range(1, 10) for at in range(0, until, 60_000)]
    return Load("10, a flood and bursts", [Company(1, 2_000)] * 10, workers, hands, [flood, *quiet], until)


def loads(*, small: bool) -> list[Load]:
    rounds = 20 if small else 50
    slow_and_fast = [Company(milliseconds=5_000)] * 5 + [Company(milliseconds=1_000)] * 5
    many = (
        []
        if small
        else [
            at_once("1,000, equal work", [Company()] * 1_000, workers=16, hands=16, rounds=20, tasks=30),
            at_once(
                "1,000, weights 1 to 3",
                [Company(number % 3 + 1) for number in range(1_000)],
                workers=16,
                hands=16,
                rounds=10,
                tasks=40,
            ),
        ]
    )
    return [
        at_once("1", [Company()], workers=1, hands=4, rounds=rounds, tasks=rounds + 10),
        *(
            at_once("10, equal work", [Company()] * 10, workers=workers, hands=4, rounds=rounds, tasks=rounds * 10)
            for workers in ((1, 16) if small else (1, 4, 16))
        ),
        at_once(
            "10, weights 1 to 10",
            [Company(number + 1) for number in range(10)],
            workers=16,
            hands=4,
            rounds=rounds,
            tasks=rounds * 20,
        ),
        at_once("10, slow and fast tasks", slow_and_fast, workers=16, hands=4, rounds=rounds * 3, tasks=rounds * 20),
        bursts(workers=4, hands=4, until=60_000 if small else 240_000),
        *many,
    ]


def simulate(side: Side, load: Load) -> list[Held]:
    """Have the load done, and say who held a hand when."""
    for arrival in load.arrivals:
        if arrival.at == 0:
            side.enqueue(arrival.company, arrival.tasks)
    side.ready()
    free = [load.hands] * load.workers
    later = sorted((arrival for arrival in load.arrivals if arrival.at), key=lambda arrival: arrival.at)
    ends: list[tuple[int, int, list[Taken]]] = [
        (load.all_there_at * worker // load.workers, worker, []) for worker in range(load.workers)
    ]
    held: list[Held] = []
    while (now := min((*(end[0] for end in ends[:1]), *(arrival.at for arrival in later[:1])), default=load.until)) < (
        load.until
    ):
        able = set()
        while later and later[0].at == now:
            arrival = later.pop(0)
            side.enqueue(arrival.company, arrival.tasks)
            able = {worker for worker in range(load.workers) if free[worker] and now >= load.all_there_at}
        ended: dict[int, list[Taken]] = {}
        while ends and ends[0][0] == now:
            _, worker, taken = heapq.heappop(ends)
            ended.setdefault(worker, []).extend(taken)
        for worker in sorted(able | ended.keys()):
            if done := ended.get(worker):
                side.settle(done)
                free[worker] += len(done)
            begun: dict[int, list[Taken]] = {}
            for task in side.claim(free[worker]):
                company = company_number(task.company_id)
                ends_at = now + load.companies[company].milliseconds
                held.append(Held(company, now, ends_at))
                begun.setdefault(ends_at, []).append(task)
            for ends_at, taken in begun.items():
                free[worker] -= len(taken)
                heapq.heappush(ends, (ends_at, worker, taken))
    return held
