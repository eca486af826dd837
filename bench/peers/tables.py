"""What was measured, as tables: medians of the rounds, each beside ours on the same store."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from bench import results
from bench.peers.catalogue import Peer, Scenario


@dataclass(slots=True)
class Measured:
    """All that was measured of one peer: figures by name, one of each round; what went wrong, by scenario."""

    peer: Peer
    version: str = ""
    figures: dict[str, list[float]] = field(default_factory=dict)
    failures: dict[Scenario, str] = field(default_factory=dict)

    def add(self, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self.figures.setdefault(name, []).append(value)

    def median(self, name: str) -> float | None:
        values = self.figures.get(name)
        return statistics.median(values) if values else None

    def total(self, *names: str) -> int:
        return round(sum(sum(self.figures.get(name, [])) for name in names))


Cell = Callable[[Measured, Measured | None], str]


def rate(name: str) -> Cell:
    """The median of a rate, and its range where there were several rounds."""

    def cell(measured: Measured, _: Measured | None) -> str:
        values = measured.figures.get(name, [])
        if not values:
            return "–"
        middle = f"{statistics.median(values):,.0f}"
        return f"{middle} ({min(values):,.0f} to {max(values):,.0f})" if len(values) > 1 else middle

    return cell


def number(name: str, form: str = ",.2f") -> Cell:
    """The median."""

    def cell(measured: Measured, _: Measured | None) -> str:
        value = measured.median(name)
        return "–" if value is None else format(value, form)

    return cell


def total(*names: str) -> Cell:
    """The sums of all rounds, which ought to be 0."""

    def cell(measured: Measured, _: Measured | None) -> str:
        if not any(name in measured.figures for name in names):
            return "–"
        return " / ".join(str(measured.total(name)) for name in names)

    return cell


def times(name: str, *, less_is_better: bool = False) -> Cell:
    """How many times as good ours is."""

    def cell(measured: Measured, ours: Measured | None) -> str:
        of_ours, of_it = ours and ours.median(name), measured.median(name)
        if measured is ours or not of_ours or not of_it:
            return "–"
        return f"{of_it / of_ours if less_is_better else of_ours / of_it:,.2f} ×"

    return cell


COLUMNS: Final[Mapping[Scenario, Mapping[str, Cell]]] = {
    "enqueue": {
        "one by one, tasks/s": rate("singles_per_second"),
        "ours to it": times("singles_per_second"),
        "bulk, tasks/s": rate("bulk_per_second"),
        "ours to it ": times("bulk_per_second"),
    },
    "drain": {
        "tasks/s": rate("drained_per_second"),
        "ours to it": times("drained_per_second"),
        "tasks": number("tasks", ",.0f"),
        "lost / run again": total("lost", "again"),
        "worker CPU, s/1,000": number("worker_cpu_seconds", ".3f"),
        "server CPU, s/1,000": number("server_cpu_seconds", ".3f"),
        "worker memory, MiB": number("peak_mebibytes", ",.0f"),
    },
    "pickup": {
        "p50, ms": number("p50_ms"),
        "ours to it": times("p50_ms", less_is_better=True),
        "p99, ms": number("p99_ms"),
        "ours to it ": times("p99_ms", less_is_better=True),
        "idle worker, cores": number("idle_worker", ".3f"),
        "idle server, cores": number("idle_server", ".3f"),
    },
    "flood": {
        "quiet company done, s": number("quiet_seconds", ",.3f"),
        "ours to it": times("quiet_seconds", less_is_better=True),
        "of the flood before it": number("flood_before", ".1%"),
        "all, tasks/s": rate("flood_per_second"),
        "ours to it ": times("flood_per_second"),
        "lost / run again": total("flood_lost", "flood_again"),
    },
    "snapshot": {
        "first, tasks/s": number("held_first", ",.0f"),
        "last, tasks/s": number("held_last", ",.0f"),
        "last to first": number("held_ratio"),
        "tasks": number("held_tasks", ",.0f"),
    },
    "crash": {
        "all done after, s": number("recovered_seconds", ",.1f"),
        "ours to it": times("recovered_seconds", less_is_better=True),
        "lost / run again": total("crash_lost", "crash_again"),
    },
}
TITLES: Final[Mapping[Scenario, str]] = {
    "enqueue": "Enqueue, one connection",
    "drain": "Drain: handlers that do nothing, one worker process",
    "pickup": "Pickup by an idle worker",
    "flood": "Ten tasks of a quiet company behind a flood of another's; handlers of 1 ms, ten at once",
    "snapshot": "Drain under a held snapshot",
    "crash": "`kill -9` of one of two workers, 50 tasks in its hands, as they recover by default",
}
NOTES: Final[Mapping[Scenario, str]] = {
    "enqueue": "–: it has no bulk call.",
    "drain": "From the first handler's start until the store shows all as done. Memory is the most of the worker's"
    " processes together. Tasks of ours are of 20 companies, and every claim is fair between them.",
    "pickup": "From before the enqueue to the start of the handler, a task every 10 to 30 ms, in a worker with the"
    " hands of the drain.",
    "flood": "From before the ten are enqueued until the last of them is done; –: it was not within the time given.",
    "snapshot": "A transaction that was open before the first task was enqueued stays open. First and last: 20,000"
    " tasks, a third of all at most. Peers that drain slowly have fewer tasks.",
    "crash": "From the kill until every task has been run to its end. Run again: handlers that had ended before; –: not"
    " all were done within two minutes.",
}


def reference(measured: Sequence[Measured], peer: Peer) -> Measured | None:
    """Ours on the same store, with async handlers: the first that there is."""
    return next((each for each in measured if each.peer.is_ours and each.peer.store == peer.store), None)


def table(scenario: Scenario, measured: Sequence[Measured]) -> str:
    """A line for every peer that took part: PostgreSQL first, ours first."""
    columns = COLUMNS[scenario]
    rows = []
    for each in sorted(measured, key=lambda each: (each.peer.store, not each.peer.is_ours)):
        if not each.peer.takes_part_in(scenario):
            continue
        ours = reference(measured, each.peer)
        cells = [cell(each, ours) for cell in columns.values()]
        if scenario in each.failures:
            cells = _with_failure(cells, each.failures[scenario])
        rows.append([each.peer.name, each.peer.store, *cells])
    header = ["", "store", *(title.strip() for title in columns)]
    return results.table(header, rows)


def _with_failure(cells: list[str], reason: str) -> list[str]:
    """Beside the figures of the rounds before it, if there are any."""
    told = f"failed: {reason.replace('|', '/')}"
    if all(cell == "–" for cell in cells):
        return [told, *cells[1:]]
    return [*cells[:-1], f"{cells[-1]}; {told}"]


def report(measured: Sequence[Measured], scenarios: Sequence[Scenario], *, rounds: int) -> str:
    """All tables, and with what settings and versions they came about."""
    parts = [
        f"### {TITLES[scenario]}\n\n{table(scenario, measured)}\n\n{NOTES[scenario]}"
        for scenario in scenarios
        if any(each.peer.takes_part_in(scenario) for each in measured)
    ]
    versions = results.table(
        ["", "version", "settings"], [[each.peer.name, each.version, each.peer.settings] for each in measured]
    )
    others = max((value for each in measured for value in each.figures.get("others_cores", [])), default=0.0)
    closing = (
        f"Medians of {rounds} round{'s' * (rounds > 1)} in turn, lowest and highest in brackets; the held snapshot and"
        " the crash once. *Ours to it*: how many times as quick ours is, on the same store with async handlers."
        " Producer, worker and server share the machine. What else ran on it during drains used"
        f" {others:.2f} cores at most."
    )
    return "\n\n".join([*parts, f"### Versions and settings\n\n{versions}", closing])
