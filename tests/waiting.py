"""Waiting for what another process or task does, with an end to the patience."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")

PATIENCE = 45.0


async def eventually(ask: Callable[[], Answer], *, within: float = PATIENCE) -> Answer:
    """What `ask` answers, once that is true; the loop goes on meanwhile."""
    deadline = time.monotonic() + within
    while not (answer := ask()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{ask} was not so within {within} s")
        await asyncio.sleep(0.01)
    return answer


def soon(ask: Callable[[], Answer], *, within: float = PATIENCE) -> Answer:
    """The same, without a loop."""
    deadline = time.monotonic() + within
    while not (answer := ask()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{ask} was not so within {within} s")
        time.sleep(0.01)
    return answer
