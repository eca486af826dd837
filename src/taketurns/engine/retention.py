"""How long ended tasks are kept, by how they have ended: what holds for a cell, and what a company has of its own."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long tasks are kept after their end."""

    completed: timedelta = timedelta(days=7)
    failed: timedelta = timedelta(days=30)
    cancelled: timedelta = timedelta(days=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRetention:
    """How many seconds tasks of one company are kept after their end; None: as long as others' are."""

    completed: int | None = None
    failed: int | None = None
    cancelled: int | None = None
