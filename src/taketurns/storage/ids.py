"""New ids: UUIDv7 (RFC 9562), which rise with time and within a process."""

from __future__ import annotations

from uuid import UUID

from uuid_utils.compat import uuid7


def new_id() -> UUID:
    """An id that sorts after those made before it in this process."""
    return uuid7()
