"""Through a real server: bodies without a length, clients that leave, and what they leave behind."""

from __future__ import annotations

import asyncio
import json
import resource
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import psycopg
import pytest
from httpx2 import AsyncClient

from taketurns.api.task_types import TaskTypes
from taketurns.companies.directory import Company
from taketurns.engine import limits
from taketurns.engine.errors import Busy
from taketurns.engine.registry import Registry
from taketurns.storage.database import Database, conninfo
from tests.waiting import PATIENCE

TASKS = "/companies/acme/tasks"
CHUNK = b" " * 65_536


async def raw(address: str, *parts: bytes, leave_after: float | None = None) -> bytes:
    """Send bytes as they are; the answer up to the end of its head, or nothing when the client leaves first."""
    url = urlsplit(address)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        if leave_after is None:
            return await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
        await asyncio.sleep(leave_after)
        return b""
    finally:
        writer.transport.abort()


def head(*headers: str) -> bytes:
    lines = [f"POST {TASKS} HTTP/1.1", "Host: api", "Content-Type: application/json", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def test_a_body_without_a_length_is_measured_as_it_comes(address: str, acme: Company) -> None:  # fault 010
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 50 * 1024 * 1024:
            sent += len(CHUNK)
            yield CHUNK

    async with AsyncClient(base_url=address, timeout=PATIENCE) as client:
        for path in (TASKS, f"{TASKS}/batch", "/companies", "/workers/process"):
            sent = 0
            answer = await client.post(path, content=endless(), headers={"Content-Type": "application/json"})
            assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large"), path
        assert (await client.post(TASKS, json={"type": "anything"})).status_code == 201
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown * 1024 < 3 * limits.BATCH_BYTES


async def test_a_body_with_too_great_a_length_is_refused_before_it_comes(address: str, acme: Company) -> None:
    answer = await raw(address, head(f"Content-Length: {50 * 1024 * 1024}", "Expect: 100-continue"))  # fault 010
    assert answer.startswith(b"HTTP/1.1 413")
    assert (await raw(address, head("Content-Length: 1" + "0" * 18))).startswith(b"HTTP/1.1 413")


async def test_a_chunked_body_of_the_right_size_is_taken(address: str, acme: Company) -> None:
    body = json.dumps({"type": "anything", "payload": {"value": "x" * 200_000}}).encode()

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 10_000):
            yield body[start : start + 10_000]

    async with AsyncClient(base_url=address) as client:
        answer = await client.post(TASKS, content=pieces(), headers={"Content-Type": "application/json"})
    assert answer.status_code == 201


async def test_clients_that_leave_hold_no_connection(  # fault 041
    address: str, acme: Company, database: Database
) -> None:
    body = json.dumps({"type": "anything"}).encode()
    create = head(f"Content-Length: {len(body)}") + body
    unfinished = head("Content-Length: 1000") + body
    look = f"GET {TASKS} HTTP/1.1\r\nHost: api\r\n\r\n".encode()
    for _ in range(10):
        await asyncio.gather(
            *(
                raw(address, request, leave_after=milliseconds / 1000)
                for milliseconds in range(1, 18)
                for request in (create, unfinished, look)
            )
        )
    await nobody_works(database)
    async with AsyncClient(base_url=address) as client:
        answers = await asyncio.gather(*(client.post(TASKS, json={"type": "anything"}) for _ in range(50)))
    assert {answer.status_code for answer in answers} == {201}
    await nobody_works(database)


async def nobody_works(database: Database) -> None:
    """Wait until the server has done what it was asked, and no transaction is open."""
    async with await psycopg.AsyncConnection.connect(conninfo(database.url), autocommit=True) as connection:
        for _ in range(400):
            cursor = await connection.execute(
                "select from pg_stat_activity where datname = current_database() and backend_type = 'client backend'"
                " and state <> 'idle' and pid <> pg_backend_pid()"
            )
            if not cursor.rowcount:
                return
            await asyncio.sleep(0.05)
    pytest.fail("connections are still held in a transaction")


async def test_nobody_waits_for_one_reading_of_types_after_the_other(database: Database) -> None:  # fault 043
    types = TaskTypes(database, Registry(), patience_seconds=0.0)
    async with database.transaction() as connection:
        await connection.execute("lock table taketurns.task_types in access exclusive mode")
        first = asyncio.create_task(types.all())
        await asyncio.sleep(0)
        for _ in range(2):
            with pytest.raises(Busy):
                await types.all()
        assert not first.done()
    assert await first == []
    assert await types.all() == []
