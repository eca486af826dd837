"""Who is served when many want to be: the shares of companies, and the waits of quiet ones beside a flood, by our
claim, by a plain SKIP LOCKED FIFO and by LATERAL, with the same load in the same run."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench import results
from bench.fairness import shares, waits
from bench.fairness.loads import Load, loads, simulate
from bench.fairness.sides import SIDES, built
from bench.fairness.waits import Quiet, Waits
from bench.server import described, measured_server
from taketurns.storage.embedded import PostgresServer

PLOTS: Final = Path(__file__).parents[1] / "plots"
ROUNDS_IN_A_WINDOW: Final = 10


@dataclass(frozen=True, slots=True)
class Shares:
    """What came of a load on one side: what each company that had work got of its fair share, and the lowest index of
    any window, where every company has the same work."""

    load: Load
    side: str
    of_fair: dict[int, float]
    worst_window: float | None

    @property
    def jain(self) -> float:
        return shares.jain(self.of_fair.values())


def measure_shares(server: PostgresServer, every: Sequence[Load]) -> list[Shares]:
    measured = []
    for number, load in enumerate(every):
        for kind in SIDES:
            began = time.monotonic()
            side = kind(built(kind, server, f"shares_{number}", list(load.weights.values())))
            held = simulate(side, load)
            side.connection.close()
            windows = list(shares.in_windows(held, load.weights, rounds=ROUNDS_IN_A_WINDOW, after=load.all_there_at))
            measured.append(
                Shares(
                    load,
                    kind.name,
                    shares.served_against_fair(load.arrivals, held, load.weights, until=load.until),
                    min(windows) if windows and load.is_equal_work else None,
                )
            )
            print(f"{load.name}: {kind.name}, {len(held):,} tasks in {time.monotonic() - began:.0f} s")
    return measured


def shares_table(measured: Sequence[Shares]) -> str:
    rows = []
    for each in measured:
        least, most = min(each.of_fair.values()), max(each.of_fair.values())
        rows.append(
            [
                each.load.name,
                str(each.load.workers),
                each.side,
                f"{each.jain:.4f}",
                "–" if each.worst_window is None else f"{each.worst_window:.4f}",
                f"{least:.2f} ×",
                f"{most:.2f} ×",
            ]
        )
    header = ["companies", "workers", "claim", "Jain", "worst window", "least to fair", "most to fair"]
    return results.table(header, rows) + (
        "\n\nA company's share is its slot-seconds over its fair part, by weight, of the slots in use while it had"
        " work; Jain's index is over the companies that had. A window is"
        f" {ROUNDS_IN_A_WINDOW} rounds, in each of which a company has as many turns as its weight; its index is of"
        " slot-seconds per weight, once all workers are there, and is told where all tasks take one second and are"
        " there from the beginning, one company's after another's. Slow tasks take 5 s. Claims and settlements are"
        " real, the seconds simulated. Bar for equal work: ≥ 0.999, in every window. Drawn, with the waits:"
        " [plots/fairness.png](plots/fairness.png)."
    )


def waits_table(measured: Sequence[Waits], quiet: Quiet) -> str:
    idle = {each.side: each.p95 for each in measured if not each.flood}
    rows = [
        [
            f"{each.flood:,}" if each.flood else "none",
            each.side,
            f"{len(each.seconds):,}",
            _milliseconds(each.median),
            _milliseconds(each.p95),
            "–" if math.isinf(each.p95) else f"{each.p95 / idle[each.side]:.2f} ×",
        ]
        for each in measured
    ]
    return results.table(["flood", "claim", "quiet tasks", "p50, ms", "p95, ms", "p95 to idle"], rows) + (
        f"\n\nFrom before a task is submitted to when a worker has it, in real time: {quiet.companies} quiet companies,"
        f" a task each about every {quiet.every_seconds} s, {quiet.workers} workers of {quiet.hands} hands,"
        f" tasks of 100 to 300 ms, a flood kept at its size, {quiet.rounds} × {quiet.seconds:.0f} s in turn."
        " *Unserved*: no worker had it when the run ended. Bar: ≤ 2 ×."
    )


def _milliseconds(seconds: float) -> str:
    return "unserved" if math.isinf(seconds) else f"{seconds * 1000:,.1f}"


def run(*, small: bool, command: str) -> None:
    """Measure, record and draw. A small run is a trial: it is printed, drawn elsewhere, and recorded nowhere."""
    from bench.fairness import plot  # noqa: PLC0415  what draws is not installed for the tests

    quiet = Quiet(seconds=2.0, floods=(0, 1_000, 5_000), rounds=1) if small else Quiet(seconds=8.0)
    with measured_server() as server:
        of_shares = measure_shares(server, loads(small=small))
        of_waits = waits.measure(server, quiet)
        machine = described(server)
    parts = {
        "Fairness: what companies get of their fair share of slot-seconds": shares_table(of_shares),
        "Fairness: what quiet companies wait beside a flood": waits_table(of_waits, quiet),
    }
    for title, body in parts.items():
        if small:
            print(f"\n{title}\n\n{body}\n")
        else:
            results.record(title, command=command, machine=machine, body=body)
    plots = Path(tempfile.mkdtemp(prefix="taketurns-fairness-")) if small else PLOTS
    for path in plot.draw(of_shares, of_waits, plots):
        print(path)
