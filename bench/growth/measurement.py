"""Curves of claims, of the fleet, and of what the past costs: measured, told as tables, and drawn."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from bench import results
from bench.growth import claims, past, workers
from bench.growth.curve import Curve
from bench.server import described, measured_server
from taketurns.storage.embedded import PostgresServer

PLOTS: Final = Path(__file__).parents[1] / "plots"
MOST: Final = 10_000_000
SMALL: Final = 10_000

PARTS: Final[Mapping[str, Callable[[PostgresServer, int], Sequence[Curve]]]] = {
    "claim": claims.measured,
    "workers": workers.measured,
    "history": past.against_history,
    "snapshot": past.against_old_snapshot,
}


def run(*, only: str | None, most: int, small: bool, command: str) -> None:
    """Each part on a server of its own. A small run is a trial: printed, drawn elsewhere, and recorded nowhere."""
    from bench.growth import plot  # noqa: PLC0415  what draws is not installed for the tests

    into = Path(tempfile.mkdtemp(prefix="taketurns-growth-")) if small else PLOTS
    for name in [only] if only else PARTS:
        began = time.monotonic()
        with measured_server() as server:
            curves = PARTS[name](server, SMALL if small else most)
            machine = described(server)
        took = f"It took {time.monotonic() - began:,.0f} s."
        for curve in curves:
            if small:
                print(f"\n{curve.title}\n\n{curve.table}\n")
                continue
            body = f"{curve.table} {took} Drawn: [plots/growth-{name}.png](plots/growth-{name}.png)."
            results.record(f"Growth: {curve.title}", command=command, machine=machine, body=body)
        print(took)
        for path in plot.draw(f"growth-{name}", curves, into):
            print(path)
