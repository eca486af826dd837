"""A handler that blocks the event loop is told of, once, with the place where it stands."""

import asyncio
import threading

import pytest

from taketurns.telemetry import Event
from taketurns.worker.loop_watch import LoopWatch


def block(gate: threading.Event) -> None:
    assert gate.wait(20)


async def test_a_blocked_loop_is_told_once_with_the_place_where_it_stands(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch, gate = LoopWatch(blocked_seconds=0.0), threading.Event()

    def look() -> None:
        for _ in range(4):
            watch.look()
        gate.set()

    looking = threading.Thread(target=look)
    asyncio.get_running_loop().call_soon(looking.start)
    asyncio.get_running_loop().call_soon(block, gate)
    await asyncio.sleep(0)
    looking.join()
    (line,) = [record.getMessage() for record in caplog.records if Event.LOOP_BLOCKED in record.getMessage()]
    assert "threading.py" in line


async def test_a_loop_that_turns_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    watch = LoopWatch(blocked_seconds=0.0)
    for _ in range(4):
        await asyncio.to_thread(watch.look)
        await asyncio.sleep(0)
    assert caplog.records == []
