"""`make bench`: every measurement, written to RESULTS.md. Nothing else should run on the machine meanwhile.

`growth` and `soak` take long, and `check` measures nothing: each is done only when it is asked for.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Final

from bench import check, claim, durability, idle, lanes, limits, pages, posts, soak, throughput, walls
from bench.fairness import measurement as fairness
from bench.growth import measurement as growth

EVERY: Final[dict[str, Callable[[argparse.Namespace, str], None]]] = {
    "claim": lambda options, command: claim.run(large=options.large, command=command),
    "limits": lambda _, command: limits.run(command=command),
    "throughput": lambda _, command: throughput.run(command=command),
    "lanes": lambda _, command: lanes.run(command=command),
    "durability": lambda _, command: durability.run(command=command),
    "walls": lambda _, command: walls.run(command=command),
    "posts": lambda options, command: posts.run(small=options.small, command=command),
    "idle": lambda options, command: idle.run(small=options.small, command=command),
    "pages": lambda options, command: pages.run(small=options.small, command=command),
    "fairness": lambda options, command: fairness.run(small=options.small, command=command),
}
WHEN_ASKED_FOR: Final[dict[str, Callable[[argparse.Namespace, str], None]]] = {
    "growth": lambda options, command: growth.run(
        only=options.only, most=options.most, small=options.small, command=command
    ),
    "soak": lambda options, command: soak.run(minutes=options.minutes, small=options.small, command=command),
    "check": lambda options, _: sys.exit(check.run()),
}
MAY_BE_SMALL: Final = ("fairness", "growth", "soak", "idle", "pages", "posts")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("what", nargs="?", choices=[*EVERY, *WHEN_ASKED_FOR], help="one of them")
    parser.add_argument("--large", action="store_true", help="claim: at 10,000,000 tasks too; a quarter of an hour")
    parser.add_argument("--only", choices=growth.PARTS, help="growth: one part, three to eight minutes")
    parser.add_argument("--most", type=int, default=growth.MOST, help="growth: the largest backlog, and history")
    parser.add_argument("--minutes", type=float, default=soak.MINUTES, help="soak: how long the load lasts")
    parser.add_argument(
        "--small", action="store_true", help=f"{', '.join(MAY_BE_SMALL)}: a trial of a minute or so, not recorded"
    )
    options = parser.parse_args()
    if options.small and options.what not in MAY_BE_SMALL:
        parser.error(f"--small is for {', '.join(MAY_BE_SMALL)}")
    command = " ".join(["python -m bench", *sys.argv[1:]])
    for run in [{**EVERY, **WHEN_ASKED_FOR}[options.what]] if options.what else EVERY.values():
        run(options, command)


if __name__ == "__main__":
    main()
