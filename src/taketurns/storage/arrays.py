"""Arrays of many ids or texts as the server itself writes them: the driver's own way asks the type of each element and
quotes it."""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Final
from uuid import UUID

import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format
from psycopg.types import TypeInfo

_HEAD: Final = Struct("!iiIii")  # dimensions, whether there are nulls, the element's type, the length, the first index
_LENGTH: Final = Struct("!i")
_NULL: Final = _LENGTH.pack(-1)
_UUID_LENGTH: Final = _LENGTH.pack(16)


class Uuids(tuple[UUID, ...]):
    """A parameter of type uuid[]."""

    __slots__ = ()


class Texts(tuple[str | None, ...]):
    """A parameter of type text[]."""

    __slots__ = ()


def texts_or_none(values: Iterable[str | None]) -> Texts | None:
    """None where there is no text at all."""
    texts = Texts(values)
    return texts if any(text is not None for text in texts) else None


_UUID: Final = psycopg.adapters.types["uuid"]
_TEXT: Final = psycopg.adapters.types["text"]


class _UuidsDumper(Dumper):
    format = Format.BINARY
    oid = _UUID.array_oid

    def dump(self, obj: Uuids) -> bytes:
        return _head(_UUID, len(obj)) + b"".join([_UUID_LENGTH + uuid.int.to_bytes(16) for uuid in obj])


class _TextsDumper(Dumper):
    format = Format.BINARY
    oid = _TEXT.array_oid

    def dump(self, obj: Texts) -> bytes:
        elements = {text: _element(text) for text in set(obj)}  # many are the same
        return _head(_TEXT, len(obj), has_nulls=None in elements) + b"".join([elements[text] for text in obj])


def _head(element: TypeInfo, length: int, *, has_nulls: bool = False) -> bytes:
    return _HEAD.pack(1, has_nulls, element.oid, length, 1)


def _element(text: str | None) -> bytes:
    if text is None:
        return _NULL
    encoded = text.encode()
    return _LENGTH.pack(len(encoded)) + encoded


psycopg.adapters.register_dumper(Uuids, _UuidsDumper)
psycopg.adapters.register_dumper(Texts, _TextsDumper)
