"""Why a company cannot be created or deleted.

TaketurnsError
├── SlugTaken               another company has this slug
└── CompanyHasOpenTasks     the company has tasks that have not ended
"""

from __future__ import annotations

from taketurns.engine.errors import TaketurnsError


class SlugTaken(TaketurnsError):
    """Another company has this slug."""

    def __init__(self, slug: str) -> None:
        super().__init__(f"another company has the slug {slug!r}: choose another")
        self.slug = slug


class CompanyHasOpenTasks(TaketurnsError):
    """The company has tasks that have not ended."""

    def __init__(self, company: str) -> None:
        super().__init__(
            f"company {company!r} has tasks that are scheduled, pending or processing:"
            " cancel them, or let them end, first"
        )
        self.company = company
