"""The form of API keys, and what their holders may do: scopes for a company's key, a role for an operator's.

A key is `tt_<environment>_<id>_<secret>`. Its last six characters are a checksum of all before them, so that whoever
finds one knows it for a key, and one with a slip is refused without a look.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final
from uuid import UUID


class Scope(StrEnum):
    """What a company's key may do within its company."""

    TASKS_READ = "tasks:read"
    TASKS_WRITE = "tasks:write"
    JOBS_READ = "jobs:read"
    JOBS_WRITE = "jobs:write"
    SCHEDULES_READ = "schedules:read"
    SCHEDULES_WRITE = "schedules:write"
    USAGE_READ = "usage:read"


WILDCARDS: Final = {
    "jobs:*": frozenset({Scope.JOBS_READ, Scope.JOBS_WRITE}),
    "schedules:*": frozenset({Scope.SCHEDULES_READ, Scope.SCHEDULES_WRITE}),
}
GRANTS: Final = (*(scope.value for scope in Scope), *WILDCARDS)


class Role(StrEnum):
    """What an operator's key may do in every company: see, or act too, or decide on keys and deletion as well."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def includes(self, other: Role) -> bool:
        """Whether who has this role may do what the other may."""
        ranks = list(Role)
        return ranks.index(self) >= ranks.index(other)


BEGINNING: Final = b"tt_"
ENVIRONMENT: Final = re.compile(r"[a-z0-9]{1,16}")
SECRET_BYTES: Final = 32
PEPPER_LENGTH_MIN: Final = 16

_DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ID_LENGTH: Final = 22
_SECRET_LENGTH: Final = 43
_CHECKSUM_LENGTH: Final = 6
_KEY: Final = re.compile(
    rb"tt_([a-z0-9]{1,16})_([0-9A-Za-z]{%d})_[0-9A-Za-z]{%d}([0-9A-Za-z]{%d})"
    % (_ID_LENGTH, _SECRET_LENGTH, _CHECKSUM_LENGTH)
)
_BEGINNING: Final = re.compile(rf"tt_([a-z0-9]{{1,16}})_([0-9A-Za-z]{{{_ID_LENGTH}}})(?:_.*)?")
_LENGTH_MAX: Final = len("tt__") + 16 + _ID_LENGTH + 1 + _SECRET_LENGTH + _CHECKSUM_LENGTH


@dataclass(frozen=True, slots=True)
class Key:
    """A key in clear: shown once, and never stored."""

    id: UUID
    environment: str
    text: str = field(repr=False)

    @property
    def last_four(self) -> str:
        return self.text[-4:]

    def digest(self, pepper: bytes) -> bytes:
        """What is stored of the key: its keyed SHA-256."""
        return hmac.digest(pepper, self.text.encode(), hashlib.sha256)


def make(environment: str, key_id: UUID) -> Key:
    """A new key with 256 random bits."""
    secret = _written(int.from_bytes(secrets.token_bytes(SECRET_BYTES)), _SECRET_LENGTH)
    body = f"{prefix(environment, key_id)}_{secret}"
    return Key(key_id, environment, body + _checksum(body.encode()))


def read(text: bytes) -> Key | None:
    """The key that a text is; None when its form or its checksum is wrong."""
    found = _KEY.fullmatch(text) if len(text) <= _LENGTH_MAX else None
    if found is None or found[3].decode() != _checksum(text[:-_CHECKSUM_LENGTH]):
        return None
    key_id = _id(found[2].decode())
    return None if key_id is None else Key(key_id, found[1].decode(), text.decode())


def prefix(environment: str, key_id: UUID) -> str:
    """How a key begins, which is no secret."""
    return f"tt_{environment}_{_written(key_id.int, _ID_LENGTH)}"


def id_of(text: str) -> UUID | None:
    """The id that a text names: as an id, as the beginning of a key, or as a key."""
    found = _BEGINNING.match(text)
    try:
        return UUID(text) if found is None else _id(found[2])
    except ValueError:
        return None


def without_secret(text: str) -> str:
    """What may be repeated of a text that may be a key."""
    return "_".join(text.split("_")[:3])


def granted(names: Iterable[str]) -> frozenset[Scope]:
    """The scopes that these names grant, wildcards among them; names that are not known grant nothing."""
    known = {scope.value: frozenset({scope}) for scope in Scope} | WILDCARDS
    return frozenset(scope for name in names for scope in known.get(name, ()))


def _id(written: str) -> UUID | None:
    number = 0
    for digit in written:
        number = number * len(_DIGITS) + _DIGITS.index(digit)
    return None if number >> 128 else UUID(int=number)


def _checksum(body: bytes) -> str:
    return _written(zlib.crc32(body), _CHECKSUM_LENGTH)


def _written(number: int, length: int) -> str:
    """A number in base 62, with leading zeros."""
    digits = []
    for _ in range(length):
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits))
