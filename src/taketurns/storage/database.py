"""Connections to one cell: a pool of autocommit psycopg connections, through which functions are called by name and
SQLAlchemy Core statements are run.

Nothing here relies on the state of a session, so a transaction pooler may stand between: names are qualified with
the cell's schema when a statement is sent, and time limits are kept by the client.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import copy
from functools import cache
from typing import Any, Final, LiteralString
from uuid import UUID
from weakref import WeakKeyDictionary

import psycopg
from psycopg import AsyncConnection, AsyncCursor, sql
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout
from sqlalchemy import Executable, make_url
from sqlalchemy.dialects.postgresql import psycopg as psycopg_dialect

from taketurns.engine.errors import Busy, InvalidData, Unavailable

COMPANY: Final = "taketurns.company_id"
"""The setting that says whom a transaction is for. Empty: nobody, and of what companies own nothing is seen."""

NO_SETTINGS: Final[Mapping[str, str]] = {}

Row = tuple[Any, ...]

_DIALECT = psycopg_dialect.dialect()  # type: ignore[no-untyped-call]


def conninfo(url: str) -> str:
    """The libpq form of a URL that may carry a SQLAlchemy driver name."""
    scheme, _, rest = url.partition("://")
    return f"{scheme.partition('+')[0]}://{rest}"


class Database:
    """The pool of one process.

    `pool_timeout` and `statement_timeout` are seconds; past either, and while the server is away, calls raise
    Unavailable; past a lock's timeout, Busy. `companies` is the pool of a role that acts for one company at a time,
    opened and closed with this one; see `taketurns.storage.walls`.
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
        companies: Database | None = None,
    ) -> None:
        self.url = url
        self._address = make_url(url).render_as_string()
        self.schema = schema
        self.statement_timeout = statement_timeout
        self.companies = companies
        self._company: UUID | str | None = None
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
        if self.companies is not None:
            await self.companies.open()

    async def close(self) -> None:
        await self._pool.close()
        if self.companies is not None:
            await self.companies.close()

    def of(self, company: UUID | str) -> Database:
        """The same for one company, an id or a slug: of what companies own, its rows alone, and none if there is no
        such company. Without a role for companies it is this database itself, which sees every row.

        Whom it is for is told to the server with the statements of a transaction, and forgotten with that.
        """
        if self.companies is None:
            return self
        bound = copy(self.companies)
        bound._company = _id_if_one(company)
        return bound

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[AsyncConnection[Row]]:
        """A connection in autocommit, or, for one company, in a transaction that is committed on leaving.

        Raises Unavailable when none can be had, or the server goes away meanwhile, and InvalidData.
        """
        async with self._lent() as connection:
            if self._company is None:
                yield connection
                return
            async with connection.transaction():
                await connection.execute(*self._local_settings({}))
                yield connection

    @asynccontextmanager
    async def _lent(self) -> AsyncIterator[AsyncConnection[Row]]:
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
            raise Busy from error
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            raise Unavailable(
                f"the database is not reachable: {str(error).splitlines()[0] if str(error) else error!r}"
            ) from error
        except (psycopg.DataError, UnicodeError) as error:
            raise InvalidData(str(error)) from error

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection[Row]]:
        """A connection in a transaction, committed on leaving."""
        async with self.connection() as connection:
            if self._company is not None:
                yield connection
                return
            async with connection.transaction():
                yield connection

    async def call(self, function: LiteralString, *arguments: object) -> list[Row]:
        """`select * from function(…)`, in the cell's schema."""
        if self._company is None:
            return await self.run(call_statement(self.schema, function, len(arguments)), arguments, binary=True)
        query = _call_for_company(self.schema, function, len(arguments), is_slug=isinstance(self._company, str))
        async with self._lent() as connection:
            return await _rows(await connection.execute(query, (str(self._company), *arguments), binary=True))

    async def fetch(self, statement: Executable, **values: object) -> list[Row]:
        """Run one SQLAlchemy Core statement, with these for what it leaves open by `bindparam`; rows are plain tuples
        as psycopg makes them."""
        query, parameters = compile_statement(self.schema, statement, **values)
        return await self.run(query.encode(), parameters)

    async def run(
        self, query: bytes, parameters: Any = None, *, settings: Mapping[str, str] = NO_SETTINGS, binary: bool = False
    ) -> list[Row]:
        """Run one statement in one round trip, under `settings` of the server which hold for it alone."""
        async with self._lent() as connection:
            if self._company is None and not settings:
                return await _rows(await connection.execute(query, parameters, binary=binary))
            # What a pipeline sends before its end is one transaction, without a word about it.
            async with connection.pipeline():
                await connection.execute(*self._local_settings(settings))
                cursor = await connection.execute(query, parameters, binary=binary)
            return await _rows(cursor)

    def _local_settings(self, settings: Mapping[str, str]) -> tuple[bytes, Sequence[str]]:
        """The statement that sets these until the end of the transaction, and tells whom that is for."""
        is_slug = isinstance(self._company, str)
        statement = _set_statement(
            self.schema, tuple(settings.items()), is_bound=self._company is not None, is_slug=is_slug
        )
        return statement, () if self._company is None else (str(self._company),)


def _id_if_one(company: UUID | str) -> UUID | str:
    try:
        return company if isinstance(company, UUID) else UUID(company)
    except ValueError:
        return company


@cache
def _set_statement(schema: str, settings: tuple[tuple[str, str], ...], *, is_bound: bool, is_slug: bool) -> bytes:
    calls: list[sql.Composable] = [sql.SQL("set_config({}, {}, true)").format(name, value) for name, value in settings]
    if is_bound:
        calls.append(_entered(schema, is_slug=is_slug))
    return (sql.SQL("select ") + sql.SQL(", ").join(calls)).as_bytes()


@cache
def _call_for_company(schema: str, function: LiteralString, arity: int, *, is_slug: bool) -> bytes:
    """One statement, which no pipeline has to be made for: the function is called once the setting is set."""
    return (
        sql.SQL(
            "select called.* from (select {} as company offset 0) entered"
            " cross join lateral (select * from {}({}) where entered.company is not null offset 0) called"
        )
        .format(
            _entered(schema, is_slug=is_slug),
            sql.Identifier(schema, function),
            sql.SQL(", ").join([sql.Placeholder()] * arity),
        )
        .as_bytes()
    )


def _entered(schema: str, *, is_slug: bool) -> sql.Composed:
    """Tells the server whom the transaction is for, a company named by the parameter."""
    function = sql.Identifier(schema, "company_of_slug")
    company = sql.SQL("coalesce({}(%s)::text, '')").format(function) if is_slug else sql.SQL("%s")
    return sql.SQL("set_config({}, {}, true)").format(COMPANY, company)


async def _check(connection: AsyncConnection[Row]) -> None:
    """Whether a pooled connection may be used. A server that has gone since has said so on it, and that can be seen
    without a word to it; only then is it asked."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    if poll.poll(0):
        await AsyncConnectionPool.check_connection(connection)


async def call(connection: AsyncConnection[Row], schema: str, function: LiteralString, *arguments: object) -> list[Row]:
    """Call a function of the cell on this connection."""
    return await _rows(
        await connection.execute(call_statement(schema, function, len(arguments)), arguments, binary=True)
    )


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
    return await _rows(await connection.execute(query, parameters))


async def _rows(cursor: AsyncCursor[Row]) -> list[Row]:
    return await cursor.fetchall() if cursor.pgresult is not None and cursor.pgresult.nfields else []


_compiled: WeakKeyDictionary[Executable, dict[str, tuple[str, dict[str, Any]]]] = WeakKeyDictionary()


def compile_statement(schema: str, statement: Executable, **values: object) -> tuple[str, dict[str, Any]]:
    """The text and parameters of a Core statement, with its tables in the cell's schema. Made once for as long as the
    statement lives: those that are asked for again and again are kept, and leave open what changes."""
    by_schema = _compiled.setdefault(statement, {})
    if schema not in by_schema:
        by_schema[schema] = _compile(schema, statement)
    text, parameters = by_schema[schema]
    return text, {**parameters, **values}


def _compile(schema: str, statement: Executable) -> tuple[str, dict[str, Any]]:
    compiled = statement.compile(  # type: ignore[attr-defined]
        dialect=_DIALECT,
        schema_translate_map={None: schema},
        render_schema_translate=True,
        compile_kwargs={"render_postcompile": True},
    )
    return str(compiled), dict(compiled.params)
