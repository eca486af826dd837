"""A worker as a process: its event loop, its signals and its exit code.

The first SIGTERM or SIGINT is a request to leave in good order, the second an order to leave at once; the lease then
goes stale, and others take the work.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, NoReturn

from taketurns.engine.task import PassReport
from taketurns.worker.worker import Worker

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
LEFT_HANDLERS: Final = 1
COLLECT_AFTER: Final = 10_000  # objects; a batch of tasks alone is more than Python's 700


def run(serve: Callable[[], Awaitable[object]]) -> None:
    """Run `serve` in an event loop of its own, the fastest there is.

    What was imported stays, and the collector of garbage need not look at it again and again: a seventh of the time of
    a worker whose handlers do nothing. See decisions/0025.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)

    async def main() -> None:
        await serve()

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(main())


async def pass_until_told(worker: Worker, **options: Any) -> PassReport:
    """Make one pass, see `Worker.run_pass`; a signal ends it early, in good order."""
    with _signals_to(worker):
        report = await worker.run_pass(**options)
    if worker.left_running:
        leave_at_once(LEFT_HANDLERS)
    return report


async def work_until_told(worker: Worker) -> None:
    """Run the worker until a signal stops it. Handlers that do not end make this end the process, with code 1."""
    with _signals_to(worker):
        await worker.run()
    if worker.left_running:
        leave_at_once(LEFT_HANDLERS)


def leave_at_once(code: int) -> NoReturn:
    """End the process without waiting for anything that runs in it."""
    logging.shutdown()
    sys.stdout.flush()
    os._exit(code)


@contextmanager
def _signals_to(worker: Worker) -> Iterator[None]:
    """By plain signal handlers, for a second signal must act though a handler blocks the event loop."""
    loop = asyncio.get_running_loop()
    has_been_told = False

    def told(number: int, _: FrameType | None) -> None:
        nonlocal has_been_told
        if has_been_told:
            os.write(2, b"worker leaves at once\n")
            os._exit(128 + number)
        has_been_told = True
        loop.call_soon_threadsafe(worker.stop)

    before = {number: signal.signal(number, told) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop  # noqa: PLC0415  not on every platform
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop
