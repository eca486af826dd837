"""What is said to scripts, and what they answer, as the engine has it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple
from uuid import UUID

import orjson

from taketurns.engine.job import Charge, Job, JobCompany, JobEvent, JobPause
from taketurns.engine.rate import Rate
from taketurns.engine.task import ClaimedTask, Enqueued, NewTask, Outcome, Report, Rescued, Status

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
EVERYBODY: Final = "all"  # whose pauses are every company's
LAST_MICROSECOND: Final = 2**53 - 1  # as far as a double is exact: in the year 2255


def microseconds(at: datetime | None) -> str:
    """A moment as scripts have it, empty for none; what is before 1970 or past 2255 is as good as those."""
    if at is None:
        return ""
    return str(min(max((at - EPOCH) // timedelta(microseconds=1), 0), LAST_MICROSECOND))


def milliseconds(length: timedelta) -> int:
    return length // timedelta(milliseconds=1)


def optional(value: object | None) -> str:
    """A value that may be missing, apart from an empty one."""
    return "" if value is None else f"={value}"


def company(name: str) -> str:
    """A company's id in its one spelling, or its slug as it is."""
    if len(name) == 36:
        try:
            return str(UUID(name))
        except ValueError:
            return name
    return name


def name(company_id: UUID, job_id: UUID) -> str:
    return f"{company_id}:{job_id}"


def parts(name: bytes) -> tuple[UUID, UUID]:
    company_id, _, job_id = name.decode().partition(":")
    return UUID(company_id), UUID(job_id)


def company_told(name: bytes, row: Sequence[bytes | None]) -> JobCompany:
    slug, weight, most, paused, updated_at, *rate, queued = (value.decode() if value else "" for value in row)
    return JobCompany(
        id=UUID(name.decode()),
        slug=slug,
        weight=int(weight or 1),
        max_in_flight=int(most) if most else None,
        paused=paused != "0",
        updated_at=_moment(updated_at or "0"),
        rate=Rate(*map(int, rate)) if all(rate) else None,
        max_queued=int(queued) if queued else None,
    )


def pauses(owner: bytes, told: Sequence[bytes]) -> tuple[UUID | None, frozenset[JobPause]]:
    """Whose pauses these are, and which."""
    company_id = None if owner.decode() == EVERYBODY else UUID(owner.decode())
    return company_id, frozenset(
        _pause(name.decode(), until) for name, until in zip(told[::2], told[1::2], strict=True)
    )


def _pause(name: str, until: bytes) -> JobPause:
    queue, _, type = name.partition("!")
    return JobPause(queue or None, type or None, moment(until or None))


def charge_name(charge: Charge) -> str:
    return f"{name(charge.company_id, charge.job_id)}:{microseconds(charge.reserved_at)}"


def charge(name: bytes) -> Charge:
    job, _, reserved_at = name.rpartition(b":")
    return Charge(*parts(job), _moment(reserved_at))


def moment(told: bytes | None) -> datetime | None:
    return None if told is None else _moment(told)


def ids(told: Iterable[bytes]) -> set[UUID]:
    return {UUID(one.decode()) for one in told}


def new_job(task: NewTask, job_id: UUID) -> tuple[object, ...]:
    """What enqueue.lua must know of a new job."""
    row = (job_id, task.queue, task.type, task.priority)
    rare = (task.run_after, task.delay_seconds, task.idempotency_key, task.fingerprint, task.reserved_at)
    if not any(value is not None for value in rare):
        return row
    return (
        *row,
        (
            _number(task.run_after),
            None if task.delay_seconds is None else round(task.delay_seconds * 1_000_000),
            task.idempotency_key,
            (task.fingerprint or b"").hex(),
            _number(task.reserved_at),
        ),
    )


def rest_of_job(task: NewTask, *, request_id: str | None, traceparent: str | None) -> bytes:
    """The rest of a new job, which no script has a use for; see cell.lua."""
    told = (task.priority, task.max_retries, task.timeout_seconds, task.queue, task.type, request_id, traceparent)
    return b"%b\n%b" % (orjson.dumps(told)[1:], task.payload.encode())


def _number(at: datetime | None) -> int | None:
    return None if at is None else int(microseconds(at))


def enqueued(ids: Sequence[UUID], company: bytes, moment: bytes, answers: Sequence[Any]) -> list[Enqueued]:
    """What became of the tasks that were submitted under these ids."""
    company_id, created_at = UUID(company.decode()), _moment(moment)
    return [
        _enqueued(company_id, position, job_id, created_at, answer)
        for position, (job_id, answer) in enumerate(zip(ids, answers, strict=True))
    ]


def _enqueued(company_id: UUID, position: int, job_id: UUID, created_at: datetime, answer: Any) -> Enqueued:
    if isinstance(answer, list):
        return Enqueued(position, True, company_id, UUID(answer[0].decode()), None, None, None)
    run_after = _moment(answer) if answer else created_at
    status = Status.SCHEDULED if run_after > created_at else Status.PENDING
    return Enqueued(position, False, company_id, job_id, status, run_after, created_at)


class Submitted(NamedTuple):
    """What is kept of a job before its payload; see cell.lua. `moves` are those that were told by name."""

    moves: int
    retries: int
    rescues: int
    run_after: int
    created_at: int
    reserved_at: int | None
    priority: int
    max_retries: int
    timeout_seconds: float | None
    queue: str
    type: str
    request_id: str | None
    traceparent: str | None


def claimed(told: Sequence[bytes], token: UUID, claimed_at: bytes) -> Iterator[ClaimedTask]:
    """The jobs of a claim: the name of each, and what was submitted."""
    at = _moment(claimed_at)
    for place in range(0, len(told), 2):
        yield _claimed(told[place], told[place + 1], token, at)


def _claimed(name: bytes, told: bytes, token: UUID, claimed_at: datetime) -> ClaimedTask:
    head, _, payload = told.partition(b"\n")
    job = Submitted(*orjson.loads(head))
    return ClaimedTask(
        company_id=_known_company(name[:36]),
        task_id=UUID(name[37:].decode()),
        type=job.type,
        queue=job.queue,
        priority=job.priority,
        run_after=_after_epoch(job.run_after),
        retry_count=job.retries,
        rescue_count=job.rescues,
        event_number=job.moves + 1,
        claimed_at=claimed_at,
        payload=payload.decode(),
        max_retries=job.max_retries,
        timeout_seconds=job.timeout_seconds,
        request_id=job.request_id,
        created_at=_after_epoch(job.created_at),
        traceparent=job.traceparent,
        claim_token=token,
    )


def reported(reports: Sequence[Report]) -> tuple[list[Any], list[Any], list[UUID]]:
    """What settle.lua is told: completed jobs by company and token, and others; and the ids in the order of both."""
    groups: dict[tuple[int, int], tuple[UUID, UUID, list[UUID], list[str | None]]] = {}
    others, ids = [], []
    for report in reports:
        task = report.task
        if report.outcome is not Outcome.COMPLETED or report.error is not None:
            claim = (task.company_id, task.task_id, task.claim_token)
            delay = round((report.delay_seconds or 0.0) * 1_000_000)
            others.append((*claim, report.outcome, report.result, report.error, delay))
            ids.append(task.task_id)
            continue
        key = (task.company_id.int, task.claim_token.int)
        group = groups.get(key)
        if group is None:
            group = groups[key] = (task.company_id, task.claim_token, [], [])
        group[2].append(task.task_id)
        group[3].append(report.result)
    completed = [(*group[:3], group[3] if any(group[3]) else None) for group in groups.values()]
    return completed, others, [*(task_id for group in groups.values() for task_id in group[2]), *ids]


def held(name: bytes, told: bytes, claim: bytes) -> ClaimedTask:
    token, _, started_at = claim.decode().split(" ")
    return _claimed(name, told, UUID(token), _moment(started_at))


def rescued(row: Sequence[Any]) -> Rescued:
    company_id, job_id, type, queue, failed = row
    return Rescued(UUID(company_id.decode()), UUID(job_id.decode()), type.decode(), queue.decode(), failed=bool(failed))


def job(company_id: UUID, job_id: UUID, status: bytes, told: bytes, more: bytes | None) -> Job:
    """A job by where it stands, what was submitted, and how it is claimed or ended."""
    head, _, payload = told.partition(b"\n")
    job = Submitted(*orjson.loads(head))
    stands = Status(status.decode())
    started_at, finished_at, expires_at, error, result = None, None, None, None, None
    if more is not None and stands.is_terminal:
        end, _, rest = more.partition(b"\n")
        _, started_at, finished_at, expires_at, error = orjson.loads(end)
        result = rest.decode() or None
    elif more is not None:
        started_at = int(more.rpartition(b" ")[2])
    return Job(
        company_id=company_id,
        id=job_id,
        type=job.type,
        queue=job.queue,
        priority=job.priority,
        status=stands,
        payload=payload.decode() or "{}",
        result=result,
        error=error,
        retry_count=job.retries,
        max_retries=job.max_retries,
        timeout_seconds=job.timeout_seconds,
        run_after=_after_epoch(job.run_after),
        created_at=_after_epoch(job.created_at),
        started_at=_optional_moment(started_at),
        finished_at=_optional_moment(finished_at),
        expires_at=_optional_moment(expires_at),
        event_number=job.moves + (started_at is not None) + stands.is_terminal,
        request_id=job.request_id,
        reserved_at=_optional_moment(job.reserved_at),
    )


def event(row: bytes) -> JobEvent:
    number, kind, at, error, run_after = json.loads(row)
    return JobEvent(number, kind, _moment(at), error or None, _moment(run_after) if run_after else None)


@lru_cache(maxsize=1_000)
def _known_company(told: bytes) -> UUID:
    """One object for all jobs of a company."""
    return UUID(told.decode())


def _moment(told: bytes | str) -> datetime:
    return _after_epoch(int(told))


def _optional_moment(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else _after_epoch(microseconds)


def _after_epoch(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)
