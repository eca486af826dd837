"""Where a list goes on: an opaque text that fits the one list, filter and order it was given for."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Final
from uuid import UUID

from taketurns.api import problems
from taketurns.api.problems import Problem

_SIGNATURE_BYTES: Final = 12


class Cursors:
    """Signs and reads cursors. Processes that share a secret read each other's."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def write(self, after: UUID, *wanted: object) -> str:
        """A cursor that goes on after an id, in the list that `wanted` describes."""
        return base64.urlsafe_b64encode(after.bytes + self._signature(after.bytes, wanted)).decode().rstrip("=")

    def read(self, cursor: str, *wanted: object) -> UUID:
        """The id to go on after. Raises Problem when the cursor is not one of this list."""
        try:
            told = base64.b64decode(cursor.encode("ascii") + b"==", altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            told = b""
        after, signature = told[:16], told[16:]
        if len(after) < 16 or not hmac.compare_digest(signature, self._signature(after, wanted)):
            raise Problem(problems.INVALID_CURSOR, "cursor: must be a nextCursor of this list, with the same filters")
        return UUID(bytes=after)

    def _signature(self, after: bytes, wanted: tuple[object, ...]) -> bytes:
        return hmac.digest(self._secret, after + repr(wanted).encode(), hashlib.sha256)[:_SIGNATURE_BYTES]
