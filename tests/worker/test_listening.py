"""Wake-ups come back whatever became of their connection: fault 081."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from psycopg.conninfo import conninfo_to_dict

from taketurns.brokers.postgres import PostgresBroker, wakeups
from taketurns.engine.registry import Registry
from tests.waiting import eventually
from tests.worker.house import House


class Wire:
    """Connections to the server that can go dead without a word."""

    def __init__(self, host: str, port: str) -> None:
        self._host = host
        self._port = port
        self._ways: list[Way] = []

    def cut(self) -> int:
        """Nothing passes any more on what is connected so far; answers how many connections that is."""
        for way in self._ways:
            way.is_dead = True
        return len(self._ways) // 2

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._host.startswith("/"):
            far_reader, far_writer = await asyncio.open_unix_connection(f"{self._host}/.s.PGSQL.{self._port}")
        else:
            far_reader, far_writer = await asyncio.open_connection(self._host, int(self._port))
        ways = [Way(reader, far_writer), Way(far_reader, writer)]
        self._ways += ways
        await asyncio.gather(*(way.carry() for way in ways))


class Way:
    """One direction of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.is_dead = False

    async def carry(self) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await self._reader.read(65536):
                if not self.is_dead:
                    self._writer.write(data)
                    await self._writer.drain()
            self._writer.close()
            await self._writer.wait_closed()


@pytest.fixture
async def wire(house: House) -> AsyncIterator[tuple[Wire, str]]:
    """A wire, and the address of its end."""
    parts = conninfo_to_dict(house.url)
    wire = Wire(str(parts["host"]), str(parts.get("port") or 5432))
    server = await asyncio.start_server(wire.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    password = f":{parts['password']}" if "password" in parts else ""
    yield wire, f"postgresql://{parts['user']}{password}@127.0.0.1:{port}/{parts['dbname']}"
    server.close()
    await server.wait_closed()


async def test_a_cut_connection_is_made_again(house: House) -> None:
    async with house.working(Registry(), poll_seconds=60) as worker:
        for _ in range(3):
            await eventually(worker.listening.is_listening.is_set)
            assert house.terminate("taketurns-listen") == 1
            await eventually(lambda: not worker.listening.is_listening.is_set())
        await eventually(worker.listening.is_listening.is_set)


async def test_a_connection_that_died_without_a_word_is_made_again(
    house: House, wire: tuple[Wire, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None: ...

    monkeypatch.setattr(wakeups, "ALIVE_SECONDS", 0.2)
    registry = Registry()
    registry.add(work)
    line, address = wire
    broker = PostgresBroker(house.database, listen_url=address)
    async with house.working(registry, broker=broker, poll_seconds=0.5) as worker:
        await eventually(worker.listening.is_listening.is_set)
        assert line.cut() == 1
        during = await house.add("work", count=3)
        await eventually(lambda: house.are("completed", during))
        await eventually(lambda: not worker.listening.is_listening.is_set())
        await eventually(worker.listening.is_listening.is_set)
        after = await house.add("work", count=3)
        await eventually(lambda: house.are("completed", after))
