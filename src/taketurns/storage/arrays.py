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
        return _head(_UUID, obj) + b"".join([_UUID_LENGTH + uuid.bytes for uuid in obj])


class _TextsDumper(Dumper):
    format = Format.BINARY
    oid = _TEXT.array_oid

    def dump(self, obj: Texts) -> bytes:
        return _head(_TEXT, obj) + b"".join([_NULL if text is None else _element(text) for text in obj])


def _head(element: TypeInfo, array: tuple[object, ...]) -> bytes:
    return _HEAD.pack(1, None in array, element.oid, len(array), 1)


def _element(text: str) -> bytes:
    encoded = text.encode()
    return _LENGTH.pack(len(encoded)) + encoded


psycopg.adapters.register_dumper(Uuids, _UuidsDumper)
psycopg.adapters.register_dumper(Texts, _TextsDumper)
