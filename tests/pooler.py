"""A pooler for tests, as PgBouncer is one in transaction mode: clients share one connection to the server, and each has
it from the first message of a transaction to the last."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from sqlalchemy import make_url

_PROTOCOL: Final = 196_608
_READY: Final = b"Z\x00\x00\x00\x05I"


class TransactionPooler:
    """`url` is its address; `turns` counts what clients waited for: how often the server said that it is ready."""

    def __init__(self, server_url: str, directory: Path) -> None:
        self._server = make_url(server_url)
        self._directory = directory
        self._lent = asyncio.Lock()
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self._greeting = b""
        self.turns = 0

    @property
    def url(self) -> str:
        address = self._server.set(query={"host": str(self._directory)}, password=None)
        return address.render_as_string(hide_password=False)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Connected to a server that trusts its clients, and there for clients of its own."""
        await self._connect()
        served = await asyncio.start_unix_server(self._serve, self._directory / ".s.PGSQL.5432")
        try:
            yield
        finally:
            served.close()
            self._writer.close()

    async def _connect(self) -> None:
        query = self._server.query
        if (directory := query.get("host")) is not None:
            path = f"{directory}/.s.PGSQL.{query.get('port', '5432')}"
            self._reader, self._writer = await asyncio.open_unix_connection(path)
        else:
            self._reader, self._writer = await asyncio.open_connection(self._server.host, self._server.port or 5432)
        named = b"user\0%s\0database\0%s\0\0" % (
            (self._server.username or "").encode(),
            (self._server.database or "").encode(),
        )
        self._writer.write(struct.pack("!II", len(named) + 8, _PROTOCOL) + named)
        while (message := await _message(self._reader)) != _READY:
            if message[:1] == b"E" or (message[:1] == b"R" and message[5:9] != b"\0\0\0\0"):
                raise ConnectionError(f"the server does not trust its clients: {message!r}")
            self._greeting += message

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            (length,) = struct.unpack("!I", await reader.readexactly(4))
            await reader.readexactly(length - 4)
            writer.write(self._greeting + _READY)
            while (message := await _message(reader))[:1] != b"X":
                async with self._lent:
                    await self._pass_on(message, reader, writer)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    async def _pass_on(self, message: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A client's messages up to the end of its transaction, and what the server answers."""
        while True:
            self._writer.write(message)
            while message[:1] not in (b"Q", b"S"):
                message = await _message(reader)
                self._writer.write(message)
            while (answer := await _message(self._reader))[:1] != b"Z":
                writer.write(answer)
            self.turns += 1
            writer.write(answer)
            if answer == _READY:
                return
            message = await _message(reader)


async def _message(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(5)
    return head + await reader.readexactly(int.from_bytes(head[1:]) - 4)
