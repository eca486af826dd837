"""Rates that this process holds its callers to: how many requests a company's keys may make, and how often an address
may come without a key that works. Each process counts by itself, in memory: see decisions/0018.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

from taketurns.engine import rate
from taketurns.engine.rate import MICROSECONDS, Bucket, Rate

MOST_REMEMBERED: Final = 10_000
_NETWORK_BITS: Final = 64  # of IPv6, the least that one customer of a provider has


@dataclass(frozen=True, slots=True)
class Standing:
    """How somebody stands with a rate: how many more may come now, when the next one may, and when all may again."""

    left: int
    wait_seconds: float
    full_seconds: float


class Throttle:
    """The buckets of those who come, by any name. When there are many, those used longest ago are forgotten."""

    def __init__(
        self,
        *,
        most: int = MOST_REMEMBERED,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._most = most
        self._clock = clock
        self._buckets: dict[Hashable, Bucket] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def look(self, name: Hashable, of: Rate) -> Standing:
        """How somebody stands."""
        return _standing(of, rate.owed(of, self._buckets.get(name), self._now()))

    def take(self, name: Hashable, of: Rate) -> Standing | None:
        """Let one more come, and how somebody stands then; None when it may not. Who is refused loses nothing by it."""
        now = self._now()
        owes = rate.owed(of, self._buckets.get(name), now)
        if not rate.starts_left(of, owes):
            return None
        self._buckets.pop(name, None)
        bucket = self._buckets[name] = rate.spend(of, owes, 1, now)
        if len(self._buckets) > self._most:
            del self._buckets[next(iter(self._buckets))]
        return _standing(of, bucket.owed)

    def _now(self) -> int:
        return self._clock() // 1_000


def network(host: str) -> str:
    """The name that an address goes by: its own, of IPv6 that of its network."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address), _NETWORK_BITS), strict=False))


def _standing(of: Rate, owes: int) -> Standing:
    return Standing(rate.starts_left(of, owes), rate.wait(of, owes) / MICROSECONDS, -(-owes // of.tasks) / MICROSECONDS)
