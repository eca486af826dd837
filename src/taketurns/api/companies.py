"""The routes of companies: who may submit tasks, and how much of the fleet each may have."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated

from fastapi import APIRouter
from fastapi import Query as QueryParameters
from starlette.requests import Request
from starlette.responses import Response

from taketurns.api import answers, bodies, guard, headers, lists, paths, problems
from taketurns.api.guard import GuardedRoute, needs
from taketurns.api.openapi import body_of, operation_id
from taketurns.api.parts import Jobs, operator_parts, parts
from taketurns.api.problems import FieldError, Problem, documented
from taketurns.api.requests import ChangeCompany, CreateCompany, DeletionQuery, Query, StatsQuery
from taketurns.companies import directory, quotas
from taketurns.companies.directory import Company
from taketurns.companies.errors import CompanyHasOpenTasks, SlugTaken
from taketurns.engine.errors import InvalidOption, Unavailable
from taketurns.engine.key import Role, Scope
from taketurns.history import stats

router = APIRouter(route_class=GuardedRoute, generate_unique_id_function=operation_id, tags=["companies"])


@router.post(
    paths.COMPANIES,
    status_code=201,
    response_model=answers.CompanyBody,
    response_description="The company was created.",
    responses=documented(*problems.IN_BODY, problems.SLUG_TAKEN),
    openapi_extra=body_of(CreateCompany),
)
@needs(operator=Role.OPERATOR)
async def create_company(request: Request) -> Response:
    """Take in a company."""
    lists.refuse_query(request)
    body = await bodies.read(request, CreateCompany)
    try:
        company = await directory.create(
            operator_parts(request).database,
            name=body.name,
            slug=body.slug,
            weight=body.weight,
            paused=body.paused,
            paused_until=body.paused_until,
            max_in_flight=body.max_in_flight,
            max_queued=body.max_queued,
            rate=None if body.rate is None else body.rate.told(),
            request_rate=None if body.request_rate is None else body.request_rate.told(),
            quotas=body.quotas.told(),
            retention=body.retention.told(),
            by=guard.actor_of(request),
        )
    except SlugTaken as error:
        errors = [FieldError(pointer="/slug", code="slug_taken", detail="another company has it")]
        raise Problem(problems.SLUG_TAKEN, str(error), errors=errors) from None
    except InvalidOption as error:
        raise bodies.over("pausedUntil", error) from None
    return answers.send(answers.company(company), 201, {"location": f"/companies/{company.id}"})


@router.get(
    paths.COMPANIES,
    response_model=answers.CompanyPage,
    responses=documented(
        problems.UNKNOWN_PARAMETER, problems.INVALID_CURSOR, problems.OFFSET_TOO_LARGE, problems.INVALID_REQUEST
    ),
    dependencies=lists.ONE_OF_EACH,
)
@needs(operator=Role.VIEWER)
async def list_companies(request: Request, query: Annotated[Query, QueryParameters()]) -> Response:
    """Every company, the newest first."""
    given = operator_parts(request)
    after = lists.start(query, given.cursors, "companies")
    page = await directory.page(given.database, limit=query.limit, offset=query.offset, after=after)
    cursor = given.cursors.write(page.next_after, "companies") if page.next_after else None
    body = answers.CompanyPage(
        companies=[answers.company(company) for company in page.companies],
        hasMore=cursor is not None,
        nextCursor=cursor,
    )
    return await lists.send(request, body, cursor)


@router.get(
    paths.COMPANY,
    response_model=answers.CompanyBody,
    responses=documented(problems.COMPANY_NOT_FOUND, problems.UNKNOWN_PARAMETER),
)
@needs(key="any", operator=Role.VIEWER)
async def get_company(request: Request) -> Response:
    """A company as it stands."""
    lists.refuse_query(request)
    company = await directory.find(operator_parts(request).database, paths.company(request))
    if company is None:
        raise paths.company_not_found()
    return answers.send(answers.company(company))


@router.patch(
    paths.COMPANY,
    response_model=answers.CompanyBody,
    responses=documented(*problems.IN_BODY, problems.COMPANY_NOT_FOUND),
    openapi_extra=body_of(ChangeCompany),
)
@needs(operator=Role.OPERATOR)
async def change_company(request: Request) -> Response:
    """Change a company. Weights, limits and pauses act at the next claim, on what waits already; what runs goes on."""
    lists.refuse_query(request)
    reference = paths.company(request)
    body = await bodies.read(request, ChangeCompany)
    changes = body.model_dump(exclude_unset=True, exclude={"quotas", "rate", "request_rate", "retention"})
    if body.quotas is not None:
        changes["quotas"] = body.quotas.told()
    if body.retention is not None:
        changes["retention"] = body.retention.told()
    if "rate" in body.model_fields_set:
        changes["rate"] = None if body.rate is None else body.rate.told()
    if "request_rate" in body.model_fields_set:
        changes["request_rate"] = None if body.request_rate is None else body.request_rate.told()
    given = operator_parts(request)
    try:
        company = await directory.change(given.database, reference, changes, by=guard.actor_of(request))
    except InvalidOption as error:
        raise bodies.over("pausedUntil", error) from None
    if company is None:
        raise paths.company_not_found()
    if "request_rate" in changes:
        given.guard.forget_company(company.id)
    if given.jobs is not None:
        await given.jobs.follow_change(company)
    return answers.send(answers.company(company))


@router.get(
    paths.COMPANY + "/usage",
    response_model=answers.UsageBody,
    responses=documented(problems.COMPANY_NOT_FOUND, problems.UNKNOWN_PARAMETER),
)
@needs(key=Scope.USAGE_READ, operator=Role.VIEWER)
async def get_usage(request: Request) -> Response:
    """What the company has used of its quotas: in this hour, day and month, and in some before."""
    lists.refuse_query(request)
    usage = await quotas.usage(parts(request).database, paths.company(request))
    if usage is None:
        raise paths.company_not_found()
    current = headers.rate_limit(usage.current)
    return answers.send(answers.usage(usage), headers=current)


@router.get(
    paths.COMPANY + "/stats",
    response_model=answers.StatsBody,
    responses=documented(problems.COMPANY_NOT_FOUND, problems.UNKNOWN_PARAMETER, problems.INVALID_REQUEST),
    dependencies=lists.ONE_OF_EACH,
)
@needs(key=Scope.USAGE_READ, operator=Role.VIEWER)
async def get_stats(request: Request, query: Annotated[StatsQuery, QueryParameters()]) -> Response:
    """What the company has waiting and running now, against its share, and what its attempts came to lately."""
    told = await stats.read(
        operator_parts(request).database,  # a share is of what others have, too
        paths.company(request),
        window_seconds=stats.window_seconds(query.window),
    )
    if told is None:
        raise paths.company_not_found()
    return answers.send(answers.stats(told))


@router.delete(
    paths.COMPANY,
    status_code=204,
    response_description="The company is gone, and its tasks with it.",
    responses=documented(
        problems.COMPANY_NOT_FOUND,
        problems.COMPANY_HAS_OPEN_TASKS,
        problems.JOBS_UNAVAILABLE,
        problems.UNKNOWN_PARAMETER,
        problems.INVALID_REQUEST,
    ),
    dependencies=lists.ONE_OF_EACH,
)
@needs(operator=Role.ADMIN)
async def delete_company(request: Request, query: Annotated[DeletionQuery, QueryParameters()]) -> Response:
    """Delete a company with all that it owns; only the audit of it stays. Refused while it has tasks or jobs that
    have not ended, unless `force` is said."""
    given = operator_parts(request)
    company = await directory.find(given.database, paths.company(request))
    if company is None:
        raise paths.company_not_found()
    try:
        async with _without_jobs(given.jobs, company, is_forced=query.force):
            by = guard.actor_of(request)
            deleted = await directory.delete(given.database, company.id, is_forced=query.force, by=by)
    except CompanyHasOpenTasks as error:
        raise Problem(problems.COMPANY_HAS_OPEN_TASKS, str(error)) from None
    if not deleted:
        raise paths.company_not_found()
    given.guard.forget_company(company.id)
    return Response(status_code=204)


@asynccontextmanager
async def _without_jobs(jobs: Jobs | None, company: Company, *, is_forced: bool) -> AsyncIterator[None]:
    """Delete a company in here that has no jobs, or whose jobs go with it. Raises Problem and CompanyHasOpenTasks."""
    if jobs is None:
        yield
        return
    async with AsyncExitStack() as closing:
        try:
            await closing.enter_async_context(jobs.closed(company, is_forced=is_forced))
        except Unavailable as error:
            detail = f"nothing was deleted: the jobs' broker does not tell whether the company has jobs: {error}"
            raise Problem(problems.JOBS_UNAVAILABLE, detail) from None
        yield
