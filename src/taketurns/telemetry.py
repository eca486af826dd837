"""Every log event and every metric, by name, and the form in which logs are written.

Whoever has something to tell uses the names of this module; labels of metrics are bounded, whatever clients send.
"""

from __future__ import annotations

import json
import logging
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextvars import ContextVar
from enum import StrEnum
from itertools import accumulate
from typing import Any, Final, Literal, TextIO

import orjson
import structlog
from prometheus_client import REGISTRY, Counter, Gauge, Histogram, Metric, disable_created_metrics
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from taketurns.engine import waits


class Event(StrEnum):
    """What log lines tell of: the text of their `event` field."""

    # A worker's life.
    WORKER_STARTED = "worker started"
    WORKER_ORDERED = "worker told what is wanted of it"
    WORKER_STOPPING = "worker stopping"
    WORKER_STOPPED = "worker stopped"
    WORKER_LEFT_HANDLERS = "worker leaves handlers that do not end"
    PASS_MADE = "pass made"  # noqa: S105
    METRICS_SERVED = "metrics served"

    # Its lease.
    LEASE_TAKEN = "lease taken"
    LEASE_LOST = "lease lost"
    LEASE_UNREACHABLE = "lease cannot be beaten"
    LOOP_BLOCKED = "event loop blocked: an async handler does not wait where it should"
    LEASE_ENDS_PROCESS = "lease lost while handlers run: the process ends"

    # Tasks in its hands.
    TASKS_CLAIMED = "tasks claimed"
    TASK_COMPLETED = "task completed"
    TASK_RETRIED = "task to be retried"
    TASK_DEFERRED = "task put off to a later time"
    TASK_FAILED = "task failed"
    TASK_CANCELLED = "task cancelled"
    TASK_TIMED_OUT = "handler past its timeout"
    TASK_ABANDONED = "handler did not stop after its timeout and was left behind"
    TASK_TYPE_UNKNOWN = "type unknown here, task released"
    TASKS_RELEASED = "tasks released"
    CLAIM_LOST = "claim lost: the task was cancelled or taken back"
    REPORT_IGNORED = "report ignored: the task was cancelled or taken back"
    REPORT_REFUSED = "report could not be stored, the attempt fails instead"
    REPORTS_DROPPED = "reports dropped: the database stayed away"
    ROW_UNREADABLE = "task failed because its row cannot be read"
    GHOSTS_RELEASED = "tasks released whose claim was never answered"

    # Its rounds.
    CLAIM_FAILED = "claim failed"
    SETTLE_FAILED = "settle failed, will be repeated"
    WAKEUPS_LISTENING = "listening for wake-ups"
    WAKEUPS_LOST = "wake-ups lost, polling until they are back"
    WORKER_RESCUED = "tasks of a lost worker rescued"
    TASKS_PROMOTED = "tasks promoted"
    TASKS_PRUNED = "finished tasks pruned"
    TASKS_PARKED = "tasks set aside: their type is paused, or no living worker knows it"
    TASKS_UNPARKED = "tasks given back to their lines: a worker may do their type"
    ROTATION_HEALED = "companies put back in rotation"
    TICKS_MADE = "tasks made by schedules"
    SCHEDULE_PAUSED = "schedule paused: it cannot be read"
    SCHEDULE_FAILED = "tick of a schedule failed, will be repeated"
    QUOTAS_CORRECTED = "counts of quotas differed from the rows and were corrected"
    RESERVATIONS_REFUNDED = "quotas given back of jobs that never arrived"
    OPERATION_OVER = "operation over"
    DUTY_FAILED = "duty failed, will be repeated"

    # Jobs, and their server.
    JOB_LOST = "job lost: something of it is gone from Redis, and it was put among the dead letters"
    EXPORT_BROKEN_OFF = "export of a company broken off: the database is not reachable"
    COMPANY_FORGOTTEN = "nothing is left of a deleted company"
    JOBS_OF_NO_COMPANY_DROPPED = "jobs dropped: their company is gone"
    REDIS_SET_UP_WRONGLY = "Redis is set up in a way that can lose jobs"

    # Keys and tokens.
    TOKEN_REFUSED = "a token was refused"  # noqa: S105
    IDENTITY_PROVIDER_READ = "the keys of the identity provider were read"
    IDENTITY_PROVIDER_UNAVAILABLE = "the keys of the identity provider cannot be read, will be tried again"
    KEY_USE_NOT_NOTED = "the use of a key could not be noted"
    AUDIT_NOT_WRITTEN = "a change could not be noted in the audit"

    # The API.
    API_LISTENS = "the API listens, and asks for keys"
    API_ON_LOOPBACK = "the API asks for no keys, and listens on loopback only"
    API_OPEN = "the API asks for no keys: whoever reaches this address may use it"
    API_WITHOUT_WALLS = "one database role acts for all companies: set TAKETURNS_COMPANY_DATABASE_URL for walls between"
    REQUEST_ANSWERED = "request answered"
    REQUEST_FAILED = "request failed"
    DATABASE_UNAVAILABLE = "database unavailable"
    COMPANY_NOT_TOLD = "the jobs' broker could not be told of a company's change"
    PAUSES_NOT_TOLD = "the jobs' broker could not be told of a pause"
    CHANGES_LOST = "changes of tasks cannot be heard, will be tried again"
    FIGURES_UNAVAILABLE = "queue figures could not be read"


UNKNOWN: Final = "unknown"

disable_created_metrics()  # type: ignore[no-untyped-call]

CLAIMS = Counter("claims", "Claims that were answered, by what they came back with.", ["result"])
CLAIM_SECONDS = Histogram(
    "claim_seconds",
    "How long a claim took.",
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
)
CLAIM_BATCH_SIZE = Histogram(
    "claim_batch_size", "Tasks that a claim came back with.", buckets=(0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
)
TASKS_IN_FLIGHT = Gauge("tasks_in_flight", "Tasks in the hands of this process.")
TASKS_PROCESSED = Counter("tasks_processed", "Attempts that ended, by what was stored of them.", ["type", "outcome"])
TASKS_RETRIED = Counter("tasks_retried", "Failed attempts that will be made again.", ["type"])
TASKS_RELEASED = Counter("tasks_released", "Claimed tasks that were given back with no penalty.")
TASKS_RESCUED = Counter("tasks_rescued", "Tasks taken back from lost workers.", ["outcome"])
TASKS_PROMOTED = Counter("tasks_promoted", "Scheduled tasks that became pending.")
TASKS_PRUNED = Counter("tasks_pruned", "Finished tasks that were forgotten after their retention.")
IDEMPOTENCY_KEYS_PRUNED = Counter("idempotency_keys_pruned", "Expired idempotency keys that were forgotten.")
TURNS_HEALED = Counter("turns_healed", "Companies with work that were found outside the rotation.")
TICKS_MADE = Counter("ticks_made", "Tasks that schedules made.")
TICKS_FAILED = Counter("ticks_failed", "Ticks of schedules that failed and will be repeated.")
QUOTAS_CORRECTED = Counter("quotas_corrected", "Periods whose count of tasks differed from the rows.")
JOBS_LOST = Counter("jobs_lost", "Jobs of which something was lost, and which failed without being run.")
REPORTS_IGNORED = Counter("reports_ignored", "Attempts whose task was cancelled or taken back before they ended.")
SETTLE_SECONDS = Histogram(
    "settle_seconds",
    "How long a settlement took.",
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
)
LEASES_LOST = Counter("leases_lost", "Leases that this process lost.")
LEASE_AGE_SECONDS = Gauge("lease_age_seconds", "Seconds since this process last beat its lease.")
LOOPS_BLOCKED = Counter("event_loops_blocked", "Times that a handler blocked this process's event loop for seconds.")
DUTIES_FAILED = Counter("duties_failed", "Rounds of a worker's duty that failed.", ["duty"])

HTTP_REQUESTS = Counter("http_requests", "Requests that were answered.", ["method", "route", "status"])
HTTP_REQUEST_SECONDS = Histogram(
    "http_request_seconds",
    "How long a request took, its answer's last byte included.",
    ["method", "route"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
REQUESTS_WAITING = Gauge("requests_waiting", "Requests that wait for a task or a job to move, streams among them.")
STREAMS_OPEN = Gauge("streams_open", "Streams of events that are open.")
HTTP_REQUESTS_IN_PROGRESS = Gauge("http_requests_in_progress", "Requests that are being answered.")


class Lengths(Collector):
    """A histogram by type that is given many lengths at once, of which each costs one look at its buckets."""

    def __init__(self, name: str, documentation: str, *, buckets: Sequence[float]) -> None:
        self._name, self._documentation = name, documentation
        self._buckets = tuple(buckets)
        self._series: dict[str, LengthsOfType] = {}

    def of(self, type: str) -> LengthsOfType:
        """Those of one type, told from now on."""
        return self._series.setdefault(type, LengthsOfType(self._buckets))

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._documentation, labels=["type"])
        told = [*(floatToGoString(bucket) for bucket in self._buckets), "+Inf"]  # type: ignore[no-untyped-call]
        for type, series in list(self._series.items()):
            family.add_metric([type], list(zip(told, accumulate(series.counts), strict=True)), series.sum)
        yield family


class LengthsOfType:
    """Lengths, counted by bucket."""

    __slots__ = ("_buckets", "counts", "sum")

    def __init__(self, buckets: Sequence[float]) -> None:
        self._buckets = buckets
        self.counts = [0] * (len(buckets) + 1)
        self.sum = 0.0

    def observe(self, lengths: Iterable[float]) -> None:
        """Count them. From one thread."""
        for length in lengths:
            self.counts[bisect_left(self._buckets, length)] += 1
            self.sum += length


TASK_PROCESSING_SECONDS = Lengths(
    "task_processing_seconds",
    "How long a handler ran.",
    buckets=(0.001, 0.005, 0.02, 0.1, 0.5, 1, 2.5, 10, 30, 120, 600, 3600),
)
REGISTRY.register(TASK_PROCESSING_SECONDS)


class TypeSeries:
    """The series of one type, looked up once and not at every task."""

    __slots__ = ("processed", "retried", "seconds")

    def __init__(self, label: str, outcomes: Iterable[str]) -> None:
        self.processed = {outcome: TASKS_PROCESSED.labels(label, outcome) for outcome in outcomes}
        self.retried = TASKS_RETRIED.labels(label)
        self.seconds = TASK_PROCESSING_SECONDS.of(label)


class SeriesByType:
    """The series of each type that is known; every other one counts as `unknown`."""

    def __init__(self, types: Iterable[str], *, outcomes: Iterable[str]) -> None:
        outcomes = tuple(outcomes)
        self._series = {name: TypeSeries(name, outcomes) for name in types}
        self._unknown = TypeSeries(UNKNOWN, outcomes)

    def __getitem__(self, name: str) -> TypeSeries:
        return self._series.get(name, self._unknown)


class Waits(Collector):
    """How long tasks had waited for their turns, in buckets that are counted elsewhere; every fourth is told."""

    def __init__(self, name: str, documentation: str) -> None:
        self._name, self._documentation = name, documentation
        self._counts = {kind: [0] * waits.BUCKETS for kind in ("quiet", "noisy")}
        self._seconds = dict.fromkeys(self._counts, 0.0)

    def add(self, kind: Literal["quiet", "noisy"], counts: Sequence[int], seconds: float) -> None:
        """Count waits by bucket, which took so many seconds in all."""
        for bucket, count in enumerate(counts):
            self._counts[kind][bucket] += count
        self._seconds[kind] += seconds

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._documentation, labels=["kind"])
        for kind, counts in self._counts.items():
            told = [
                (f"{waits.upper_seconds(bucket):g}", sum(counts[: bucket + 1]))
                for bucket in range(0, waits.BUCKETS - 1, 4)
            ]
            family.add_metric([kind], [*told, ("+Inf", sum(counts))], self._seconds[kind])
        yield family


TASK_WAITS = Waits(
    "task_wait_seconds",
    "How long tasks had waited for their turns, of companies that are noisy (more than 100 of their tasks wait) and of"
    " quiet ones; told every 10 s, of tasks that were not rescued.",
)
REGISTRY.register(TASK_WAITS)

# What a line is about, for whoever logs while an attempt or a request is under way.
about: ContextVar[Callable[[], Mapping[str, object]] | None] = ContextVar("about", default=None)


def configure(
    *,
    form: Literal["console", "json"] = "console",
    level: Literal["debug", "info", "warning", "error"] = "info",
    stream: TextIO | None = None,
) -> None:
    """Write the logs of this process, those of libraries too, to standard error or `stream`."""
    stream = stream or sys.stderr
    threshold = logging.getLevelNamesMapping()[level.upper()]
    shared: list[structlog.typing.Processor] = [
        _add_about,
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: list[structlog.typing.Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=_json)]
        if form == "json"
        else [structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback)]
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(threshold)
    logging.getLogger("alembic").setLevel(max(threshold, logging.WARNING))


def logger(room: str) -> structlog.typing.FilteringBoundLogger:
    """The logger of a room, `worker` for instance. In a program that has not configured structlog, a standard one."""
    name = f"taketurns.{room}"
    log: structlog.typing.FilteringBoundLogger
    if structlog.is_configured():
        log = structlog.get_logger(name)
    else:
        log = structlog.wrap_logger(
            logging.getLogger(name),
            processors=[
                structlog.stdlib.filter_by_level,
                _add_about,
                structlog.contextvars.merge_contextvars,
                structlog.processors.format_exc_info,
                structlog.processors.LogfmtRenderer(key_order=["event"]),
            ],
            wrapper_class=structlog.make_filtering_bound_logger(logging.NOTSET),
        )
    return log


def is_told(room: str, level: int) -> bool:
    """Whether lines of this level may be for somebody to read. A standard logger is only asked as it is told them."""
    return structlog.is_configured() or logging.getLogger(f"taketurns.{room}").isEnabledFor(level)


def _add_about(_: object, __: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    told = about.get()
    if told is not None:
        for name, value in told().items():
            fields.setdefault(name, value)
    return fields


def _json(fields: Mapping[str, Any], default: Callable[[Any], Any]) -> str:
    try:
        return orjson.dumps(fields, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    except (TypeError, ValueError):  # a lone surrogate, or a number past 64 bits
        return json.dumps(fields, default=str)
