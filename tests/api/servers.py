"""A real HTTP server for an application, on a loopback port."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from fastapi import FastAPI

from tests.waiting import PATIENCE


class Server(uvicorn.Server):
    """Says when it listens, and leaves the signals of the test's process alone."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def served(app: FastAPI) -> AsyncIterator[str]:
    """The address of the application, which shares the test's event loop."""
    server = Server(uvicorn.Config(app, port=0, log_config=None, access_log=False, lifespan="off"))
    serving = asyncio.create_task(server.serve())
    async with asyncio.timeout(PATIENCE):
        await server.listening.wait()
    host, port = server.servers[0].sockets[0].getsockname()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.should_exit = True
        await serving
