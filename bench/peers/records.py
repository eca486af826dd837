"""What handlers leave behind: a record of each run, appended to a file, and what the records say together.

Moments are those of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

RECORD: Final = struct.Struct("<qdd")


class Run(NamedTuple):
    """One run of the handler of one task. Tasks are numbered from 0; those that only warm a worker up, below it."""

    number: int
    began: float
    ended: float


def written(path: Path) -> int:
    """How many runs are in the file."""
    return path.stat().st_size // RECORD.size


def read(path: Path) -> list[Run]:
    """The whole records of the file, in the order in which they were written."""
    data = path.read_bytes()
    return [Run(*record) for record in RECORD.iter_unpack(data[: len(data) // RECORD.size * RECORD.size])]


@dataclass(frozen=True, slots=True)
class Count:
    """How many tasks were run at all, how many never, and how many runs were one too many."""

    ran: int
    lost: int
    again: int


def count(runs: Sequence[Run], *, tasks: int) -> Count:
    """What became of tasks 0 to `tasks` - 1."""
    numbers = [run.number for run in runs if 0 <= run.number < tasks]
    ran = len(set(numbers))
    return Count(ran=ran, lost=tasks - ran, again=len(numbers) - ran)


def per_second(moments: Sequence[float]) -> float:
    """How many moments follow the first one, by the second."""
    first, last = min(moments), max(moments)
    return (len(moments) - 1) / (last - first) if last > first else float(len(moments) - 1)
