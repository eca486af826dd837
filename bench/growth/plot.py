"""Draws curves side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench import plots
from bench.growth.curve import Curve

WIDTH: Final = 6.5
HEIGHT: Final = 4.2
MOST_NAMED: Final = 10


def draw(name: str, curves: Sequence[Curve], into: Path) -> list[Path]:
    """`name.png` and `name.svg` in this directory."""
    with plots.drawn(name, into, size=(WIDTH * len(curves), HEIGHT)) as (figure, paths):
        for axes, curve in zip(figure.subplots(1, len(curves), squeeze=False).flat, curves, strict=True):
            plots.draw_lines(axes, curve.at, curve.values, evenly=len(curve.at) <= MOST_NAMED)
            axes.set_xlabel(curve.against)
            axes.set_ylabel(curve.unit)
            axes.set_title(curve.title, loc="left")
    return paths
