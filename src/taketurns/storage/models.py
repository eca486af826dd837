"""The tables of one cell, as SQLAlchemy 2 table definitions.

`tasks` is the durable record. What a task is doing is the narrow table it stands in: `scheduled_tasks`,
`pending_tasks` or `processing_tasks`; a task in none of them has ended, and its record says how.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, ClassVar
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    DateTime,
    Double,
    Index,
    Integer,
    Interval,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Text,
    UniqueConstraint,
    Uuid,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSON, JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

NAMING = {
    "pk": "%(table_name)s_pkey",
    "ix": "%(table_name)s_%(column_0_N_name)s_idx",
    "uq": "%(table_name)s_%(column_0_N_name)s_key",
    "ck": "%(table_name)s_%(constraint_name)s_check",
    "fk": "%(table_name)s_%(column_0_N_name)s_fkey",
}


READABLE = "between '0001-01-02 00:00+00'::timestamptz and '9999-12-30 00:00+00'::timestamptz"
"""PostgreSQL has moments that Python has not: before the year 1, after 9999, and infinity."""


class Base(DeclarativeBase):
    """No table names a schema: connections and functions carry it."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        str: Text(),
        UUID: Uuid(),
        datetime: DateTime(timezone=True),
        timedelta: Interval(),
        dict[str, Any]: JSONB(),
        list[str]: ARRAY(Text()),
        list[int]: ARRAY(Integer()),
        list[datetime]: ARRAY(DateTime(timezone=True)),
    }


class Company(Base):
    """A tenant: who may submit, and how much of the fleet it may have."""

    __tablename__ = "companies"
    __table_args__ = (
        CheckConstraint("weight between 1 and 100", name="weight"),
        CheckConstraint("max_in_flight >= 1", name="max_in_flight"),
        CheckConstraint("least(hourly_quota, daily_quota, monthly_quota) >= 0", name="quotas"),
        CheckConstraint("max_queued >= 0", name="max_queued"),
        CheckConstraint(
            "num_nonnulls(rate_tasks, rate_seconds, rate_burst) in (0, 3)"
            " and least(rate_tasks, rate_burst) between 1 and 100000 and greatest(rate_tasks, rate_burst) <= 100000"
            " and rate_seconds between 1 and 86400",
            name="rate",
        ),
        CheckConstraint(
            "num_nonnulls(request_rate_requests, request_rate_seconds, request_rate_burst) in (0, 3)"
            " and least(request_rate_requests, request_rate_burst) between 1 and 100000"
            " and greatest(request_rate_requests, request_rate_burst) <= 100000"
            " and request_rate_seconds between 1 and 86400",
            name="request_rate",
        ),
        CheckConstraint(f"paused_until {READABLE} and (paused or paused_until is null)", name="paused_until"),
        CheckConstraint(
            "least(keep_completed_seconds, keep_failed_seconds, keep_cancelled_seconds) >= 60"
            " and greatest(keep_completed_seconds, keep_failed_seconds, keep_cancelled_seconds) <= 315360000",
            name="retention",
        ),
        Index("companies_paused_until_idx", "paused_until", postgresql_where=text("paused_until is not null")),
        Index("companies_weight_idx", "weight"),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    slug: Mapped[str] = mapped_column(String(64), unique=True)
    name: Mapped[str]
    weight: Mapped[int] = mapped_column(SmallInteger, server_default=text("1"))
    paused: Mapped[bool] = mapped_column(server_default=text("false"))
    paused_until: Mapped[datetime | None]
    max_in_flight: Mapped[int | None] = mapped_column(Integer)
    max_queued: Mapped[int | None] = mapped_column(Integer)
    rate_tasks: Mapped[int | None] = mapped_column(Integer)
    rate_seconds: Mapped[int | None] = mapped_column(Integer)
    rate_burst: Mapped[int | None] = mapped_column(Integer)
    request_rate_requests: Mapped[int | None] = mapped_column(Integer)
    request_rate_seconds: Mapped[int | None] = mapped_column(Integer)
    request_rate_burst: Mapped[int | None] = mapped_column(Integer)
    limits_set_by: Mapped[str | None]
    hourly_quota: Mapped[int | None] = mapped_column(Integer)
    daily_quota: Mapped[int | None] = mapped_column(Integer)
    monthly_quota: Mapped[int | None] = mapped_column(Integer)
    keep_completed_seconds: Mapped[int | None] = mapped_column(Integer)
    keep_failed_seconds: Mapped[int | None] = mapped_column(Integer)
    keep_cancelled_seconds: Mapped[int | None] = mapped_column(Integer)
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    updated_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())


class Deletion(Base):
    """A company that is gone, and that may have left something. The row goes when nothing is left."""

    __tablename__ = "deletions"

    company_id: Mapped[UUID] = mapped_column(primary_key=True)
    deleted_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())


class Task(Base):
    """The durable record of a task: written when it is created and when it ends.

    `finished_at` set and `stopped_as` empty means completed. `reserved_at` says that the task is charged to the hour,
    the day and the month of that moment; it is empty when its company had no quotas, and again once it is refunded. The
    end of a task that completes leaves the columns of every index alone, so that the second write stays a heap-only
    update: that is why no index knows when tasks have ended. Payload and result are JSON as it was sent: nothing in the
    database looks into them, and `jsonb` would take them apart to put them together again.
    """

    __tablename__ = "tasks"
    __table_args__ = (
        CheckConstraint("stopped_as in ('failed', 'cancelled')", name="stopped_as"),
        CheckConstraint("stopped_as is null or finished_at is not null", name="stopped_is_finished"),
        CheckConstraint(f"run_after {READABLE} and created_at {READABLE}", name="times_are_readable"),
        # The type comes first so that a look-up by (company_id, id) never has two indexes to choose between.
        Index("tasks_type_company_id_id_idx", "type", "company_id", "id"),
        Index(
            "tasks_company_id_stopped_as_id_idx",
            "company_id",
            "stopped_as",
            "id",
            postgresql_where=text("stopped_as is not null"),
        ),
        Index(
            "tasks_company_id_reserved_at_idx",
            "company_id",
            "reserved_at",
            postgresql_where=text("reserved_at is not null"),
        ),
        Index(
            "tasks_failures_idx",
            "company_id",
            "type",
            "error_fingerprint",
            "id",
            postgresql_where=text("stopped_as = 'failed'"),
        ),
    )

    company_id: Mapped[UUID] = mapped_column(primary_key=True)
    id: Mapped[UUID] = mapped_column(primary_key=True)
    type: Mapped[str]
    queue: Mapped[str]
    priority: Mapped[int] = mapped_column(SmallInteger)
    run_after: Mapped[datetime]
    max_retries: Mapped[int] = mapped_column(Integer)
    timeout_seconds: Mapped[float | None] = mapped_column(Double)
    payload: Mapped[dict[str, Any]] = mapped_column(JSON)
    request_id: Mapped[str | None]
    traceparent: Mapped[str | None]
    schedule_id: Mapped[UUID | None]
    tags: Mapped[list[str] | None]
    unique_key: Mapped[str | None]
    created_at: Mapped[datetime]
    # Filled in at the end, cleared by an explicit retry.
    finished_at: Mapped[datetime | None]
    started_at: Mapped[datetime | None]
    stopped_as: Mapped[str | None]
    retry_count: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    event_number: Mapped[int] = mapped_column(Integer, server_default=text("1"))
    worker_id: Mapped[UUID | None]
    result: Mapped[Any | None] = mapped_column(JSON)
    error: Mapped[str | None]
    error_fingerprint: Mapped[str | None]
    reserved_at: Mapped[datetime | None]


class Place:
    """What moves with a task from table to table."""

    priority: Mapped[int] = mapped_column(SmallInteger)
    type: Mapped[str]
    retry_count: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    rescue_count: Mapped[int] = mapped_column(SmallInteger, server_default=text("0"))
    event_number: Mapped[int] = mapped_column(Integer, server_default=text("1"))


class ScheduledTask(Place, Base):
    """Not due yet: waits for `run_after`, when upkeep promotes it to pending."""

    __tablename__ = "scheduled_tasks"
    __table_args__ = (
        CheckConstraint(f"run_after {READABLE}", name="run_after_is_readable"),
        Index("scheduled_tasks_run_after_idx", "run_after"),
    )

    company_id: Mapped[UUID] = mapped_column(primary_key=True)
    task_id: Mapped[UUID] = mapped_column(primary_key=True)
    queue: Mapped[str]
    run_after: Mapped[datetime]


class PendingTask(Place, Base):
    """Waiting for a turn. The primary key is the order of service within a company."""

    __tablename__ = "pending_tasks"
    __table_args__ = (
        CheckConstraint(f"run_after {READABLE}", name="run_after_is_readable"),
        Index("pending_tasks_company_id_task_id_idx", "company_id", "task_id"),
    )

    queue: Mapped[str] = mapped_column(primary_key=True)
    company_id: Mapped[UUID] = mapped_column(primary_key=True)
    priority: Mapped[int] = mapped_column(SmallInteger, primary_key=True)
    run_after: Mapped[datetime] = mapped_column(primary_key=True)
    task_id: Mapped[UUID] = mapped_column(primary_key=True)


class ProcessingTask(Place, Base):
    """Held by a worker. Counting these rows is how in-flight is known; there is no counter."""

    __tablename__ = "processing_tasks"
    __table_args__ = (Index("processing_tasks_claimed_at_idx", "claimed_at"),)

    company_id: Mapped[UUID] = mapped_column(primary_key=True)
    task_id: Mapped[UUID] = mapped_column(primary_key=True)
    queue: Mapped[str]
    run_after: Mapped[datetime]
    worker_id: Mapped[UUID]
    claim_token: Mapped[UUID]
    claimed_at: Mapped[datetime]


class Pruning(Base):
    """How far a company's tasks of a status were looked at for those that were kept for `keep`; see prune.sql.

    `begins_again_at` is set when the walk has come to its end. The `place` of company nil, status `any`, is the company
    that was visited last.
    """

    __tablename__ = "prunings"

    company_id: Mapped[UUID] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(primary_key=True)
    keep: Mapped[timedelta]
    place: Mapped[UUID]
    begins_again_at: Mapped[datetime | None]


class Line(Base):
    """A company's line in a queue, from the moment it has work there until a claim reaches its turn and finds none.

    A line whose company has reached a limit rests: its turn, at `rests_place`, has left the walk for `!queue`. It comes
    back at `rests_until`, or, after resting since `full_since`, when its company holds fewer than `rests_below` hands.
    """

    __tablename__ = "lines"
    __table_args__ = (
        CheckConstraint(
            "num_nonnulls(rests_until, full_since) = num_nonnulls(rests_place)"
            " and num_nonnulls(rests_below) = num_nonnulls(full_since)",
            name="rest",
        ),
        Index("lines_rests_until_idx", "rests_until", postgresql_where=text("rests_until is not null")),
        Index("lines_full_since_idx", "full_since", postgresql_where=text("full_since is not null")),
        Index("lines_awake_idx", "company_id", postgresql_where=text("rests_place is null")),
    )

    company_id: Mapped[UUID] = mapped_column(primary_key=True)
    queue: Mapped[str] = mapped_column(primary_key=True)
    rests_place: Mapped[int | None] = mapped_column(BigInteger)
    rests_until: Mapped[datetime | None]
    full_since: Mapped[datetime | None]
    rests_below: Mapped[int | None] = mapped_column(Integer)


class Turn(Base):
    """The place of a line's next turn in the rotation of its queue, in units of 1 / 32,768 round.

    A turn moves to another place with every claim that serves it, and nothing looks it up by its company. The floor is
    the task that was taken last, kept while dead rows must be stepped over; see claim.sql.
    """

    __tablename__ = "turns"

    queue: Mapped[str] = mapped_column(primary_key=True)
    place: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    company_id: Mapped[UUID] = mapped_column(primary_key=True)
    floor_priority: Mapped[int | None] = mapped_column(SmallInteger)
    floor_run_after: Mapped[datetime | None]
    floor_task_id: Mapped[UUID | None]


class Rotation(Base):
    """The place that the rotation of a queue has reached since its beginning, in such units; the largest row counts.

    It never goes back: a claim adds a row and takes the last one away. No turn stood below `lowest_turn` then.
    """

    __tablename__ = "rotations"

    queue: Mapped[str] = mapped_column(primary_key=True)
    place: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    lowest_turn: Mapped[int | None] = mapped_column(BigInteger)


class Bucket(Base):
    """What a company with a rate owes since its last start; the largest number counts. See rate.sql."""

    __tablename__ = "buckets"

    company_id: Mapped[UUID] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    owed: Mapped[int] = mapped_column(BigInteger)
    seconds: Mapped[int] = mapped_column(Integer)
    at: Mapped[datetime]


class Pause(Base):
    """Tasks that are given no turn: of a company, or, `company_id` nil, of all; of a queue, of a type, or both.

    An empty queue or type is any. A company that is paused as a whole is so in `companies`.
    """

    __tablename__ = "pauses"
    __table_args__ = (
        CheckConstraint("queue <> '' or type <> ''", name="names_something"),
        CheckConstraint(f"until {READABLE}", name="until_is_readable"),
        Index("pauses_until_idx", "until", postgresql_where=text("until is not null")),
        Index("pauses_type_idx", "type", postgresql_where=text("type <> ''")),
    )

    company_id: Mapped[UUID] = mapped_column(primary_key=True)
    queue: Mapped[str] = mapped_column(primary_key=True, server_default=text("''"))
    type: Mapped[str] = mapped_column(primary_key=True, server_default=text("''"))
    until: Mapped[datetime | None]
    set_by: Mapped[str | None]
    set_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())


class Look(Base):
    """When claims last looked from the beginning, how long that took, and whether an old snapshot was seen then; the
    largest row counts."""

    __tablename__ = "looks"

    number: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    from_the_beginning_at: Mapped[datetime]
    took: Mapped[timedelta]
    has_old_snapshot: Mapped[bool]
    oldest_claim: Mapped[datetime]


class TaskEvent(Base):
    """A move of a task before its last one; the last move stands in the task's own row.

    Numbers are given by the move itself and rise within the task. A row that ends an attempt also tells when the
    attempt started: its claim is the number before.
    """

    __tablename__ = "task_events"

    company_id: Mapped[UUID] = mapped_column(primary_key=True)
    task_id: Mapped[UUID] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True)
    kind: Mapped[str]
    at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    run_after: Mapped[datetime | None]
    worker_id: Mapped[UUID | None]
    error: Mapped[str | None]


class Budget(Base):
    """The calls that were taken out of a budget in its last window, and the line of a company that waits for one.

    `company_id` is nil for a budget of the whole cell. A row that says nothing any more, past `idle_at`, is forgotten.
    """

    __tablename__ = "budgets"
    __table_args__ = (CheckConstraint("cardinality(moments) = cardinality(counts)", name="moments_have_counts"),)

    company_id: Mapped[UUID] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    moments: Mapped[list[datetime]] = mapped_column(server_default=text("'{}'"))
    counts: Mapped[list[int]] = mapped_column(server_default=text("'{}'"))
    cool_until: Mapped[datetime] = mapped_column(server_default=text("'-infinity'"))
    line_until: Mapped[datetime] = mapped_column(server_default=text("'-infinity'"))
    idle_at: Mapped[datetime] = mapped_column(server_default=text("'-infinity'"))


class IdempotencyKey(Base):
    """Which task a company's key made, and of which request, until it expires."""

    __tablename__ = "idempotency_keys"
    __table_args__ = (Index("idempotency_keys_expires_at_idx", "expires_at"),)

    company_id: Mapped[UUID] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    fingerprint: Mapped[bytes] = mapped_column(LargeBinary)
    task_id: Mapped[UUID]
    expires_at: Mapped[datetime]


class UniqueKey(Base):
    """The task that had a company's unique key last, and until when if that is a time.

    Whether it still has it is told by the task's own record, so that no end has anything to give back: see unique.sql.
    """

    __tablename__ = "unique_keys"

    company_id: Mapped[UUID] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    task_id: Mapped[UUID]
    expires_at: Mapped[datetime | None]


class TaskTag(Base):
    """A tag of a task, to find the task by: the index that a task without tags has no entry in."""

    __tablename__ = "task_tags"

    company_id: Mapped[UUID] = mapped_column(primary_key=True)
    tag: Mapped[str] = mapped_column(primary_key=True)
    task_id: Mapped[UUID] = mapped_column(primary_key=True)


class Operation(Base):
    """One change of many tasks, on its way. It is carried on by whoever takes it when `next_step_at` has come.

    First it looks for what its filter names, from `looked_to` on, until it `is_matched`; then those tasks are changed.
    `statuses` are those that a task must still have then.
    """

    __tablename__ = "operations"
    __table_args__ = (
        CheckConstraint("kind in ('cancel', 'retry', 'reschedule', 'delete')", name="kind"),
        CheckConstraint("rate > 0", name="rate"),
        Index("operations_next_step_at_idx", "next_step_at", postgresql_where=text("finished_at is null")),
        Index("operations_finished_at_idx", "finished_at", postgresql_where=text("finished_at is not null")),
        Index(
            "operations_company_id_idempotency_key_key",
            "company_id",
            "idempotency_key",
            unique=True,
            postgresql_where=text("idempotency_key is not null"),
        ),
    )

    company_id: Mapped[UUID] = mapped_column(primary_key=True)
    id: Mapped[UUID] = mapped_column(primary_key=True)
    kind: Mapped[str]
    filter: Mapped[dict[str, Any]]
    statuses: Mapped[list[str] | None]
    run_after: Mapped[datetime | None]
    rate: Mapped[float | None] = mapped_column(Double)
    idempotency_key: Mapped[str | None]
    fingerprint: Mapped[bytes | None] = mapped_column(LargeBinary)
    looked_to: Mapped[UUID | None]
    is_matched: Mapped[bool]
    matched: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    done: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    skipped: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'"))
    next_step_at: Mapped[datetime]
    created_at: Mapped[datetime]
    aborted_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]


class OperationTask(Base):
    """A task that an operation is to change, or has changed and not counted yet: then `outcome` says how that went."""

    __tablename__ = "operation_tasks"

    company_id: Mapped[UUID] = mapped_column(primary_key=True)
    operation_id: Mapped[UUID] = mapped_column(primary_key=True)
    task_id: Mapped[UUID] = mapped_column(primary_key=True)
    outcome: Mapped[str | None]


class Watch(Base):
    """A task whose moves are told while somebody waits for them; see watch.sql. Nothing is lost with these rows."""

    __tablename__ = "watches"
    __table_args__ = (Index("watches_until_idx", "until"), {"prefixes": ["UNLOGGED"]})

    company_id: Mapped[UUID] = mapped_column(primary_key=True)
    task_id: Mapped[UUID] = mapped_column(primary_key=True)
    until: Mapped[datetime]


class Schedule(Base):
    """What a company wants done again and again; each tick makes a task.

    `next_tick_at` moves in the transaction that makes the task, and is empty while the schedule is paused. `held` is
    one whose tick has come while its company is paused. `error` is why it was paused, or why its last tick is late.
    `declaration` is what code last said of a schedule that it declares, and empty for those of the API.
    """

    __tablename__ = "schedules"
    __table_args__ = (
        UniqueConstraint("company_id", "name"),
        CheckConstraint("missed in ('skip', 'last', 'all')", name="missed"),
        CheckConstraint(f"next_tick_at {READABLE} and last_tick_at {READABLE}", name="ticks_are_readable"),
        Index("schedules_next_tick_at_idx", "next_tick_at", postgresql_where=text("not paused and not held")),
        Index("schedules_held_idx", "company_id", postgresql_where=text("held")),
    )

    company_id: Mapped[UUID] = mapped_column(primary_key=True)
    id: Mapped[UUID] = mapped_column(primary_key=True)
    name: Mapped[str]
    type: Mapped[str]
    payload: Mapped[dict[str, Any]]
    queue: Mapped[str]
    priority: Mapped[int] = mapped_column(SmallInteger)
    max_retries: Mapped[int] = mapped_column(Integer)
    timeout_seconds: Mapped[float | None] = mapped_column(Double)
    expression: Mapped[str]
    time_zone: Mapped[str]
    missed: Mapped[str]
    paused: Mapped[bool]
    held: Mapped[bool] = mapped_column(server_default=text("false"))
    declaration: Mapped[str | None]
    next_tick_at: Mapped[datetime | None]
    last_tick_at: Mapped[datetime | None]
    error: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    updated_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())


class QuotaUsage(Base):
    """What a company with quotas submitted in a period: reserved, and refunded of that.

    `kept` are charges that no task's row tells of any more, because the task is forgotten or was run again.
    """

    __tablename__ = "quota_usage"
    __table_args__ = (
        CheckConstraint("period in ('hour', 'day', 'month')", name="period"),
        Index("quota_usage_period_starts_at_idx", "period", "starts_at"),
    )

    company_id: Mapped[UUID] = mapped_column(primary_key=True)
    period: Mapped[str] = mapped_column(primary_key=True)
    starts_at: Mapped[datetime] = mapped_column(primary_key=True)
    reserved: Mapped[int] = mapped_column(BigInteger)
    refunded: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    kept: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))


class QuotaChange(Base):
    """What is to be added to `refunded` and `kept` of the periods that an hour is in; it counts from its commit on."""

    __tablename__ = "quota_changes"

    company_id: Mapped[UUID] = mapped_column(primary_key=True)
    hour_starts_at: Mapped[datetime] = mapped_column(primary_key=True)
    id: Mapped[UUID] = mapped_column(primary_key=True, server_default=func.gen_random_uuid())
    refunded: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    kept: Mapped[int] = mapped_column(Integer, server_default=text("0"))


class Rollup(Base):
    """What a company's attempts came to in a period of 10 s, of 1 min or of 1 h, as workers told it; see roll_up.sql.

    Under the id of none is what all of them came to.

    `lane` is `tasks` or `jobs`. `waits` counts attempts by how long their tasks had waited for a turn, in the buckets
    of `taketurns.engine.waits`, those of rescued tasks left out; empty buckets at its end are not there.
    """

    __tablename__ = "rollups"
    __table_args__ = (
        CheckConstraint("lane in ('tasks', 'jobs')", name="lane"),
        CheckConstraint("seconds in (10, 60, 3600)", name="seconds"),
        Index("rollups_seconds_starts_at_idx", "seconds", "starts_at"),
        Index(
            "rollups_most_idx",
            "seconds",
            "starts_at",
            text("(completed + retried + failed)"),
            postgresql_where=text("seconds > 10 and lane = 'tasks'"),
        ),
        Index(
            "rollups_failed_idx",
            "seconds",
            "starts_at",
            postgresql_where=text("seconds > 10 and failed > 0 and lane = 'tasks'"),
        ),
    )

    company_id: Mapped[UUID] = mapped_column(primary_key=True)
    lane: Mapped[str] = mapped_column(primary_key=True)
    seconds: Mapped[int] = mapped_column(SmallInteger, primary_key=True)
    starts_at: Mapped[datetime] = mapped_column(primary_key=True)
    completed: Mapped[int] = mapped_column(Integer)
    retried: Mapped[int] = mapped_column(Integer)
    failed: Mapped[int] = mapped_column(Integer)
    waits: Mapped[list[int]]


class JobReservation(Base):
    """What a job is charged, which waits elsewhere; see jobs.sql."""

    __tablename__ = "job_reservations"
    __table_args__ = (
        Index("job_reservations_reserved_at_idx", "reserved_at"),
        Index("job_reservations_unconfirmed_idx", "reserved_at", postgresql_where=text("not confirmed")),
        Index("job_reservations_company_id_reserved_at_idx", "company_id", "reserved_at"),
    )

    company_id: Mapped[UUID] = mapped_column(primary_key=True)
    job_id: Mapped[UUID] = mapped_column(primary_key=True)
    reserved_at: Mapped[datetime]
    confirmed: Mapped[bool] = mapped_column(server_default=text("false"))


class ApiKey(Base):
    """A key of a company, with scopes, or of an operator, with a role. The key itself is not stored: see engine/key.py.

    `replaces` is the key that this one was made from by rotation, which cuts `expires_at` of that one short, and not
    `made_until`.
    """

    __tablename__ = "api_keys"
    __table_args__ = (
        CheckConstraint("(company_id is null) = (role is not null)", name="is_of_a_company_or_has_a_role"),
        CheckConstraint("role in ('viewer', 'operator', 'admin')", name="role"),
        CheckConstraint(f"created_at {READABLE} and expires_at {READABLE}", name="times_are_readable"),
        Index("api_keys_company_id_id_idx", "company_id", "id"),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    company_id: Mapped[UUID | None]
    role: Mapped[str | None]
    scopes: Mapped[list[str]] = mapped_column(server_default=text("'{}'"))
    name: Mapped[str]
    environment: Mapped[str]
    last_four: Mapped[str]
    digest: Mapped[bytes] = mapped_column(LargeBinary)
    replaces: Mapped[UUID | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    made_until: Mapped[datetime | None]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]


class Session(Base):
    """An operator who is signed in to the dashboard with a key. The token is not stored, but its SHA-256."""

    __tablename__ = "sessions"
    __table_args__ = (Index("sessions_expires_at_idx", "expires_at"),)

    digest: Mapped[bytes] = mapped_column(LargeBinary, primary_key=True)
    key_id: Mapped[UUID]
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    expires_at: Mapped[datetime]


class AuditEntry(Base):
    """A change that somebody made: who, what, to which, from where. A trigger keeps rows as they were written."""

    __tablename__ = "audit_entries"
    __table_args__ = (
        CheckConstraint("actor_kind in ('company', 'operator', 'command')", name="actor_kind"),
        Index("audit_entries_company_id_id_idx", "company_id", "id"),
        Index("audit_entries_action_id_idx", "action", "id"),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    company_id: Mapped[UUID | None]
    actor_kind: Mapped[str]
    actor_name: Mapped[str]
    key_id: Mapped[UUID | None]
    issuer: Mapped[str | None]
    action: Mapped[str]
    target: Mapped[str]
    details: Mapped[dict[str, Any]]
    address: Mapped[str | None]
    request_id: Mapped[str | None]


class Worker(Base):
    """A worker's lease: `beat` rises while it lives. What is `wanted` of it, it reads with each beat, and tells its
    `state`."""

    __tablename__ = "workers"

    id: Mapped[UUID] = mapped_column(primary_key=True)
    name: Mapped[str]
    kind: Mapped[str] = mapped_column(server_default=text("'worker'"))
    host: Mapped[str]
    version: Mapped[str]
    queues: Mapped[list[str]]
    types: Mapped[list[str]]
    concurrency: Mapped[int] = mapped_column(Integer)
    beat: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    started_at: Mapped[datetime]
    beat_at: Mapped[datetime]
    last_claim_at: Mapped[datetime | None]
    wanted: Mapped[str] = mapped_column(server_default=text("'run'"))
    state: Mapped[str] = mapped_column(server_default=text("'running'"))


class Heartbeat(Base):
    """When a worker or a pass of this name was last heard of. Stays when its lease goes: see `leases.py`.

    `left_at` is set when nobody of this name is expected any more: it left in good order, and not between two passes.
    `wanted` and `state` are told of who has no lease here, because it takes its turns elsewhere.
    """

    __tablename__ = "heartbeats"

    name: Mapped[str] = mapped_column(primary_key=True)
    id: Mapped[UUID]
    kind: Mapped[str]
    comes_again: Mapped[bool]
    host: Mapped[str]
    version: Mapped[str]
    queues: Mapped[list[str]]
    types: Mapped[int] = mapped_column(Integer)
    concurrency: Mapped[int] = mapped_column(Integer)
    started_at: Mapped[datetime]
    beat_at: Mapped[datetime]
    last_claim_at: Mapped[datetime | None]
    left_at: Mapped[datetime | None]
    wanted: Mapped[str | None]
    state: Mapped[str | None]


class TaskType(Base):
    """A type that some worker or API has published, with the JSON Schema of its payload."""

    __tablename__ = "task_types"

    name: Mapped[str] = mapped_column(primary_key=True)
    payload_schema: Mapped[dict[str, Any]]
    queue: Mapped[str]
    priority: Mapped[int] = mapped_column(SmallInteger)
    max_retries: Mapped[int] = mapped_column(Integer)
    timeout_seconds: Mapped[float | None] = mapped_column(Double)
    published_at: Mapped[datetime]


__all__ = [
    "ApiKey",
    "AuditEntry",
    "Base",
    "Bucket",
    "Budget",
    "Company",
    "Deletion",
    "Heartbeat",
    "IdempotencyKey",
    "JobReservation",
    "Line",
    "Look",
    "Operation",
    "OperationTask",
    "Pause",
    "PendingTask",
    "ProcessingTask",
    "Pruning",
    "QuotaChange",
    "QuotaUsage",
    "Rollup",
    "Rotation",
    "Schedule",
    "ScheduledTask",
    "Session",
    "Task",
    "TaskEvent",
    "TaskTag",
    "TaskType",
    "Turn",
    "UniqueKey",
    "Watch",
    "Worker",
]
