"""Who a request comes from, and what it may do."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from taketurns.engine.key import Role, Scope


@dataclass(frozen=True, slots=True)
class CompanyKey:
    """A request with a key of a company: within that company it may do what the scopes say."""

    id: UUID
    name: str
    company_id: UUID
    company_slug: str
    scopes: frozenset[Scope]


@dataclass(frozen=True, slots=True)
class OperatorKey:
    """A request with an operator's key: it may do what the role says, for every company."""

    id: UUID
    name: str
    role: Role


Principal = CompanyKey | OperatorKey
