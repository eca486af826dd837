"""Who a request comes from, and what it may do."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from taketurns.engine.key import Role, Scope
from taketurns.engine.rate import Rate


@dataclass(frozen=True, slots=True)
class CompanyPrincipal:
    """Somebody of a company: within it they may do what the scopes say, as often as the rate of requests allows to all
    of the company together.

    Who comes by a key is known by its id; who comes by a token, by what its issuer calls them.
    """

    key_id: UUID | None
    name: str
    company_id: UUID
    company_slug: str
    scopes: frozenset[Scope]
    issuer: str | None = None
    request_rate: Rate | None = None


@dataclass(frozen=True, slots=True)
class OperatorPrincipal:
    """An operator, known as above: they may do what the role says, for every company."""

    key_id: UUID | None
    name: str
    role: Role
    issuer: str | None = None


Principal = CompanyPrincipal | OperatorPrincipal
