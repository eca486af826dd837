"""Noticing that this process is told to end, before its server begins to wait for the requests that are open."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def noticed(leave: Callable[[], None]) -> Iterator[None]:
    """While in this context, call `leave` in the running loop at a signal to end; the server's own handler is called
    as well. Without such a handler, and beside the main thread, nothing is done."""
    loop = asyncio.get_running_loop()
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def both(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(leave)
        handler = former[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)

    for number, handler in former.items():
        if callable(handler):
            signal.signal(number, both)
    try:
        yield
    finally:
        for number, handler in former.items():
            if callable(handler):
                signal.signal(number, handler)
