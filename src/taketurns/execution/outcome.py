"""What the end of an attempt means for its task: completed, tried again, failed or cancelled."""

from __future__ import annotations

import math
from dataclasses import dataclass

from taketurns.engine import limits
from taketurns.engine.errors import Fail, OverBudget, Retry
from taketurns.engine.retry import Backoff
from taketurns.engine.task import ClaimedTask, Outcome, Report
from taketurns.execution import storable


@dataclass(slots=True)
class Returned:
    """The handler returned."""

    value: object


@dataclass(slots=True)
class Raised:
    """The handler raised, whatever kind of exception."""

    error: BaseException


@dataclass(slots=True)
class TimedOut:
    """The attempt went past its timeout, whether the handler returned or raised after that or not at all."""

    seconds: float
    has_stopped: bool = True


@dataclass(slots=True)
class Cancelled:
    """The attempt was told to stop, and did before it was done."""


@dataclass(slots=True)
class Unfit:
    """The handler was not called: the task's row makes no call of it. Another attempt would fare no better."""

    reason: str


Ending = Returned | Raised | TimedOut | Cancelled | Unfit


def report(task: ClaimedTask, ending: Ending, *, backoff: Backoff) -> Report:
    """What to tell the broker."""
    match ending:
        case Returned(value):
            return _completed(task, value, backoff)
        case Raised(Fail() as error):
            return Report(task, Outcome.FAILED, error=storable.clean(storable.said(error)))
        case Raised(OverBudget() as error):
            said = storable.clean(storable.said(error))
            return Report(task, Outcome.DEFERRED, error=said, delay_seconds=_within_bounds(error.after_seconds) or 0.0)
        case Raised() | TimedOut():
            return _tried_again(task, _complaint(ending), delay=_asked_delay(ending), backoff=backoff)
        case Cancelled():
            return Report(task, Outcome.CANCELLED, error="cancelled while it ran")
        case Unfit(reason):  # fault 078
            return Report(task, Outcome.FAILED, error=storable.clean(reason))


def _completed(task: ClaimedTask, value: object, backoff: Backoff) -> Report:
    try:
        return Report(task, Outcome.COMPLETED, result=storable.result_text(value))
    except storable.Unstorable as unstorable:  # fault 091
        return _tried_again(task, storable.clean(str(unstorable)), delay=None, backoff=backoff)


def _tried_again(task: ClaimedTask, error: str, *, delay: float | None, backoff: Backoff) -> Report:
    """A retry, or the end of the task when its retries are used up."""
    if task.retry_count >= task.max_retries:
        return Report(task, Outcome.FAILED, error=error)
    seconds = backoff.delay(max(task.retry_count, 0)) if delay is None else delay
    return Report(task, Outcome.RETRY, error=error, delay_seconds=seconds)


def _complaint(ending: Raised | TimedOut) -> str:
    match ending:
        case Raised(Retry() as error):
            return storable.clean(storable.said(error))
        case Raised(error):
            return storable.error_text(error)
        case TimedOut(seconds, has_stopped):
            told = f"timed out: the handler was still running after {seconds:g} s"
            return told if has_stopped else f"{told}, and does not stop"


def _asked_delay(ending: Raised | TimedOut) -> float | None:
    """The delay of a handler's choosing, within bounds; None when it chose none, or no number of seconds."""
    if not (isinstance(ending, Raised) and isinstance(ending.error, Retry)):
        return None
    return _within_bounds(ending.error.after_seconds)


def _within_bounds(seconds: object) -> float | None:
    if not isinstance(seconds, int | float) or math.isnan(seconds):
        return None
    return float(min(max(seconds, 0), limits.DELAY_SECONDS_MAX))
