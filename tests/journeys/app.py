"""The handlers of the journeys: each run leaves a line, so that runs can be counted whatever becomes of the worker."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from taketurns import Taketurns

tt = Taketurns()


def leave_line(number: int) -> None:
    """Append in one write, which the kernel does not mix with others."""
    with Path(os.environ["JOURNEY_RUNS"]).open("ab", buffering=0) as runs:
        runs.write(f"{number} {os.getpid()}\n".encode())


@tt.task
async def count(number: int, seconds: float = 0.0) -> int:
    leave_line(number)
    await asyncio.sleep(seconds)
    return number


@tt.task
def count_in_thread(number: int) -> int:
    leave_line(number)
    return number
