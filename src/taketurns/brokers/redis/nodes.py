"""Which server has a cell: the one of the address, or in a cluster the node that serves the cell's slot.

All keys of a cell are in one slot, so that a plain client of one node does for it. A client of the whole cluster would
also follow ASK, to a node that has only some of the slot's keys as yet, and there a script would find half a cell
(decisions/0011).
"""

from __future__ import annotations

from typing import Any, Final

from redis.crc import key_slot
from redis.exceptions import MovedError, RedisError

from taketurns.brokers.redis import addresses
from taketurns.engine.errors import Unavailable

ANSWERS_WITHIN_SECONDS: Final = 2.0


class Nodes:
    """The servers that were heard of at an address, and which of them to call. Any thread may ask."""

    def __init__(self, url: str, *, cell: str, name: str) -> None:
        self._url = url
        self._slot = key_slot(cell.encode())
        self._name = name
        self._known = addresses.of_nodes(url)
        self.is_cluster = addresses.is_cluster(url)

    def find(self) -> str:
        """The address of the node that has the cell. Raises Unavailable when no node can tell.

        Each search begins with another node, for one that is cut off from the others tells what was.
        """
        if not self.is_cluster:
            return self._url
        self._known = [*self._known[1:], *self._known[:1]]
        failure: object = "none serves its slot"
        for address in self._known:
            try:
                slots = self._ask(address)
            except (RedisError, OSError) as error:
                failure = error
                continue
            self._learn(address, slots)
            for first, last, primary, *_ in slots:
                if first <= self._slot <= last:
                    return self._address(primary, told_by=address)
        shown = addresses.without_password(self._url)
        raise Unavailable(f"no node of the cluster at {shown} tells which of them has the cell: {failure}")

    def moved_to(self, moved: MovedError, *, told_by: str) -> str:
        return self._address((moved.host, moved.port), told_by=told_by)

    def _ask(self, address: str) -> list[list[Any]]:
        with addresses.open_sync(address, timeout=ANSWERS_WITHIN_SECONDS, name=self._name) as client:
            slots: list[list[Any]] = client.execute_command("CLUSTER SLOTS")
            return slots

    def _learn(self, told_by: str, slots: list[list[Any]]) -> None:
        """Keep the nodes that there are, and those of the address, whose names may come to stand for others."""
        found = [self._address(node, told_by=told_by) for _, _, *nodes in slots for node in nodes]
        kept = {*found, *addresses.of_nodes(self._url)}
        self._known = [node for node in dict.fromkeys([*self._known, *found]) if node in kept]

    def _address(self, node: Any, *, told_by: str) -> str:
        """A node that does not know its own host has the one that it was asked at."""
        host, port, *_ = node
        host = host.decode() if isinstance(host, bytes) else host
        return addresses.of_node(told_by, host=host if host not in {None, "", "?"} else None, port=port)
