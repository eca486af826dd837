"""Knows keys when it sees them: one read by the key's id, remembered for a few seconds.

A key that was revoked elsewhere works here for `FRESH_SECONDS` at most, one that was revoked by this process no more.
While a key is in use it is read again ahead of time, so that no request waits for that.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final
from uuid import UUID

from sqlalchemy import func, or_, select, update

from taketurns import telemetry
from taketurns.companies.access import CompanyPrincipal, OperatorPrincipal, Principal
from taketurns.companies.errors import InvalidKey
from taketurns.companies.keys import Stamp
from taketurns.engine import key as form
from taketurns.engine.errors import Unavailable
from taketurns.engine.key import Key, Role
from taketurns.engine.rate import Rate
from taketurns.storage.database import Database
from taketurns.storage.models import ApiKey, Company
from taketurns.telemetry import Event

FRESH_SECONDS: Final = 5.0
USE_NOTED_EVERY: Final = timedelta(minutes=1)
MOST_REMEMBERED: Final = 10_000


@dataclass(slots=True)
class _Known:
    """What was read of a key, at a time of the process's clock."""

    principal: Principal
    digest: bytes
    is_revoked: bool
    expires_at: float
    read_at: float
    noted_at: float = field(default=float("-inf"))


class KeyRing:
    """The keys of one cell, for one process."""

    def __init__(
        self, database: Database, *, stamp: Stamp | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.stamp = stamp or Stamp()
        self._database = database
        self._clock = clock
        self._known: dict[UUID, _Known] = {}
        self._reads: dict[UUID, asyncio.Task[_Known | None]] = {}
        self._used: dict[UUID, bytes | None] = {}
        self._noting: asyncio.Task[None] | None = None
        self._log = telemetry.logger("companies").bind()

    async def principal(self, text: bytes) -> Principal:
        """Who holds this key. Raises InvalidKey, and Unavailable when that cannot be looked up."""
        key = form.read(text)
        if key is None:
            raise InvalidKey("it is no key, or has a slip: its checksum does not fit")
        known = await self._look_up(key.id)
        pepper = None if known is None else self._pepper(key, known.digest)
        if known is None or pepper is None:
            raise InvalidKey("no such key is known here")
        now = self._clock()
        _refuse_over(known, now)
        if now - known.noted_at >= USE_NOTED_EVERY.total_seconds():
            known.noted_at = now
            self._note_use(key, is_old=pepper != self.stamp.peppers[0])
        return known.principal

    async def holder(self, key_id: UUID) -> Principal:
        """Who holds the key of this id, which was shown before. Raises InvalidKey and Unavailable."""
        known = await self._look_up(key_id)
        if known is None:
            raise InvalidKey("no such key is known here")
        _refuse_over(known, self._clock())
        return known.principal

    def remembers(self, text: bytes) -> bool:
        """Whether this is a key that worked here lately, and may be known without a look."""
        key = form.read(text)
        known = None if key is None else self._known.get(key.id)
        if key is None or known is None or known.is_revoked or self._clock() >= known.expires_at:
            return False
        return self._pepper(key, known.digest) is not None

    def forget(self, key_id: UUID) -> None:
        """Look a key up at its next use, for it was changed."""
        self._known.pop(key_id, None)
        self._reads.pop(key_id, None)

    def forget_company(self, company_id: UUID) -> None:
        """The same for all keys of a company."""
        for key_id, known in list(self._known.items()):
            if isinstance(known.principal, CompanyPrincipal) and known.principal.company_id == company_id:
                self.forget(key_id)

    async def close(self) -> None:
        """End what goes on in the background."""
        under_way = [task for task in (*self._reads.values(), self._noting) if task is not None]
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)

    async def _look_up(self, key_id: UUID) -> _Known | None:
        known = self._known.get(key_id)
        age = float("inf") if known is None else self._clock() - known.read_at
        if age >= FRESH_SECONDS / 2 and key_id not in self._reads:
            self._reads[key_id] = asyncio.create_task(self._read(key_id), name="taketurns-key")
            self._reads[key_id].add_done_callback(_hear)
        if age < FRESH_SECONDS:
            return known
        return await asyncio.shield(self._reads[key_id])

    async def _read(self, key_id: UUID) -> _Known | None:
        """Read a key and remember it, unless it was forgotten meanwhile."""
        this = asyncio.current_task()
        began_at = self._clock()
        try:
            known = await self._found(key_id, began_at)
            if self._reads.get(key_id) is this:
                former = self._known.pop(key_id, None)
                if known is not None:
                    known.noted_at = float("-inf") if former is None else former.noted_at
                    self._known[key_id] = known
                    if len(self._known) > MOST_REMEMBERED:
                        del self._known[next(iter(self._known))]
        finally:
            if self._reads.get(key_id) is this:
                del self._reads[key_id]
        return known

    async def _found(self, key_id: UUID, now: float) -> _Known | None:
        left = func.extract("epoch", ApiKey.expires_at - func.clock_timestamp())
        statement = (
            select(
                ApiKey.name,
                ApiKey.company_id,
                Company.slug,
                ApiKey.role,
                ApiKey.scopes,
                ApiKey.digest,
                ApiKey.revoked_at.is_not(None),
                left,
                Company.request_rate_requests,
                Company.request_rate_seconds,
                Company.request_rate_burst,
            )
            .outerjoin(Company, Company.id == ApiKey.company_id)
            .where(ApiKey.id == key_id)
        )
        for row in await self._database.fetch(statement):
            name, company_id, slug, role, scopes, digest, is_revoked, seconds_left, requests, *of_rate = row
            if role is None and slug is None:
                return None  # its company is gone
            principal: Principal = (
                CompanyPrincipal(
                    key_id,
                    name,
                    company_id,
                    slug,
                    form.granted(scopes),
                    request_rate=None if requests is None else Rate(requests, *of_rate),
                )
                if role is None
                else OperatorPrincipal(key_id, name, Role(role))
            )
            expires_at = float("inf") if seconds_left is None else now + float(seconds_left)
            return _Known(principal, bytes(digest), is_revoked, expires_at, read_at=now)
        return None

    def _pepper(self, key: Key, digest: bytes) -> bytes | None:
        """The pepper that the digest was made with; None if it is not this key's."""
        fitting = [one for one in self.stamp.peppers if hmac.compare_digest(key.digest(one), digest)]
        return fitting[0] if fitting else None

    def _note_use(self, key: Key, *, is_old: bool) -> None:
        """Have it noted that a key was used, beside the request; one with an old pepper gets the first one's digest."""
        self._used[key.id] = self.stamp.digest(key) if is_old else None
        if self._noting is None or self._noting.done():
            self._noting = asyncio.create_task(self._note(), name="taketurns-key-use")

    async def _note(self) -> None:
        while self._used:
            used, self._used = self._used, {}
            renewed = {key_id: digest for key_id, digest in used.items() if digest is not None}
            was_long_ago = ApiKey.last_used_at < func.clock_timestamp() - USE_NOTED_EVERY
            noted = (
                update(ApiKey)
                .where(ApiKey.id.in_(list(used)), or_(ApiKey.last_used_at.is_(None), was_long_ago))
                .values(last_used_at=func.clock_timestamp())
            )
            try:
                await self._database.fetch(noted)
                for key_id, digest in renewed.items():
                    await self._database.fetch(update(ApiKey).where(ApiKey.id == key_id).values(digest=digest))
            except Unavailable as error:
                self._log.warning(Event.KEY_USE_NOT_NOTED, error=str(error))


def _refuse_over(known: _Known, now: float) -> None:
    if known.is_revoked:
        raise InvalidKey("the key was revoked")
    if now >= known.expires_at:
        raise InvalidKey("the key has expired")


def _hear(read: asyncio.Task[_Known | None]) -> None:
    """Whoever needs the answer asks for it; nobody else is told that there was none."""
    if not read.cancelled():
        read.exception()
