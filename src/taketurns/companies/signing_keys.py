"""The public keys that an identity provider signs tokens with: read from it, and kept.

Whatever tokens come in, the provider is asked once in `PAUSE_SECONDS` at most. Keys are read again while they are in
use, ahead of the end of their lifetime, so that no request waits for that. While the provider cannot be reached those
that are known go on working, for `KEPT_SECONDS`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx2
import jwt
import orjson
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from taketurns import telemetry
from taketurns.companies.errors import IdentityProviderUnavailable
from taketurns.engine import addresses, token
from taketurns.telemetry import Event

LIFETIME_SECONDS: Final = 600.0
PAUSE_SECONDS: Final = 10.0
KEPT_SECONDS: Final = 86_400.0
READ_SECONDS: Final = 5.0
LARGEST_ANSWER: Final = 256 * 1024
RSA_BITS_MIN: Final = 2048  # RFC 7518, section 3.3
_DISCOVERY: Final = "/.well-known/openid-configuration"


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A public key, with its type and curve, and the one algorithm that it is for if the provider names one."""

    public: Any
    type: str
    curve: str | None
    algorithm: str | None

    def fits(self, algorithm: str) -> bool:
        """Whether signatures of this algorithm are made with such a key."""
        type_, curve = token.ALGORITHMS[algorithm]
        return self.type == type_ and curve in {None, self.curve} and self.algorithm in {None, algorithm}


class SigningKeys:
    """The keys of one identity provider, for one process: at `jwks_url`, or where the issuer's own document says."""

    def __init__(
        self, issuer: str, *, jwks_url: str | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.issuer = issuer
        self._jwks_url = jwks_url
        self._clock = clock
        self._keys: Mapping[str, SigningKey] = {}
        self._read_at = self._tried_at = float("-inf")
        self._has_failed = False
        self._reading: asyncio.Task[None] | None = None
        self._client = httpx2.AsyncClient(timeout=READ_SECONDS, follow_redirects=False)
        self._log = telemetry.logger("companies").bind(issuer=issuer)

    async def find(self, key_id: str) -> SigningKey | None:
        """The key of this id; None when the provider has none. Raises IdentityProviderUnavailable."""
        is_missing, age = key_id not in self._keys, self._clock() - self._read_at
        if is_missing or age >= LIFETIME_SECONDS / 2:
            self._begin_to_read()
        is_old = age >= (KEPT_SECONDS if self._has_failed else LIFETIME_SECONDS)
        if self._reading is not None and (is_missing or is_old):
            await asyncio.shield(self._reading)
        found = self._keys.get(key_id)
        if self._clock() - self._read_at >= KEPT_SECONDS or (found is None and self._has_failed):
            raise IdentityProviderUnavailable("the keys of the identity provider cannot be read at the moment")
        return found

    async def read(self) -> Mapping[str, SigningKey]:
        """Ask the provider for its keys now. Raises IdentityProviderUnavailable with the reason."""
        try:
            async with asyncio.timeout(READ_SECONDS):
                told = await self._answer(self._jwks_url or await self._discovered())
                return await asyncio.to_thread(_usable, told)
        except TimeoutError:
            raise IdentityProviderUnavailable(f"{self.issuer} did not answer within {READ_SECONDS:g} s") from None
        except Exception as error:  # whatever a provider answers, no request breaks by it
            raise IdentityProviderUnavailable(f"{self.issuer} is not understood: {error!r}") from error

    async def aclose(self) -> None:
        """End what goes on in the background."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        await self._client.aclose()

    def _begin_to_read(self) -> None:
        if self._reading is None and self._clock() - self._tried_at >= PAUSE_SECONDS:
            self._tried_at = self._clock()
            self._reading = asyncio.create_task(self._read_again(), name="taketurns-signing-keys")

    async def _read_again(self) -> None:
        began_at = self._clock()
        try:
            self._keys, self._read_at = await self.read(), began_at
            self._log.info(Event.IDENTITY_PROVIDER_READ, keys=len(self._keys))
            self._has_failed = False
        except IdentityProviderUnavailable as error:
            self._log.warning(Event.IDENTITY_PROVIDER_UNAVAILABLE, error=str(error))
            self._has_failed = True
        finally:
            self._reading = None

    async def _discovered(self) -> str:
        """Where the issuer says that its keys are (OpenID Connect Discovery, section 4)."""
        told = await self._answer(self.issuer.rstrip("/") + _DISCOVERY)
        if told["issuer"] != self.issuer:
            raise ValueError(f"it says that it is the issuer {told['issuer']!r}")
        url = str(told["jwks_uri"])
        if not addresses.is_trustworthy(url):
            raise ValueError(f"its keys are at {url!r}, which is not read without https")
        return url

    async def _answer(self, url: str) -> Any:
        async with self._client.stream("GET", url) as answer:
            if answer.status_code != 200:
                raise ValueError(f"{url} answers {answer.status_code}")
            body = bytearray()
            async for part in answer.aiter_bytes():
                body += part
                if len(body) > LARGEST_ANSWER:
                    raise ValueError(f"{url} answers with more than {LARGEST_ANSWER} bytes")
        return orjson.loads(body)


def _usable(told: Any) -> Mapping[str, SigningKey]:
    """The keys of a set (RFC 7517) that signatures can be checked with, by their ids."""
    found = ((jwk["kid"], _signing_key(jwk)) for jwk in told["keys"] if isinstance(jwk.get("kid"), str))
    return {key_id: signing_key for key_id, signing_key in found if signing_key is not None}


def _signing_key(jwk: Mapping[str, Any]) -> SigningKey | None:
    """The public key, unless it is for something else, too short, or everybody has its other half."""
    if jwk.get("use", "sig") != "sig" or "verify" not in jwk.get("key_ops", ["verify"]) or "d" in jwk:
        return None
    if (jwk.get("kty"), jwk.get("crv")) not in _KINDS:
        return None
    try:
        public = jwt.PyJWK(dict(jwk)).key
    except (jwt.PyJWTError, ValueError):
        return None
    if isinstance(public, RSAPublicKey) and public.key_size < RSA_BITS_MIN:
        return None
    return SigningKey(public, jwk["kty"], jwk.get("crv"), jwk.get("alg"))


_KINDS: Final = frozenset(token.ALGORITHMS.values())
