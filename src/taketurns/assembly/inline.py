"""Running tasks in the caller's process: an executor for each registry, and a lease for as long as something runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from taketurns.brokers.inline import InlineBroker
from taketurns.brokers.postgres import PostgresBroker
from taketurns.engine.errors import TaketurnsError, Unavailable
from taketurns.engine.lease import Holder, Kind
from taketurns.engine.registry import Registry
from taketurns.engine.task import Enqueued, NewTask
from taketurns.execution import Executor
from taketurns.settings import Settings
from taketurns.storage.budgets import PostgresBudgets
from taketurns.worker.lease import Lease

LINGER_SECONDS: Final = 10.0


class Inline:
    """What one event loop runs inline. `now` stands in for the database's clock."""

    def __init__(self, broker: PostgresBroker, settings: Settings, *, now: Callable[[], datetime | None]) -> None:
        self._leases = Leases(broker, settings)
        self._broker = InlineBroker(broker, lease=self._leases.held, now=now)
        self._budgets = PostgresBudgets(broker.database, now=now)
        self._executors: dict[Registry, Executor] = {}

    async def run(self, registry: Registry, company: str, task: NewTask) -> Enqueued:
        """See InlineBroker.run."""
        if registry not in self._executors:
            self._executors[registry] = Executor(registry, budgets=self._budgets)
        return await self._broker.run(self._executors[registry], company, task)

    async def close(self) -> None:
        """Wait for what runs, and give the lease up."""
        await self._broker.ended()
        for executor in self._executors.values():
            executor.close()
        await self._leases.close()


@dataclass(slots=True)
class Held:
    """A lease, how many runs it is held for, and whether something may stand under it that nobody works on."""

    lease: Lease
    worker_id: UUID
    runs: int = 0
    is_spoilt: bool = False
    is_given_up: bool = False


class Leases:
    """One lease at a time, taken for the first run and given up a while after the last.

    A lease that was lost, or under which a run was left in doubt, is used no more: once it is gone, a worker takes
    back what still stands under it.
    """

    def __init__(self, broker: PostgresBroker, settings: Settings) -> None:
        self._broker = broker
        self._settings = settings
        self._current: Held | None = None
        self._taking = asyncio.Lock()
        self._closing: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def held(self) -> AsyncIterator[UUID]:
        """Hold a lease; its worker's id. Raises Unavailable."""
        held = await self._take()
        held.runs += 1
        try:
            yield held.worker_id
        except TaketurnsError as error:
            held.is_spoilt |= isinstance(error, Unavailable)
            raise
        except BaseException:
            held.is_spoilt = True
            raise
        finally:
            held.runs -= 1
            if not held.runs:
                asyncio.get_running_loop().call_later(0 if held.is_spoilt else LINGER_SECONDS, self._rest, held)

    async def close(self) -> None:
        if self._current is not None:
            self._give_up(self._current)
        await asyncio.gather(*self._closing, return_exceptions=True)

    async def _take(self) -> Held:
        async with self._taking:
            held = self._current
            if held is None or held.is_spoilt or not held.lease.is_held:
                if held is not None:
                    held.is_spoilt = True
                    self._rest(held)
                self._current = held = await self._new()
            return held

    async def _new(self) -> Held:
        lease = Lease(
            self._broker,
            holder=Holder(queues=(), types=(), concurrency=0, kind=Kind.CALLER),
            beat_seconds=self._settings.beat_seconds,
            stale_after_seconds=self._settings.stale_after_seconds,
            end_process=None,
        )
        lease.open()
        try:
            async with asyncio.timeout(self._settings.pool_timeout):
                await lease.taken()
        except BaseException as error:
            self._close(lease)
            if isinstance(error, TimeoutError):
                raise Unavailable("the database could not be reached in time for a lease") from None
            raise
        if lease.worker_id is None:
            raise TypeError("a lease that was taken has a worker's id")
        return Held(lease, lease.worker_id)

    def _rest(self, held: Held) -> None:
        if not held.runs:
            self._give_up(held)

    def _give_up(self, held: Held) -> None:
        if held is self._current:
            self._current = None
        if not held.is_given_up:
            held.is_given_up = True
            self._close(held.lease)

    def _close(self, lease: Lease) -> None:
        closing = asyncio.create_task(lease.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
