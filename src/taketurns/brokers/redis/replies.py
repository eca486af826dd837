"""What is said to scripts, and what they answer, as the engine has it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from taketurns.engine.job import Charge, Job, JobCompany, JobEvent, JobPause
from taketurns.engine.rate import Rate
from taketurns.engine.task import ClaimedTask, Enqueued, Rescued, Status

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


def enqueued(company_id: bytes, position: int, row: Sequence[Any]) -> Enqueued:
    job_id, status, run_after, created_at = row
    return Enqueued(
        position=position,
        replayed=status is None,
        company_id=UUID(company_id.decode()),
        task_id=UUID(job_id.decode()),
        status=Status(status.decode()) if status else None,
        run_after=moment(run_after),
        created_at=moment(created_at),
    )


def claimed(row: Sequence[Any], token: UUID) -> ClaimedTask:
    company_id, job_id, event_number, claimed_at, told = row
    type, queue, priority, run_after, retries, rescues, payload, max_retries, timeout, request, created_at, trace = told
    return ClaimedTask(
        company_id=_known_company(company_id),
        task_id=UUID(job_id.decode()),
        type=type.decode(),
        queue=queue.decode(),
        priority=int(priority),
        run_after=_moment(run_after),
        retry_count=int(retries),
        rescue_count=int(rescues),
        event_number=event_number,
        claimed_at=_moment(claimed_at),
        payload=payload.decode(),
        max_retries=int(max_retries),
        timeout_seconds=None if timeout is None else float(timeout),
        request_id=_text(request),
        created_at=_moment(created_at),
        traceparent=_text(trace),
        claim_token=token,
    )


def held(row: Sequence[Any]) -> ClaimedTask:
    """As much of a held job as it takes to release it, or to report on it."""
    company_id, job_id, told = row
    type, queue, priority, retries, rescues, event_number, claimed_at, token = told
    at = _moment(claimed_at)
    return ClaimedTask(
        company_id=UUID(company_id.decode()),
        task_id=UUID(job_id.decode()),
        type=type.decode(),
        queue=queue.decode(),
        priority=int(priority),
        run_after=at,
        retry_count=int(retries),
        rescue_count=int(rescues),
        event_number=int(event_number),
        claimed_at=at,
        payload="{}",
        max_retries=0,
        timeout_seconds=None,
        request_id=None,
        created_at=at,
        traceparent=None,
        claim_token=UUID(token.decode()),
    )


def rescued(row: Sequence[Any]) -> Rescued:
    company_id, job_id, type, queue, failed = row
    return Rescued(UUID(company_id.decode()), UUID(job_id.decode()), type.decode(), queue.decode(), failed=bool(failed))


def job(company_id: UUID, job_id: UUID, told: Mapping[bytes, bytes]) -> Job | None:
    """A job by the fields of its hash; None when it has none."""
    if not told:
        return None
    timeout = told.get(b"timeout_seconds")
    return Job(
        company_id=company_id,
        id=job_id,
        type=told[b"type"].decode(),
        queue=told[b"queue"].decode(),
        priority=int(told[b"priority"]),
        status=Status(told[b"status"].decode()),
        payload=told.get(b"payload", b"{}").decode(),
        result=_text(told.get(b"result")),
        error=_text(told.get(b"error")),
        retry_count=int(told[b"retry_count"]),
        max_retries=int(told[b"max_retries"]),
        timeout_seconds=None if timeout is None else float(timeout),
        run_after=_moment(told[b"run_after"]),
        created_at=_moment(told[b"created_at"]),
        started_at=moment(told.get(b"started_at")),
        finished_at=moment(told.get(b"finished_at")),
        expires_at=moment(told.get(b"expires_at")),
        event_number=int(told[b"event_number"]),
        request_id=_text(told.get(b"request_id")),
        reserved_at=moment(told.get(b"reserved_at") or None),
    )


def event(row: bytes) -> JobEvent:
    number, kind, at, error, run_after = json.loads(row)
    return JobEvent(number, kind, _moment(at), error or None, _moment(run_after) if run_after else None)


@lru_cache(maxsize=1_000)
def _known_company(told: bytes) -> UUID:
    """One object for all jobs of a company."""
    return UUID(told.decode())


def _moment(told: bytes | str) -> datetime:
    return EPOCH + timedelta(microseconds=int(told))


def _text(told: bytes | None) -> str | None:
    return None if told is None else told.decode()
