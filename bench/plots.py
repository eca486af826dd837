"""How plots look, and where they go: a PNG to see and an SVG to read closely, the same bytes for the same figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure

STYLE: Final = {
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 11,
    "grid.color": "#e4e4e4",
    "svg.fonttype": "none",
}
COLOURS: Final = ("#0b6e4f", "#c1440e", "#3b5b92", "#8a6d00", "#6b3f87", "#4f4f4f")
MARKERS: Final = ("o", "s", "D", "^", "v", "P")


@contextmanager
def drawn(
    name: str, into: Path, *, size: tuple[float, float], dots_per_inch: int = 110
) -> Iterator[tuple[Figure, list[Path]]]:
    """A figure to draw on, and where it goes: `name.png` and `name.svg` in this directory."""
    into.mkdir(parents=True, exist_ok=True)
    paths = [into / f"{name}.{form}" for form in ("png", "svg")]
    with mpl.rc_context({**STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=size, layout="constrained")
        yield figure, paths
        for path in paths:
            figure.savefig(path, dpi=dots_per_inch, metadata={"Date": None} if path.suffix == ".svg" else None)


def draw_lines(axes: Any, at: Sequence[float], lines: Mapping[str, Sequence[float]], *, evenly: bool = False) -> None:
    """A line for each name over `at`, from zero up. Points that stand `evenly` apart are told one by one below."""
    places = range(len(at)) if evenly else at
    for number, (name, values) in enumerate(lines.items()):
        marker = MARKERS[number % len(MARKERS)] if len(at) < 30 else ""
        axes.plot(places, values, color=COLOURS[number % len(COLOURS)], marker=marker, ms=5, label=name)
    if evenly:
        axes.set_xticks(list(places), [f"{value:,.0f}" for value in at])
    else:
        axes.xaxis.set_major_formatter("{x:,g}")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:,g}")
    if len(lines) > 1:
        axes.legend(fontsize=9)
