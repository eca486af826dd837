"""The routes of tasks: created, looked at, cancelled, run again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import APIRouter
from fastapi import Query as QueryParameters
from starlette.requests import Request
from starlette.responses import Response

from taketurns.api import answers, audit, bodies, headers, lists, paths, problems, submissions
from taketurns.api.guard import GuardedRoute, needs
from taketurns.api.openapi import body_of, operation_id
from taketurns.api.parts import Parts, operator_parts, parts
from taketurns.api.problems import FieldError, Problem, documented
from taketurns.api.requests import CreateBatch, CreateTask, EventQuery, RescheduleTask, TaskQuery
from taketurns.engine import limits
from taketurns.engine.errors import IdempotencyConflict, Unavailable, UniqueKeyTaken
from taketurns.engine.key import Role, Scope
from taketurns.engine.task import Enqueued, NewTask, Status
from taketurns.history import events, tasks, why
from taketurns.history.tasks import TaskRecord
from taketurns.storage.audit import Action

router = APIRouter(route_class=GuardedRoute, generate_unique_id_function=operation_id, tags=["tasks"])

_IN_TASK: Final = (
    *problems.IN_BODY,
    problems.COMPANY_NOT_FOUND,
    problems.UNKNOWN_TYPE,
    problems.INVALID_PAYLOAD,
    problems.IDEMPOTENCY_KEY_REUSED,
    problems.UNIQUE_KEY_TAKEN,
    problems.TASK_FORGOTTEN,
    problems.QUOTA_EXCEEDED,
    problems.QUOTA_BUSY,
    problems.QUEUE_FULL,
)
_OF_ONE: Final = (problems.TASK_NOT_FOUND, problems.UNKNOWN_PARAMETER)
_SEEN: Final[dict[int | str, dict[str, Any]]] = {304: {"description": "The task still stands as the ETag says."}}


@router.post(
    paths.TASKS,
    status_code=201,
    response_model=answers.TaskBody,
    response_description="The task was created.",
    responses=documented(*_IN_TASK, problems.INVALID_IDEMPOTENCY_KEY)
    | {200: {"model": answers.TaskBody, "description": "An earlier request with this key had created the task."}},
    openapi_extra=body_of(
        CreateTask, headers.IDEMPOTENCY_KEY_PARAMETER, headers.TRACEPARENT_PARAMETER, headers.PREFER_PARAMETER
    ),
)
@needs(key=Scope.TASKS_WRITE, operator=Role.OPERATOR)
async def create_task(request: Request) -> Response:
    """Create a task. With an Idempotency-Key, once however often the request is repeated."""
    lists.refuse_query(request)
    given = parts(request)
    company = paths.company(request)
    key = headers.idempotency_key(request.scope)
    body = await bodies.read(request, CreateTask)
    new = await submissions.new_task(given, body, key=key)
    try:
        (made,) = await given.broker.enqueue(str(company), [new], **submissions.origin(request))
    except IdempotencyConflict:
        detail = f"{headers.IDEMPOTENCY_KEY}: the key was used before, for another request"
        raise Problem(problems.IDEMPOTENCY_KEY_REUSED, detail) from None
    except UniqueKeyTaken as taken:
        raise _taken(taken) from None
    if made.replayed or made.held:
        (record,) = await _earlier(given, company, [made.task_id])
        status, told = 200, {headers.REPLAYED if made.replayed else headers.HELD: "true"}
    else:
        record = _created(new, made, request)
        status, told = 201, {"location": paths.of_company(request, made.company_id, f"/tasks/{made.task_id}")}
        told |= headers.rate_limit(made.allowances)
    with suppress(Unavailable, Problem):  # the task is there, whatever became of the wait for it
        record = await _waited(request, record, told)
    return _send(record, status, told)


@router.post(
    paths.TASKS + "/batch",
    status_code=201,
    response_model=answers.BatchBody,
    response_description="All tasks were created, save those that an earlier request had.",
    responses=documented(*_IN_TASK, problems.MISPLACED_IDEMPOTENCY_KEY)
    | {200: {"model": answers.BatchBody, "description": "Earlier requests had created every one of the tasks."}},
    openapi_extra=body_of(CreateBatch, headers.TRACEPARENT_PARAMETER),
)
@needs(key=Scope.TASKS_WRITE, operator=Role.OPERATOR)
async def create_batch(request: Request) -> Response:
    """Create up to 1,000 tasks, all or none."""
    lists.refuse_query(request)
    given = parts(request)
    company = paths.company(request)
    if headers.idempotency_key(request.scope) is not None:
        detail = f"{headers.IDEMPOTENCY_KEY}: give each task of the batch its own idempotencyKey instead"
        raise Problem(problems.MISPLACED_IDEMPOTENCY_KEY, detail)
    body = await bodies.read(request, CreateBatch, most=limits.BATCH_BYTES)
    new = [
        await submissions.new_task(given, task, key=task.idempotency_key, within=("tasks", position))
        for position, task in enumerate(body.tasks)
    ]
    try:
        made = await given.broker.enqueue(str(company), new, **submissions.origin(request))
    except IdempotencyConflict as conflict:
        raise _conflicts(conflict) from None
    except UniqueKeyTaken as taken:
        raise _taken(taken, in_batch=True) from None
    were_there = [task for task in made if task.replayed or task.held]
    records = {record.id: record for record in await _earlier(given, company, [task.task_id for task in were_there])}
    records |= {task.task_id: _created(new[task.position], task, request) for task in made if task not in were_there}
    shown = [
        answers.BatchTaskBody(**answers.task(records[task.task_id]), replayed=task.replayed, held=task.held)
        for task in made
    ]
    if len(were_there) == len(made):
        replayed = {headers.REPLAYED: "true"} if all(task.replayed for task in made) else {}
        return answers.send(answers.BatchBody(tasks=shown), 200, replayed)
    return answers.send(answers.BatchBody(tasks=shown), 201, headers.rate_limit(made[0].allowances))


@router.get(
    paths.TASKS,
    response_model=answers.TaskPage,
    responses=documented(
        problems.COMPANY_NOT_FOUND,
        problems.UNKNOWN_PARAMETER,
        problems.INVALID_CURSOR,
        problems.OFFSET_TOO_LARGE,
        problems.INVALID_REQUEST,
    ),
    dependencies=lists.ONE_OF_EACH,
)
@needs(key=Scope.TASKS_READ, operator=Role.VIEWER)
async def list_tasks(request: Request, query: Annotated[TaskQuery, QueryParameters()]) -> Response:
    """A company's tasks, the newest first."""
    given = parts(request)
    company = await paths.company_id(request)
    wanted = tasks.Filter(
        statuses=frozenset(query.status),
        types=frozenset(query.type),
        tags=frozenset(query.tag),
        error_fingerprint=query.error_fingerprint,
        created_after=query.created_after,
        created_before=query.created_before,
        oldest_first=query.sort == "createdAt",
    )
    described = (
        "tasks",
        company,
        sorted(wanted.statuses),
        sorted(wanted.types),
        sorted(wanted.tags),
        query.error_fingerprint,
        query.created_after,
        query.created_before,
    )
    after = lists.start(query, given.cursors, *described, query.sort)
    page = await tasks.page(given.database, company, wanted, limit=query.limit, offset=query.offset, after=after)
    if page is None:
        raise paths.company_not_found()
    cursor = given.cursors.write(page.next_after, *described, query.sort) if page.next_after else None
    body = answers.TaskPage(
        tasks=[answers.task(record) for record in page.tasks], hasMore=cursor is not None, nextCursor=cursor
    )
    if query.include_total is not None:
        total = await tasks.total(given.database, company, wanted, exactly=query.include_total == "exact")
        body |= {"total": total.count, "totalIsExact": total.is_exact}
    return await lists.send(request, body, cursor)


@router.get(
    paths.TASK,
    response_model=answers.WatchedTaskBody,
    responses=documented(*_OF_ONE) | _SEEN,
    openapi_extra={"parameters": [headers.PREFER_PARAMETER, headers.IF_NONE_MATCH_PARAMETER]},
)
@needs(key=Scope.TASKS_READ, operator=Role.VIEWER)
async def get_task(request: Request) -> Response:
    """A task as it stands, or as it stands once it has ended or changed, and why it waits. Its ETag is the task's: the
    reasons change without it."""
    lists.refuse_query(request)
    given = parts(request)
    record = await _task(given, paths.company(request), paths.task_id(request))
    told: dict[str, str] = {}
    record = await _waited(request, record, told, for_any_change=headers.names_versions(request.scope))
    if headers.has_seen(request.scope, record.version):
        return Response(status_code=304, headers=told | _tag(record))
    waits = record.status in {Status.SCHEDULED, Status.PENDING}
    # Who else stands in the rotation, and which workers there are, a company's own connection cannot see.
    everything = operator_parts(request).database
    reason = await why.read(everything, record.company_id, record.id) if waits else None
    waiting = None if reason is None else answers.waiting(reason)
    return answers.send(answers.WatchedTaskBody(**answers.task(record), waiting=waiting), 200, told | _tag(record))


@router.get(
    paths.TASK + "/events",
    response_model=answers.EventPage,
    responses=documented(*_OF_ONE, problems.INVALID_REQUEST),
    dependencies=lists.ONE_OF_EACH,
)
@needs(key=Scope.TASKS_READ, operator=Role.VIEWER)
async def list_task_events(request: Request, query: Annotated[EventQuery, QueryParameters()]) -> Response:
    """What has happened to a task, in order. The newest event has the task's status."""
    found = await events.of_task(
        parts(request).database,
        paths.company(request),
        paths.task_id(request),
        after=query.after,
        most=query.limit + 1,
    )
    if found is None:
        raise paths.task_not_found()
    shown = [answers.event(event) for event in found[: query.limit]]
    return await lists.send(request, answers.EventPage(events=shown, hasMore=len(found) > query.limit))


@router.post(
    paths.TASK + "/cancel",
    response_model=answers.TaskBody,
    responses=documented(*_OF_ONE, problems.INVALID_STATE),
)
@needs(key=Scope.TASKS_WRITE, operator=Role.OPERATOR)
async def cancel_task(request: Request) -> Response:
    """End a task that has not ended. Cancelling it again changes nothing."""
    lists.refuse_query(request)
    given, company, task = parts(request), paths.company(request), paths.task_id(request)
    status = await given.broker.cancel(str(company), task)
    if status in {Status.COMPLETED, Status.FAILED}:
        raise Problem(
            problems.INVALID_STATE, f"the task has {status} already: only a task that has not can be cancelled"
        )
    record = await _task(given, company, task)
    await audit.note(request, Action.CANCEL_TASK, target=task, company_id=record.company_id)
    return _send(record)


@router.post(
    paths.TASK + "/retry",
    response_model=answers.TaskBody,
    responses=documented(
        *_OF_ONE, problems.INVALID_STATE, problems.UNIQUE_KEY_TAKEN, problems.QUOTA_EXCEEDED, problems.QUOTA_BUSY
    ),
)
@needs(key=Scope.TASKS_WRITE, operator=Role.OPERATOR)
async def retry_task(request: Request) -> Response:
    """Run a task again, or now if it waits for its time, with a fresh count of retries. Charged once more if it had
    ended."""
    lists.refuse_query(request)
    given, company, task = parts(request), paths.company(request), paths.task_id(request)
    try:
        was = await given.broker.retry(str(company), task)
    except UniqueKeyTaken as taken:
        raise _taken(taken) from None
    if was is Status.PROCESSING:
        raise Problem(problems.INVALID_STATE, "the task is processing: it can be run again when this attempt has ended")
    record = await _task(given, company, task)
    await audit.note(request, Action.RETRY_TASK, target=task, company_id=record.company_id)
    return _send(record)


@router.post(
    paths.TASK + "/reschedule",
    response_model=answers.TaskBody,
    responses=documented(*problems.IN_BODY, problems.TASK_NOT_FOUND, problems.INVALID_STATE),
    openapi_extra=body_of(RescheduleTask),
)
@needs(key=Scope.TASKS_WRITE, operator=Role.OPERATOR)
async def reschedule_task(request: Request) -> Response:
    """Put a task that waits off to a time, or bring it forward."""
    lists.refuse_query(request)
    given, company, task = parts(request), paths.company(request), paths.task_id(request)
    body = await bodies.read(request, RescheduleTask)
    status = await given.broker.reschedule(str(company), task, run_after=body.run_after)
    if status not in {Status.SCHEDULED, Status.PENDING, None}:
        raise Problem(problems.INVALID_STATE, f"the task is {status}: only one that waits can be rescheduled")
    record = await _task(given, company, task)
    details = {"runAfter": body.run_after}
    await audit.note(request, Action.RESCHEDULE_TASK, target=task, company_id=record.company_id, details=details)
    return _send(record)


@router.delete(
    paths.TASK,
    status_code=204,
    response_description="The task is forgotten.",
    responses=documented(*_OF_ONE, problems.INVALID_STATE),
)
@needs(key=Scope.TASKS_WRITE, operator=Role.OPERATOR)
async def delete_task(request: Request) -> Response:
    """Forget a task that has ended, before its retention has."""
    lists.refuse_query(request)
    given, company, task = parts(request), paths.company(request), paths.task_id(request)
    status = await given.broker.delete(str(company), task)
    if status is None:
        raise paths.task_not_found()
    if not status.is_terminal:
        raise Problem(problems.INVALID_STATE, f"the task is {status}: cancel it, or let it end, first")
    await audit.note(request, Action.DELETE_TASK, target=task, company_id=await paths.company_id(request))
    return Response(status_code=204)


async def _waited(
    request: Request, record: TaskRecord, told: dict[str, str], *, for_any_change: bool = False
) -> TaskRecord:
    given = parts(request)
    return await given.waiting.as_preferred(
        request,
        record,
        told,
        read=lambda: _task(given, record.company_id, record.id),
        for_any_change=for_any_change,
    )


def _send(record: TaskRecord, status: int = 200, told: Mapping[str, str] | None = None) -> Response:
    return answers.send(answers.task(record), status, {**(told or {}), **_tag(record)})


def _tag(record: TaskRecord) -> dict[str, str]:
    return {"etag": f'W/"{record.version}"'}


async def _task(given: Parts, company: UUID | str, task_id: UUID) -> TaskRecord:
    record = await tasks.find(given.database, company, task_id)
    if record is None:
        raise paths.task_not_found()
    return record


def _created(new: NewTask, made: Enqueued, request: Request) -> TaskRecord:
    """A task that was just created, without asking for it again."""
    if made.status is None or made.run_after is None or made.created_at is None:
        raise TypeError("a new task has a status and times")
    return TaskRecord(
        company_id=made.company_id,
        id=made.task_id,
        type=new.type,
        queue=new.queue,
        priority=new.priority,
        payload=new.payload,
        max_retries=new.max_retries,
        timeout_seconds=new.timeout_seconds,
        **submissions.origin(request),
        schedule_id=None,
        tags=new.tags,
        unique_key=None if new.unique is None else new.unique.key,
        created_at=made.created_at,
        finished_at=None,
        result=None,
        error=None,
        error_fingerprint=None,
        status=made.status,
        run_after=made.run_after,
        started_at=None,
        retry_count=0,
        event_number=1,
        worker_id=None,
    )


async def _earlier(given: Parts, company: UUID | str, task_ids: Sequence[UUID]) -> list[TaskRecord]:
    """Tasks that were there before. Raises Problem when one is forgotten already, though its idempotency key is not."""
    records = await tasks.find_all(given.database, company, task_ids) if task_ids else []
    if len(records) < len(set(task_ids)):
        raise Problem(problems.TASK_FORGOTTEN, "an idempotency key made a task that is forgotten by now: use a new key")
    return records


def _taken(taken: UniqueKeyTaken, *, in_batch: bool = False) -> Problem:
    return Problem(
        problems.UNIQUE_KEY_TAKEN,
        f"nothing was done: {taken!s}",
        errors=[
            FieldError(
                pointer=problems.pointer((*(("tasks", position) if in_batch else ()), "uniqueKey")),
                code="unique_key_taken",
                detail=f"task {holder} has it",
            )
            for position, holder in taken.holders.items()
        ],
    )


def _conflicts(conflict: IdempotencyConflict) -> Problem:
    detail = "the key was used before, for another request"
    return Problem(
        problems.IDEMPOTENCY_KEY_REUSED,
        f"nothing was created: {conflict!s}",
        errors=[
            FieldError(
                pointer=problems.pointer(("tasks", position, "idempotencyKey")),
                code="idempotency_key_reused",
                detail=detail,
            )
            for position in conflict.positions
        ],
    )
