"""`python -m bench check`: which ratios of RESULTS.md got worse, the newest of each section beside the one before.

It measures nothing. A ratio compares two things that were measured in turn on one machine, and may be compared with one
of another day; times and rates may not, and are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from bench import results

MOST_WORSE: Final = 0.15
MORE_IS_BETTER: Final = frozenset(
    {"LATERAL / ours", "window / ours", "the last to the first", "last to first", "ours to it", "Jain", "worst window"}
)
AS_THE_FIGURE_BEFORE: Final = frozenset({"to the first", "to without", "to postgres", "p95 to idle", "ratio"})
"""The columns of ratios: those of which more is better, and those that follow the figure they are the ratio of."""
NOT_COMPARED: Final = frozenset({"least to fair", "most to fair"})  # which Jain's index sums up
COUNTS: Final = frozenset({"quiet tasks"})
NOT_OURS: Final = frozenset({"FIFO", "LATERAL"})

_NUMBER: Final = re.compile(r"\d[\d,]*(?:\.\d+)?")
_FIGURE: Final = re.compile(r"\b(ms|µs|s|tasks/s)\b")
_RATE: Final = re.compile(r"/s\b")

Figure = tuple[str, ...]
"""Where a ratio stands: the heading of its table, its row, the figure that it follows, its column."""


@dataclass(frozen=True, slots=True)
class Ratio:
    value: float
    more_is_better: bool

    def worse_than(self, before: Ratio) -> float:
        """By which part of what it was."""
        change = (self.value - before.value) / before.value if before.value else 0.0
        return -change if self.more_is_better else change


def ratios(text: str) -> dict[Figure, Ratio]:
    """Every ratio of ours in the tables of one section."""
    found: dict[Figure, Ratio] = {}
    heading = ""
    for is_table, lines in groupby(text.splitlines(), key=lambda line: line.startswith("|")):
        if is_table:
            found.update({(heading, *where): ratio for where, ratio in _of_table(list(lines))})
        else:
            heading = next((line for line in reversed(list(lines)) if line.startswith("### ")), heading)
    return found


def _of_table(lines: list[str]) -> Iterator[tuple[Figure, Ratio]]:
    header, _, *rows = ([cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines)
    named = next((place for place, name in enumerate(header) if is_figure(name)), len(header))
    for row in rows:
        if NOT_OURS.intersection(row):
            continue
        figure = ""
        for name, cell in zip(header, row, strict=True):
            if is_ratio(name) and (number := _NUMBER.match(cell)):
                more_is_better = name in MORE_IS_BETTER or _RATE.search(figure) is not None
                follows = figure if name in AS_THE_FIGURE_BEFORE else ""
                yield (" ".join(row[:named]), follows, name), Ratio(float(number[0].replace(",", "")), more_is_better)
            elif not is_ratio(name):
                figure = name


def is_ratio(column: str) -> bool:
    return column in MORE_IS_BETTER or column in AS_THE_FIGURE_BEFORE


def is_figure(column: str) -> bool:
    """Whether a column tells what was measured, not of what."""
    return is_ratio(column) or column in COUNTS or _FIGURE.search(column) is not None


def sections(text: str) -> Mapping[str, list[str]]:
    """What was recorded under each title, the newest last."""
    found: dict[str, list[str]] = {}
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        found.setdefault(title, []).append(body)
    return found


def falls(text: str) -> list[str]:
    """A line for each ratio that got worse by more than may be."""
    told = []
    for title, recorded in sections(text).items():
        if len(recorded) < 2:
            continue
        before, now = (ratios(body) for body in recorded[-2:])
        for where in now.keys() & before.keys():
            if (worse := now[where].worse_than(before[where])) > MOST_WORSE:
                place = ", ".join(part for part in where if part)
                told.append(f"{title}: {place}: {now[where].value:g}, was {before[where].value:g} ({worse:.0%} worse)")
    return sorted(told)


def run() -> int:
    """Tell what got worse; 1 if anything did."""
    text = results.PATH.read_text("utf-8")
    compared = sum(len(recorded) > 1 for recorded in sections(text).values())
    found = falls(text)
    for line in found:
        print(line)
    print(f"{len(found)} ratios fell by more than {MOST_WORSE:.0%}, in {compared} sections that were recorded twice.")
    return int(bool(found))
