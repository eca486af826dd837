"""The routes of jobs: tasks on the interactive broker, which somebody watches. Companies are PostgreSQL's; all else of
a job is its broker's, and while that is away there are no jobs: none is put elsewhere instead."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from taketurns.api import answers, audit, bodies, headers, lists, paths, problems, streams, submissions
from taketurns.api.guard import GuardedRoute, needs
from taketurns.api.openapi import body_of, operation_id
from taketurns.api.parts import Jobs, Parts, parts
from taketurns.api.problems import Problem, documented
from taketurns.api.requests import CreateJob
from taketurns.companies import directory, quotas
from taketurns.companies.directory import UNLIMITED, Company
from taketurns.engine.errors import (
    BeingDeleted,
    IdempotencyConflict,
    QueueFull,
    QuotaExceeded,
    Unavailable,
    Unconfirmed,
)
from taketurns.engine.job import Charge, Job
from taketurns.engine.key import Role, Scope
from taketurns.engine.task import Enqueued, NewTask, Status
from taketurns.storage.audit import Action
from taketurns.storage.ids import new_id

router = APIRouter(route_class=GuardedRoute, generate_unique_id_function=operation_id, tags=["jobs"])

_ANYWHERE: Final = (problems.JOBS_NOT_CONFIGURED, problems.JOBS_UNAVAILABLE, problems.UNKNOWN_PARAMETER)
_OF_ONE: Final = (problems.JOB_NOT_FOUND, *_ANYWHERE)
LOOKS: Final = 3
_SEEN: Final[dict[int | str, dict[str, Any]]] = {304: {"description": "The job still stands as the ETag says."}}


@router.post(
    paths.JOBS,
    status_code=201,
    response_model=answers.JobBody,
    response_description="The job was created.",
    responses=documented(
        *problems.IN_BODY,
        *_ANYWHERE,
        problems.COMPANY_NOT_FOUND,
        problems.UNKNOWN_TYPE,
        problems.INVALID_PAYLOAD,
        problems.IDEMPOTENCY_KEY_REUSED,
        problems.INVALID_IDEMPOTENCY_KEY,
        problems.TASK_FORGOTTEN,
        problems.QUOTA_EXCEEDED,
        problems.QUOTA_BUSY,
        problems.QUEUE_FULL,
        problems.JOB_UNCONFIRMED,
        problems.BEING_DELETED,
    )
    | {200: {"model": answers.JobBody, "description": "An earlier request with this key had created the job."}},
    openapi_extra=body_of(
        CreateJob, headers.IDEMPOTENCY_KEY_PARAMETER, headers.TRACEPARENT_PARAMETER, headers.PREFER_PARAMETER
    ),
)
@needs(key=Scope.JOBS_WRITE, operator=Role.OPERATOR)
async def create_job(request: Request) -> Response:
    """Create a job: a task that somebody watches. With an Idempotency-Key, once however often that is repeated."""
    lists.refuse_query(request)
    given, jobs = parts(request), _jobs(request)
    reference = paths.company(request)
    key = headers.idempotency_key(request.scope)
    body = await bodies.read(request, CreateJob)
    new = replace(await submissions.new_task(given, body, key=key), task_id=new_id())
    company = await directory.find(given.database, reference)
    if company is None:
        raise paths.company_not_found()
    made = await _push(given, jobs, company, new, request)
    if made.replayed:
        job, status, told = await _replayed(jobs, made), 200, {headers.REPLAYED: "true"}
    else:
        job, status = _created(new, made, request), 201
        told = _location(request, company, job.id) | headers.rate_limit(made.allowances)
    with suppress(Unavailable, Problem):  # the job is there, whatever became of the wait for it
        job = await _waited(request, jobs, job, told)
    return _send(job, status, told)


@router.get(
    paths.JOB,
    response_model=answers.JobBody,
    responses=documented(*_OF_ONE) | _SEEN,
    openapi_extra={"parameters": [headers.PREFER_PARAMETER, headers.IF_NONE_MATCH_PARAMETER]},
)
@needs(key=Scope.JOBS_READ, operator=Role.VIEWER)
async def get_job(request: Request) -> Response:
    """A job as it stands, or as it stands once it has ended or changed."""
    lists.refuse_query(request)
    jobs, told = _jobs(request), dict[str, str]()
    with _reached():
        job = await _job(jobs, await _owner(request), paths.job_id(request))
        job = await _waited(request, jobs, job, told, for_any_change=headers.names_versions(request.scope))
    if headers.has_seen(request.scope, job.version):
        return Response(status_code=304, headers=told | _tag(job))
    return _send(job, 200, told)


@router.get(
    paths.JOB + "/events",
    response_class=StreamingResponse,
    responses=documented(*_OF_ONE, problems.TOO_MANY_STREAMS)
    | {
        200: {
            "description": "Server-sent events: one for each move of the job, the latest last, until it has ended.",
            "content": {streams.MEDIA_TYPE: {"schema": streams.SCHEMA}},
        },
        204: {"description": "The job has ended, and Last-Event-ID names its last move: do not come again."},
    },
    openapi_extra={"parameters": [headers.LAST_EVENT_ID_PARAMETER]},
)
@needs(key=Scope.JOBS_READ, operator=Role.VIEWER)
async def watch_job(request: Request) -> Response:
    """What happens to a job, as it happens."""
    lists.refuse_query(request)
    jobs = _jobs(request)
    with _reached():
        job = await _job(jobs, await _owner(request), paths.job_id(request))
    after = min(headers.last_event_id(request.scope), job.event_number)
    if job.status.is_terminal and after == job.event_number:
        return Response(status_code=204)
    if not jobs.waiting.has_room_for(job.company_id):
        detail = "too many requests watch jobs at this process already, of this company or of all"
        raise Problem(problems.TOO_MANY_STREAMS, detail)
    return streams.response(_moves(request, jobs, job, after))


@router.post(
    paths.JOB + "/cancel",
    response_model=answers.JobBody,
    responses=documented(*_OF_ONE, problems.INVALID_STATE, problems.JOB_UNCONFIRMED),
)
@needs(key=Scope.JOBS_WRITE, operator=Role.OPERATOR)
async def cancel_job(request: Request) -> Response:
    """End a job that has not ended. Cancelling it again changes nothing."""
    lists.refuse_query(request)
    jobs, owner, job_id = _jobs(request), await _owner(request), paths.job_id(request)
    with _reached():
        status = await jobs.broker.cancel(str(owner), job_id)
        if status in {Status.COMPLETED, Status.FAILED}:
            raise Problem(
                problems.INVALID_STATE, f"the job has {status} already: only a job that has not can be cancelled"
            )
        job = await _job(jobs, owner, job_id)
    await audit.note(request, Action.CANCEL_JOB, target=job_id, company_id=owner)
    return _send(job)


@router.post(
    paths.JOB + "/retry",
    response_model=answers.JobBody,
    responses=documented(
        *_OF_ONE,
        problems.INVALID_STATE,
        problems.QUOTA_EXCEEDED,
        problems.QUOTA_BUSY,
        problems.JOB_UNCONFIRMED,
        problems.BEING_DELETED,
    ),
)
@needs(key=Scope.JOBS_WRITE, operator=Role.OPERATOR)
async def retry_job(request: Request) -> Response:
    """Run a job again, or now if it waits for its time, with a fresh count of retries."""
    lists.refuse_query(request)
    given, jobs, owner, job_id = parts(request), _jobs(request), await _owner(request), paths.job_id(request)
    for _ in range(LOOKS):
        job = await _run_again(given, jobs, owner, job_id)
        if job is not None:
            await audit.note(request, Action.RETRY_JOB, target=job_id, company_id=owner)
            return _send(job)
    raise Problem(problems.INVALID_STATE, "the job ends again whenever it is looked at: look at it, and try again")


async def _run_again(given: Parts, jobs: Jobs, owner: UUID, job_id: UUID) -> Job | None:
    """The job as it stands then; None when it has ended since it was looked at, so that it would have run on a charge
    that is not its own."""
    with _reached():
        job = await _job(jobs, owner, job_id)
    charges, reserved_at = list[Charge](), None
    if job.status.is_terminal:
        reservation = await _reserved_again(given, job)
        charges, reserved_at = _charges(reservation, job_id), reservation.reserved_at
    with _reached():
        had = await jobs.broker.retry(str(owner), job_id, seen=job.event_number, reserved_at=reserved_at)
        found = await jobs.broker.job(owner, job_id)
    if found is not None and found.reserved_at == reserved_at:
        await _confirm(given, charges)
    else:  # somebody else was first
        await _refund(given, charges)
    if found is None:
        raise paths.job_not_found()
    if had is Status.PROCESSING:
        raise Problem(problems.INVALID_STATE, "the job is processing: it can be run again when this attempt has ended")
    return None if had is None else found


def _jobs(request: Request) -> Jobs:
    jobs = parts(request).jobs
    if jobs is None:
        raise Problem(
            problems.JOBS_NOT_CONFIGURED,
            "this service has no jobs: start it with TAKETURNS_REDIS_URL set to a Redis or Valkey, or create a task",
        )
    return jobs


@contextmanager
def _reached() -> Iterator[None]:
    """What the jobs' broker is asked in here; raises Problem when it cannot be, and Unconfirmed."""
    try:
        yield
    except Unconfirmed:
        raise
    except BeingDeleted as error:
        raise Problem(problems.BEING_DELETED, str(error)) from None
    except Unavailable as error:
        raise Problem(problems.JOBS_UNAVAILABLE, f"the jobs' broker cannot be reached: {error}") from None


async def _push(given: Parts, jobs: Jobs, company: Company, new: NewTask, request: Request) -> Enqueued:
    """Enqueue a job, once, after its quota was reserved: when the answer is lost, the job is looked for by its id and
    never sent again. What is reserved for a job that never came, or that a crash takes before it is confirmed, is given
    back by the workers' upkeep."""
    with _reached():
        await jobs.put_company(company)
    if company.quotas != UNLIMITED and (earlier := await _earlier(jobs, company, new, request)) is not None:
        return earlier
    try:
        reservation = await _reserved(given, company, _id_of(new))
    except QuotaExceeded:  # maybe by what this key has made just now
        earlier = await _earlier(jobs, company, new, request)
        if earlier is None:
            raise
        return earlier
    charges = _charges(reservation, _id_of(new))
    new = replace(new, reserved_at=reservation.reserved_at)
    try:
        with _reached():
            made = await _handed_over(jobs, company, new, request)
    except IdempotencyConflict:
        await _refund(given, charges)
        raise _key_reused() from None
    except QueueFull:
        await _refund(given, charges)
        raise
    except Unconfirmed as error:
        (job_id,) = error.task_ids
        if job_id != new.task_id:  # the key's, which another request has made
            await _refund(given, charges)
        raise _unconfirmed(error, company, new, request) from None
    if made.replayed:
        await _refund(given, charges)
        return made
    await _confirm(given, charges)
    return replace(made, allowances=reservation.allowances)


async def _reserved_again(given: Parts, job: Job) -> quotas.Reservation:
    """The charge for running a job again that has ended, once it is settled what becomes of the one that it had.
    Raises UnknownCompany, QuotaExceeded and Unavailable."""
    charges = _charges(job, job.id)
    if job.is_refundable:
        await quotas.refund(given.database, charges)
    else:
        await quotas.confirm(given.database, charges)
    return await quotas.reserve(given.database, str(job.company_id), [job.id], instead_of=job.reserved_at)


async def _earlier(jobs: Jobs, company: Company, new: NewTask, request: Request) -> Enqueued | None:
    """What the idempotency key of a job has made already, which costs nothing."""
    if new.idempotency_key is None:
        return None
    with _reached():
        known = await jobs.broker.known_key(company.id, new.idempotency_key)
    if known is None:
        return None
    if known.fingerprint != new.fingerprint:
        raise _key_reused()
    try:
        with _reached():
            await jobs.broker.job(company.id, known.job_id, confirmed=True)
    except Unconfirmed as error:
        raise _unconfirmed(error, company, new, request) from None
    return Enqueued(0, True, company.id, known.job_id, None, None, None)


def _key_reused() -> Problem:
    detail = f"{headers.IDEMPOTENCY_KEY}: the key was used before, for another request"
    return Problem(problems.IDEMPOTENCY_KEY_REUSED, detail)


def _unconfirmed(error: Unconfirmed, company: Company, new: NewTask, request: Request) -> Problem:
    """Who gave no key must not send the request again."""
    (job_id,) = error.task_ids
    return Problem(
        problems.JOB_UNCONFIRMED,
        f"job {job_id} was created, but a crash of the server may undo it: {error.why}",
        headers=_location(request, company, job_id),
        retryable=new.idempotency_key is not None,
    )


def _location(request: Request, company: Company, job_id: UUID) -> dict[str, str]:
    return {"location": paths.of_company(request, company.id, f"/jobs/{job_id}")}


async def _handed_over(jobs: Jobs, company: Company, new: NewTask, request: Request) -> Enqueued:
    try:
        (made,) = await jobs.broker.enqueue(str(company.id), [new], **submissions.origin(request))
    except (Unconfirmed, BeingDeleted):
        raise
    except Unavailable:
        job = await jobs.broker.job(company.id, _id_of(new), confirmed=True)
        if job is None:
            raise
        return Enqueued(0, False, company.id, job.id, job.status, job.run_after, job.created_at)
    return made


async def _reserved(given: Parts, company: Company, job_id: UUID) -> quotas.Reservation:
    """A job's place in its company's quotas. Raises QuotaExceeded and Unavailable."""
    if company.quotas == UNLIMITED:
        return quotas.Reservation(company.id, None, ())
    return await quotas.reserve(given.database, str(company.id), [job_id])


def _charges(charged: quotas.Reservation | Job, job_id: UUID) -> list[Charge]:
    """What was reserved for a job, or what it is charged for: one or none."""
    return [] if charged.reserved_at is None else [Charge(charged.company_id, job_id, charged.reserved_at)]


async def _refund(given: Parts, charges: list[Charge]) -> None:
    if charges:
        with suppress(Unavailable):  # upkeep finds that it never came
            await quotas.refund(given.database, charges)


async def _confirm(given: Parts, charges: list[Charge]) -> None:
    if charges:
        with suppress(Unavailable):  # upkeep finds that it came
            await quotas.confirm(given.database, charges)


def _id_of(new: NewTask) -> UUID:
    if new.task_id is None:
        raise TypeError("a job's id is made before it is handed over")
    return new.task_id


def _created(new: NewTask, made: Enqueued, request: Request) -> Job:
    """A job that was just created, without asking for it again."""
    if made.status is None or made.run_after is None or made.created_at is None:
        raise TypeError("a new job has a status and times")
    return Job(
        company_id=made.company_id,
        id=made.task_id,
        type=new.type,
        queue=new.queue,
        priority=new.priority,
        status=made.status,
        payload=new.payload,
        result=None,
        error=None,
        retry_count=0,
        max_retries=new.max_retries,
        timeout_seconds=new.timeout_seconds,
        run_after=made.run_after,
        created_at=made.created_at,
        started_at=None,
        finished_at=None,
        expires_at=None,
        event_number=1,
        request_id=request.scope["request_id"],
        reserved_at=new.reserved_at,
    )


async def _replayed(jobs: Jobs, made: Enqueued) -> Job:
    """The job that an earlier request made."""
    with _reached():
        job = await jobs.broker.job(made.company_id, made.task_id)
    if job is None:
        raise Problem(problems.TASK_FORGOTTEN, "an idempotency key made a job that is forgotten by now: use a new key")
    return job


async def _owner(request: Request) -> UUID:
    return await paths.company_id(request, missing=paths.job_not_found)


async def _job(jobs: Jobs, owner: UUID, job_id: UUID) -> Job:
    job = await jobs.broker.job(owner, job_id)
    if job is None:
        raise paths.job_not_found()
    return job


async def _waited(request: Request, jobs: Jobs, job: Job, told: dict[str, str], *, for_any_change: bool = False) -> Job:
    return await jobs.waiting.as_preferred(
        request,
        job,
        told,
        read=lambda: _job(jobs, job.company_id, job.id),
        for_any_change=for_any_change,
    )


async def _moves(request: Request, jobs: Jobs, job: Job, after: int) -> AsyncIterator[bytes]:
    """The moves of a job numbered above `after`, each once it was made."""

    async def read(after: int) -> list[streams.Message] | None:
        told = await jobs.broker.job_events(job.company_id, job.id, after=after)
        return None if told is None else [streams.message(event) for event in told]

    async def may_go_on() -> bool:
        return await parts(request).guard.still_admits(request)

    async with jobs.waiting.waiter(None, job.company_id, job.id) as waiter:
        async for chunk in streams.follow(waiter, read, may_go_on=may_go_on, after=after):
            yield chunk


def _send(job: Job, status: int = 200, told: dict[str, str] | None = None) -> Response:
    return answers.send(answers.job(job), status, {**(told or {}), **_tag(job)})


def _tag(job: Job) -> dict[str, str]:
    return {"etag": f'W/"{job.version}"'}
