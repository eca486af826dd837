"""`taketurns keys`: made, listed, rotated and revoked in the database itself, so that there can be a first one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, timedelta
from typing import Any, TypeVar
from uuid import UUID

import typer

from taketurns.api import answers
from taketurns.assembly.keys import make_stamp
from taketurns.cli.actor import actor
from taketurns.cli.database import with_database
from taketurns.companies import directory, keys
from taketurns.companies.errors import KeyNotActive
from taketurns.companies.keys import ApiKey, Made
from taketurns.engine import key as form
from taketurns.engine.errors import InvalidOption, Unavailable, UnknownCompany
from taketurns.engine.key import Role
from taketurns.settings import Settings
from taketurns.storage.database import Database

Answer = TypeVar("Answer")

PAGE = 100


class Refused(Exception):
    """What was asked for cannot be done, and why."""


def create(
    settings: Settings,
    *,
    name: str,
    company: str | None,
    scopes: Sequence[str],
    role: str | None,
    lifetime_seconds: float | None,
    as_json: bool,
) -> int:
    """Make a key and print it. The exit code."""
    lifetime = None if lifetime_seconds is None else timedelta(seconds=lifetime_seconds)
    stamp = make_stamp(settings)

    async def make(database: Database) -> Made:
        if company is None:
            return await keys.create_for_operator(
                database, stamp=stamp, name=name, role=Role(role or ""), expires=lifetime, by=actor()
            )
        return await keys.create_for_company(
            database, _reference(company), stamp=stamp, name=name, scopes=scopes, expires=lifetime, by=actor()
        )

    return _told(settings, make, lambda made: _show_made(made, as_json=as_json))


def show(settings: Settings, *, company: str | None, as_json: bool) -> int:
    """Print the keys of a company, or of operators. The exit code."""

    async def read(database: Database) -> list[ApiKey]:
        found: list[ApiKey] = []
        after: UUID | None = None
        while True:
            owner = None if company is None else _reference(company)
            page = await keys.page(database, owner, limit=PAGE, after=after)
            if page is None:
                raise UnknownCompany(company or "")
            found += page.keys
            after = page.next_after
            if after is None:
                return found

    def tell(found: list[ApiKey]) -> None:
        if as_json:
            _print_json({"keys": [answers.key(one) for one in found]})
        for one in [] if as_json else found:
            may = one.role or ",".join(one.scopes)
            typer.echo(f"{one.id}  {one.prefix}…{one.last_four}  {may}  {_state(one)}  {one.name}")

    return _told(settings, read, tell)


def rotate(settings: Settings, named: str, *, overlap_seconds: float, as_json: bool) -> int:
    """Make the key that comes after another, and print it. The exit code."""

    async def make(database: Database) -> Made:
        former = await _named(database, named)
        made = await keys.rotate(
            database,
            former.company_id,
            former.id,
            stamp=make_stamp(settings),
            overlap=timedelta(seconds=overlap_seconds),
            by=actor(),
        )
        if made is None:
            raise _unknown(named)
        return made

    return _told(settings, make, lambda made: _show_made(made, as_json=as_json))


def revoke(settings: Settings, named: str, *, as_json: bool) -> int:
    """End a key. The exit code."""

    async def end(database: Database) -> ApiKey:
        key = await _named(database, named)
        revoked = await keys.revoke(database, key.company_id, key.id, by=actor())
        if revoked is None:
            raise _unknown(named)
        return revoked

    def tell(revoked: ApiKey) -> None:
        if as_json:
            _print_json(answers.key(revoked))
        else:
            typer.echo(f"{revoked.prefix}…{revoked.last_four} is revoked; within five seconds no API takes it any more")

    return _told(settings, end, tell)


def _told(settings: Settings, do: Callable[[Database], Awaitable[Answer]], tell: Callable[[Answer], None]) -> int:
    try:
        tell(with_database(settings, do))
    except (Refused, UnknownCompany, KeyNotActive, InvalidOption) as error:
        typer.echo(str(error), err=True)
        return 1
    except Unavailable as error:
        typer.echo(f"cannot use the database: {error}", err=True)
        return 1
    return 0


def _reference(company: str) -> UUID | str:
    reference = directory.reference(company)
    if reference is None:
        raise UnknownCompany(company)
    return reference


async def _named(database: Database, named: str) -> ApiKey:
    """The key that is named by its id, or by how it begins, in part of it or in full."""
    key_id = form.id_of(named)
    found = None if key_id is None else await keys.find_any(database, key_id)
    if found is None:
        raise _unknown(named)
    return found


def _unknown(named: str) -> Refused:
    return Refused(f"there is no key {form.without_secret(named)!r}: taketurns keys list shows ids and how keys begin")


def _show_made(made: Made, *, as_json: bool) -> None:
    """The key alone goes to standard output."""
    if as_json:
        _print_json(answers.made_key(made))
        return
    typer.echo(made.text)
    typer.echo(f"{made.key.name}: keep it, for it is not shown again ({_state(made.key)})", err=True)


def _state(key: ApiKey) -> str:
    if key.revoked_at is not None:
        return f"revoked {key.revoked_at.astimezone(UTC):%Y-%m-%d %H:%M}"
    if key.expires_at is None:
        return "never expires"
    return f"{'expires' if key.is_active else 'expired'} {key.expires_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _print_json(body: Mapping[str, Any]) -> None:
    typer.echo(answers.encode(body).decode())
