"""Wakes the claims of a worker as soon as there is work, and its lease when an operator wants something of a worker,
on a connection of the broker's that is made again whenever it was lost (fault 081). Polls and beats go on meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from structlog.typing import FilteringBoundLogger

from taketurns import telemetry
from taketurns.engine import orders
from taketurns.engine.broker import Broker
from taketurns.telemetry import Event
from taketurns.worker.rounds import AFTER_FAILURE


class Listening:
    """The wake-ups of one worker."""

    def __init__(
        self, broker: Broker, *, queues: Sequence[str], on_work: Callable[[], None], on_order: Callable[[], None]
    ) -> None:
        self.is_listening = asyncio.Event()
        self._broker = broker
        self._queues = frozenset(queues)
        self._on_work = on_work
        self._on_order = on_order
        self._log: FilteringBoundLogger = telemetry.logger("worker").bind()

    async def run(self) -> None:
        """Listen until cancelled."""
        failures = 0
        while True:
            reason = "the connection ended"
            try:
                await self._listen()
            except Exception as error:
                reason = str(error).strip().partition("\n")[0] or repr(error)
            if self.is_listening.is_set():
                failures = 0
            self.is_listening.clear()
            self._log.warning(Event.WAKEUPS_LOST, error=reason)
            await asyncio.sleep(AFTER_FAILURE.delay(failures))
            failures += 1

    async def _listen(self) -> None:
        async with self._broker.wakeups() as notices:
            self.is_listening.set()
            self._log.debug(Event.WAKEUPS_LISTENING)
            self._on_work()  # some may have come while nobody listened
            async for queues in notices:
                if orders.WAKE in queues:
                    self._on_order()
                if not self._queues.isdisjoint(queues):
                    self._on_work()
