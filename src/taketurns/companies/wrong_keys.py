"""Holds an address to how often it may come without a key that works, at every door of a process together: see
decisions/0018. Many that come at once are let look no more often than one after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from taketurns.companies.errors import TooManyWrongKeys
from taketurns.companies.throttle import Throttle, network
from taketurns.engine.errors import Busy
from taketurns.engine.rate import Rate

PATIENCE_SECONDS: Final = 15.0


@dataclass(slots=True)
class _Looks:
    """Those of one address that are under way, and what tells that one of them is over."""

    count: int = 0
    one_is_over: asyncio.Event = field(default_factory=asyncio.Event)


class WrongKeys:
    """How often addresses came without a key that works."""

    def __init__(
        self, rate: Rate, *, throttle: Throttle | None = None, patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        self._rate = rate
        self._throttle = Throttle() if throttle is None else throttle
        self._patience_seconds = patience_seconds
        self._looks: dict[str, _Looks] = {}

    def count(self, address: str) -> None:
        """Take note that somebody came without a key that works."""
        self._throttle.take(network(address), self._rate)

    @asynccontextmanager
    async def look(self, address: str) -> AsyncIterator[Callable[[], None]]:
        """Let a key be looked up in here, and be told if it does not work. Raises TooManyWrongKeys.

        While as many are looked up as the address may still get wrong, the next one waits: it may be a good one. It
        does not wait for all that came before it while none of them is answered: raises Busy.
        """
        name = network(address)
        try:
            async with asyncio.timeout(self._patience_seconds):
                await self._wait_for_room(name)
        except TimeoutError:
            raise Busy("keys are looked up too slowly at the moment: try again later") from None
        looks = self._looks.setdefault(name, _Looks())
        looks.count += 1
        try:
            yield lambda: self.count(address)
        finally:
            looks.count -= 1
            if looks.count == 0:
                del self._looks[name]
            looks.one_is_over.set()
            looks.one_is_over = asyncio.Event()

    async def _wait_for_room(self, name: str) -> None:
        while True:
            standing, looks = self._throttle.look(name, self._rate), self._looks.get(name)
            if standing.left == 0:
                raise TooManyWrongKeys(standing.wait_seconds)
            if looks is None or looks.count < standing.left:
                return
            await looks.one_is_over.wait()
