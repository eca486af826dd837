"""What clients may send: strict models in camelCase, which refuse what they do not know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, Self, TypeVar
from uuid import UUID

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    StringConstraints,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from taketurns.api.moments import Moment
from taketurns.companies import directory, keys
from taketurns.engine import limits, quota, rate, registry, retention, schedule
from taketurns.engine.errors import InvalidOption
from taketurns.engine.key import GRANTS
from taketurns.engine.task import Status
from taketurns.history import stats
from taketurns.storage.audit import Action

Value = TypeVar("Value")


class _OnlyOmitted:
    """Makes None what stands for a field that was left out, and nothing that a client may send."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(_refuse_null, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        shown = handler(schema)
        return next(part for part in shown.get("anyOf", [shown]) if part != {"type": "null"})


def _refuse_null(value: object) -> object:
    if value is None:
        raise PydanticCustomError("null", "must not be null: leave it out instead")
    return value


Omittable = Annotated[Value | None, _OnlyOmitted()]


def _slug(slug: str) -> str:
    if not directory.is_slug(slug):
        raise PydanticCustomError("invalid_slug", "must not have the form of an id")
    return slug


TypeName = Annotated[
    str, StringConstraints(min_length=1, max_length=limits.TYPE_LENGTH, pattern=f"^{registry.TYPE_NAME.pattern}$")
]
Tag = Annotated[str, StringConstraints(min_length=1, max_length=limits.TAG_LENGTH, pattern=f"^{registry.TAG.pattern}$")]
ErrorFingerprint = Annotated[str, StringConstraints(pattern="^[0-9a-f]{16}$")]
FailureId = Annotated[
    str, StringConstraints(max_length=limits.TYPE_LENGTH + 17, pattern=f"^{registry.TYPE_NAME.pattern}~[0-9a-f]{{16}}$")
]
QueueName = Annotated[
    str, StringConstraints(min_length=1, max_length=limits.QUEUE_LENGTH, pattern=f"^{registry.QUEUE_NAME.pattern}$")
]
CompanyName = Annotated[
    str,
    StringConstraints(
        min_length=1,
        max_length=limits.NAME_LENGTH,
        pattern=r"^[^\x00-\x1F\x7F]*[^\x00-\x20\x7F][^\x00-\x1F\x7F]*$",
    ),
]
Slug = Annotated[
    str,
    StringConstraints(min_length=1, max_length=limits.SLUG_LENGTH, pattern=f"^{directory.SLUG.pattern}$"),
    AfterValidator(_slug),
]
KeyName = CompanyName
Grant = Literal[
    "tasks:read",
    "tasks:write",
    "jobs:read",
    "jobs:write",
    "jobs:*",
    "schedules:read",
    "schedules:write",
    "schedules:*",
    "usage:read",
]
RoleName = Literal["viewer", "operator", "admin"]
CompanyId = Annotated[
    str, StringConstraints(pattern=r"^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$")
]
Weight = Annotated[int, Field(ge=1, le=limits.WEIGHT_MAX)]
MaxInFlight = Annotated[int, Field(ge=1, le=limits.IN_FLIGHT_MAX)]
MaxQueued = Annotated[int, Field(ge=0, le=limits.QUEUED_MAX)]
RateTasks = Annotated[int, Field(ge=1, le=limits.RATE_TASKS_MAX)]
RateRequests = Annotated[int, Field(ge=1, le=limits.RATE_REQUESTS_MAX)]
RateSeconds = Annotated[int, Field(ge=1, le=limits.RATE_SECONDS_MAX)]
Quota = Annotated[int, Field(ge=0, le=limits.QUOTA_MAX)]
KeptSeconds = Annotated[int, Field(ge=limits.RETENTION_SECONDS_MIN, le=limits.RETENTION_SECONDS_MAX)]
IdempotencyKey = Annotated[
    str, StringConstraints(min_length=1, max_length=limits.IDEMPOTENCY_KEY_LENGTH, pattern="^[ -~]*[!-~][ -~]*$")
]
UniqueKey = Annotated[
    str, StringConstraints(min_length=1, max_length=limits.UNIQUE_KEY_LENGTH, pattern="^[ -~]*[!-~][ -~]*$")
]


def _expression(expression: str) -> str:
    return _taken(lambda: schedule.read(expression, "UTC").expression)


def _time_zone(name: str) -> str:
    return _taken(lambda: schedule.read("* * * * *", name).time_zone)


def _taken(read: Callable[[], str]) -> str:
    try:
        return read()
    except InvalidOption as error:
        raise PydanticCustomError("invalid_schedule", "{told}", {"told": error.message}) from None


EXPRESSION: Final = (
    "When it ticks: a cron expression of five fields (minute, hour, day of the month, month, day of the week). Times of"
    " day that a change of clocks takes away come at the next that exists, those that it repeats come once."
)
MISSED: Final = (
    "Which ticks are made up for that came while no worker ran, or while the company was paused: none (skip), the last"
    f" one (last) or all, the last {limits.MISSED_TICKS_MAX} at most (all)."
)
Expression = Annotated[
    str, StringConstraints(min_length=1, max_length=limits.EXPRESSION_LENGTH), AfterValidator(_expression)
]
TimeZone = Annotated[str, AfterValidator(_time_zone)]
MissedTicks = Literal["skip", "last", "all"]


class Body(BaseModel):
    """A body: exact types, no unknown fields, and null only where it has a meaning."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class CreateJob(Body):
    """A job to be done. What is left out, its type decides."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"type": "send_email", "payload": {"to": "ada@example.com", "subject": "Hello", "body": "Hello!"}}
            ]
        }
    )

    type: TypeName = Field(description="What is to be done: the name of a handler.")
    payload: dict[str, Any] = Field(
        default_factory=dict, description="The handler's arguments, by name. At most 256 KiB, 64 levels deep."
    )
    queue: Omittable[QueueName] = Field(None, description="The line to wait in; workers choose theirs.")
    priority: Omittable[Annotated[int, Field(ge=limits.PRIORITY_FIRST, le=limits.PRIORITY_LAST)]] = Field(
        None, description="The order within the company: 0 first, 9 last."
    )
    run_after: Omittable[Moment] = Field(
        None, alias="runAfter", description="Not before this time. Not together with delaySeconds."
    )
    delay_seconds: Omittable[Annotated[float, Field(ge=0, le=limits.DELAY_SECONDS_MAX)]] = Field(
        None, alias="delaySeconds", description="Not before so many seconds have passed. Not together with runAfter."
    )
    max_retries: Omittable[Annotated[int, Field(ge=0, le=limits.MAX_RETRIES_MAX)]] = Field(
        None, alias="maxRetries", description="How often a failed attempt is made again."
    )
    timeout_seconds: Omittable[Annotated[float, Field(gt=0, le=limits.TIMEOUT_SECONDS_MAX)]] = Field(
        None, alias="timeoutSeconds", description="How long one attempt may take."
    )

    @model_validator(mode="after")
    def _one_time(self) -> Self:
        if self.run_after is not None and self.delay_seconds is not None:
            raise PydanticCustomError("two_times", "runAfter and delaySeconds exclude each other: send one of them")
        return self


def _each_once(tags: list[str]) -> list[str]:
    if len(set(tags)) < len(tags):
        raise PydanticCustomError("repeated_tag", "must name each tag once")
    return tags


class CreateTask(CreateJob):
    """A task to be done. What is left out, its type decides."""

    tags: Annotated[list[Tag], Field(max_length=limits.TAGS_MAX), AfterValidator(_each_once)] = Field(
        default_factory=list, description="Words of yours to find the task by: GET /companies/{companyId}/tasks?tag=…"
    )
    unique_key: Omittable[UniqueKey] = Field(
        None,
        alias="uniqueKey",
        description="Of the company's tasks with one key, only one stands at a time: until it has ended, or for"
        " uniqueSeconds. Not to be confused with an idempotency key, which makes one request safe to repeat.",
    )
    unique_seconds: Omittable[Annotated[float, Field(gt=0, le=limits.UNIQUE_SECONDS_MAX)]] = Field(
        None,
        alias="uniqueSeconds",
        description="How long the task has its key, from its creation, whether it has completed meanwhile or still"
        " waits. A task that fails or is cancelled gives it up at once.",
    )
    on_conflict: Omittable[Literal["reject", "return", "replace"]] = Field(
        None,
        alias="onConflict",
        description="What to do while another task has the key: reject this one (409), return the other (200), or"
        " replace it: cancel it, if it still waits. reject if left out.",
    )

    @model_validator(mode="after")
    def _with_a_key(self) -> Self:
        if self.unique_key is None and (self.unique_seconds is not None or self.on_conflict is not None):
            raise PydanticCustomError("no_unique_key", "uniqueSeconds and onConflict are of a uniqueKey: send it too")
        return self


class CreateBatchTask(CreateTask):
    """A task of a batch."""

    idempotency_key: Omittable[IdempotencyKey] = Field(
        None, alias="idempotencyKey", description="As the Idempotency-Key header is for a single task."
    )


class CreateBatch(Body):
    """Tasks to be created together: all or none."""

    tasks: Annotated[list[CreateBatchTask], Field(min_length=1, max_length=limits.BATCH_TASKS)]

    @model_validator(mode="after")
    def _unique_keys_apart(self) -> Self:
        keys = [task.unique_key for task in self.tasks if task.unique_key is not None]
        if len(set(keys)) < len(keys):
            raise PydanticCustomError("repeated_unique_key", "each uniqueKey may be that of one task of the batch")
        return self


class CompanyQuotas(Body):
    """How many tasks a company may submit in each period of UTC. What is left out or null has no limit; 0 is none."""

    hour: Quota | None = None
    day: Quota | None = None
    month: Quota | None = None

    def told(self) -> quota.Quotas:
        return quota.Quotas(hour=self.hour, day=self.day, month=self.month)


class CompanyRate(Body):
    """How many tasks of a company may start: in any time t at most burst + t × tasks / seconds. Every start counts,
    a retry's too."""

    tasks: RateTasks = Field(description="This many in each period.")
    seconds: RateSeconds = Field(description="The period.")
    burst: Omittable[RateTasks] = Field(
        None, description="The most that may start at once; as many as `tasks` if left out."
    )

    def told(self) -> rate.Rate:
        return rate.Rate(self.tasks, self.seconds, self.burst or self.tasks)


class CompanyRetention(Body):
    """For how long tasks of a company are kept after their end, by how they have ended: from a minute to ten years.
    What is left out or null is kept as long as the workers' settings say, and so are jobs in any case."""

    completed_seconds: KeptSeconds | None = Field(None, alias="completedSeconds")
    failed_seconds: KeptSeconds | None = Field(None, alias="failedSeconds")
    cancelled_seconds: KeptSeconds | None = Field(None, alias="cancelledSeconds")

    def told(self) -> retention.OwnRetention:
        return retention.OwnRetention(
            completed=self.completed_seconds, failed=self.failed_seconds, cancelled=self.cancelled_seconds
        )


class CompanyRequestRate(Body):
    """How many requests a company's keys may make, all together: in any time t at most burst + t × requests / seconds,
    at each process of the API its part."""

    requests: RateRequests = Field(description="This many in each period.")
    seconds: RateSeconds = Field(description="The period.")
    burst: Omittable[RateRequests] = Field(
        None, description="The most that may come at once; as many as `requests` if left out."
    )

    def told(self) -> rate.Rate:
        return rate.Rate(self.requests, self.seconds, self.burst or self.requests)


PAUSED: Final = (
    "Tasks are taken in but none is given a turn. Its schedules make none: when it goes on, the ticks that came are"
    " made up for as their `missed` says."
)
PAUSED_UNTIL: Final = "Pauses until then, a time to come; it goes on by itself."
MAX_IN_FLIGHT: Final = (
    "Most tasks at a time, and as many jobs: each lane is counted by itself. null for no limit but its share."
)
MAX_QUEUED: Final = (
    "Most tasks that may be scheduled or pending, and as many jobs: each lane is counted by itself. A submission that"
    " needs more is refused whole. null for no limit."
)
RATE: Final = "How many tasks may start in a time, and as many jobs: each lane is counted by itself. null for no limit."


def _refuse_two_pauses(company: CreateCompany | ChangeCompany) -> None:
    if "paused" in company.model_fields_set and not company.paused and company.paused_until is not None:
        raise PydanticCustomError("two_pauses", "paused is false and pausedUntil is set: send one of them")


class CreateCompany(Body):
    """A company to take in."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "Acme", "slug": "acme"}]})

    name: CompanyName
    slug: Omittable[Slug] = Field(
        None, description="Unique, accepted wherever an id is; made from the name if left out."
    )
    weight: Weight = Field(1, description="Turns in each round of the rotation, beside the 1 of others.")
    paused: bool = Field(False, description=PAUSED)
    paused_until: Omittable[Moment] = Field(None, alias="pausedUntil", description=PAUSED_UNTIL)
    max_in_flight: MaxInFlight | None = Field(None, alias="maxInFlight", description=MAX_IN_FLIGHT)
    max_queued: MaxQueued | None = Field(None, alias="maxQueued", description=MAX_QUEUED)
    rate: CompanyRate | None = Field(None, description=RATE)
    request_rate: CompanyRequestRate | None = Field(
        None, alias="requestRate", description="How many requests its keys may make in a time; null for no limit."
    )
    quotas: CompanyQuotas = Field(default_factory=CompanyQuotas)
    retention: CompanyRetention = Field(default_factory=CompanyRetention)

    @model_validator(mode="after")
    def _one_pause(self) -> Self:
        _refuse_two_pauses(self)
        return self


class ChangeCompany(Body):
    """What is to change of a company. What is left out stays."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"weight": 5},
                {"pausedUntil": "2027-01-31T12:00:00Z"},
                {"rate": {"tasks": 100, "seconds": 60, "burst": 20}, "maxQueued": 10_000},
                {"requestRate": {"requests": 600, "seconds": 60, "burst": 100}},
                {"quotas": {"hour": 100}},
                {"retention": {"completedSeconds": 86_400, "failedSeconds": 7_776_000}},
            ]
        }
    )

    name: Omittable[CompanyName] = None
    weight: Omittable[Weight] = None
    paused: Omittable[bool] = Field(None, description=PAUSED)
    paused_until: Omittable[Moment] = Field(None, alias="pausedUntil", description=PAUSED_UNTIL)
    max_in_flight: MaxInFlight | None = Field(None, alias="maxInFlight", description=MAX_IN_FLIGHT)
    max_queued: MaxQueued | None = Field(None, alias="maxQueued", description=MAX_QUEUED)
    rate: CompanyRate | None = Field(None, description=f"{RATE} It replaces the one before.")
    request_rate: CompanyRequestRate | None = Field(
        None, alias="requestRate", description="Replaces the one before, within five seconds; null takes it away."
    )
    quotas: Omittable[CompanyQuotas] = Field(None, description="These replace all that were set before.")
    retention: Omittable[CompanyRetention] = Field(
        None,
        description="This replaces all of it that was set before. A shorter one forgets tasks within a few minutes, in"
        " batches; what is forgotten, a longer one does not bring back.",
    )

    @model_validator(mode="after")
    def _one_pause(self) -> Self:
        _refuse_two_pauses(self)
        return self


class PutPause(Body):
    """Which tasks are to wait: those of a queue, of a type, or of a type in a queue."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"type": "send_email"}]})

    queue: Omittable[QueueName] = Field(None, description="Any queue if left out.")
    type: Omittable[TypeName] = Field(None, description="Any type if left out.")
    until: Omittable[Moment] = Field(None, description="When the pause is over by itself, a time to come.")

    @model_validator(mode="after")
    def _of_something(self) -> Self:
        if self.queue is None and self.type is None:
            raise PydanticCustomError("nothing_named", "name a queue, a type, or both; a company is paused by PATCH")
        return self


class CreateSchedule(Body):
    """A task to be made again and again. What is left out, its type decides."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "name": "weekly report",
                    "type": "send_email",
                    "payload": {"to": "ada@example.com", "subject": "The week", "body": "It was a good one."},
                    "expression": "0 9 * * 1",
                    "timeZone": "Europe/Berlin",
                }
            ]
        }
    )

    name: CompanyName = Field(description="Unique within the company.")
    type: TypeName = Field(description="What is to be done: the name of a handler.")
    payload: dict[str, Any] = Field(default_factory=dict, description="The handler's arguments, by name.")
    expression: Expression = Field(description=EXPRESSION)
    time_zone: TimeZone = Field("UTC", alias="timeZone", description="A name of the IANA time zone database.")
    missed: MissedTicks = Field("last", description=MISSED)
    paused: bool = False
    queue: Omittable[QueueName] = None
    priority: Omittable[Annotated[int, Field(ge=limits.PRIORITY_FIRST, le=limits.PRIORITY_LAST)]] = None
    max_retries: Omittable[Annotated[int, Field(ge=0, le=limits.MAX_RETRIES_MAX)]] = Field(None, alias="maxRetries")
    timeout_seconds: Omittable[Annotated[float, Field(gt=0, le=limits.TIMEOUT_SECONDS_MAX)]] = Field(
        None, alias="timeoutSeconds"
    )


class ChangeSchedule(Body):
    """What is to change of a schedule. What is left out stays; its type always does."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"expression": "0 10 * * 1"}, {"paused": True}]})

    name: Omittable[CompanyName] = None
    payload: Omittable[dict[str, Any]] = None
    expression: Omittable[Expression] = Field(None, description=EXPRESSION)
    time_zone: Omittable[TimeZone] = Field(None, alias="timeZone")
    missed: Omittable[MissedTicks] = Field(None, description=MISSED)
    paused: Omittable[bool] = None
    queue: Omittable[QueueName] = None
    priority: Omittable[Annotated[int, Field(ge=limits.PRIORITY_FIRST, le=limits.PRIORITY_LAST)]] = None
    max_retries: Omittable[Annotated[int, Field(ge=0, le=limits.MAX_RETRIES_MAX)]] = Field(None, alias="maxRetries")
    timeout_seconds: Annotated[float, Field(gt=0, le=limits.TIMEOUT_SECONDS_MAX)] | None = Field(
        None, alias="timeoutSeconds", description="null takes the limit away."
    )


class CreateKey(Body):
    """A key of a company."""

    name: KeyName = Field(description="What it is for, or who has it.")
    scopes: Annotated[list[Grant], Field(min_length=1, max_length=len(GRANTS))] = Field(
        description="What it may do within its company."
    )
    expires_at: Omittable[Moment] = Field(
        None, alias="expiresAt", description="When it works no more; never unless set."
    )


class CreateOperatorKey(Body):
    """A key of an operator, for every company."""

    name: KeyName = Field(description="What it is for, or who has it.")
    role: RoleName = Field(
        description="A viewer sees, an operator acts as well, an admin decides on keys and deletes companies as well."
    )
    expires_at: Omittable[Moment] = Field(
        None, alias="expiresAt", description="When it works no more; never unless set."
    )


class RotateKey(Body):
    """How a key gives way to the next."""

    overlap_seconds: Annotated[float, Field(ge=0, le=limits.OVERLAP_SECONDS_MAX)] = Field(
        keys.OVERLAP_DEFAULT.total_seconds(),
        alias="overlapSeconds",
        description="For how long the old key works beside the new one. An expiry that comes earlier stays.",
    )


class RescheduleTask(Body):
    """When a task that waits is to run instead."""

    run_after: Moment = Field(alias="runAfter", description="Not before this time.")


class OperationFilter(Body):
    """Which of the company's tasks, of those that were created before the operation. At least one of these."""

    status: Annotated[list[Annotated[Status, Field(strict=False)]], Field(max_length=6)] = Field(
        default_factory=list,
        description="One or several statuses. If left out: for cancel those that have not ended, for retry failed, for"
        " reschedule scheduled and pending, for delete those that have ended.",
    )
    type: Annotated[list[TypeName], Field(max_length=limits.TYPES_IN_QUERY)] = Field(default_factory=list)
    tag: Annotated[list[Tag], Field(max_length=limits.TAGS_MAX)] = Field(
        default_factory=list, description="Tasks that have them all."
    )
    created_after: Omittable[Moment] = Field(None, alias="createdAfter")
    created_before: Omittable[Moment] = Field(None, alias="createdBefore")
    error_fingerprint: Omittable[ErrorFingerprint] = Field(
        None, alias="errorFingerprint", description="Of failed tasks: the fingerprint of a group of /failures."
    )

    @model_validator(mode="after")
    def _names_something(self) -> Self:
        if not (self.status or self.type or self.tag or self.created_after or self.created_before):
            if self.error_fingerprint is None:
                raise PydanticCustomError("empty_filter", "must say something: name the statuses to have all tasks")
        elif self.error_fingerprint is not None and set(self.status) - {Status.FAILED}:
            raise PydanticCustomError("not_failed", "errorFingerprint is of failed tasks: name no other status with it")
        return self


class CreateOperation(Body):
    """One change of many tasks: of those named, or of those that a filter names."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"kind": "cancel", "filter": {"type": ["send_email"], "tag": ["campaign-7"]}, "dryRun": True},
                {"kind": "retry", "filter": {"errorFingerprint": "9f86d081884c7d65"}, "rate": 5},
            ]
        }
    )

    kind: Literal["cancel", "retry", "reschedule", "delete"] = Field(
        description="What becomes of each task, as if it were done to it alone. delete is of tasks that have ended."
    )
    task_ids: Omittable[
        Annotated[list[Annotated[UUID, Field(strict=False)]], Field(min_length=1, max_length=limits.OPERATION_TASKS)]
    ] = Field(None, alias="taskIds", description="These tasks. Not together with filter.")
    filter: Omittable[OperationFilter] = Field(None, description="The tasks that it names. Not together with taskIds.")
    run_after: Omittable[Moment] = Field(None, alias="runAfter", description="For reschedule: not before this time.")
    rate: Omittable[Annotated[float, Field(ge=limits.OPERATION_RATE_MIN, le=limits.OPERATION_RATE_MAX)]] = Field(
        None, description="Most tasks to change in a second."
    )
    dry_run: bool = Field(False, alias="dryRun", description="Change nothing and tell how many tasks there are.")

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.task_ids is None) == (self.filter is None):
            raise PydanticCustomError("which_tasks", "send either taskIds or filter")
        if (self.run_after is not None) != (self.kind == "reschedule"):
            raise PydanticCustomError("which_time", "runAfter is for reschedule, which needs it")
        return self


class FailureQuery(BaseModel):
    """Which groups of failed tasks."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    limit: int = Field(limits.PAGE_DEFAULT, ge=1, le=limits.PAGE_MAX)
    after: Omittable[FailureId] = Field(None, description="The `id` of the last group of the page before.")


class ProcessTasks(Body):
    """How much a pass of processing is to do."""

    limit: Omittable[Annotated[int, Field(ge=1, le=1000)]] = Field(None, description="Most tasks to claim in the pass.")


class Query(BaseModel):
    """The parameters of a list."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    limit: int = Field(limits.PAGE_DEFAULT, ge=1, le=limits.PAGE_MAX)
    offset: int = Field(
        0,
        ge=0,
        description=f"Up to {limits.OFFSET_MAX}. Rows that come or go meanwhile shift the pages: cursor does not.",
        json_schema_extra={"maximum": limits.OFFSET_MAX},
    )
    cursor: Omittable[str] = Field(
        None, max_length=64, description="nextCursor of the page before, with the same filters."
    )


class WorkerQuery(Query):
    """Which heartbeats, and when one is late."""

    max_age_seconds: float = Field(
        600.0,
        alias="maxAgeSeconds",
        gt=0,
        le=limits.DELAY_SECONDS_MAX,
        description="How old a last beat may be before it is late.",
    )


class TaskQuery(Query):
    """Which of a company's tasks, and in which order."""

    status: list[Status] = Field(default_factory=list, max_length=6, description="One or several statuses.")
    type: list[TypeName] = Field(
        default_factory=list, max_length=limits.TYPES_IN_QUERY, description="One or several types."
    )
    tag: list[Tag] = Field(
        default_factory=list, max_length=limits.TAGS_MAX, description="One or several tags: tasks that have them all."
    )
    error_fingerprint: Omittable[ErrorFingerprint] = Field(
        None, alias="errorFingerprint", description="Failed tasks of one cause: see /failures."
    )
    created_after: Omittable[Moment] = Field(None, alias="createdAfter", description="Created later than this.")
    created_before: Omittable[Moment] = Field(None, alias="createdBefore", description="Created earlier than this.")
    sort: Literal["-createdAt", "createdAt"] = Field("-createdAt", description="Newest or oldest first.")
    include_total: Omittable[Literal["estimate", "exact"]] = Field(
        None,
        alias="includeTotal",
        description="Adds how many tasks there are: counted up to 10,000, or exactly if that takes under 2 seconds.",
    )


class PauseQuery(BaseModel):
    """Which pause."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    queue: Omittable[QueueName] = Field(None, description="The queue that it names.")
    type: Omittable[TypeName] = Field(None, description="The type that it names.")


def _window(window: str) -> str:
    try:
        stats.window_seconds(window)
    except ValueError as error:
        raise PydanticCustomError("invalid_window", "{told}", {"told": str(error)}) from None
    return window


class StatsQuery(BaseModel):
    """The time that figures are of."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    window: Annotated[str, Field(max_length=32), AfterValidator(_window)] = Field(
        "10m",
        description="How far back attempts are counted, such as 90s, 10m, 1h or 7d, which is the most: in steps of 10 s"
        " up to 1 h, of 1 min beyond.",
    )


class DeletionQuery(BaseModel):
    """How a company is to be deleted."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    force: bool = Field(
        False,
        description="Also with tasks and jobs that have not ended: none starts any more, those that run are stopped.",
    )


class EventQuery(BaseModel):
    """Which of a task's events."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    limit: int = Field(100, ge=1, le=1000)
    after: int = Field(0, ge=0, le=2**31 - 1, description="Only events with a higher number.")


class AuditQuery(Query):
    """Which entries of the audit."""

    company_id: Omittable[CompanyId] = Field(None, alias="companyId", description="Of the company of this id.")
    action: list[Action] = Field(default_factory=list, max_length=20, description="One or several actions.")
    since: Omittable[Moment] = Field(None, description="Not older than this.")


BODIES: Final = (
    CreateJob,
    CreateTask,
    CreateBatch,
    CreateCompany,
    ChangeCompany,
    CreateKey,
    CreateOperatorKey,
    RotateKey,
    PutPause,
    CreateSchedule,
    ChangeSchedule,
    CreateOperation,
    RescheduleTask,
    ProcessTasks,
)
