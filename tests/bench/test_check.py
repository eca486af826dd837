"""What got worse is told, and nothing else."""

from __future__ import annotations

import re

import pytest

from bench import check, results


def recorded(title: str, header: list[str], row: list[str]) -> str:
    return f"\n## {title}\n\n2026-11-30, `python -m bench`\n\n{results.table(header, [row])}\n\nBar: ≤ 1.5 ×.\n"


CLAIM = ["tasks", "batch", "ours ms", "LATERAL ms", "LATERAL / ours"]
SIZE = ["tasks", "of 10, ms", "to the first", "of 100, ms", "to the first"]
RATE = ["workers", "tasks/s", "to the first"]


@pytest.mark.parametrize(
    ("header", "before", "now", "fell"),
    [
        (CLAIM, ["1,000", "10", "2.0", "120", "60 ×"], ["1,000", "10", "4.0", "240", "52 ×"], 0),
        (CLAIM, ["1,000", "10", "2.0", "120", "60 ×"], ["1,000", "10", "2.0", "100", "50 ×"], 1),
        (CLAIM, ["1,000", "10", "2.0", "120", "60 ×"], ["1,000", "100", "2.0", "100", "50 ×"], 0),
        (CLAIM, ["1,000", "10", "2.0", "2,400", "1,200 ×"], ["1,000", "10", "2.0", "1,800", "900 ×"], 1),
        (SIZE, ["10", "1", "1.00 ×", "3", "1.00 ×"], ["10", "9", "1.10 ×", "3", "1.20 ×"], 1),
        (SIZE, ["10", "1", "1.30 ×", "3", "1.30 ×"], ["10", "9", "0.90 ×", "3", "–"], 0),
        (RATE, ["2", "9,000", "1.80 ×"], ["2", "9,000", "1.50 ×"], 1),
        (RATE, ["2", "9,000", "1.50 ×"], ["2", "9,000", "1.80 ×"], 0),
    ],
)
def test_a_ratio_that_got_worse_by_more_than_a_seventh_is_told(
    header: list[str], before: list[str], now: list[str], fell: int
) -> None:
    assert len(check.falls(recorded("Claim", header, before) + recorded("Claim", header, now))) == fell


def test_what_was_recorded_once_or_long_ago_is_not_compared() -> None:
    good, bad = (recorded("Claim", CLAIM, ["1,000", "10", "2.0", "120", f"{ratio} ×"]) for ratio in (60, 30))
    assert check.falls(good + recorded("Other", CLAIM, ["1,000", "10", "2.0", "60", "30 ×"])) == []
    assert check.falls(good + bad + bad) == []
    assert len(check.falls(bad + good + bad)) == 1


def test_a_ratio_of_others_is_not_ours_to_keep() -> None:
    header = ["companies", "workers", "claim", "Jain"]
    before, now = (recorded("Fairness", header, ["10", "1", "FIFO", jain]) for jain in ("0.9", "0.5"))
    assert check.falls(before + now) == []


def test_whatever_is_recorded_as_a_ratio_is_compared() -> None:
    header: list[str] = []
    for line in results.PATH.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        header = header if cells and header else cells
        told = {name for name, cell in zip(header, cells, strict=True) if re.fullmatch(r"[\d,.]+ ×", cell)}
        assert all(check.is_ratio(name) for name in told - check.NOT_COMPARED), told
