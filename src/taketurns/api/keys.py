"""The routes of keys: a company's, which open that company, and operators', which open every one. Only admins make
and end them. A key itself is shown once, by the request that made it."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Final
from uuid import UUID

from fastapi import APIRouter
from fastapi import Query as QueryParameters
from starlette.requests import Request
from starlette.responses import Response

from taketurns.api import answers, bodies, guard, lists, paths, problems
from taketurns.api.guard import GuardedRoute, needs
from taketurns.api.openapi import body_of, operation_id
from taketurns.api.parts import operator_parts
from taketurns.api.problems import Problem, documented
from taketurns.api.requests import CreateKey, CreateOperatorKey, Query, RotateKey
from taketurns.companies import keys
from taketurns.companies.errors import KeyNotActive
from taketurns.companies.keys import ApiKey, Made
from taketurns.engine.errors import InvalidOption
from taketurns.engine.key import Role

router = APIRouter(route_class=GuardedRoute, generate_unique_id_function=operation_id, tags=["keys"])

_IN_LIST: Final = (
    problems.UNKNOWN_PARAMETER,
    problems.INVALID_CURSOR,
    problems.OFFSET_TOO_LARGE,
    problems.INVALID_REQUEST,
)
_OF_ONE: Final = (problems.KEY_NOT_FOUND, problems.UNKNOWN_PARAMETER)
_MADE: Final = "The key was made; this answer alone has it in clear."
_ROTATED: Final = "The new key was made; this answer alone has it in clear. The old one works until its expiresAt."


@router.post(
    paths.KEYS,
    status_code=201,
    response_model=answers.MadeKeyBody,
    response_description=_MADE,
    responses=documented(*problems.IN_BODY, problems.COMPANY_NOT_FOUND),
    openapi_extra=body_of(CreateKey),
)
@needs(operator=Role.ADMIN)
async def create_key(request: Request) -> Response:
    """Make a key of a company."""
    lists.refuse_query(request)
    given, company = operator_parts(request), paths.company(request)
    body = await bodies.read(request, CreateKey)
    try:
        made = await keys.create_for_company(
            given.database,
            company,
            stamp=given.guard.keyring.stamp,
            name=body.name,
            scopes=body.scopes,
            expires=body.expires_at,
            by=guard.actor_of(request),
        )
    except InvalidOption as error:
        raise bodies.over("expiresAt", error) from None
    return _send_made(made)


@router.get(
    paths.KEYS,
    response_model=answers.KeyPage,
    responses=documented(*_IN_LIST, problems.COMPANY_NOT_FOUND),
    dependencies=lists.ONE_OF_EACH,
)
@needs(operator=Role.VIEWER)
async def list_keys(request: Request, query: Annotated[Query, QueryParameters()]) -> Response:
    """A company's keys, the newest first, those that work no more among them."""
    return await _list(request, query, await paths.company_id(request))


@router.get(paths.KEY, response_model=answers.KeyBody, responses=documented(*_OF_ONE))
@needs(operator=Role.VIEWER)
async def get_key(request: Request) -> Response:
    """A key of a company as it stands."""
    return await _get(request, paths.company(request))


@router.post(
    paths.KEY + "/rotate",
    status_code=201,
    response_model=answers.MadeKeyBody,
    response_description=_ROTATED,
    responses=documented(*problems.IN_BODY, *_OF_ONE, problems.COMPANY_NOT_FOUND, problems.KEY_NOT_ACTIVE),
    openapi_extra=body_of(RotateKey, required=False),
)
@needs(operator=Role.ADMIN)
async def rotate_key(request: Request) -> Response:
    """Make a key that may do the same, for as long as the old one was made for. Both work for the time of overlap."""
    return await _rotate(request, paths.company(request))


@router.post(paths.KEY + "/revoke", response_model=answers.KeyBody, responses=documented(*_OF_ONE))
@needs(operator=Role.ADMIN)
async def revoke_key(request: Request) -> Response:
    """End a key: in this process at once, in others within five seconds. Revoking it again changes nothing."""
    return await _revoke(request, paths.company(request))


@router.post(
    paths.OPERATOR_KEYS,
    status_code=201,
    response_model=answers.MadeOperatorKeyBody,
    response_description=_MADE,
    responses=documented(*problems.IN_BODY),
    openapi_extra=body_of(CreateOperatorKey),
)
@needs(operator=Role.ADMIN)
async def create_operator_key(request: Request) -> Response:
    """Make an operator's key."""
    lists.refuse_query(request)
    given = operator_parts(request)
    body = await bodies.read(request, CreateOperatorKey)
    try:
        made = await keys.create_for_operator(
            given.database,
            stamp=given.guard.keyring.stamp,
            name=body.name,
            role=Role(body.role),
            expires=body.expires_at,
            by=guard.actor_of(request),
        )
    except InvalidOption as error:
        raise bodies.over("expiresAt", error) from None
    return _send_made(made)


@router.get(
    paths.OPERATOR_KEYS,
    response_model=answers.OperatorKeyPage,
    responses=documented(*_IN_LIST),
    dependencies=lists.ONE_OF_EACH,
)
@needs(operator=Role.VIEWER)
async def list_operator_keys(request: Request, query: Annotated[Query, QueryParameters()]) -> Response:
    """Operators' keys, the newest first, those that work no more among them."""
    return await _list(request, query, None)


@router.get(paths.OPERATOR_KEY, response_model=answers.OperatorKeyBody, responses=documented(*_OF_ONE))
@needs(operator=Role.VIEWER)
async def get_operator_key(request: Request) -> Response:
    """An operator's key as it stands."""
    return await _get(request, None)


@router.post(
    paths.OPERATOR_KEY + "/rotate",
    status_code=201,
    response_model=answers.MadeOperatorKeyBody,
    response_description=_ROTATED,
    responses=documented(*problems.IN_BODY, *_OF_ONE, problems.KEY_NOT_ACTIVE),
    openapi_extra=body_of(RotateKey, required=False),
)
@needs(operator=Role.ADMIN)
async def rotate_operator_key(request: Request) -> Response:
    """Make a key with the same role, for as long as the old one was made for. Both work for the time of overlap."""
    return await _rotate(request, None)


@router.post(paths.OPERATOR_KEY + "/revoke", response_model=answers.OperatorKeyBody, responses=documented(*_OF_ONE))
@needs(operator=Role.ADMIN)
async def revoke_operator_key(request: Request) -> Response:
    """End an operator's key: in this process at once, in others within five seconds."""
    return await _revoke(request, None)


async def _list(request: Request, query: Query, company: UUID | None) -> Response:
    given = operator_parts(request)
    wanted = ("keys", company)
    after = lists.start(query, given.cursors, *wanted)
    page = await keys.page(given.database, company, limit=query.limit, offset=query.offset, after=after)
    if page is None:
        raise paths.company_not_found()
    cursor = given.cursors.write(page.next_after, *wanted) if page.next_after else None
    body = {"keys": [answers.key(one) for one in page.keys], "hasMore": cursor is not None, "nextCursor": cursor}
    return await lists.send(request, body, cursor)


async def _get(request: Request, company: UUID | str | None) -> Response:
    lists.refuse_query(request)
    return _send(await keys.find(operator_parts(request).database, company, paths.key_id(request)))


async def _rotate(request: Request, company: UUID | str | None) -> Response:
    lists.refuse_query(request)
    given, key_id = operator_parts(request), paths.key_id(request)
    body = await bodies.read_if_any(request, RotateKey) or RotateKey.model_validate({})
    try:
        made = await keys.rotate(
            given.database,
            company,
            key_id,
            stamp=given.guard.keyring.stamp,
            overlap=timedelta(seconds=body.overlap_seconds),
            by=guard.actor_of(request),
        )
    except KeyNotActive as error:
        raise Problem(problems.KEY_NOT_ACTIVE, str(error)) from None
    given.guard.keyring.forget(key_id)
    if made is None:
        raise paths.key_not_found()
    return _send_made(made)


async def _revoke(request: Request, company: UUID | str | None) -> Response:
    lists.refuse_query(request)
    given, key_id = operator_parts(request), paths.key_id(request)
    revoked = await keys.revoke(given.database, company, key_id, by=guard.actor_of(request))
    given.guard.keyring.forget(key_id)
    return _send(revoked)


def _send(found: ApiKey | None) -> Response:
    if found is None:
        raise paths.key_not_found()
    return answers.send(answers.key(found))


def _send_made(made: Made) -> Response:
    key = made.key
    collection = paths.OPERATOR_KEYS if key.company_id is None else f"{paths.COMPANIES}/{key.company_id}/keys"
    return answers.send(answers.made_key(made), 201, {"location": f"{collection}/{key.id}"})
