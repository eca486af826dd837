"""Connections to one cell: a pool of autocommit psycopg connections, through which functions are called by name and
SQLAlchemy Core statements are run.

Nothing here relies on the state of a session, so a transaction pooler may stand between: names are qualified with
the cell's schema when a statement is sent, and time limits are kept by the client.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, LiteralString

import psycopg
from psycopg import AsyncConnection, sql
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout
from sqlalchemy import Executable, make_url
from sqlalchemy.dialects.postgresql import psycopg as psycopg_dialect

from taketurns.engine.errors import InvalidData, Unavailable

Row = tuple[Any, ...]

_DIALECT = psycopg_dialect.dialect()  # type: ignore[no-untyped-call]


def conninfo(url: str) -> str:
    """The libpq form of a URL that may carry a SQLAlchemy driver name."""
    scheme, _, rest = url.partition("://")
    return f"{scheme.partition('+')[0]}://{rest}"


class Database:
    """The pool of one process.

    `pool_timeout` and `statement_timeout` are seconds; past either, and while the server is away, calls raise
    Unavailable.
    """

    def __init__(
        self,
        url: str,
        *,
        schema: str = "taketurns",
        pool_size: int = 10,
        pool_timeout: float = 5.0,
        statement_timeout: float = 10.0,
        name: str = "taketurns",
        prepare: bool = True,
    ) -> None:
        self.url = url
        self._address = make_url(url).render_as_string()
        self.schema = schema
        self.statement_timeout = statement_timeout
        self._pool: AsyncConnectionPool[AsyncConnection[Row]] = AsyncConnectionPool(
            conninfo(url),
            min_size=1,
            max_size=pool_size,
            timeout=pool_timeout,
            open=False,
            name=name,
            check=_check,
            kwargs={
                "autocommit": True,
                "application_name": name,
                "connect_timeout": 5,
                "prepare_threshold": 5 if prepare else None,
            },
        )

    async def open(self) -> None:
        """Start filling the pool. A server that is away is not an error: it is waited for in the background."""
        await self._pool.open(wait=False)

    async def close(self) -> None:
        await self._pool.close()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[AsyncConnection[Row]]:
        """A connection in autocommit.

        Raises Unavailable when none can be had, or the server goes away meanwhile, and InvalidData.
        """
        try:
            async with asyncio.timeout(self.statement_timeout + self._pool.timeout):
                async with self._pool.connection() as connection:
                    yield connection
        except (PoolTimeout, PoolClosed) as error:
            raise Unavailable(
                f"no connection to the database {self._address} was free within {self._pool.timeout:g} s"
            ) from error
        except TimeoutError as error:
            raise Unavailable("the database did not answer in time") from error
        except psycopg.errors.LockNotAvailable as error:
            raise Unavailable("another transaction kept what this one needs for too long") from error
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            raise Unavailable(
                f"the database is not reachable: {str(error).splitlines()[0] if str(error) else error!r}"
            ) from error
        except (psycopg.DataError, UnicodeError) as error:
            raise InvalidData(str(error)) from error

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection[Row]]:
        """A connection in a transaction, committed on leaving."""
        async with self.connection() as connection, connection.transaction():
            yield connection

    async def call(self, function: LiteralString, *arguments: object) -> list[Row]:
        """`select * from function(…)`, in the cell's schema."""
        async with self.connection() as connection:
            return await call(connection, self.schema, function, *arguments)

    async def fetch(self, statement: Executable) -> list[Row]:
        """Run one SQLAlchemy Core statement; rows are plain tuples as psycopg makes them."""
        async with self.connection() as connection:
            return await fetch(connection, self.schema, statement)


async def _check(connection: AsyncConnection[Row]) -> None:
    """Whether a pooled connection may be used. A server that has gone since has said so on it, and that can be seen
    without a word to it; only then is it asked."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    if poll.poll(0):
        await AsyncConnectionPool.check_connection(connection)


async def call(connection: AsyncConnection[Row], schema: str, function: LiteralString, *arguments: object) -> list[Row]:
    """Call a function of the cell on this connection."""
    cursor = await connection.execute(call_statement(schema, function, len(arguments)), arguments, binary=True)
    return await cursor.fetchall()


_statements: dict[tuple[str, str, int], bytes] = {}


def call_statement(schema: str, function: LiteralString, arity: int) -> bytes:
    """`select * from "schema"."function"(%s, …)`"""
    key = (schema, function, arity)
    if key not in _statements:
        statement = sql.SQL("select * from {}({})").format(
            sql.Identifier(schema, function), sql.SQL(", ").join([sql.Placeholder()] * arity)
        )
        _statements[key] = statement.as_bytes()
    return _statements[key]


async def fetch(connection: AsyncConnection[Row], schema: str, statement: Executable) -> list[Row]:
    """Run one SQLAlchemy Core statement on this connection."""
    query, parameters = compile_statement(schema, statement)
    cursor = await connection.execute(query, parameters)
    return await cursor.fetchall() if cursor.description else []


def compile_statement(schema: str, statement: Executable) -> tuple[str, dict[str, Any]]:
    """The text and parameters of a Core statement, with its tables in the cell's schema."""
    compiled = statement.compile(  # type: ignore[attr-defined]
        dialect=_DIALECT,
        schema_translate_map={None: schema},
        render_schema_translate=True,
        compile_kwargs={"render_postcompile": True},
    )
    return str(compiled), dict(compiled.params)
