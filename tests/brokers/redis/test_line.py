"""The connection that all calls of a process share: whose it is, what order it keeps, and how it ends."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from pathlib import Path

import pytest
from redis.exceptions import ConnectionError, ResponseError

from taketurns.brokers.redis.line import Line, open_line
from taketurns.brokers.redis.server import Server
from taketurns.engine.errors import Unavailable
from tests.valkeys import Valkeys, free_ports
from tests.waiting import PATIENCE


async def open_and_name(url: str) -> tuple[Line, bytes]:
    line = await open_line(url, name="who")
    return line, await line.call("CLIENT", "GETNAME")


async def test_the_user_and_the_database_of_an_address_are_those_of_the_line(valkey: Valkeys) -> None:
    (port,) = free_ports(1)
    server = valkey(port=port)
    server.execute("ACL SETUSER", "ada", "on", ">secret", "+@all", "~*")
    line, name = await open_and_name(f"redis://ada:secret@127.0.0.1:{port}/3")
    assert name == b"who"
    assert await line.call("ACL", "WHOAMI") == b"ada"
    await line.call("SET", "here", 1)
    line.drop()
    with server.client(db=3) as client:
        assert client.get("here") == "1"
    with pytest.raises(ResponseError, match="username-password") as refused:
        await open_line(f"redis://ada:wrong@127.0.0.1:{port}", name="who")
    assert refused.value.status_code == "WRONGPASS"


async def test_answers_come_to_those_who_asked_though_some_wait_no_more(valkey_url: str) -> None:
    line = await open_line(valkey_url, name="who")
    calls = [asyncio.create_task(line.call("ECHO", number)) for number in range(200)]
    await asyncio.sleep(0)  # all are sent
    for call in calls[::3]:
        call.cancel()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    for number, answer in enumerate(answers):
        if number % 3:
            assert answer == str(number).encode()
        else:
            assert isinstance(answer, asyncio.CancelledError)
    assert await line.call("ECHO", "last") == b"last"
    line.drop()


async def test_a_line_that_is_dropped_fails_those_who_wait_on_it(valkey_url: str) -> None:
    line = await open_line(valkey_url, name="who")
    waiting = asyncio.create_task(line.call("BLPOP", "nothing-is-here", 0))
    await asyncio.sleep(0)
    line.drop()
    with pytest.raises(ConnectionError):
        await waiting
    with pytest.raises(ConnectionError):
        await line.call("PING")
    assert not line.is_open


async def test_a_line_hears_what_is_published_while_nobody_looked(valkey_url: str) -> None:
    ear, mouth = await open_line(valkey_url, name="ear"), await open_line(valkey_url, name="mouth")
    await ear.listen("news")
    for news in ("one", "two", "one"):
        assert await mouth.call("PUBLISH", "news", news) == 1
    assert await ear.call("PING") == [b"pong", b""]
    assert await ear.messages(within=PATIENCE) == {b"one", b"two"}
    assert await ear.messages(within=0) == set()
    ear.drop()
    with pytest.raises(ConnectionError):
        await ear.messages(within=PATIENCE)
    mouth.drop()


async def test_a_server_that_does_not_answer_in_time_is_asked_on_another_line(valkey: Valkeys) -> None:
    own = valkey()
    server = Server(own.url, pool_timeout=0.2, timeout=0.2)
    assert await server.command("ECHO", "first") == b"first"
    own.pause()
    with pytest.raises(Unavailable, match="in time"):
        await server.command("PING")
    own.go_on()
    assert await server.command("ECHO", "again") == b"again"
    await server.close()


async def test_a_line_is_encrypted_where_the_address_says_so(valkey: Valkeys, tmp_path: Path) -> None:
    """The server's end of it is taken off before the server."""
    certificate = tmp_path / "certificate.pem"
    asked = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(tmp_path / "key.pem"), "-out", str(certificate)]
    made = await asyncio.create_subprocess_exec(*asked.split(), *names, stderr=asyncio.subprocess.DEVNULL)
    assert await made.wait() == 0
    behind, before = free_ports(2)
    valkey(port=behind)

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", behind)
        await asyncio.gather(carry(reader, inner_writer), carry(inner_reader, writer))

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, tmp_path / "key.pem")
    async with await asyncio.start_server(serve, "localhost", before, ssl=context):
        line, name = await open_and_name(f"rediss://localhost:{before}?ssl_ca_certs={certificate}")
        assert name == b"who"
        line.drop()
        with pytest.raises(ssl.SSLCertVerificationError):
            await open_line(f"rediss://localhost:{before}", name="who")
