"""Writes what was measured to RESULTS.md: the newest last, each with its date, machine and command."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

PATH = Path(__file__).parent / "RESULTS.md"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def record(title: str, *, command: str, machine: str, body: str) -> None:
    """Append one measurement."""
    moment = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    text = f"\n## {title}\n\n{moment}, `{command}`\n{machine}\n\n{body}\n"
    with PATH.open("a", encoding="utf-8") as results:
        results.write(text)
    print(text)
