"""What a token (a JWT, RFC 7519) of an identity provider says of its bearer, once its signature is known to be good."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from taketurns.engine import key
from taketurns.engine.key import Role, Scope

LENGTH_MAX: Final = 8192
SUBJECT_LENGTH_MAX: Final = 255  # OpenID Connect Core, section 2

ALGORITHMS: Final[Mapping[str, tuple[str, str | None]]] = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), ("RSA", None)),
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    "EdDSA": ("OKP", "Ed25519"),
}
"""Algorithms whose signatures nobody can make who only checks them, with the type and the curve of their keys."""


@dataclass(frozen=True, slots=True)
class ClaimNames:
    """The claims that say whose a token is and what it allows: by name, or by a path with dots. `role` None: no token
    is an operator's."""

    company: str = "company"
    scope: str = "scope"
    role: str | None = None


@dataclass(frozen=True, slots=True)
class CompanyBearer:
    """Somebody of a company, which is named by its id or slug."""

    subject: str
    company: str
    scopes: frozenset[Scope]


@dataclass(frozen=True, slots=True)
class OperatorBearer:
    """An operator."""

    subject: str
    role: Role


def bearer(claims: Mapping[str, Any], names: ClaimNames) -> CompanyBearer | OperatorBearer | None:
    """Who bears a token with these claims; None when they make nobody of them.

    A token with a company is that company's, whatever else it says: what a customer calls its administrators must
    never make an operator. Scopes and roles that are not known grant nothing; of several roles the greatest counts.
    """
    subject = claims.get("sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= SUBJECT_LENGTH_MAX or not subject.isprintable():
        return None
    company = _claim(claims, names.company)
    if company is not None:
        scopes = key.granted(_words(_claim(claims, names.scope)))
        return CompanyBearer(subject, company, scopes) if isinstance(company, str) else None
    named = set() if names.role is None else set(_words(_claim(claims, names.role)))
    roles = [role for role in Role if role.value in named]
    return OperatorBearer(subject, roles[-1]) if roles else None


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    """The claim of this name, or else the one that the path leads to; None where there is none."""
    if name in claims:
        return claims[name]
    found: Any = claims
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _words(claim: Any) -> Iterator[str]:
    """The words of a claim: of a text, between blanks (RFC 8693, section 4.2), or of a list of texts."""
    if isinstance(claim, str):
        yield from claim.split()
    elif isinstance(claim, list):
        yield from (word for word in claim if isinstance(word, str))
