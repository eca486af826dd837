"""The clock of a process, in a test's hand."""

from __future__ import annotations


class Clock:
    """The time of a process, as a test has it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now
