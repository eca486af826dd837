"""What a visitor is told in place of the page that was asked for."""

from __future__ import annotations


class Refusal(Exception):
    """A page that cannot be shown: a status, a title and what can be done, after `wait_seconds` if that helps."""

    def __init__(self, status: int, title: str, advice: str, *, wait_seconds: float | None = None) -> None:
        super().__init__(title)
        self.status = status
        self.title = title
        self.advice = advice
        self.wait_seconds = wait_seconds


class NotSignedIn(Exception):
    """Nobody is signed in. `why` says what became of somebody who was."""

    def __init__(self, why: str = "") -> None:
        super().__init__(why)
        self.why = why


def not_found(what: str) -> Refusal:
    return Refusal(404, f"There is no such {what}", "It may have been deleted, or the address has a slip.")
