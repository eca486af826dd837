"""`make bench`: every measurement, written to RESULTS.md. Nothing else should run on the machine meanwhile."""

from __future__ import annotations

import argparse

from bench import claim, durability, lanes, limits, throughput, walls
from bench.fairness import measurement as fairness


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "what",
        nargs="?",
        choices=["claim", "limits", "throughput", "lanes", "durability", "walls", "fairness"],
        help="one of them; all otherwise",
    )
    parser.add_argument("--large", action="store_true", help="also at 10,000,000 tasks; takes a quarter of an hour")
    parser.add_argument("--small", action="store_true", help="fairness: a trial under a minute, not recorded")
    options = parser.parse_args()
    if options.small and options.what != "fairness":
        parser.error("--small is for fairness")
    command = " ".join(["python -m bench", *([options.what] if options.what else []), *["--large"] * options.large])
    if options.what in (None, "claim"):
        claim.run(large=options.large, command=command)
    if options.what in (None, "limits"):
        limits.run(command=command)
    if options.what in (None, "throughput"):
        throughput.run(command=command)
    if options.what in (None, "lanes"):
        lanes.run(command=command)
    if options.what in (None, "durability"):
        durability.run(command=command)
    if options.what in (None, "walls"):
        walls.run(command=command)
    if options.what in (None, "fairness"):
        fairness.run(small=options.small, command=command)


if __name__ == "__main__":
    main()
