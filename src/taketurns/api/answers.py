"""What clients are sent: the shapes in camelCase, and their bytes.

Payloads and results go from PostgreSQL's text into the answer as they are, unread.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, NotRequired, cast

import orjson
from pydantic import Field, WithJsonSchema
from starlette.responses import Response
from typing_extensions import TypedDict

from taketurns.companies.audit import Entry
from taketurns.companies.directory import Company
from taketurns.companies.keys import ApiKey, Made
from taketurns.companies.pauses import Pause
from taketurns.companies.quotas import Usage
from taketurns.engine.job import Job, JobEvent
from taketurns.engine.key import Role
from taketurns.engine.orders import Wanted, WorkerState
from taketurns.engine.quota import Period
from taketurns.engine.rate import Rate
from taketurns.engine.task import PassReport, Status
from taketurns.history.events import Event, status_after
from taketurns.history.failures import Failure
from taketurns.history.heartbeats import Heartbeat
from taketurns.history.stats import Attempts, Stats
from taketurns.history.tasks import TaskRecord
from taketurns.history.why import AHEAD_MOST, Of, Reason, Waiting
from taketurns.operations.ledger import Operation, Stage
from taketurns.schedules.timetable import Schedule

Id = Annotated[object, WithJsonSchema({"type": "string", "format": "uuid"})]
Time = Annotated[object, WithJsonSchema({"type": "string", "format": "date-time"})]
MaybeId = Annotated[object, WithJsonSchema({"anyOf": [{"type": "string", "format": "uuid"}, {"type": "null"}]})]
MaybeTime = Annotated[object, WithJsonSchema({"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]})]
JsonObject = Annotated[object, WithJsonSchema({"type": "object", "additionalProperties": True})]
Json = Annotated[object, WithJsonSchema({"description": "Any JSON value."})]


class TaskBody(TypedDict):
    """A task as it stands."""

    id: Id
    companyId: Id
    type: str
    payload: JsonObject
    status: Status
    queue: str
    priority: int
    runAfter: Time
    maxRetries: int
    timeoutSeconds: float | None
    retryCount: Annotated[int, Field(description="Failed attempts that were made again.")]
    createdAt: Time
    startedAt: Annotated[MaybeTime, Field(description="When the current or last attempt was claimed.")]
    finishedAt: MaybeTime
    result: Annotated[Json, Field(description="What the handler returned, once completed.")]
    error: Annotated[str | None, Field(description="Why it failed, once failed.")]
    errorFingerprint: Annotated[str | None, Field(description="The same for all that failed alike: see /failures.")]
    workerId: MaybeId
    requestId: Annotated[str | None, Field(description="The X-Request-Id of the request that created it.")]
    traceparent: Annotated[str | None, Field(description="The W3C trace context of the request that created it.")]
    scheduleId: Annotated[MaybeId, Field(description="The schedule that made it.")]
    tags: list[str]
    uniqueKey: str | None


class WaitingBody(TypedDict):
    """Why a task waits, and since when.

    How much of the wait was for which reason is not known: reasons change with every claim, and are not written down.
    """

    reason: Annotated[
        Reason,
        Field(
            description="The first of these that holds. notDue: its time is yet to come. paused. noWorkerFor: no living"
            " worker serves its queue, or has a handler for its type. companyAtLimit: as many tasks of its company run"
            " as may. rateLimited: its company's rate lets no task start yet. behindOwn: tasks of its company come"
            " first. othersTurn: companies come first. nextTurn: its turn is the next, and it waits for a free hand."
        ),
    ]
    of: Annotated[Of | None, Field(description="What is paused, or what no worker serves.")]
    until: Annotated[MaybeTime, Field(description="When the reason ends, where that is known.")]
    tasksAhead: Annotated[int, Field(description="Tasks of its company before it in its line, counted up to 1,000.")]
    tasksAheadIsExact: Annotated[bool, Field(description="Without it there are more.")]
    turnsAhead: Annotated[int, Field(description="Companies that stand before its own now, counted up to 1,000.")]
    turnsAheadIsExact: bool
    scheduledSeconds: Annotated[float, Field(description="For how long it has waited for its time, since it last ran.")]
    pendingSeconds: Annotated[float, Field(description="For how long it has been due since then.")]


class WatchedTaskBody(TaskBody):
    """A task as it stands, and why it waits."""

    waiting: Annotated[WaitingBody | None, Field(description="null unless it waits.")]


class JobBody(TypedDict):
    """A job as it stands."""

    jobId: Id
    companyId: Id
    type: str
    payload: JsonObject
    status: Status
    queue: str
    priority: int
    runAfter: Time
    maxRetries: int
    timeoutSeconds: float | None
    retryCount: Annotated[int, Field(description="Failed attempts that were made again.")]
    createdAt: Time
    startedAt: Annotated[MaybeTime, Field(description="When the current or last attempt was claimed.")]
    finishedAt: MaybeTime
    expiresAt: Annotated[MaybeTime, Field(description="When the job is forgotten, once it has ended.")]
    result: Annotated[Json, Field(description="What the handler returned, once completed.")]
    error: Annotated[str | None, Field(description="Why it failed, once failed.")]
    requestId: Annotated[str | None, Field(description="The X-Request-Id of the request that created it.")]


class TaskPage(TypedDict):
    """Some tasks of a company. With filters that few tasks meet a page may be short, even empty: follow nextCursor."""

    tasks: list[TaskBody]
    hasMore: bool
    nextCursor: str | None
    total: NotRequired[Annotated[int, Field(description="With includeTotal: how many tasks the filters name.")]]
    totalIsExact: NotRequired[Annotated[bool, Field(description="Without it there are at least `total`.")]]


class BatchTaskBody(TaskBody):
    """A task of a batch."""

    replayed: Annotated[bool, Field(description="An earlier request with this idempotency key had made it.")]
    held: Annotated[bool, Field(description="Another task, which has the unique key and stands in the way.")]


class BatchBody(TypedDict):
    """The tasks of a batch, in the order of the request."""

    tasks: list[BatchTaskBody]


class EventBody(TypedDict):
    """One move of a task."""

    number: Annotated[int, Field(description="Rises within the task.")]
    kind: Annotated[
        str,
        Field(
            description="created, claimed, retried, deferred, rescheduled, released, rescued, requeued, completed,"
            " failed or cancelled; others may come."
        ),
    ]
    status: Annotated[Status, Field(description="What the move led to; of the newest event, the task's status.")]
    at: Time
    runAfter: MaybeTime
    workerId: MaybeId
    error: str | None


class JobEventBody(TypedDict):
    """One move of a job."""

    number: int
    kind: str
    status: Status
    at: Time
    runAfter: MaybeTime
    error: str | None


class EventPage(TypedDict):
    """The moves of a task in order."""

    events: list[EventBody]
    hasMore: Annotated[bool, Field(description="Go on with after = the last number.")]


class QuotasBody(TypedDict):
    """How many tasks a company may submit in each period; null has no limit."""

    hour: int | None
    day: int | None
    month: int | None


class RateBody(TypedDict):
    """How many tasks of a company may start: in any time t at most burst + t × tasks / seconds."""

    tasks: int
    seconds: int
    burst: int


class RetentionBody(TypedDict):
    """For how long tasks of a company are kept after their end; null: as long as the workers' settings say."""

    completedSeconds: int | None
    failedSeconds: int | None
    cancelledSeconds: int | None


class RequestRateBody(TypedDict):
    """How many requests a company's keys may make: in any time t at most burst + t × requests / seconds."""

    requests: int
    seconds: int
    burst: int


class CompanyBody(TypedDict):
    """A company as it stands."""

    id: Id
    slug: str
    name: str
    weight: int
    paused: bool
    pausedUntil: Annotated[Time | None, Field(description="When the company goes on by itself.")]
    maxInFlight: Annotated[int | None, Field(description="Of tasks, and of jobs by themselves.")]
    maxQueued: Annotated[int | None, Field(description="Of tasks, and of jobs by themselves.")]
    rate: Annotated[RateBody | None, Field(description="Of tasks, and of jobs by themselves.")]
    requestRate: RequestRateBody | None
    quotas: QuotasBody
    retention: RetentionBody
    limitsSetBy: Annotated[str | None, Field(description="Who changed the weight or a limit last, if that is known.")]
    createdAt: Time
    updatedAt: Time


class PauseBody(TypedDict):
    """Tasks that wait until somebody lets them go on, or until a time. A company, queue or type of null is any."""

    companyId: Id | None
    queue: str | None
    type: str | None
    until: Time | None
    setBy: Annotated[str | None, Field(description="Who set it, if that is known.")]
    setAt: Time


class PauseList(TypedDict):
    """Pauses that stand, by queue and type."""

    pauses: list[PauseBody]


class PeriodUsageBody(TypedDict):
    """What a company submitted in a period."""

    period: Period
    startsAt: Time
    resetsAt: Annotated[Time, Field(description="When the period ends.")]
    used: Annotated[int, Field(description="Tasks that are charged: reserved less refunded.")]
    reserved: int
    refunded: Annotated[
        int, Field(description="Tasks that failed for good, or were cancelled before they had started.")
    ]


class QuotaUsageBody(PeriodUsageBody):
    """The current period: what was submitted, and what may be."""

    limit: Annotated[int | None, Field(description="The quota; null has no limit.")]
    remaining: int | None


class UsageBody(TypedDict):
    """A company's use of its quotas. Tasks are counted while it has a quota for any period."""

    current: list[QuotaUsageBody]
    past: Annotated[list[PeriodUsageBody], Field(description="Those before, the newest first.")]


class AttemptsBody(TypedDict):
    """What attempts came to in the window, told by workers every 10 s: one that is killed takes its last 10 s along."""

    completed: int
    retried: Annotated[int, Field(description="Attempts that failed and are made again.")]
    failed: Annotated[int, Field(description="Attempts that failed for good.")]
    completedPerSecond: float
    waitP50Seconds: Annotated[
        float | None,
        Field(
            description="Half of the attempts had waited no longer for their turn, within a fifth; null without any."
        ),
    ]
    waitP95Seconds: float | None


class WindowBody(TypedDict):
    """The time that attempts were counted in."""

    since: Time
    seconds: float


class StatsBody(TypedDict):
    """How it stands with a company now, and what its attempts came to in a window."""

    companyId: Id
    at: Time
    backlog: Annotated[int, Field(description="Tasks that wait for a turn, counted up to 10,000.")]
    backlogIsExact: Annotated[bool, Field(description="Without it there are at least `backlog`.")]
    oldestAgeSeconds: Annotated[
        float | None, Field(description="For how long the oldest of those has been due; null without any.")
    ]
    scheduled: Annotated[int, Field(description="Tasks that wait for their time, counted up to 10,000.")]
    scheduledIsExact: bool
    inFlight: Annotated[int, Field(description="Tasks in the hands of workers.")]
    fairShare: Annotated[
        int,
        Field(
            description="The company's part, by weight, of the workers' hands that are not held by companies which "
            "want no more, among those that have tasks waiting."
        ),
    ]
    window: WindowBody
    tasks: AttemptsBody
    jobs: Annotated[AttemptsBody, Field(description="The same of jobs, which are not in the figures above.")]


class CompanyPage(TypedDict):
    """Some companies, the newest first."""

    companies: list[CompanyBody]
    hasMore: bool
    nextCursor: str | None


class ScheduleBody(TypedDict):
    """A schedule as it stands."""

    id: Id
    companyId: Id
    name: str
    type: str
    payload: JsonObject
    queue: str
    priority: int
    maxRetries: int
    timeoutSeconds: float | None
    expression: str
    timeZone: str
    missed: str
    paused: bool
    nextTicks: Annotated[list[Time], Field(description="When its next five tasks will be made; none while paused.")]
    lastTickAt: Annotated[MaybeTime, Field(description="The last tick that made a task.")]
    error: Annotated[str | None, Field(description="Why it was paused by itself, or why its last tick is late.")]
    declared: Annotated[bool, Field(description="Code declares it: a change of the code overrules a change made here.")]
    createdAt: Time
    updatedAt: Time


class SchedulePage(TypedDict):
    """Some schedules of a company, the newest first."""

    schedules: list[ScheduleBody]
    hasMore: bool
    nextCursor: str | None


class _Key(TypedDict):
    """What is shown of any key."""

    id: Id
    name: str
    prefix: Annotated[str, Field(description="How the key begins.")]
    lastFour: Annotated[str, Field(description="How the key ends.")]
    replaces: Annotated[MaybeId, Field(description="The key that this one was made from by rotation.")]
    createdAt: Time
    expiresAt: MaybeTime
    revokedAt: MaybeTime
    lastUsedAt: Annotated[MaybeTime, Field(description="Noted once a minute at most.")]
    isActive: Annotated[bool, Field(description="It was not revoked and has not expired.")]


class KeyBody(_Key):
    """A key of a company, as far as it may be shown."""

    companyId: Id
    scopes: list[str]


class MadeKeyBody(KeyBody):
    """A key that was just made."""

    key: Annotated[str, Field(description="The key itself. It is not stored: nobody can show it again.")]


class KeyPage(TypedDict):
    """Some keys of a company, the newest first."""

    keys: list[KeyBody]
    hasMore: bool
    nextCursor: str | None


class OperatorKeyBody(_Key):
    """A key of an operator, as far as it may be shown."""

    role: Role


class MadeOperatorKeyBody(OperatorKeyBody):
    """A key that was just made."""

    key: Annotated[str, Field(description="The key itself. It is not stored: nobody can show it again.")]


class OperatorKeyPage(TypedDict):
    """Some keys of operators, the newest first."""

    keys: list[OperatorKeyBody]
    hasMore: bool
    nextCursor: str | None


class AuditEntryBody(TypedDict):
    """A change that somebody made."""

    id: Id
    at: Time
    actorKind: Annotated[
        str, Field(description="company (somebody of one), operator, or command (somebody at the command line).")
    ]
    actorName: Annotated[
        str, Field(description="The name of the key, the subject of the token, or the user at the command line.")
    ]
    keyId: Annotated[MaybeId, Field(description="The key that was used.")]
    issuer: Annotated[str | None, Field(description="The identity provider whose token was used.")]
    action: Annotated[str, Field(description="The operation by its name in this document.")]
    companyId: MaybeId
    target: Annotated[str, Field(description="The id of what was changed.")]
    details: Annotated[JsonObject, Field(description="What it was changed to.")]
    address: Annotated[str | None, Field(description="Where the request came from.")]
    requestId: str | None


class AuditPage(TypedDict):
    """Some changes, the newest first."""

    entries: list[AuditEntryBody]
    hasMore: bool
    nextCursor: str | None


class OperationBody(TypedDict):
    """An operation as it stands."""

    id: Id
    companyId: Id
    kind: str
    filter: Annotated[JsonObject, Field(description="What was asked for; of taskIds only how many.")]
    runAfter: MaybeTime
    rate: float | None
    status: Stage
    matched: Annotated[int, Field(description="Tasks that were found; all of them once it is no longer matching.")]
    done: int
    skipped: Annotated[
        dict[str, int],
        Field(
            description="Tasks that were left as they were, by the reason: the status that a task had by then,"
            " notFound, quotaExceeded or uniqueKeyTaken."
        ),
    ]
    createdAt: Time
    abortedAt: MaybeTime
    finishedAt: MaybeTime


class OperationPage(TypedDict):
    """Some operations of a company, the newest first."""

    operations: list[OperationBody]
    hasMore: bool
    nextCursor: str | None


class DryRunBody(TypedDict):
    """What an operation would find."""

    matched: int
    matchedIsExact: Annotated[bool, Field(description="Without it there are at least `matched`.")]


class FailureBody(TypedDict):
    """Failed tasks of one type whose errors are alike but for numbers, ids and what is quoted."""

    id: str
    type: str
    errorFingerprint: str
    count: int
    countIsExact: Annotated[bool, Field(description="Without it there are at least `count`, of which the rest tells.")]
    firstFailedAt: Time
    lastFailedAt: Time
    exampleTaskId: Id
    exampleError: str | None


class FailurePage(TypedDict):
    """Some groups of failed tasks, by type."""

    failures: list[FailureBody]
    hasMore: Annotated[bool, Field(description="Go on with after = the last id.")]


class TaskTypeBody(TypedDict):
    """A type of task that can be created, and what its tasks are like unless they say otherwise."""

    name: str
    queue: str
    priority: int
    maxRetries: int
    timeoutSeconds: float | None
    payloadSchema: JsonObject


class TaskTypesBody(TypedDict):
    """The types that this process or some worker has a handler for, by name."""

    taskTypes: list[TaskTypeBody]


class PassBody(TypedDict):
    """What a pass of processing did, in tasks."""

    claimed: int
    completed: int
    retried: int
    deferred: int
    failed: int
    released: int
    lost: Annotated[int, Field(description="Cancelled, or taken back by others, before they ended here.")]


class WorkerBody(TypedDict):
    """A worker or a pass, by the name of its heartbeat, as it was last heard of."""

    id: Annotated[str, Field(description="Of the latest process of this name.")]
    name: str
    kind: Annotated[str, Field(description="worker or pass.")]
    host: str
    version: str
    queues: list[str]
    types: Annotated[int, Field(description="How many types of task it has handlers for.")]
    concurrency: int
    processes: Annotated[
        int, Field(description="How many processes hold a lease on tasks under this name; 0 for a worker of jobs.")
    ]
    startedAt: Time
    lastBeatAt: Time
    lastClaimAt: MaybeTime
    leftAt: Annotated[MaybeTime, Field(description="When it left in good order; who left is not late.")]
    wanted: Annotated[Wanted | None, Field(description="What operators want of it; null for a pass.")]
    state: Annotated[
        WorkerState | None,
        Field(
            description="What it said with its last beat that it does: one that is draining takes no turns until it is"
            " resumed, one that is stopping ends once what it runs has ended. Of several processes of a name this and"
            " wanted tell the one that is least far."
        ),
    ]
    ageSeconds: Annotated[float, Field(description="Since the last beat, by the database's clock.")]
    isLate: bool


class WorkerPage(TypedDict):
    """Some workers and passes, those that began last first."""

    workers: list[WorkerBody]
    hasMore: bool
    nextCursor: str | None


class HealthBody(TypedDict):
    """The process answers."""

    status: str
    version: str


JobsStatus = Literal["ready", "unavailable", "misconfigured"]


class ReadyBody(TypedDict):
    """The process can serve: its database answers, and has the schema that this version needs.

    It is `degraded` while jobs are `unavailable`, or their server is `misconfigured`; `detail` says what is wrong.
    `jobs` is null where there are none.
    """

    status: Literal["ready", "degraded"]
    migration: str
    jobs: JobsStatus | None
    detail: str | None


MEDIA_TYPE: Final = "application/json"
NEXT_TICKS: Final = 5
_UTC: Final = orjson.OPT_UTC_Z


def send(body: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON answer."""
    return Response(encode(body), status, headers, MEDIA_TYPE)


def encode(body: Mapping[str, Any]) -> bytes:
    return orjson.dumps(body, option=_UTC)


def moment(at: datetime) -> datetime:
    """A moment in UTC, whatever zone the connection has."""
    return at.astimezone(UTC)


def maybe_moment(at: datetime | None) -> datetime | None:
    return None if at is None else at.astimezone(UTC)


def task(record: TaskRecord) -> TaskBody:
    return TaskBody(
        id=record.id,
        companyId=record.company_id,
        type=record.type,
        payload=orjson.Fragment(record.payload),
        status=record.status,
        queue=record.queue,
        priority=record.priority,
        runAfter=moment(record.run_after),
        maxRetries=record.max_retries,
        timeoutSeconds=record.timeout_seconds,
        retryCount=record.retry_count,
        createdAt=moment(record.created_at),
        startedAt=maybe_moment(record.started_at),
        finishedAt=maybe_moment(record.finished_at),
        result=None if record.result is None else orjson.Fragment(record.result),
        error=record.error,
        errorFingerprint=record.error_fingerprint,
        workerId=record.worker_id,
        requestId=record.request_id,
        traceparent=record.traceparent,
        scheduleId=record.schedule_id,
        tags=[*(record.tags or ())],
        uniqueKey=record.unique_key,
    )


def waiting(told: Waiting) -> WaitingBody:
    facts = told.facts
    return WaitingBody(
        reason=told.reason,
        of=told.of,
        until=maybe_moment(told.until),
        tasksAhead=min(facts.tasks_ahead, AHEAD_MOST),
        tasksAheadIsExact=facts.tasks_ahead <= AHEAD_MOST,
        turnsAhead=min(facts.turns_ahead, AHEAD_MOST),
        turnsAheadIsExact=facts.turns_ahead <= AHEAD_MOST,
        scheduledSeconds=facts.scheduled_seconds,
        pendingSeconds=facts.pending_seconds,
    )


def job(told: Job) -> JobBody:
    return JobBody(
        jobId=told.id,
        companyId=told.company_id,
        type=told.type,
        payload=orjson.Fragment(told.payload),
        status=told.status,
        queue=told.queue,
        priority=told.priority,
        runAfter=moment(told.run_after),
        maxRetries=told.max_retries,
        timeoutSeconds=told.timeout_seconds,
        retryCount=told.retry_count,
        createdAt=moment(told.created_at),
        startedAt=maybe_moment(told.started_at),
        finishedAt=maybe_moment(told.finished_at),
        expiresAt=maybe_moment(told.expires_at),
        result=None if told.result is None else orjson.Fragment(told.result),
        error=told.error,
        requestId=told.request_id,
    )


def job_event(told: JobEvent) -> JobEventBody:
    return JobEventBody(
        number=told.number,
        kind=told.kind,
        status=status_after(told.kind, at=told.at, run_after=told.run_after),
        at=moment(told.at),
        runAfter=maybe_moment(told.run_after),
        error=told.error,
    )


def event(told: Event) -> EventBody:
    return EventBody(
        number=told.number,
        kind=told.kind,
        status=told.status,
        at=moment(told.at),
        runAfter=maybe_moment(told.run_after),
        workerId=told.worker_id,
        error=told.error,
    )


def company(told: Company) -> CompanyBody:
    return CompanyBody(
        id=told.id,
        slug=told.slug,
        name=told.name,
        weight=told.weight,
        paused=told.paused,
        pausedUntil=maybe_moment(told.paused_until),
        maxInFlight=told.max_in_flight,
        maxQueued=told.max_queued,
        rate=None
        if told.rate is None
        else RateBody(tasks=told.rate.tasks, seconds=told.rate.seconds, burst=told.rate.burst),
        requestRate=_request_rate(told.request_rate),
        quotas=QuotasBody(hour=told.quotas.hour, day=told.quotas.day, month=told.quotas.month),
        retention=RetentionBody(
            completedSeconds=told.retention.completed,
            failedSeconds=told.retention.failed,
            cancelledSeconds=told.retention.cancelled,
        ),
        limitsSetBy=told.limits_set_by,
        createdAt=moment(told.created_at),
        updatedAt=moment(told.updated_at),
    )


def _request_rate(told: Rate | None) -> RequestRateBody | None:
    if told is None:
        return None
    return RequestRateBody(requests=told.tasks, seconds=told.seconds, burst=told.burst)


def key(told: ApiKey) -> KeyBody | OperatorKeyBody:
    """A company's key or an operator's."""
    shown = {
        "id": told.id,
        "name": told.name,
        "prefix": told.prefix,
        "lastFour": told.last_four,
        "replaces": told.replaces,
        "createdAt": moment(told.created_at),
        "expiresAt": maybe_moment(told.expires_at),
        "revokedAt": maybe_moment(told.revoked_at),
        "lastUsedAt": maybe_moment(told.last_used_at),
        "isActive": told.is_active,
    }
    if told.role is not None:
        return cast(OperatorKeyBody, shown | {"role": told.role})
    return cast(KeyBody, shown | {"companyId": told.company_id, "scopes": told.scopes})


def made_key(told: Made) -> MadeKeyBody | MadeOperatorKeyBody:
    """The same of a key that was just made, with its text."""
    return cast("MadeKeyBody | MadeOperatorKeyBody", {**key(told.key), "key": told.text})


def audit_entry(told: Entry) -> AuditEntryBody:
    return AuditEntryBody(
        id=told.id,
        at=moment(told.at),
        actorKind=told.actor_kind,
        actorName=told.actor_name,
        keyId=told.key_id,
        issuer=told.issuer,
        action=told.action,
        companyId=told.company_id,
        target=told.target,
        details=orjson.Fragment(told.details),
        address=told.address,
        requestId=told.request_id,
    )


def pause(told: Pause) -> PauseBody:
    return PauseBody(
        companyId=told.company_id,
        queue=told.queue,
        type=told.type,
        until=maybe_moment(told.until),
        setBy=told.set_by,
        setAt=moment(told.set_at),
    )


def schedule(told: Schedule) -> ScheduleBody:
    return ScheduleBody(
        id=told.id,
        companyId=told.company_id,
        name=told.name,
        type=told.type,
        payload=orjson.Fragment(told.payload),
        queue=told.queue,
        priority=told.priority,
        maxRetries=told.max_retries,
        timeoutSeconds=told.timeout_seconds,
        expression=told.expression,
        timeZone=told.time_zone,
        missed=told.missed,
        paused=told.paused,
        nextTicks=[*told.next_ticks(NEXT_TICKS)],
        lastTickAt=maybe_moment(told.last_tick_at),
        error=told.error,
        declared=told.declared,
        createdAt=moment(told.created_at),
        updatedAt=moment(told.updated_at),
    )


def operation(told: Operation) -> OperationBody:
    return OperationBody(
        id=told.id,
        companyId=told.company_id,
        kind=told.kind,
        filter=told.filter,
        runAfter=maybe_moment(told.run_after),
        rate=told.rate,
        status=told.stage,
        matched=told.matched,
        done=told.done,
        skipped=told.skipped,
        createdAt=moment(told.created_at),
        abortedAt=maybe_moment(told.aborted_at),
        finishedAt=maybe_moment(told.finished_at),
    )


def failure(told: Failure) -> FailureBody:
    return FailureBody(
        id=told.id,
        type=told.type,
        errorFingerprint=told.fingerprint,
        count=told.count,
        countIsExact=told.count_is_exact,
        firstFailedAt=moment(told.first_failed_at),
        lastFailedAt=moment(told.last_failed_at),
        exampleTaskId=told.example_id,
        exampleError=told.example_error,
    )


def usage(told: Usage) -> UsageBody:
    return UsageBody(
        current=[
            QuotaUsageBody(
                period=one.period,
                startsAt=moment(one.starts_at),
                resetsAt=moment(one.ends_at),
                used=one.used,
                reserved=one.reserved,
                refunded=one.refunded,
                limit=one.quota,
                remaining=one.remaining,
            )
            for one in told.current
        ],
        past=[
            PeriodUsageBody(
                period=one.period,
                startsAt=moment(one.starts_at),
                resetsAt=moment(one.ends_at),
                used=one.used,
                reserved=one.reserved,
                refunded=one.refunded,
            )
            for one in told.past
        ],
    )


def stats(told: Stats) -> StatsBody:
    return StatsBody(
        companyId=told.company_id,
        at=moment(told.at),
        backlog=told.backlog,
        backlogIsExact=told.backlog_is_exact,
        oldestAgeSeconds=told.oldest_age_seconds,
        scheduled=told.scheduled,
        scheduledIsExact=told.scheduled_is_exact,
        inFlight=told.in_flight,
        fairShare=told.fair_share,
        window=WindowBody(since=moment(told.since), seconds=told.seconds),
        tasks=_attempts(told.tasks, seconds=told.seconds),
        jobs=_attempts(told.jobs, seconds=told.seconds),
    )


def _attempts(told: Attempts, *, seconds: float) -> AttemptsBody:
    return AttemptsBody(
        completed=told.completed,
        retried=told.retried,
        failed=told.failed,
        completedPerSecond=told.completed / seconds,
        waitP50Seconds=told.wait_p50_seconds,
        waitP95Seconds=told.wait_p95_seconds,
    )


def worker(heartbeat: Heartbeat, *, max_age_seconds: float) -> WorkerBody:
    return WorkerBody(
        id=str(heartbeat.id),
        name=heartbeat.name,
        kind=heartbeat.kind,
        host=heartbeat.host,
        version=heartbeat.version,
        queues=heartbeat.queues,
        types=heartbeat.types,
        concurrency=heartbeat.concurrency,
        processes=heartbeat.processes,
        startedAt=heartbeat.started_at,
        lastBeatAt=heartbeat.beat_at,
        lastClaimAt=heartbeat.last_claim_at,
        leftAt=heartbeat.left_at,
        wanted=None if heartbeat.wanted is None else Wanted(heartbeat.wanted),
        state=None if heartbeat.state is None else WorkerState(heartbeat.state),
        ageSeconds=round(heartbeat.age_seconds, 3),
        isLate=heartbeat.is_late(max_age_seconds=max_age_seconds),
    )


def report(told: PassReport) -> PassBody:
    return PassBody(
        claimed=told.claimed,
        completed=told.completed,
        retried=told.retried,
        deferred=told.deferred,
        failed=told.failed,
        released=told.released,
        lost=told.lost,
    )
