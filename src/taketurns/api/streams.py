"""Streams of what happens to one thing, as server-sent events: resumed by number, kept alive, and brought to an end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson
from fastapi.sse import format_sse_event
from starlette.responses import StreamingResponse

from taketurns import telemetry
from taketurns.api import answers
from taketurns.api.waiting import Waiter
from taketurns.engine.errors import Unavailable
from taketurns.engine.job import JobEvent
from taketurns.engine.task import Status

MEDIA_TYPE: Final = "text/event-stream"
SCHEMA: Final = {
    "type": "object",
    "description": "Each event: its data is JSON text, its id the number of the move.",
    "properties": {"event": {"type": "string"}, "id": {"type": "string"}, "data": {"type": "string"}},
}
KEEP_ALIVE_SECONDS: Final = 5.0
AGE_SECONDS: Final = 900.0
RETRY_MILLISECONDS: Final = 2_000
LOOK_AGAIN_SECONDS: Final = 1.0
_HEADERS: Final = {"cache-control": "no-store", "x-accel-buffering": "no"}


@dataclass(frozen=True, slots=True)
class Message:
    """One event of a stream. After the last one, nothing else is to come for now."""

    number: int
    kind: str
    body: Mapping[str, Any]
    is_last: bool


Read = Callable[[int], Awaitable[Sequence[Message] | None]]
MayGoOn = Callable[[], Awaitable[bool]]


def message(event: JobEvent) -> Message:
    """A move of a job as its watchers are told."""
    body = answers.job_event(event)
    return Message(event.number, event.kind, body, is_last=Status(body["status"]).is_terminal)


def response(chunks: AsyncIterator[bytes]) -> StreamingResponse:
    return StreamingResponse(chunks, media_type=MEDIA_TYPE, headers=_HEADERS)


async def follow(waiter: Waiter | None, read: Read, *, may_go_on: MayGoOn, after: int) -> AsyncIterator[bytes]:
    """What `read` answers, from `after` on, as soon as it is there; None means that the thing is gone.

    It ends after the last event, when who watches may not any more, at the stream's greatest age, or when the process
    is about to end: then with `bye`, and whoever comes again goes on where it was.
    """
    yield format_sse_event(retry=RETRY_MILLISECONDS)
    if waiter is None:
        yield _bye("too many streams")
        return
    now = asyncio.get_running_loop().time
    ends_at = now() + AGE_SECONDS
    with telemetry.STREAMS_OPEN.track_inprogress():
        while not waiter.is_over(ends_at):
            quiet_until = min(ends_at, now() + KEEP_ALIVE_SECONDS)
            messages: Sequence[Message] | None = ()
            if not await may_go_on():
                yield _bye("the key or token works no more")
                return
            try:
                await waiter.watch(quiet_until)
                messages = await read(after)
            except Unavailable:
                quiet_until = min(quiet_until, now() + LOOK_AGAIN_SECONDS)
            if messages is None:
                yield _bye("forgotten")
                return
            for told in messages:
                after = told.number
                yield format_sse_event(
                    data_str=orjson.dumps(told.body, option=orjson.OPT_UTC_Z).decode(), event=told.kind, id=str(after)
                )
            if messages and messages[-1].is_last:
                return
            if not await waiter.moved(quiet_until) and not waiter.is_over(ends_at):
                yield format_sse_event(comment="still here")
    yield _bye("the stream is old" if now() >= ends_at else "the process ends")


def _bye(reason: str) -> bytes:
    return format_sse_event(data_str=orjson.dumps({"reason": reason}).decode(), event="bye")
