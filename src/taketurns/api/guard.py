"""Who may call what. Every route says so beside its path, with `needs` or `open_to_all`; one that does not cannot be
made.

A request is refused in this order, whatever it names: an address that came too often without a key that works (429),
no key or token, or none that works (401), a company whose keys and tokens come too often (429), one that may not do
this (403), a company that is not its own (404, without a look whether there is one).
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar
from uuid import UUID

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope as AsgiScope

from taketurns.api import headers, paths, problems
from taketurns.api.problems import Problem
from taketurns.companies import directory
from taketurns.companies.access import CompanyPrincipal, OperatorPrincipal, Principal
from taketurns.companies.errors import IdentityProviderUnavailable, InvalidKey, InvalidToken, TooManyWrongKeys
from taketurns.companies.keyring import KeyRing
from taketurns.companies.throttle import Throttle
from taketurns.companies.wrong_keys import WrongKeys
from taketurns.engine import key, rate
from taketurns.engine.addresses import comes_from_this_machine
from taketurns.engine.errors import Unavailable
from taketurns.engine.key import Role, Scope
from taketurns.storage.audit import Actor, ActorKind

if TYPE_CHECKING:
    from taketurns.companies.tokens import Tokens

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])

REALM: Final = 'Bearer realm="taketurns"'
_BEARER: Final = re.compile(rb"bearer +([^ ]+) *", re.IGNORECASE)
_NEED: Final = "taketurns_need"


@dataclass(frozen=True, slots=True)
class Need:
    """What a caller must have: a company's key this scope, an operator's this role or more.

    Without `key` companies' keys are not taken; with "any" their scopes do not matter. Without `operator` nobody needs
    anything. `by_token` also lets in who has the token of the metrics.
    """

    key: Scope | Literal["any"] | None = None
    operator: Role | None = None
    by_token: bool = False


def needs(
    *, operator: Role, key: Scope | Literal["any"] | None = None, by_token: bool = False
) -> Callable[[Endpoint], Endpoint]:
    """Say what a route needs; to be written under its path."""

    def mark(endpoint: Endpoint) -> Endpoint:
        setattr(endpoint, _NEED, Need(key, operator, by_token))
        return endpoint

    return mark


def open_to_all(endpoint: Endpoint) -> Endpoint:
    """Say that a route needs nothing."""
    setattr(endpoint, _NEED, Need())
    return endpoint


def need_of(endpoint: Callable[..., Any]) -> Need:
    need = getattr(endpoint, _NEED, None)
    if not isinstance(need, Need):
        raise TypeError(f"{endpoint.__qualname__} does not say who may call it: guard.needs(…) or guard.open_to_all")
    return need


class GuardedRoute(APIRoute):
    """A route that is reached by those only who have what it needs."""

    @property
    def need(self) -> Need:
        return need_of(self.endpoint)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle, need = super().get_route_handler(), self.need

        async def guarded(request: Request) -> Response:
            guard: Guard = request.app.state.parts.guard
            await guard.admit(request, need)
            return await handle(request)

        return guarded


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """How an API holds its callers to their keys, and to the `tokens` of an identity provider where there is one.

    Without `asks_for_keys` everybody may do everything; `on_loopback_only` then refuses whoever comes by another
    address or name of this machine. A `metrics_token` is asked for all the same.

    Of a company's rate of requests, each of so many `processes` lets its part pass. An address that came without a key
    that works as often as `wrong_keys` allows is served by keys only that are known here already. Companies' rates
    are counted in `throttle`.
    """

    keyring: KeyRing
    tokens: Tokens | None = None
    asks_for_keys: bool = True
    on_loopback_only: bool = False
    metrics_token: bytes | None = None
    processes: int = 1
    wrong_keys: WrongKeys | None = None
    throttle: Throttle = field(default_factory=Throttle)

    async def admit(self, request: Request, need: Need) -> None:
        """Let a request pass, with its principal from then on; one that the dashboard makes within this process comes
        with it. Raises Problem, and Unavailable."""
        if need.operator is None or (need.by_token and self._has_metrics_token(request.scope)):
            return
        if not self.asks_for_keys and not (need.by_token and self.metrics_token is not None):
            if self.on_loopback_only and not _is_from_this_machine(request.scope):
                raise Problem(
                    problems.NOT_ON_LOOPBACK, "this service asks for no keys, and serves its own machine only"
                )
            return
        principal = request.scope.get("principal") or await self._principal(request.scope)
        request.scope["principal"] = principal
        if isinstance(principal, CompanyPrincipal):
            self._hold_to_its_rate(request.scope, principal)
        if isinstance(principal, OperatorPrincipal):
            if not principal.role.includes(need.operator):
                raise _refused(problems.ROLE_NEEDED, f"the role {need.operator} is needed", need)
        elif need.key is None:
            raise _refused(problems.OPERATOR_NEEDED, "this is for operators, and not for companies", need)
        else:
            if need.key != "any" and need.key not in principal.scopes:
                raise _refused(problems.SCOPE_NEEDED, f"the scope {need.key} is needed", need)
            _hold_to_its_company(request, principal)

    async def still_admits(self, request: Request) -> bool:
        """Whether the key or token of a request that was let in works still, unless that cannot be told now."""
        if principal_of(request) is None:
            return True
        try:
            await self._known(_bearer(request.scope))
        except Problem as problem:
            return problem.kind.status != HTTPStatus.UNAUTHORIZED
        except Unavailable:
            return True
        return True

    async def _principal(self, scope: AsgiScope) -> Principal:
        text, client, wrong_keys = _bearer(scope), scope.get("client"), self.wrong_keys
        if wrong_keys is None or client is None:
            return await self._known(text)
        address = str(client[0])
        if text is not None and self._is_known_without_a_look(text):
            with _wrong_ones(lambda: wrong_keys.count(address)):
                return await self._known(text)
        try:
            async with wrong_keys.look(address) as count:
                with _wrong_ones(count):
                    return await self._known(text)
        except TooManyWrongKeys as error:
            raise Problem(problems.TOO_MANY_WRONG_KEYS, str(error), headers=headers.wait(error.wait_seconds)) from None

    def _is_known_without_a_look(self, text: bytes) -> bool:
        """Whether this costs no look at the database: a token tells by itself who bears it."""
        is_token = self.tokens is not None and not text.startswith(key.BEGINNING)
        return is_token or self.keyring.remembers(text)

    async def _known(self, text: bytes | None) -> Principal:
        if text is None:
            raise Problem(
                problems.KEY_NEEDED,
                "a key is needed: send one header, Authorization: Bearer tt_…",
                headers={"www-authenticate": REALM},
            )
        if self.tokens is not None and not text.startswith(key.BEGINNING):
            return await _bearer_of(text, self.tokens)
        try:
            return await self.keyring.principal(text)
        except InvalidKey as error:
            challenge = f'{REALM}, error="invalid_token", error_description="{error}"'
            raise Problem(problems.INVALID_KEY, str(error), headers={"www-authenticate": challenge}) from None

    def forget_company(self, company_id: UUID) -> None:
        """Look up anew whoever comes of a company, for it was changed."""
        self.keyring.forget_company(company_id)
        if self.tokens is not None:
            self.tokens.forget_company(company_id)

    async def close(self) -> None:
        """End what goes on in the background."""
        await self.keyring.close()
        if self.tokens is not None:
            await self.tokens.close()

    def _hold_to_its_rate(self, scope: AsgiScope, principal: CompanyPrincipal) -> None:
        """Let a request pass if the company's rate does, and have its answer tell how the company stands."""
        whole = principal.request_rate
        if whole is None:
            return
        part = rate.part(whole, of=self.processes)
        standing = self.throttle.take(principal.company_id, part)
        if standing is not None:
            scope["rate_limit"] = headers.request_rate(whole, standing.left, standing.full_seconds)
            return
        refused = self.throttle.look(principal.company_id, part)
        scope["rate_limit"] = headers.request_rate(whole, refused.left, refused.full_seconds)
        detail = (
            f"the company's keys may make {whole.tasks} requests in {whole.seconds} seconds, {whole.burst} at once: the"
            f" next may come in {refused.wait_seconds:.3f} seconds"
        )
        raise Problem(problems.TOO_MANY_REQUESTS, detail, headers=headers.wait(refused.wait_seconds))

    def _has_metrics_token(self, scope: AsgiScope) -> bool:
        text = _bearer(scope)
        return self.metrics_token is not None and text is not None and hmac.compare_digest(text, self.metrics_token)


@contextmanager
def _wrong_ones(count: Callable[[], None]) -> Iterator[None]:
    """Have it counted when somebody has no key or token that works."""
    try:
        yield
    except Problem as problem:
        if problem.kind.status == HTTPStatus.UNAUTHORIZED:
            count()
        raise


def principal_of(request: Request) -> Principal | None:
    """Who makes a request; None where nobody is asked."""
    found: Principal | None = request.scope.get("principal")
    return found


def actor_of(request: Request) -> Actor | None:
    """Who the audit names for what a request changes."""
    principal = principal_of(request)
    if principal is None:
        return None
    client = request.scope.get("client")
    return Actor(
        kind=ActorKind.COMPANY if isinstance(principal, CompanyPrincipal) else ActorKind.OPERATOR,
        name=principal.name,
        key_id=principal.key_id,
        issuer=principal.issuer,
        address=None if client is None else str(client[0]),
        request_id=request.scope["request_id"],
    )


async def _bearer_of(text: bytes, tokens: Tokens) -> Principal:
    """Who bears a token. One that does not work is told no more than that, whatever is wrong with it."""
    try:
        return await tokens.principal(text)
    except InvalidToken:
        challenge = f'{REALM}, error="invalid_token"'
        detail = "the token is not one that works here"
        raise Problem(problems.INVALID_TOKEN, detail, headers={"www-authenticate": challenge}) from None
    except IdentityProviderUnavailable as error:
        raise Problem(problems.IDENTITY_PROVIDER_UNAVAILABLE, str(error)) from None


def _hold_to_its_company(request: Request, principal: CompanyPrincipal) -> None:
    named = request.path_params.get("companyId")
    if named is not None and directory.reference(named) not in {principal.company_id, principal.company_slug}:
        raise paths.company_not_found()


def _bearer(scope: AsgiScope) -> bytes | None:
    """The credentials of the one Authorization header, if it is of this scheme."""
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    found = _BEARER.fullmatch(values[0].strip(b" \t")) if len(values) == 1 else None
    return None if found is None else found[1]


def _refused(kind: problems.Kind, detail: str, need: Need) -> Problem:
    challenge = f'{REALM}, error="insufficient_scope"'
    if kind is problems.SCOPE_NEEDED:
        challenge += f', scope="{need.key}"'
    return Problem(kind, detail, headers={"www-authenticate": challenge})


def _is_from_this_machine(scope: AsgiScope) -> bool:
    names = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
    reached = (scope.get("server") or (None, None))[0]
    return comes_from_this_machine(reached=reached, named=",".join(names))
