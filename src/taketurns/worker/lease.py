"""A worker's lease: one row that it beats, so that others know that what it holds is being worked on.

Two threads, so that no handler can starve them: one beats, on a connection of its own; the other only looks at the
clock. A lease that was not beaten in time counts as lost well before anybody may take the work: attempts are told to
stop, and if one still runs when time is up, the process ends. With nothing under way any more a new lease is taken,
under a new id.

             ┌── beats ──┐
absent ───► held ────────┴──► lost ───► absent      row gone, or no beat within two thirds of stale_after;
                                └─────► process ends    five sixths, and handlers still run
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from importlib import metadata
from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb
from sqlalchemy import Executable, delete, func, insert, or_, select, update
from sqlalchemy.dialects import postgresql
from structlog.typing import FilteringBoundLogger

from taketurns import telemetry
from taketurns.engine.errors import ConfigurationError
from taketurns.engine.registry import TaskType
from taketurns.storage import models
from taketurns.storage.database import compile_statement, conninfo
from taketurns.storage.ids import new_id
from taketurns.telemetry import Event
from taketurns.worker.rounds import AFTER_FAILURE

LOST_AFTER: Final = 2 / 3
ENDS_AFTER: Final = 5 / 6
EXIT_CODE: Final = 70

Connection = psycopg.Connection[tuple[Any, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who holds the lease, as others see it."""

    queues: Sequence[str]
    types: Sequence[TaskType]
    concurrency: int
    name: str = ""

    @property
    def full_name(self) -> str:
        return self.name or f"{socket.gethostname()}:{os.getpid()}"

    def row(self, worker_id: UUID) -> dict[str, object]:
        return {
            "id": worker_id,
            "name": self.full_name,
            "host": socket.gethostname(),
            "version": metadata.version("taketurns"),
            "queues": list(self.queues),
            "types": sorted(type.name for type in self.types),
            "concurrency": self.concurrency,
        }


class State(Enum):
    ABSENT = auto()
    HELD = auto()
    LOST = auto()
    CLOSED = auto()


class Lease:
    """Use from the event loop; `on_taken` and `on_lost` are called in it.

    `end_process` is called with an exit code in a thread of the lease, when time is up and attempts still run.
    """

    def __init__(
        self,
        *,
        url: str,
        schema: str,
        holder: Holder,
        beat_seconds: float,
        stale_after_seconds: float,
        on_taken: Callable[[], None] = lambda: None,
        on_lost: Callable[[], None] = lambda: None,
        end_process: Callable[[int], None] | None = os._exit,
    ) -> None:
        if beat_seconds * 3 > stale_after_seconds:
            raise ConfigurationError(
                f"stale_after_seconds ({stale_after_seconds:g}) must be at least three times beat_seconds"
                f" ({beat_seconds:g}), or one late beat would cost a worker its lease"
            )
        self.worker_id: UUID | None = None
        self.published_types: frozenset[str] = frozenset()
        self.last_claim_at: float | None = None
        self.beat_sent_at = time.monotonic()
        self._url = url
        self._schema = schema
        self._holder = holder
        self._beat_seconds = beat_seconds
        self._stale_after_seconds = stale_after_seconds
        self._on_taken = on_taken
        self._on_lost = on_lost
        self._end_process = end_process
        self._state = State.ABSENT
        self._ends_at = 0.0
        self._database_offset: float | None = None
        self._lock = threading.Lock()
        self._beat_early = threading.Event()
        self._look_early = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._taken = asyncio.Event()
        self._threads: list[threading.Thread] = []
        self._log: FilteringBoundLogger = telemetry.logger("worker").bind()

    def open(self) -> None:
        """Begin to take the lease, for as long as that needs."""
        self._loop = asyncio.get_running_loop()
        self._threads = [
            threading.Thread(target=body, name=f"lease-{name}", daemon=True)
            for name, body in (("beat", self._keep_beating), ("clock", self._keep_looking))
        ]
        for thread in self._threads:
            thread.start()

    async def close(self) -> None:
        """Give the lease up: its row is removed, if the database can be reached soon."""
        with self._lock:
            self._state = State.CLOSED
        self._beat_early.set()
        self._look_early.set()
        await asyncio.to_thread(self._join)

    @property
    def is_held(self) -> bool:
        return self._state is State.HELD and time.monotonic() < self.beat_sent_at + self._lost_after

    async def taken(self) -> None:
        """Wait until it is held."""
        await self._taken.wait()

    def acknowledge_loss(self) -> None:
        """Nothing runs any more: a new lease may be taken."""
        with self._lock:
            if self._state is State.LOST:
                self._state = State.ABSENT
        self._beat_early.set()
        self._look_early.set()

    @property
    def heartbeat_age(self) -> float:
        """Seconds since the last beat that arrived was sent."""
        return time.monotonic() - self.beat_sent_at

    def seconds_until(self, moment: datetime) -> float | None:
        """Seconds until a moment of the database's clock; None before the first beat (fault 075)."""
        if self._database_offset is None:
            return None
        return moment.timestamp() - (time.monotonic() + self._database_offset)

    def _is_closed(self) -> bool:
        return self._state is State.CLOSED

    # The thread that beats.

    def _keep_beating(self) -> None:
        connection: Connection | None = None
        failures = 0
        while not self._is_closed():
            self._beat_early.clear()
            try:
                if connection is None:
                    connection = self._connect()
                self._round(connection)
                failures, pause = 0, self._beat_seconds
            except (psycopg.Error, OSError) as error:
                self._log.warning(Event.LEASE_UNREACHABLE, error=str(error).strip().partition("\n")[0])
                _close(connection)
                connection = None
                pause = min(AFTER_FAILURE.delay(failures), self._beat_seconds)
                failures += 1
            if not self._is_closed():
                self._beat_early.wait(pause)
        self._remove(connection)

    def _round(self, connection: Connection) -> None:
        match self._state:
            case State.ABSENT:
                self._register(connection)
            case State.HELD:
                self._beat(connection)
            case State.LOST | State.CLOSED:
                pass

    def _connect(self) -> Connection:
        """A dead peer must be noticed in less time than a lease lasts."""
        half = max(self._stale_after_seconds / 2, 2.0)
        return psycopg.connect(
            conninfo(self._url),
            autocommit=True,
            application_name="taketurns-lease",
            prepare_threshold=None,
            connect_timeout=int(half),
            keepalives_idle=int(half),
            keepalives_interval=1,
            keepalives_count=3,
            tcp_user_timeout=int(half * 1000),
        )

    def _register(self, connection: Connection) -> None:
        """Also leaves no row of an id that this worker had before: nothing is under way under it."""
        former, worker_id = self.worker_id, new_id()
        now = func.clock_timestamp()
        sent_at = time.monotonic()
        with connection.transaction():
            self._execute(
                connection, insert(models.Worker).values(**self._holder.row(worker_id), started_at=now, beat_at=now)
            )
            if former is not None:
                self._execute(connection, delete(models.Worker).where(models.Worker.id == former))
            if self._holder.types:
                self._execute(connection, _publication(self._holder.types))
        self.published_types = self._read_types(connection)
        with self._lock:
            self.worker_id = worker_id
            if self._state is not State.ABSENT:  # closed meanwhile: the row is removed
                return
            self.beat_sent_at, self._state = sent_at, State.HELD
        self._look_early.set()
        self._log.debug(Event.LEASE_TAKEN, worker_id=str(worker_id))
        self._call(self._tell_taken)

    def _beat(self, connection: Connection) -> None:
        sent_at = time.monotonic()
        rows = self._execute(connection, _beat_statement(self.worker_id, self.last_claim_at)).fetchall()
        if not rows:
            self._lose("others have taken its work")
            return
        with self._lock:
            if self._state is State.HELD:
                self.beat_sent_at = sent_at
        self._database_offset = rows[0][0].timestamp() - time.monotonic()
        self.published_types = self._read_types(connection)

    def _read_types(self, connection: Connection) -> frozenset[str]:
        return frozenset(name for (name,) in self._execute(connection, select(models.TaskType.name)))

    def _remove(self, connection: Connection | None) -> None:
        if self.worker_id is None:
            return
        try:
            connection = connection or self._connect()
            self._execute(connection, delete(models.Worker).where(models.Worker.id == self.worker_id))
        except (psycopg.Error, OSError) as error:  # it goes stale by itself
            self._log.warning(Event.LEASE_UNREACHABLE, error=str(error).strip().partition("\n")[0])
        _close(connection)

    def _execute(self, connection: Connection, statement: Executable) -> psycopg.Cursor[tuple[Any, ...]]:
        query, parameters = compile_statement(self._schema, statement)
        return connection.execute(query.encode(), parameters)

    # The thread that looks at the clock.

    def _keep_looking(self) -> None:
        while True:
            self._look_early.clear()
            if self._is_closed():
                return
            self._look_early.wait(self._look(time.monotonic()))

    def _look(self, now: float) -> float | None:
        """Judge the lease; answers the seconds until it must be looked at again."""
        if self._state is State.HELD:
            left = self.beat_sent_at + self._lost_after - now
            if left > 0:
                return left
            self._lose("it could not be beaten in time")
        if self._state is State.LOST:
            left = self._ends_at - now
            if left > 0:
                return left
            self._end()
        return None

    def _lose(self, reason: str) -> None:
        """From either thread. Handlers have until `_ends_at` to stop."""
        now = time.monotonic()
        with self._lock:
            if self._state is not State.HELD:
                return
            self._state = State.LOST
            least = self._stale_after_seconds * (ENDS_AFTER - LOST_AFTER)
            self._ends_at = max(self.beat_sent_at + self._stale_after_seconds * ENDS_AFTER, now + least)
        telemetry.LEASES_LOST.inc()
        self._log.error(Event.LEASE_LOST, worker_id=str(self.worker_id), reason=reason)
        self._look_early.set()
        self._call(self._tell_lost)

    def _end(self) -> None:
        if self._end_process is not None:
            self._log.critical(Event.LEASE_ENDS_PROCESS, worker_id=str(self.worker_id))
            self._end_process(EXIT_CODE)

    @property
    def _lost_after(self) -> float:
        return self._stale_after_seconds * LOST_AFTER

    # In the loop.

    def _call(self, callback: Callable[[], None]) -> None:
        try:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(callback)
        except RuntimeError:  # the loop is closed
            return

    def _tell_taken(self) -> None:
        self._taken.set()
        self._on_taken()

    def _tell_lost(self) -> None:
        self._taken.clear()
        self._on_lost()

    def _join(self) -> None:
        for thread in self._threads:
            thread.join(timeout=self._stale_after_seconds)


def _publication(types: Sequence[TaskType]) -> Executable:
    """In order of name, so that workers that start together lock in one order; what is the same is left alone."""
    table = models.TaskType
    statement = postgresql.insert(table).values(
        [
            {
                "name": type.name,
                "payload_schema": Jsonb(type.payload_schema),
                "queue": type.queue,
                "priority": type.priority,
                "max_retries": type.max_retries,
                "timeout_seconds": type.timeout_seconds,
                "published_at": func.clock_timestamp(),
            }
            for type in sorted(types, key=lambda type: type.name)
        ]
    )
    told = ("payload_schema", "queue", "priority", "max_retries", "timeout_seconds")
    return statement.on_conflict_do_update(
        index_elements=["name"],
        set_={name: statement.excluded[name] for name in (*told, "published_at")},
        where=or_(*(getattr(table, name).is_distinct_from(statement.excluded[name]) for name in told)),
    )


def _beat_statement(worker_id: UUID | None, last_claim_at: float | None) -> Executable:
    table = models.Worker
    changes: dict[str, object] = {"beat": table.beat + 1, "beat_at": func.clock_timestamp()}
    if last_claim_at is not None:
        ago = func.make_interval(0, 0, 0, 0, 0, 0, time.monotonic() - last_claim_at)
        changes["last_claim_at"] = func.clock_timestamp() - ago
    return update(table).where(table.id == worker_id).values(changes).returning(func.clock_timestamp())


def _close(connection: Connection | None) -> None:
    if connection is not None:
        connection.close()
