"""An event loop in a thread of its own, on which code that cannot await has its awaiting done."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

Result = TypeVar("Result")

END_SECONDS: Final = 2.0


class Background:
    """The loop of one process; a forked child makes its own."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="taketurns-background", daemon=True)
        self._thread.start()
        atexit.register(self._end)

    def _end(self) -> None:
        """As the end of `asyncio.run`: what runs on the loop is cancelled, and closes what it has."""
        if self.pid == os.getpid():
            with suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(_cancel_others(), self.loop).result(END_SECONDS)
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(END_SECONDS)


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


_lock = threading.Lock()
_background: Background | None = None


def of_this_process() -> Background:
    """The background of this process, started when it is first needed."""
    global _background  # noqa: PLW0603  one for the process
    with _lock:
        if _background is None or _background.pid != os.getpid():
            _background = Background()
        return _background


def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """What the coroutine returns, awaited on the background loop."""
    return asyncio.run_coroutine_threadsafe(coroutine, of_this_process().loop).result()
