"""Notices that the event loop does not turn, because an async handler blocks it, and says where it stands."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from contextlib import suppress
from typing import Final

from structlog.typing import FilteringBoundLogger

from taketurns import telemetry
from taketurns.telemetry import Event

BLOCKED_SECONDS: Final = 5.0


class LoopWatch:
    """Looked through from another thread now and then. Tells each blocking once, when it has lasted so long."""

    def __init__(self, *, blocked_seconds: float = BLOCKED_SECONDS) -> None:
        self._blocked_seconds = blocked_seconds
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._asked_at: float | None = None
        self._has_told = False
        self._log: FilteringBoundLogger = telemetry.logger("worker").bind()

    def look(self) -> None:
        """See whether the loop has answered the last look. Not from the loop's own thread."""
        asked_at = self._asked_at
        if asked_at is None:
            self._asked_at, self._has_told = time.monotonic(), False
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._answer)
        elif not self._has_told and (seconds := time.monotonic() - asked_at) >= self._blocked_seconds:
            self._has_told = True
            telemetry.LOOPS_BLOCKED.inc()
            self._log.error(Event.LOOP_BLOCKED, seconds=round(seconds, 1), where=self._where())

    def _answer(self) -> None:
        self._asked_at = None

    def _where(self) -> str | None:
        frame = sys._current_frames().get(self._thread)
        if frame is None:
            return None
        code = frame.f_code
        return f"{code.co_filename}:{frame.f_lineno} in {code.co_qualname}"
