"""What an operator wants of a worker, and how far the worker is with it.

An order stands with the worker's lease. The worker reads it with every beat, and tells with every beat what it does.

```
             drain                 stop
running ───────────────▶ draining ──────▶ stopping ──▶ gone
   ▲ └──────── resume ──────┘                 ▲
   └──────────────────────── stop, or a signal ┘
```
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final
from uuid import UUID

from taketurns.engine.errors import WorkerIsGone, WorkerStops

if TYPE_CHECKING:
    from taketurns.engine.broker import Broker

WAKE: Final = "!orders"
"""What is told where new work is told, so that workers beat at once; no queue can be called so."""


class Wanted(StrEnum):
    """To take turns; to take none and keep what runs; to end, as after SIGTERM. Nobody goes on who was told to stop."""

    RUN = "run"
    DRAIN = "drain"
    STOP = "stop"


class WorkerState(StrEnum):
    """What a worker does about it."""

    RUNNING = "running"
    DRAINING = "draining"
    STOPPING = "stopping"


MEANT: Final = {
    Wanted.RUN: WorkerState.RUNNING,
    Wanted.DRAIN: WorkerState.DRAINING,
    Wanted.STOP: WorkerState.STOPPING,
}
"""What a worker does once it has read what is wanted."""


@dataclass(frozen=True, slots=True)
class Asked:
    """How many processes were given an order, and how many were not because they stop already."""

    processes: int
    stopping: int


async def give(brokers: Sequence[Broker], worker: UUID | str, wanted: Wanted) -> int:
    """Tell a worker, by its id, or all who have its name; how many processes were told.

    It takes its turns at one of the brokers. Raises WorkerIsGone, WorkerStops and Unavailable.
    """
    stopping = 0
    for broker in brokers:
        asked = await broker.order(worker, wanted)
        if asked.processes:
            return asked.processes
        stopping += asked.stopping
    raise WorkerStops(str(worker)) if stopping else WorkerIsGone(str(worker))
