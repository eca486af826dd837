"""Why a company cannot be created or deleted, and why a key or a token is not taken.

TaketurnsError
├── SlugTaken               another company has this slug
├── CompanyHasOpenTasks     the company has tasks that have not ended
├── InvalidKey              a key that nobody knows, or that works no more
├── TooManyWrongKeys        an address came too often without a key that works
├── InvalidToken            a token that does not work here
├── IdentityProviderUnavailable  what tokens are checked by cannot be read
└── KeyNotActive            a key that works no more cannot be rotated
"""

from __future__ import annotations

from taketurns.engine.errors import TaketurnsError


class SlugTaken(TaketurnsError):
    """Another company has this slug."""

    def __init__(self, slug: str) -> None:
        super().__init__(f"another company has the slug {slug!r}: choose another")
        self.slug = slug


class CompanyHasOpenTasks(TaketurnsError):
    """The company has tasks, or jobs, that have not ended."""

    def __init__(self, company: str, *, what: str = "tasks") -> None:
        super().__init__(
            f"company {company!r} has {what} that are scheduled, pending or processing:"
            " cancel them, or let them end, first; or delete it by force"
        )
        self.company = company


class InvalidKey(TaketurnsError):
    """A key that nobody knows, or that works no more."""


class TooManyWrongKeys(TaketurnsError):
    """Too many requests came from an address without a key that works."""

    def __init__(self, wait_seconds: float) -> None:
        super().__init__(
            f"too many requests came from this address without a key that works: wait {wait_seconds:.0f} seconds"
        )
        self.wait_seconds = wait_seconds


class InvalidToken(TaketurnsError):
    """A token that does not work here, and why; whoever sent it is not told that."""


class IdentityProviderUnavailable(TaketurnsError):
    """What tokens are checked by cannot be read."""


class KeyNotActive(TaketurnsError):
    """A key that works no more cannot be rotated."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the key {name!r} was revoked or has expired: make a new one")
