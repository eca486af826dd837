"""The rule of rescues: what becomes of the tasks of a worker that is lost.

Loss. A task that kills its worker takes along whatever else the worker held, and nobody can tell which of them it
was. So all come back to their lines, each with one rescue more, which is no retry.

Suspect. A task that was lost twice is a suspect. A worker has one suspect in hand at most: of others that a claim
brings, it puts the start off for some polls before it starts the one. Ordinary tasks run beside a suspect as ever.

Giving up. A task that has used up its rescues fails when it is lost once more and no other suspect was lost with it.
Had there been one, the loss shows nothing of either: both come back, and neither is charged a rescue above the most.

So what is innocent is done sooner or later, and what kills its worker fails: after it was lost `max_rescues` + 1
times, unless its worker died before the other suspects were put off, which costs one time more. With less than two
rescues, tasks are given up before they are suspects, together with those that were lost beside them.

This is the rule as a plain model; `rescue.sql` and `rescue.lua` are those that run, held to this one by the tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

SUSPECTED_AFTER: Final = 2


def is_suspect(rescue_count: int) -> bool:
    """Whether a task that was lost so often may be what kills its workers."""
    return rescue_count >= SUSPECTED_AFTER


def after_loss(rescue_counts: Sequence[int], max_rescues: int) -> list[int | None]:
    """The new rescue counts of tasks that were lost together; None for one that is given up."""
    suspects = sum(map(is_suspect, rescue_counts))
    return [
        None if count >= max_rescues and suspects - is_suspect(count) == 0 else min(count + 1, max_rescues)
        for count in rescue_counts
    ]
