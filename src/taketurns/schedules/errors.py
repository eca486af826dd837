"""Why a schedule cannot be made or renamed.

TaketurnsError
├── NameTaken               the company has another schedule of this name
└── TooManySchedules        the company has as many schedules as it may make
"""

from __future__ import annotations

from taketurns.engine.errors import TaketurnsError


class NameTaken(TaketurnsError):
    """The company has another schedule of this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the company has another schedule named {name!r}: choose another name")
        self.name = name


class TooManySchedules(TaketurnsError):
    """The company has as many schedules as it may make."""

    def __init__(self, most: int) -> None:
        super().__init__(f"the company has {most} schedules, as many as it may make: delete one that is not needed")
