"""What keeps claimed tasks owned: a worker's row at its broker, which it beats on a line of its own."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol
from uuid import UUID

from taketurns.engine.orders import Wanted, WorkerState
from taketurns.engine.registry import TaskType


class Kind(StrEnum):
    """What holds a lease: a worker until it is stopped, a pass until it is made, a caller while it runs tasks."""

    WORKER = "worker"
    PASS = "pass"  # noqa: S105
    CALLER = "caller"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who holds a lease, as others see it. One that `comes_again` is missed when it does not.

    A name is a post that is held in turn, across restarts and deploys. Without one a worker is its process, and a pass
    is the pass. A caller keeps no heartbeat: it takes no turns, so nobody misses it.
    """

    queues: Sequence[str]
    types: Sequence[TaskType]
    concurrency: int
    name: str = ""
    kind: Kind = Kind.WORKER
    comes_again: bool = True

    @property
    def full_name(self) -> str:
        if self.name or self.kind is Kind.PASS:
            return self.name or self.kind.value
        process = f"{socket.gethostname()}:{os.getpid()}"
        return f"caller {process}" if self.kind is Kind.CALLER else process


@dataclass(frozen=True, slots=True)
class Beat:
    """What the broker answers to a beat: its time, the names of the types that anybody has published, and what is
    wanted of the worker."""

    at: datetime
    published_types: frozenset[str]
    wanted: Wanted


class LeaseLine(Protocol):
    """A line to the broker that serves one lease, from one thread. A line that is broken raises Unavailable.

    A broker that keeps heartbeats writes that of the holder's name with whatever it does; it stays when the lease goes.
    """

    def take(self, worker_id: UUID, holder: Holder, *, former: UUID | None, wanted: Wanted = Wanted.RUN) -> Beat:
        """Make the row of a new lease, publish the holder's types, and remove the row of a lease it had before. What
        is wanted stays as that row has it, or as the holder knows it."""
        ...

    def beat(
        self, worker_id: UUID, *, seconds_since_claim: float | None, state: WorkerState = WorkerState.RUNNING
    ) -> Beat | None:
        """Renew the lease and tell what the holder does; None when its row is gone, for others have taken the work."""
        ...

    def remove(self, worker_id: UUID, *, seconds_since_claim: float | None) -> None:
        """Give the lease up, in good order."""
        ...

    def close(self) -> None:
        """Hang up. Never raises."""
        ...
