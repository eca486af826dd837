"""The routes of operations, each one change of many tasks, and of the failed tasks that call for one."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from fastapi import Query as QueryParameters
from starlette.requests import Request
from starlette.responses import Response

from taketurns.api import answers, bodies, guard, headers, lists, paths, problems
from taketurns.api.guard import GuardedRoute, needs
from taketurns.api.openapi import body_of, operation_id
from taketurns.api.parts import parts
from taketurns.api.problems import Problem, documented
from taketurns.api.requests import CreateOperation, FailureQuery, OperationFilter, Query
from taketurns.engine.errors import IdempotencyConflict, TooManyOperations
from taketurns.engine.key import Role, Scope
from taketurns.history import failures
from taketurns.history.tasks import Filter
from taketurns.operations import ledger
from taketurns.operations.ledger import Kind, NewOperation

router = APIRouter(route_class=GuardedRoute, generate_unique_id_function=operation_id, tags=["many tasks"])


@router.post(
    paths.OPERATIONS,
    status_code=202,
    response_model=answers.OperationBody,
    response_description="The operation is under way: look at it by its Location.",
    responses=documented(
        *problems.IN_BODY,
        problems.COMPANY_NOT_FOUND,
        problems.INVALID_IDEMPOTENCY_KEY,
        problems.IDEMPOTENCY_KEY_REUSED,
        problems.TOO_MANY_OPERATIONS,
    )
    | {200: {"model": answers.DryRunBody, "description": "With dryRun: what there is to change."}},
    openapi_extra=body_of(CreateOperation, headers.IDEMPOTENCY_KEY_PARAMETER),
)
@needs(key=Scope.TASKS_WRITE, operator=Role.OPERATOR)
async def create_operation(request: Request) -> Response:
    """Cancel, retry, reschedule or delete many tasks. Workers do it, in steps; tasks that come later are left alone."""
    lists.refuse_query(request)
    given, company = parts(request), paths.company(request)
    key = headers.idempotency_key(request.scope)
    body = await bodies.read(request, CreateOperation)
    new = new_operation(body, key=key)
    if body.dry_run:
        total = await ledger.count(given.database, company, new)
        if total is None:
            raise paths.company_not_found()
        return answers.send(answers.DryRunBody(matched=total.count, matchedIsExact=total.is_exact))
    try:
        made, is_replayed = await ledger.create(given.database, company, new, by=guard.actor_of(request))
    except IdempotencyConflict:
        detail = f"{headers.IDEMPOTENCY_KEY}: the key was used before, for another operation"
        raise Problem(problems.IDEMPOTENCY_KEY_REUSED, detail) from None
    except TooManyOperations as error:
        raise Problem(problems.TOO_MANY_OPERATIONS, str(error), headers=headers.wait(1)) from None
    told = {"location": f"/companies/{made.company_id}/operations/{made.id}"}
    if is_replayed:
        told[headers.REPLAYED] = "true"
    return answers.send(answers.operation(made), 202, told)


@router.get(
    paths.OPERATIONS,
    response_model=answers.OperationPage,
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
async def list_operations(request: Request, query: Annotated[Query, QueryParameters()]) -> Response:
    """A company's operations, the newest first. They are kept for 30 days after their end."""
    given, company = parts(request), await paths.company_id(request)
    after = lists.start(query, given.cursors, "operations", company)
    page = await ledger.page(given.database, company, limit=query.limit, offset=query.offset, after=after)
    if page is None:
        raise paths.company_not_found()
    cursor = given.cursors.write(page.next_after, "operations", company) if page.next_after else None
    body = answers.OperationPage(
        operations=[answers.operation(one) for one in page.operations], hasMore=cursor is not None, nextCursor=cursor
    )
    return await lists.send(request, body, cursor)


@router.get(
    paths.OPERATION,
    response_model=answers.OperationBody,
    responses=documented(problems.OPERATION_NOT_FOUND, problems.UNKNOWN_PARAMETER),
)
@needs(key=Scope.TASKS_READ, operator=Role.VIEWER)
async def get_operation(request: Request) -> Response:
    """An operation, and how far it is."""
    lists.refuse_query(request)
    found = await ledger.find(parts(request).database, paths.company(request), paths.operation_id(request))
    if found is None:
        raise paths.operation_not_found()
    return answers.send(answers.operation(found))


@router.post(
    paths.OPERATION + "/abort",
    response_model=answers.OperationBody,
    responses=documented(problems.OPERATION_NOT_FOUND, problems.UNKNOWN_PARAMETER),
)
@needs(key=Scope.TASKS_WRITE, operator=Role.OPERATOR)
async def abort_operation(request: Request) -> Response:
    """End an operation early. What it has changed stays so; one that is over stays as it is."""
    lists.refuse_query(request)
    given, company, operation = parts(request), paths.company(request), paths.operation_id(request)
    aborted = await ledger.abort(given.database, company, operation, by=guard.actor_of(request))
    if aborted is None:
        raise paths.operation_not_found()
    return answers.send(answers.operation(aborted))


@router.get(
    paths.FAILURES,
    response_model=answers.FailurePage,
    responses=documented(problems.COMPANY_NOT_FOUND, problems.UNKNOWN_PARAMETER, problems.INVALID_REQUEST),
    dependencies=lists.ONE_OF_EACH,
)
@needs(key=Scope.TASKS_READ, operator=Role.VIEWER)
async def list_failures(request: Request, query: Annotated[FailureQuery, QueryParameters()]) -> Response:
    """The company's failed tasks, grouped by type and by what failed: what there is to run again."""
    found = await failures.page(parts(request).database, paths.company(request), limit=query.limit, after=query.after)
    if found is None:
        raise paths.company_not_found()
    groups, has_more = found
    return await lists.send(
        request, answers.FailurePage(failures=[answers.failure(group) for group in groups], hasMore=has_more)
    )


def new_operation(body: CreateOperation, *, key: str | None = None) -> NewOperation:
    """An operation as a body asks for it."""
    return NewOperation(
        kind=Kind(body.kind),
        task_ids=body.task_ids,
        wanted=None if body.filter is None else _filter(body.filter),
        run_after=body.run_after,
        rate=body.rate,
        idempotency_key=key,
    )


def _filter(body: OperationFilter) -> Filter:
    return Filter(
        statuses=frozenset(body.status),
        types=frozenset(body.type),
        tags=frozenset(body.tag),
        error_fingerprint=body.error_fingerprint,
        created_after=body.created_after,
        created_before=body.created_before,
    )
