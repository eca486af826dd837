"""How long tests have tasks kept."""

from __future__ import annotations

from datetime import timedelta

from taketurns.engine.retention import Retention


def kept(completed: timedelta, stopped: timedelta | None = None) -> Retention:
    """So long for completed tasks, and for the others as long, or `stopped`."""
    others = completed if stopped is None else stopped
    return Retention(completed=completed, failed=others, cancelled=others)


NOT_AT_ALL = kept(timedelta(0))
