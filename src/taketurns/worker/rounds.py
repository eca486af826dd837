"""Doing something again and again: waits that end early, and duties of which one that fails never stops another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from typing import Any, Final, Protocol

from structlog.typing import FilteringBoundLogger

from taketurns import telemetry
from taketurns.engine.errors import Unavailable
from taketurns.engine.retry import Backoff
from taketurns.telemetry import Event

AFTER_FAILURE: Final = Backoff(first_seconds=0.1, ceiling_seconds=5.0)
CANCEL_SECONDS: Final = 0.2
ONCE_SECONDS: Final = 10.0


class Duty(Protocol):
    """Something a worker does in rounds. `step` is one round, and answers the seconds until the next one."""

    name: str

    async def step(self) -> float: ...


async def keep(duty: Duty) -> None:
    """Do a duty's rounds until cancelled, whatever they raise."""
    log: FilteringBoundLogger = telemetry.logger("worker").bind()
    failures = 0
    while True:
        try:
            pause = await duty.step()
            failures = 0
        except Exception as error:
            telemetry.DUTIES_FAILED.labels(duty.name).inc()
            tell_failure(log, Event.DUTY_FAILED, error, duty=duty.name)
            pause = AFTER_FAILURE.delay(failures)
            failures += 1
        await asyncio.sleep(pause)


async def keep_once(duty: Duty, *, most_seconds: float = ONCE_SECONDS) -> None:
    """Do a duty's rounds until there is nothing to do at once, or for so long: the rest is the next one's. Raises
    Unavailable; what else it raises is told."""
    log: FilteringBoundLogger = telemetry.logger("worker").bind()
    until = time.monotonic() + most_seconds
    try:
        while await duty.step() == 0.0 and time.monotonic() < until:
            pass
    except Unavailable:
        raise
    except Exception as error:
        telemetry.DUTIES_FAILED.labels(duty.name).inc()
        tell_failure(log, Event.DUTY_FAILED, error, duty=duty.name)


async def end(parts: Collection[asyncio.Task[Any]]) -> None:
    """Cancel them until they have ended: one cancellation may be lost, as in asyncio.wait_for before Python 3.12."""
    pending = {part for part in parts if not part.done()}
    while pending:
        for part in pending:
            part.cancel()
        _, pending = await asyncio.wait(pending, timeout=CANCEL_SECONDS)


async def to_the_end(part: asyncio.Task[None]) -> None:
    """Wait for a task of its own to end, however often the waiter is cancelled meanwhile; then it is.

    In a task that has been cancelled, asyncio.timeout does not work before Python 3.11.3.
    """
    cancellation: asyncio.CancelledError | None = None
    while not part.done():
        try:
            await asyncio.shield(part)
        except asyncio.CancelledError as error:
            cancellation = error
    if cancellation is not None:
        raise cancellation
    part.result()


async def signal_within(signal: asyncio.Event, seconds: float | None) -> bool:
    """Wait for a signal for so long at most; whether it came."""
    if signal.is_set():
        return True
    try:
        async with asyncio.timeout(seconds):
            await signal.wait()
    except TimeoutError:
        return False
    return True


def tell_failure(log: FilteringBoundLogger, event: Event, error: Exception, **fields: object) -> None:
    """A database that is away is a matter of one line, anything else one of a traceback."""
    if isinstance(error, Unavailable):
        log.warning(event, error=str(error), **fields)
    else:
        log.error(event, error=repr(error), exc_info=error, **fields)
