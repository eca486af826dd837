"""`make bench-peers`: ours beside other task queues, in turn. Nothing else should run on the machine meanwhile."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench import results
from bench.peers import tables
from bench.peers.catalogue import CHOSEN, EVERY, FAMILIES, Environment, Peer, Scenario, chosen, environments
from bench.peers.environments import Installed, NotInstalled, install
from bench.peers.scenarios import ONCE, SCENARIOS, SMALL, Sizes
from bench.peers.stage import PeerFailed, Stage
from bench.peers.stores import Stores, measured_stores
from bench.peers.tables import Measured

PLOTS: Final = Path(__file__).parents[1] / "plots"


def install_all(peers: Sequence[Peer]) -> tuple[dict[Environment, Installed], dict[Environment, str]]:
    """The environments of these peers, and of those that could not be made the reason."""
    installed, reasons = {}, {}
    for environment in environments(peers):
        try:
            installed[environment] = install(environment)
        except NotInstalled as error:
            reasons[environment] = f"not installed: {error}"
            print(f"{environment.name}: {reasons[environment]}", flush=True)
    return installed, reasons


def measure(measured: Measured, installed: Installed, stores: Stores, scenario: Scenario, sizes: Sizes) -> None:
    """One scenario of one peer; what goes wrong is kept, and stops nobody else."""
    began = time.monotonic()
    try:
        with Stage(measured.peer, installed, stores, seconds=sizes.seconds) as stage:
            figures = SCENARIOS[scenario](stage, sizes)
        measured.add(figures)
        told = json.dumps({name: round(value, 4) for name, value in figures.items()})
    except PeerFailed as error:
        measured.failures[scenario] = told = str(error)
    print(f"{scenario}: {measured.peer.name}, {time.monotonic() - began:.0f} s: {told}", flush=True)


def run(peers: Sequence[Peer], scenarios: Sequence[Scenario], sizes: Sizes) -> tuple[list[Measured], str]:
    """Round by round, one peer after the other; all that was measured, and on what."""
    installed, reasons = install_all(peers)
    everybody = [Measured(peer) for peer in peers]
    for each in everybody:
        if each.peer.environment in installed:
            each.version = installed[each.peer.environment].version(each.peer.package)
        else:
            each.failures = dict.fromkeys(scenarios, reasons[each.peer.environment])
    with measured_stores() as stores:
        for scenario in scenarios:
            for _ in range(1 if scenario in ONCE else sizes.rounds):
                for each in everybody:
                    if each.peer.takes_part_in(scenario) and scenario not in each.failures:
                        measure(each, installed[each.peer.environment], stores, scenario, sizes)
        return everybody, stores.described()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument(
        "--peers", nargs="*", default=[], help=f"all, or some of {', '.join(FAMILIES)}; {' '.join(CHOSEN)} otherwise"
    )
    parser.add_argument("--scenarios", nargs="*", default=[], choices=EVERY, help="some of them; all otherwise")
    parser.add_argument("--rounds", type=int, help="how often in turn; 3 otherwise")
    parser.add_argument("--small", action="store_true", help="a trial of a few minutes, not recorded")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to stop"))  # having ended all that it started
    try:
        peers = chosen(options.peers or CHOSEN)
    except ValueError as error:
        parser.error(str(error))
    scenarios = [scenario for scenario in EVERY if scenario in (options.scenarios or EVERY)]
    sizes = SMALL if options.small else Sizes(rounds=options.rounds or Sizes().rounds)
    measured, machine = run(peers, scenarios, sizes)
    body = tables.report(measured, scenarios, rounds=sizes.rounds)
    if options.small:
        print(f"\n{body}\n")
    else:
        words = [f"--peers {' '.join(options.peers)}"] * bool(options.peers)
        words += [f"--scenarios {' '.join(options.scenarios)}"] * bool(options.scenarios)
        command = " ".join(["python -m bench.peers", *words])
        drawn = "\n\nDrawn: [plots/peers.png](plots/peers.png)."
        results.record("Ours beside other task queues", command=command, machine=machine, body=body + drawn)
    from bench.peers import plot  # noqa: PLC0415  what draws is not installed for the tests

    for path in plot.draw(measured, Path(tempfile.mkdtemp(prefix="taketurns-peers-")) if options.small else PLOTS):
        print(path)


if __name__ == "__main__":
    main()
