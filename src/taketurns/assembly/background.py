"""An event loop in a thread of its own, on which code that cannot await has its awaiting done."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")

_lock = threading.Lock()
_loop: tuple[int, asyncio.AbstractEventLoop] | None = None


def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """What the coroutine returns, awaited on the background loop of this process."""
    return asyncio.run_coroutine_threadsafe(coroutine, loop()).result()


def loop() -> asyncio.AbstractEventLoop:
    """The background loop, which is started when first needed, and again in a forked process."""
    global _loop  # noqa: PLW0603  one for the process
    with _lock:
        if _loop is None or _loop[0] != os.getpid():
            started = asyncio.new_event_loop()
            threading.Thread(target=started.run_forever, name="taketurns-background", daemon=True).start()
            atexit.register(started.call_soon_threadsafe, started.stop)
            _loop = os.getpid(), started
        return _loop[1]
