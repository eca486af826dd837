"""Heartbeats: rows that stay when leases go, so that it can be told who is late.

Those of workers that are not heard of for 7 days, and of passes for 90, are pruned.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import metadata
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

from sqlalchemy import ColumnElement, Executable, func, update
from sqlalchemy.dialects import postgresql

from taketurns.engine.errors import Unavailable
from taketurns.engine.lease import Holder, Kind
from taketurns.engine.orders import Wanted, WorkerState
from taketurns.storage.database import Database, fetch
from taketurns.storage.ids import new_id
from taketurns.storage.models import Heartbeat

LEAVE_SECONDS: Final = 2.0
LOOK_SECONDS: Final = 0.2

Seconds = float | ColumnElement[float] | None


class Heartbeats:
    """A duty: tells the database of a worker that takes its turns and holds its lease elsewhere.

    While the database is away nothing is told, and the heartbeat is late for who looks after that.
    """

    name = "heartbeat"

    def __init__(
        self,
        database: Database,
        holder: Holder,
        *,
        last_claim_at: Callable[[], float | None],
        worker_id: Callable[[], UUID | None],
        standing: Callable[[], tuple[Wanted, WorkerState]],
        every_seconds: float,
    ) -> None:
        self._database = database
        self._holder = holder
        self._last_claim_at = last_claim_at
        self._worker_id = worker_id
        self._standing = standing
        self._every_seconds = every_seconds
        self._id = new_id()
        self._began_at = time.monotonic()

    async def step(self) -> float:
        """Until it holds a lease nobody can order it about, and it says nothing of that."""
        has_lease = self._worker_id() is not None
        await self._tell()
        return self._every_seconds if has_lease else min(self._every_seconds, LOOK_SECONDS)

    async def leave(self) -> None:
        """Tell the last of it, if the database can be reached soon: nobody need wait for it, unless it comes again."""
        is_gone = self._holder.kind is Kind.WORKER or not self._holder.comes_again
        with suppress(Unavailable, TimeoutError):
            async with asyncio.timeout(LEAVE_SECONDS):
                await self._tell({"left_at": func.clock_timestamp()} if is_gone else {})

    async def _tell(self, changes: Mapping[str, object] = MappingProxyType({})) -> None:
        began = first(self._worker_id() or self._id, self._holder, seconds_ago=time.monotonic() - self._began_at)
        claimed_at = self._last_claim_at()
        ago = None if claimed_at is None else time.monotonic() - claimed_at
        told = {**news(ago), **self._orders(), **changes}
        change = update(Heartbeat).where(Heartbeat.name == self._holder.full_name).values(told)
        async with self._database.transaction() as connection:
            for statement in (began, change):
                await fetch(connection, self._database.schema, statement)

    def _orders(self) -> dict[str, object]:
        if self._holder.kind is not Kind.WORKER or self._worker_id() is None:
            return {}
        wanted, state = self._standing()
        return {"wanted": wanted.value, "state": state.value}


def first(worker_id: UUID, holder: Holder, *, seconds_ago: float = 0.0) -> Executable:
    """The heartbeat of a worker that began so long ago, whoever had its name before."""
    now = func.clock_timestamp()
    told = {
        **description(worker_id, holder),
        "kind": holder.kind.value,
        "comes_again": holder.comes_again,
        "types": len(holder.types),
        "started_at": now - _interval(seconds_ago),
        "beat_at": now,
        "left_at": None,
        "wanted": None,
        "state": None,
    }
    statement = postgresql.insert(Heartbeat).values(name=holder.full_name, **told)
    return statement.on_conflict_do_update(index_elements=["name"], set_=told)


def news(seconds_since_claim: Seconds) -> dict[str, object]:
    """What is told with every beat."""
    now = func.clock_timestamp()
    return {"beat_at": now} | (
        {} if seconds_since_claim is None else {"last_claim_at": now - _interval(seconds_since_claim)}
    )


def description(worker_id: UUID, holder: Holder) -> dict[str, Any]:
    """What leases and heartbeats both say of a worker."""
    return {
        "id": worker_id,
        "host": socket.gethostname(),
        "version": metadata.version("taketurns"),
        "queues": list(holder.queues),
        "concurrency": holder.concurrency,
    }


def _interval(seconds: float | ColumnElement[float]) -> ColumnElement[Any]:
    return func.make_interval(0, 0, 0, 0, 0, 0, seconds)
