"""One connection to a server that all calls of a process share: each is sent at once, and answers come in order.

A client with a pool takes a connection for each call, with locks and timers of its own: three times the work
(decisions/0024). Whoever calls says how long to wait, and drops the line when no answer came.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Any, Final, cast

import hiredis
from redis.asyncio.connection import SSLConnection, parse_url
from redis.exceptions import AskError, ConnectionError, MovedError, NoScriptError, ResponseError

_ERRORS: Final[dict[str, type[ResponseError]]] = {"ASK": AskError, "MOVED": MovedError, "NOSCRIPT": NoScriptError}


def _error(text: str) -> ResponseError:
    """What a server refuses, as redis-py tells it."""
    code, _, why = text.partition(" ")
    return _ERRORS.get(code, ResponseError)(why, status_code=code)


class Line(asyncio.Protocol):
    """Made by `open_line`."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._reader = hiredis.Reader(replyError=_error)
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._listens = False
        self._messages: set[bytes] = set()
        self._is_news = asyncio.Event()

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def call(self, *parts: Any) -> Any:
        """What the server answers to a command. Raises RedisError."""
        if self._transport is None or self._transport.is_closing():
            raise ConnectionError("the connection to the server has ended")
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        self._transport.write(hiredis.pack_command(parts))
        return await answer

    async def listen(self, channel: str) -> None:
        """Hear what is published on a channel from now on. Nothing but PING can be called on this line any more."""
        self._listens = True
        await self.call("SUBSCRIBE", channel)

    async def messages(self, *, within: float) -> set[bytes]:
        """What was published since the last time on the channels that this line listens to, as soon as there is some;
        none after so many seconds. Raises RedisError when the line has ended."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._is_news.wait()
        if not self._messages and not self.is_open:
            raise ConnectionError("the connection to the server has ended")
        self._is_news.clear()
        told, self._messages = self._messages, set()
        return told

    def drop(self) -> None:
        """End the connection; calls under way fail."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            while (answer := self._reader.gets()) is not False:
                if self._listens and isinstance(answer, list) and answer[0] == b"message":
                    self._messages.add(answer[2])
                    self._is_news.set()
                else:
                    self._answer(self._waiting.popleft(), answer)
        except (hiredis.ProtocolError, IndexError):
            self.drop()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._is_news.set()
        while self._waiting:
            self._answer(self._waiting.popleft(), ConnectionError(f"the connection was lost: {exc or 'closed'}"))

    def _answer(self, waiting: asyncio.Future[Any], answer: Any) -> None:
        if waiting.done():  # whoever called waits no more
            return
        if isinstance(answer, Exception):
            waiting.set_exception(answer)
        else:
            waiting.set_result(answer)


async def open_line(url: str, *, name: str) -> Line:
    """A line to the server of an address. Raises RedisError and OSError."""
    options: dict[str, Any] = dict(parse_url(url))
    kind = options.pop("connection_class", None)
    loop = asyncio.get_running_loop()
    if "path" in options:
        _, line = await loop.create_unix_connection(Line, options["path"])
    else:
        context = SSLConnection(**options).ssl_context.get() if kind is SSLConnection else None
        host, port = options.get("host") or "localhost", options.get("port") or 6379
        _, line = await loop.create_connection(Line, host, port, ssl=context)
    try:
        if options.get("password"):
            await line.call("AUTH", *filter(None, (options.get("username"), options["password"])))
        await line.call("CLIENT", "SETNAME", name)
        if options.get("db"):
            await line.call("SELECT", options["db"])
    except BaseException:
        line.drop()
        raise
    return line
