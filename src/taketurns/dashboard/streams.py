"""Streams of what happens, as server-sent events: one look a second for all who watch, and an end when the process is
to end, so that no open page holds it up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from fastapi.sse import format_sse_event
from starlette.responses import Response, StreamingResponse

from taketurns import telemetry
from taketurns.engine.errors import Unavailable

MOST: Final = 200
LOOK_SECONDS: Final = 1.0
AGE_SECONDS: Final = 900.0
VISITOR_SECONDS: Final = 5.0
RETRY_MILLISECONDS: Final = 2_000
_HEADERS: Final = {"cache-control": "no-store", "x-accel-buffering": "no"}

Look = Callable[[], Awaitable[str]]
MayStay = Callable[[], Awaitable[bool]]


class Streams:
    """Who watches, and what they see: the same for all."""

    def __init__(self) -> None:
        self._watching: set[asyncio.Queue[str | None]] = set()
        self._looking: asyncio.Task[None] | None = None
        self._is_closed = False

    def leave(self) -> None:
        """Let everybody go, and nobody watch any more."""
        self._is_closed = True
        for queue in self._watching:
            queue.put_nowait(None)
        if self._looking is not None:
            self._looking.cancel()

    def response(self, first: str, look: Look, may_stay: MayStay) -> Response:
        """A stream that begins with `first` and goes on with what `look` tells every second, while its visitor
        `may_stay`."""
        return StreamingResponse(self._events(first, look, may_stay), media_type="text/event-stream", headers=_HEADERS)

    async def _events(self, first: str, look: Look, may_stay: MayStay) -> AsyncIterator[bytes]:
        yield format_sse_event(retry=RETRY_MILLISECONDS, data_str=first, event="moment")
        if self._is_closed or len(self._watching) >= MOST:
            yield _bye("too many streams" if not self._is_closed else "the process ends")
            return
        queue: asyncio.Queue[str | None] = asyncio.Queue()
        self._watching.add(queue)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(look), name="taketurns-live")
        now = asyncio.get_running_loop().time
        ends_at, look_at_visitor_at = now() + AGE_SECONDS, now() + VISITOR_SECONDS
        try:
            with telemetry.STREAMS_OPEN.track_inprogress():
                while now() < ends_at and (told := await queue.get()) is not None:
                    if now() >= look_at_visitor_at:
                        if not await may_stay():
                            yield _bye("the session is over")
                            return
                        look_at_visitor_at = now() + VISITOR_SECONDS
                    yield format_sse_event(data_str=told, event="moment")
            yield _bye("the stream is old" if now() >= ends_at else "the process ends")
        finally:
            self._watching.discard(queue)

    async def _look(self, look: Look) -> None:
        """Look as long as somebody watches. While the database is away that is told."""
        while self._watching:
            try:
                told = await look()
            except Unavailable:
                told = '{"away": true}'
            for queue in self._watching:
                if queue.qsize() < 5:  # who does not keep up misses some
                    queue.put_nowait(told)
            await asyncio.sleep(LOOK_SECONDS)


def _bye(reason: str) -> bytes:
    return format_sse_event(data_str=f'{{"reason":"{reason}"}}', event="bye")
