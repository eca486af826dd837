"""Leases in PostgreSQL: rows of `workers`, each beaten on a connection of its own, with the heartbeat of its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb
from sqlalchemy import (
    CTE,
    BindParameter,
    Case,
    ColumnElement,
    Executable,
    Float,
    Integer,
    Uuid,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    literal,
    null,
    or_,
    select,
    union_all,
    update,
)
from sqlalchemy.dialects import postgresql

from taketurns.brokers.postgres import heartbeats
from taketurns.engine.errors import Unavailable
from taketurns.engine.lease import Beat, Holder, Kind
from taketurns.engine.orders import Asked, Wanted, WorkerState
from taketurns.engine.registry import TaskType
from taketurns.engine.task import ClaimedTask
from taketurns.storage.database import Database, Row, compile_statement, conninfo
from taketurns.storage.models import Heartbeat, ProcessingTask, Worker
from taketurns.storage.models import TaskType as PublishedType

OfWorker = UUID | BindParameter[UUID]

_WITHOUT_A_LEASE = (
    select(ProcessingTask.worker_id, null().cast(Integer))
    .where(~select(Worker.id).where(Worker.id == ProcessingTask.worker_id).exists())
    .distinct()
)

BEATS = union_all(select(Worker.id, Worker.beat), _WITHOUT_A_LEASE)


def overdue(seconds: float, at: datetime | None) -> Executable:
    """See `Broker.overdue`."""
    since = func.coalesce(at, func.clock_timestamp()) - func.make_interval(0, 0, 0, 0, 0, 0, seconds)
    return union_all(select(Worker.id, Worker.beat).where(Worker.beat_at < since), _WITHOUT_A_LEASE)


async def order(database: Database, worker: UUID | str, wanted: Wanted) -> Asked:
    """See `Broker.order`. The heartbeat says the same of a worker that holds its lease elsewhere."""
    is_named = (Worker.id if isinstance(worker, UUID) else Worker.name) == worker
    may_be_told = literal(wanted is Wanted.STOP) | (Worker.wanted != Wanted.STOP.value)
    is_heard_of = (Heartbeat.id if isinstance(worker, UUID) else Heartbeat.name) == worker
    told = (
        update(Heartbeat)
        .where(is_heard_of, Heartbeat.wanted != Wanted.STOP.value)
        .values(wanted=wanted.value)
        .returning(Heartbeat.name)
        .cte("told")
    )
    asked = (
        update(Worker)
        .where(is_named, Worker.kind == Kind.WORKER.value, may_be_told)
        .values(wanted=wanted.value)
        .returning(Worker.id)
        .add_cte(told)
    )
    processes = len(await database.fetch(asked))
    return Asked(processes, len(await database.fetch(select(Worker.id).where(is_named, ~may_be_told))))


class PostgresLease:
    """See taketurns.engine.lease.LeaseLine. A peer that is dead is noticed within `patience_seconds`."""

    def __init__(self, url: str, *, schema: str, patience_seconds: float) -> None:
        self._schema = schema
        try:
            self._connection: psycopg.Connection[Row] = psycopg.connect(
                conninfo(url),
                autocommit=True,
                application_name="taketurns-lease",
                prepare_threshold=None,
                connect_timeout=int(patience_seconds),
                keepalives_idle=int(patience_seconds),
                keepalives_interval=1,
                keepalives_count=3,
                tcp_user_timeout=int(patience_seconds * 1000),
            )
        except (psycopg.Error, OSError) as error:
            raise _unavailable(error) from error

    def take(self, worker_id: UUID, holder: Holder, *, former: UUID | None, wanted: Wanted = Wanted.RUN) -> Beat:
        now = func.clock_timestamp()
        row = {
            **heartbeats.description(worker_id, holder),
            "name": holder.full_name,
            "kind": holder.kind.value,
            "types": sorted(type.name for type in holder.types),
            "wanted": func.coalesce(_wanted_before(former), wanted.value),
        }
        try:
            with self._connection.transaction():
                self._execute(insert(Worker).values(**row, started_at=now, beat_at=now))
                if holder.kind is not Kind.CALLER:
                    self._execute(heartbeats.first(worker_id, holder))
                if former is not None:
                    self._execute(delete(Worker).where(Worker.id == former))
                if holder.types:
                    self._execute(_publication(holder.types))
        except (psycopg.Error, OSError) as error:
            raise _unavailable(error) from error
        ((at, wanted_now),) = self._execute(
            select(func.clock_timestamp(), select(Worker.wanted).where(Worker.id == worker_id).scalar_subquery())
        )
        return self._told(at, wanted_now or wanted)

    def beat(
        self, worker_id: UUID, *, seconds_since_claim: float | None, state: WorkerState = WorkerState.RUNNING
    ) -> Beat | None:
        told: dict[str, object] = {"beating": worker_id, "stands": state.value}
        if seconds_since_claim is not None:
            told["seconds"] = seconds_since_claim
        rows = self._execute(_beat_statement(has_claimed=seconds_since_claim is not None), **told)
        return self._told(*rows[0]) if rows else None

    def remove(self, worker_id: UUID, *, seconds_since_claim: float | None) -> None:
        heartbeat = _heartbeat(worker_id, seconds_since_claim, {"left_at": _left_at(worker_id)})
        self._execute(delete(Worker).where(Worker.id == worker_id).add_cte(heartbeat))

    def close(self) -> None:
        self._connection.close()

    def _told(self, at: datetime, wanted: str) -> Beat:
        types = frozenset(name for (name,) in self._execute(_PUBLISHED))
        return Beat(at, types, Wanted(wanted))

    def _execute(self, statement: Executable, **values: object) -> list[Row]:
        query, parameters = compile_statement(self._schema, statement, **values)
        try:
            cursor = self._connection.execute(query.encode(), parameters)
            return cursor.fetchall() if cursor.description else []
        except (psycopg.Error, OSError) as error:
            raise _unavailable(error) from error


_PUBLISHED = select(PublishedType.name)

_PLACE = (
    "company_id",
    "task_id",
    "type",
    "queue",
    "priority",
    "retry_count",
    "rescue_count",
    "event_number",
    "claimed_at",
    "claim_token",
)


HELD_BY = select(*(getattr(ProcessingTask, name) for name in _PLACE)).where(
    ProcessingTask.worker_id == bindparam("holder")
)
"""The rows that a worker holds; see `held`."""


def held(row: Row) -> ClaimedTask:
    """As much of a held task as it takes to release it, or to report on it."""
    place = dict(zip(_PLACE, row, strict=True))
    moment = place["claimed_at"]
    return ClaimedTask(
        **place,
        run_after=moment,
        payload="{}",
        max_retries=0,
        timeout_seconds=None,
        request_id=None,
        created_at=moment,
        traceparent=None,
    )


def _publication(types: Sequence[TaskType]) -> Executable:
    """In order of name, so that workers that start together lock in one order; what is the same is left alone."""
    statement = postgresql.insert(PublishedType).values(
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
        where=or_(*(getattr(PublishedType, name).is_distinct_from(statement.excluded[name]) for name in told)),
    )


def _wanted_before(former: UUID | None) -> ColumnElement[Any]:
    return select(Worker.wanted).where(Worker.id == former).scalar_subquery()


@cache
def _beat_statement(*, has_claimed: bool) -> Executable:
    """The lease and the heartbeat in one round trip, of the worker `beating` that `stands` so."""
    worker_id = bindparam("beating", type_=Uuid())
    seconds_since_claim = bindparam("seconds", type_=Float()) if has_claimed else None
    return (
        update(Worker)
        .where(Worker.id == worker_id)
        .values({"beat": Worker.beat + 1, "state": bindparam("stands"), **heartbeats.news(seconds_since_claim)})
        .returning(func.clock_timestamp(), Worker.wanted)
        .add_cte(_heartbeat(worker_id, seconds_since_claim, {"left_at": None}))
    )


def _heartbeat(worker_id: OfWorker, seconds_since_claim: heartbeats.Seconds, changes: Mapping[str, object]) -> CTE:
    name = select(Worker.name).where(Worker.id == worker_id).scalar_subquery()
    statement = (
        update(Heartbeat).where(Heartbeat.name == name).values({**heartbeats.news(seconds_since_claim), **changes})
    )
    return statement.returning(Heartbeat.name).cte("heartbeat")


def _left_at(worker_id: UUID) -> Case[Any]:
    """Now, if nobody else has the name, and it does not come again by itself."""
    others = select(Worker.id).where(Worker.name == Heartbeat.name, Worker.id != worker_id).exists()
    is_gone = and_(~others, or_(Heartbeat.kind == Kind.WORKER.value, ~Heartbeat.comes_again))
    return case((is_gone, func.clock_timestamp()))


def _unavailable(error: Exception) -> Unavailable:
    return Unavailable(f"the database is not reachable: {str(error).strip().partition(chr(10))[0]}")
