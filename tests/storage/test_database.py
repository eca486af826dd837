"""The pool of one process: connections whose server has gone, and values that PostgreSQL refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import Integer, bindparam, select

from taketurns.engine.errors import InvalidData
from taketurns.storage.arrays import Texts, Uuids, texts_or_none
from taketurns.storage.database import Database, compile_statement, conninfo

POOL_SIZE = 4


@pytest.fixture
async def database(empty_database_url: str) -> AsyncIterator[Database]:
    database = Database(empty_database_url, pool_size=POOL_SIZE)
    await database.open()
    yield database
    await database.close()


async def process_ids(database: Database) -> set[int]:
    """The server's processes of as many connections as the pool can have."""
    everybody = asyncio.Barrier(POOL_SIZE)

    async def one() -> int:
        async with database.connection() as connection:
            await everybody.wait()
            return connection.info.backend_pid

    return set(await asyncio.gather(*(one() for _ in range(POOL_SIZE))))


async def test_a_connection_that_was_lost_while_nobody_used_it_costs_no_request(  # fault 110
    database: Database,
) -> None:
    before = await process_ids(database)
    async with await psycopg.AsyncConnection.connect(conninfo(database.url), autocommit=True) as outside:
        for process_id in before:
            await outside.execute("select pg_terminate_backend(%s, 10000)", [process_id])
    after = await process_ids(database)
    assert len(after) == POOL_SIZE
    assert not after & before


async def test_a_value_that_postgresql_refuses_is_told_in_a_word_of_ours(database: Database) -> None:
    for value in ("a\x00b", "\ud800"):
        with pytest.raises(InvalidData):
            async with database.connection() as connection:
                await connection.execute("select %s::text", [value])
    with pytest.raises(InvalidData):
        async with database.connection() as connection:
            await (await connection.execute("select '-infinity'::timestamptz")).fetchone()


async def test_arrays_reach_the_server_element_by_element(database: Database) -> None:
    """An empty text, what an array's text form would quote, and no text at all."""
    ids = Uuids([UUID(int=0), UUID(int=2**128 - 1)])
    texts = Texts(["", 'say "{}", \\', None, "null", "\N{SNOWMAN}"])

    rows = await database.run(b"select %s, %s, cardinality(%s::uuid[]), %s::text[]", (ids, texts, Uuids(), Texts()))

    assert rows == [(list(ids), list(texts), 0, [])]
    assert texts_or_none([None, None]) is None
    assert texts_or_none([None, ""]) == (None, "")


@pytest.mark.parametrize("text", ["\0", "\ud800"])
async def test_an_array_of_what_is_no_text_to_the_server_is_invalid_data(database: Database, text: str) -> None:
    with pytest.raises(InvalidData):
        await database.run(b"select %s", (Texts([text]),))


def test_a_statement_that_lives_on_is_compiled_once_and_takes_other_values() -> None:
    statement = select(bindparam("number", type_=Integer()))
    text, values = compile_statement("one", statement, number=1)
    again, others = compile_statement("one", statement, number=2)
    assert text is again
    assert (values, others) == ({"number": 1}, {"number": 2})
