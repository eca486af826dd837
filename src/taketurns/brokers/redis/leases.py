"""Leases in Redis: hashes, each beaten on a connection of its own."""

from __future__ import annotations

import json
import socket
from datetime import timedelta
from importlib import metadata
from typing import Any, Final
from uuid import UUID

from redis.exceptions import NoScriptError

from taketurns.brokers.redis import addresses, replies, scripts
from taketurns.brokers.redis.nodes import Nodes
from taketurns.brokers.redis.server import told_as_unavailable
from taketurns.engine.lease import Beat, Holder
from taketurns.engine.orders import Wanted, WorkerState

FORGOTTEN_AFTER: Final = timedelta(days=1)
"""A lease outlives every outage that workers do, and is rescued long before; it is only not kept for ever."""


class RedisLease:
    """See taketurns.engine.lease.LeaseLine. A peer that is dead is noticed within `patience_seconds`. A line to a node
    that the cell has left is broken: a new one finds the other."""

    def __init__(self, nodes: Nodes, *, cell: str, patience_seconds: float) -> None:
        self._url = nodes.find()
        self._cell = cell
        self._lifetime = replies.milliseconds(FORGOTTEN_AFTER)
        with told_as_unavailable(self._url):
            self._client = addresses.open_sync(self._url, timeout=patience_seconds, name="taketurns-lease")
            self._client.exists(cell)

    def take(self, worker_id: UUID, holder: Holder, *, former: UUID | None, wanted: Wanted = Wanted.RUN) -> Beat:
        shown = {
            "name": holder.full_name,
            "host": socket.gethostname(),
            "version": metadata.version("taketurns"),
            "queues": json.dumps(list(holder.queues)),
            "types": json.dumps(sorted(type.name for type in holder.types)),
            "concurrency": holder.concurrency,
            "kind": holder.kind.value,
            "wanted": wanted.value,
            "state": WorkerState.RUNNING.value,
        }
        fields = [part for field in shown.items() for part in field]
        return _told(self._call("take_lease", str(worker_id), replies.optional(former), self._lifetime, *fields))

    def beat(
        self, worker_id: UUID, *, seconds_since_claim: float | None, state: WorkerState = WorkerState.RUNNING
    ) -> Beat | None:
        ago = None if seconds_since_claim is None else round(seconds_since_claim * 1_000_000)
        told = self._call("beat", str(worker_id), self._lifetime, replies.optional(ago), state.value)
        return _told(told) if told else None

    def remove(self, worker_id: UUID, *, seconds_since_claim: float | None) -> None:  # nothing is kept of it
        self._call("remove_lease", str(worker_id))

    def close(self) -> None:
        self._client.close()

    def _call(self, verb: str, *arguments: Any) -> Any:
        script = scripts.load(verb)
        with told_as_unavailable(self._url):
            try:
                return self._client.evalsha(script.sha, 1, self._cell, *arguments)
            except NoScriptError:
                return self._client.eval(script.text, 1, self._cell, *arguments)


def _told(answer: tuple[bytes, list[bytes], bytes]) -> Beat:
    now, types, wanted = answer
    at = replies.EPOCH + timedelta(microseconds=int(now))
    return Beat(at, frozenset(type.decode() for type in types), Wanted(wanted.decode()))
