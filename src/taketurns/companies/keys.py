"""The keys of companies and of operators, as the database has them: made, listed, rotated, revoked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from psycopg import AsyncConnection
from sqlalchemy import ColumnElement, DateTime, func, insert, literal, select, update
from sqlalchemy import Interval as IntervalType

from taketurns.companies.errors import KeyNotActive
from taketurns.engine import key as form
from taketurns.engine.errors import InvalidOption, UnknownCompany
from taketurns.engine.key import Key, Role
from taketurns.storage import audit
from taketurns.storage.audit import Action, Actor
from taketurns.storage.database import Database, Row, fetch
from taketurns.storage.ids import new_id
from taketurns.storage.models import ApiKey as ApiKeyTable
from taketurns.storage.models import Company as CompanyTable

OVERLAP_DEFAULT: Final = timedelta(days=1)
_LATEST: Final = datetime(9998, 12, 31, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Stamp:
    """How this service makes keys and knows them again.

    The first pepper makes digests, every one checks them. Without any, a digest is a plain SHA-256: still as hard to
    guess as the key, but whoever can write to the database could plant one of their own.
    """

    environment: str = "live"
    peppers: tuple[bytes, ...] = (b"",)

    def digest(self, key: Key) -> bytes:
        return key.digest(self.peppers[0])


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What may be shown of a key, and how it stands. It is active until it is revoked or has expired."""

    id: UUID
    company_id: UUID | None
    role: Role | None
    scopes: Sequence[str]
    name: str
    environment: str
    last_four: str
    replaces: UUID | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    is_active: bool

    @property
    def prefix(self) -> str:
        return form.prefix(self.environment, self.id)


@dataclass(frozen=True, slots=True)
class Made:
    """A key that was just made: its text is not stored anywhere."""

    text: str
    key: ApiKey


@dataclass(frozen=True, slots=True)
class Page:
    """Some keys, and the id to go on after when there are more."""

    keys: list[ApiKey]
    next_after: UUID | None


_IS_ACTIVE: Final = ApiKeyTable.revoked_at.is_(None) & (
    ApiKeyTable.expires_at.is_(None) | (ApiKeyTable.expires_at > func.clock_timestamp())
)
_COLUMNS: Final = (
    ApiKeyTable.id,
    ApiKeyTable.company_id,
    ApiKeyTable.role,
    ApiKeyTable.scopes,
    ApiKeyTable.name,
    ApiKeyTable.environment,
    ApiKeyTable.last_four,
    ApiKeyTable.replaces,
    ApiKeyTable.created_at,
    ApiKeyTable.expires_at,
    ApiKeyTable.revoked_at,
    ApiKeyTable.last_used_at,
    _IS_ACTIVE,
)


async def create_for_company(
    database: Database,
    company: UUID | str,
    *,
    stamp: Stamp,
    name: str,
    scopes: Sequence[str],
    expires: datetime | timedelta | None = None,
    by: Actor | None = None,
) -> Made:
    """Make a key of a company, that works until then or for so long.

    Raises UnknownCompany, and InvalidOption of `expires_at` when that is over.
    """
    async with database.transaction() as connection:
        company_id = await _shared(connection, database.schema, company)
        values = {"company_id": company_id, "scopes": list(scopes), "name": name}
        made = await _make(connection, database.schema, stamp, values, expires)
        await _note(connection, database.schema, by, Action.CREATE_KEY, made.key)
    return made


async def create_for_operator(
    database: Database,
    *,
    stamp: Stamp,
    name: str,
    role: Role,
    expires: datetime | timedelta | None = None,
    by: Actor | None = None,
) -> Made:
    """Make an operator's key, that works until then or for so long. Raises InvalidOption as above."""
    async with database.transaction() as connection:
        values = {"role": role.value, "name": name}
        made = await _make(connection, database.schema, stamp, values, expires)
        await _note(connection, database.schema, by, Action.CREATE_OPERATOR_KEY, made.key)
    return made


async def find(database: Database, company: UUID | str | None, key_id: UUID) -> ApiKey | None:
    """The key of this id that the company has, or an operator if None is given for the company."""
    rows = await database.fetch(select(*_COLUMNS).where(*_is(company, key_id)))
    return _key(rows[0]) if rows else None


async def find_any(database: Database, key_id: UUID) -> ApiKey | None:
    """The key of this id, whoever has it."""
    rows = await database.fetch(select(*_COLUMNS).where(ApiKeyTable.id == key_id))
    return _key(rows[0]) if rows else None


async def page(
    database: Database, company: UUID | str | None, *, limit: int, offset: int = 0, after: UUID | None = None
) -> Page | None:
    """The keys of a company, or of operators, the newest first; None when there is no such company."""
    statement = select(*_COLUMNS).where(_of(company)).order_by(ApiKeyTable.id.desc()).limit(limit + 1).offset(offset)
    if after is not None:
        statement = statement.where(ApiKeyTable.id < after)
    keys = [_key(row) for row in await database.fetch(statement)]
    if not keys and company is not None and not await database.fetch(_company_id(company)):
        return None
    return Page(keys[:limit], keys[limit - 1].id if len(keys) > limit else None)


async def rotate(
    database: Database,
    company: UUID | str | None,
    key_id: UUID,
    *,
    stamp: Stamp,
    overlap: timedelta = OVERLAP_DEFAULT,
    by: Actor | None = None,
) -> Made | None:
    """A new key that may do the same, and lives as long as the old one was made to; the old one expires after the
    overlap, if not before. None when there is no such key. Raises KeyNotActive."""
    async with database.transaction() as connection:
        if company is not None:
            await _shared(connection, database.schema, company)
        statement = select(*_COLUMNS, ApiKeyTable.made_until).where(*_is(company, key_id)).with_for_update()
        rows = await fetch(connection, database.schema, statement)
        if not rows:
            return None
        *shown, made_until = rows[0]
        former = _key(tuple(shown))
        if not former.is_active:
            raise KeyNotActive(former.name)
        shortened = (
            update(ApiKeyTable)
            .where(ApiKeyTable.id == former.id)
            .values(expires_at=func.least(ApiKeyTable.expires_at, _moment(overlap)))
        )
        await fetch(connection, database.schema, shortened)
        lifetime = None if made_until is None else made_until - former.created_at
        values = {
            "company_id": former.company_id,
            "role": None if former.role is None else former.role.value,
            "scopes": list(former.scopes),
            "name": former.name,
            "replaces": former.id,
        }
        made = await _make(connection, database.schema, stamp, values, lifetime)
        action = Action.ROTATE_OPERATOR_KEY if company is None else Action.ROTATE_KEY
        await _note(connection, database.schema, by, action, made.key)
    return made


async def revoke(
    database: Database, company: UUID | str | None, key_id: UUID, *, by: Actor | None = None
) -> ApiKey | None:
    """End a key at once; once more changes nothing. None when there is no such key."""
    async with database.transaction() as connection:
        statement = (
            update(ApiKeyTable)
            .where(*_is(company, key_id), ApiKeyTable.revoked_at.is_(None))
            .values(revoked_at=func.clock_timestamp())
            .returning(*_COLUMNS)
        )
        for row in await fetch(connection, database.schema, statement):
            revoked = _key(row)
            action = Action.REVOKE_OPERATOR_KEY if company is None else Action.REVOKE_KEY
            await _note(connection, database.schema, by, action, revoked)
            return revoked
    return await find(database, company, key_id)


async def _make(
    connection: AsyncConnection[Row],
    schema: str,
    stamp: Stamp,
    values: dict[str, Any],
    expires: datetime | timedelta | None,
) -> Made:
    key = form.make(stamp.environment, new_id())
    known = {"id": key.id, "environment": key.environment, "last_four": key.last_four, "digest": stamp.digest(key)}
    until = {"made_until": _moment(expires), "expires_at": _moment(expires)}
    (row,) = await fetch(connection, schema, insert(ApiKeyTable).values(known | values | until).returning(*_COLUMNS))
    made = Made(key.text, _key(row))
    if not made.key.is_active:
        raise InvalidOption("expires_at", "must be a time to come")
    return made


async def _note(connection: AsyncConnection[Row], schema: str, by: Actor | None, action: Action, key: ApiKey) -> None:
    details = {
        "name": key.name,
        "role": key.role,
        "scopes": key.scopes,
        "expiresAt": key.expires_at,
        "replaces": key.replaces,
    }
    told = {name: value for name, value in details.items() if value}
    await audit.write(connection, schema, by, action, target=key.id, company_id=key.company_id, details=told)


async def _shared(connection: AsyncConnection[Row], schema: str, company: UUID | str) -> UUID:
    """The id of the company, whose row is shared until the end of the transaction. Raises UnknownCompany."""
    for (company_id,) in await fetch(
        connection, schema, _company_id(company).with_for_update(key_share=True, read=True)
    ):
        return UUID(str(company_id))
    raise UnknownCompany(str(company))


def _company_id(company: UUID | str) -> Any:
    is_named = CompanyTable.id == company if isinstance(company, UUID) else CompanyTable.slug == company
    return select(CompanyTable.id).where(is_named)


def _moment(expires: datetime | timedelta | None) -> Any:
    """A time, or the end of one that begins now, by the database's clock."""
    if isinstance(expires, timedelta):
        return func.least(
            func.clock_timestamp() + literal(expires, IntervalType()), literal(_LATEST, DateTime(timezone=True))
        )
    return expires


def _of(company: UUID | str | None) -> ColumnElement[bool]:
    if company is None:
        return ApiKeyTable.company_id.is_(None)
    owner: ColumnElement[UUID] = _company_id(company).scalar_subquery()
    return ApiKeyTable.company_id == owner


def _is(company: UUID | str | None, key_id: UUID) -> tuple[ColumnElement[bool], ...]:
    return _of(company), ApiKeyTable.id == key_id


def _key(row: Row) -> ApiKey:
    key_id, company_id, role, *rest = row
    return ApiKey(key_id, company_id, None if role is None else Role(role), *rest)
