"""Knows the tokens (JWT) of one identity provider: who bears one is the principal that a key would have made of them.

Times in tokens are held against this process's clock, with some leeway. A company is looked up by what the token names,
and remembered for as long as keys are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import jwt

from taketurns import telemetry
from taketurns.companies import directory
from taketurns.companies.access import CompanyPrincipal, OperatorPrincipal, Principal
from taketurns.companies.errors import InvalidToken
from taketurns.companies.keyring import FRESH_SECONDS, MOST_REMEMBERED
from taketurns.companies.signing_keys import SigningKeys
from taketurns.engine import token
from taketurns.engine.rate import Rate
from taketurns.engine.token import ClaimNames, CompanyBearer, OperatorBearer
from taketurns.storage.database import Database
from taketurns.telemetry import Event

_REQUIRED: Final = ["exp", "iss", "aud", "sub"]


@dataclass(frozen=True, slots=True)
class _Known:
    """A company that was found, at a time of the process's clock."""

    id: UUID
    slug: str
    request_rate: Rate | None
    read_at: float


class Tokens:
    """The tokens that are made for this `audience` and signed by one of `algorithms`, for one process."""

    def __init__(
        self,
        database: Database,
        signing_keys: SigningKeys,
        *,
        audience: str,
        algorithms: Collection[str],
        names: ClaimNames,
        leeway_seconds: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._signing_keys = signing_keys
        self._audience = audience
        self._algorithms = frozenset(algorithms)
        self._names = names
        self._leeway_seconds = leeway_seconds
        self._clock = clock
        self._companies: dict[UUID | str, _Known] = {}
        self._log = telemetry.logger("companies").bind()

    async def principal(self, text: bytes) -> Principal:
        """Who bears this token.

        Raises InvalidToken, IdentityProviderUnavailable when it cannot be checked, and Unavailable when its company
        cannot be looked up.
        """
        try:
            bearer = token.bearer(await self._claims(text), self._names)
            if bearer is None:
                raise InvalidToken("its claims make nobody of its bearer")
            return await self._principal(bearer)
        except InvalidToken as error:
            self._log.debug(Event.TOKEN_REFUSED, reason=str(error))
            raise

    def forget_company(self, company_id: UUID) -> None:
        """Look a company up at the next token of it, for it was changed."""
        for named, known in list(self._companies.items()):
            if known.id == company_id:
                del self._companies[named]

    async def close(self) -> None:
        """End what goes on in the background."""
        await self._signing_keys.aclose()

    async def _claims(self, text: bytes) -> dict[str, Any]:
        """The claims of a token whose signature, issuer, audience and times are good. Raises InvalidToken."""
        algorithm, key_id = self._header(text)
        key = await self._signing_keys.find(key_id)
        if key is None or not key.fits(algorithm):
            raise InvalidToken("no key of the issuer fits it")
        try:
            return jwt.decode(
                text,
                key.public,
                algorithms=[algorithm],
                audience=self._audience,
                issuer=self._signing_keys.issuer,
                leeway=self._leeway_seconds,
                options={"require": _REQUIRED},
            )
        except Exception as error:  # whatever a token has in it, no request breaks by it
            raise InvalidToken(repr(error)) from error

    def _header(self, text: bytes) -> tuple[str, str]:
        """The algorithm and the id of the key that a token names. Raises InvalidToken."""
        if len(text) > token.LENGTH_MAX:
            raise InvalidToken(f"it is longer than {token.LENGTH_MAX} bytes")
        try:
            header = jwt.get_unverified_header(text)
        except Exception as error:  # as above: it may be nested without end, for one
            raise InvalidToken(repr(error)) from error
        algorithm, key_id = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in self._algorithms:
            raise InvalidToken("its algorithm is not one of those that are set")
        if not isinstance(key_id, str):
            raise InvalidToken("it names no key")
        if "crit" in header:
            raise InvalidToken("it asks for an extension")
        return algorithm, key_id

    async def _principal(self, bearer: CompanyBearer | OperatorBearer) -> Principal:
        issuer = self._signing_keys.issuer
        if isinstance(bearer, OperatorBearer):
            return OperatorPrincipal(None, bearer.subject, bearer.role, issuer)
        known = await self._company(bearer.company)
        if known is None:
            raise InvalidToken("there is no such company as it names")
        return CompanyPrincipal(None, bearer.subject, known.id, known.slug, bearer.scopes, issuer, known.request_rate)

    async def _company(self, named: str) -> _Known | None:
        reference = directory.reference(named)
        if reference is None:
            return None
        known = self._companies.pop(reference, None)
        if known is None or self._clock() - known.read_at >= FRESH_SECONDS:
            began_at = self._clock()
            found = await directory.find(self._database, reference)
            if found is None:
                return None
            known = _Known(found.id, found.slug, found.request_rate, began_at)
        self._companies[reference] = known
        if len(self._companies) > MOST_REMEMBERED:
            del self._companies[next(iter(self._companies))]
        return known
