"""What an operator should know of the way a server is set up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from taketurns.brokers.redis.server import Server

LEAST_REDIS = (7, 0)
LEAST_VALKEY = (8, 0)
LEAST_REDIS_FOR_AOF = (7, 2)


async def complaints(server: Server, *, needs_aof: bool) -> list[str]:
    """Sentences that say what is wrong and what to do. Raises Unavailable."""
    told: dict[str, Any] = {}
    for section in ("server", "memory", "persistence", "replication"):
        told |= await server.inform(section)
    return list(_complaints(told, needs_aof=needs_aof))


def _complaints(told: Mapping[str, Any], *, needs_aof: bool) -> Iterator[str]:
    is_valkey = "valkey_version" in told
    version = _version(told["valkey_version" if is_valkey else "redis_version"])
    least = LEAST_VALKEY if is_valkey else LEAST_REDIS
    if version < least:
        yield f"it is {'Valkey' if is_valkey else 'Redis'} {_shown(version)}: at least {_shown(least)} is needed"
    if told.get("role") not in {"master", None}:
        yield "it is a replica and takes no writes: name the primary"
    policy = told.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        yield f"maxmemory-policy is {policy}, which drops jobs when memory is full: set it to noeviction"
    if needs_aof and not told.get("aof_enabled"):
        yield "there is no append-only file to wait for: set appendonly to yes"
    if needs_aof and not is_valkey and version < LEAST_REDIS_FOR_AOF:
        yield f"Redis {_shown(version)} has no WAITAOF: at least {_shown(LEAST_REDIS_FOR_AOF)} is needed to wait for it"


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2])


def _shown(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
