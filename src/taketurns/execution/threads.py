"""The threads that sync handlers run in.

They are daemons: a handler that never returns must not keep its process from ending, as the standard library's pool
would.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue


class Threads:
    """At most `most` threads, started when they are needed; what comes beyond waits."""

    def __init__(self, most: int, *, name: str = "handler") -> None:
        self._most = most
        self._name = name
        self._started = 0
        self._idle: deque[None] = deque()  # one for each thread that has nothing to do
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def submit(self, call: Callable[[], None]) -> None:
        """Have it called soon. `call` must not raise. Only the thread that made this pool may submit."""
        if self._idle:
            self._idle.pop()
        elif self._started < self._most:
            self._started += 1
            threading.Thread(target=self._work, name=f"{self._name}-{self._started}", daemon=True).start()
        self._calls.put(call)

    def close(self) -> None:
        """Let the threads end after what they do. Does not wait."""
        for _ in range(self._started):
            self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call
            self._idle.append(None)
