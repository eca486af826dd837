"""Which types of task can be created, and which payloads fit them.

A type whose handler this process has is checked by the handler's own signature; any other by the JSON Schema that a
worker has published, which is read at most once a second, and at once when a type is not known.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import jsonschema_rs
import orjson
from sqlalchemy import Text, cast, select

from taketurns.engine.errors import Busy, InvalidPayload, UnknownType
from taketurns.engine.registry import Registry
from taketurns.storage.database import Database, Row
from taketurns.storage.models import TaskType as PublishedType

FRESH_SECONDS: Final = 1.0
PATIENCE_SECONDS: Final = 15.0


@dataclass(frozen=True, slots=True)
class KnownType:
    """A type that can be created. `check` raises InvalidPayload; `payload_schema` is JSON text."""

    name: str
    queue: str
    priority: int
    max_retries: int
    timeout_seconds: float | None
    payload_schema: bytes
    check: Callable[[Mapping[str, Any]], object]


class TaskTypes:
    """The types of this process's registry and those that workers have published."""

    def __init__(self, database: Database, registry: Registry, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._database = database
        self._patience_seconds = patience_seconds
        self._own = {
            task_type.name: KnownType(
                name=task_type.name,
                queue=task_type.queue,
                priority=task_type.priority,
                max_retries=task_type.max_retries,
                timeout_seconds=task_type.timeout_seconds,
                payload_schema=orjson.dumps(task_type.payload_schema),
                check=task_type.validate,
            )
            for task_type in registry
        }
        self._published: dict[str, KnownType] = {}
        self._read_at = float("-inf")
        self._reading = asyncio.Lock()

    async def get(self, name: str) -> KnownType:
        """The type of this name. Raises UnknownType, which names the known ones, and Unavailable."""
        known = self._own.get(name)
        if known is None and time.monotonic() < self._read_at + FRESH_SECONDS:
            known = self._published.get(name)
        if known is None:
            await self._read()
            known = self._published.get(name)
        if known is None:
            raise UnknownType(name, [*self._own, *self._published])
        return known

    async def all(self) -> list[KnownType]:
        """Every known type, by name."""
        await self._read()
        return sorted((self._published | self._own).values(), key=lambda known: known.name)

    async def _read(self) -> None:
        """Read what is published; those who ask meanwhile wait for the same answer, but not for one failure after the
        other: raises Busy."""
        asked_at = time.monotonic()
        try:
            async with asyncio.timeout(self._patience_seconds):
                await self._reading.acquire()
        except TimeoutError:
            raise Busy("the types of task are read too slowly at the moment: try again later") from None
        try:
            if self._read_at > asked_at:
                return
            began_at = time.monotonic()
            rows = await self._database.fetch(_PUBLISHED)
            self._published = {row[0]: self._known(row) for row in rows}
            self._read_at = began_at
        finally:
            self._reading.release()

    def _known(self, row: Row) -> KnownType:
        name, queue, priority, max_retries, timeout_seconds, text = row
        schema = text.encode()
        before = self._published.get(name)
        check = before.check if before and before.payload_schema == schema else _checker(name, text)
        return KnownType(name, queue, priority, max_retries, timeout_seconds, schema, check)


_PUBLISHED: Final = select(
    PublishedType.name,
    PublishedType.queue,
    PublishedType.priority,
    PublishedType.max_retries,
    PublishedType.timeout_seconds,
    cast(PublishedType.payload_schema, Text),
)


def _checker(name: str, schema: str) -> Callable[[Mapping[str, Any]], object]:
    """Holds payloads to a JSON Schema. One that cannot be used leaves the judgement to the worker."""
    try:
        validator = jsonschema_rs.validator_for(schema, offline=True, mask="the value")
    except ValueError:
        return lambda payload: None

    def check(payload: Mapping[str, Any]) -> None:
        errors = [
            {"loc": tuple(error.instance_path), "msg": error.message, "type": "schema"}
            for error in validator.iter_errors(payload)
        ]
        if errors:
            raise InvalidPayload(name, errors)

    return check
