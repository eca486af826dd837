"""Who is signed in to the dashboard: a token for a browser in place of an operator's key, for half a day at most.

A session is worth what its key is: it ends with the key, and may what the key's role may.
"""

from __future__ import annotations

import hashlib
import secrets
from datetime import timedelta
from typing import Final
from uuid import UUID

from sqlalchemy import Interval as IntervalType
from sqlalchemy import delete, func, insert, literal, select

from taketurns.storage.database import Database
from taketurns.storage.models import Session

LASTS: Final = timedelta(hours=12)


def new_token() -> str:
    """A text of 256 random bits."""
    return secrets.token_urlsafe(32)


async def begin(database: Database, key_id: UUID, *, lasts: timedelta = LASTS) -> str:
    """Sign in the holder of a key; answers the token. Sessions that are over are forgotten meanwhile."""
    token = new_token()
    now = func.clock_timestamp()
    await database.fetch(delete(Session).where(Session.expires_at < now))
    await database.fetch(
        insert(Session).values(digest=_digest(token), key_id=key_id, expires_at=now + literal(lasts, IntervalType()))
    )
    return token


async def key_of(database: Database, token: str) -> UUID | None:
    """The id of the key that a token stands for; None when it is none, or is over."""
    statement = select(Session.key_id).where(
        Session.digest == _digest(token), Session.expires_at > func.clock_timestamp()
    )
    return next((key_id for (key_id,) in await database.fetch(statement)), None)


async def end(database: Database, token: str) -> None:
    """Sign out; again changes nothing."""
    await database.fetch(delete(Session).where(Session.digest == _digest(token)))


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
