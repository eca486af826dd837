"""New ids: UUIDv7 (RFC 9562), which rise with time and within a process."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from uuid_utils.compat import uuid7

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def new_id() -> UUID:
    """An id that sorts after those made before it in this process."""
    return uuid7()


def id_at(moment: datetime) -> UUID:
    """The first id of a moment's millisecond (RFC 9562, section 5.7)."""
    milliseconds = (moment - _EPOCH) // timedelta(milliseconds=1)
    return UUID(int=min(max(milliseconds, 0), 2**48 - 1) << 80)
