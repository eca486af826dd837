"""Draws what was measured of ours and the peers: a panel for each figure, a bar for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bench import plots
from bench.peers.tables import Measured

OURS: Final = "#0b6e4f"
PEERS: Final = {"PostgreSQL": "#3b5b92", "Redis": "#c1440e"}
PANELS: Final = (
    ("drained_per_second", "Drained by one worker process, tasks/s", False),
    ("bulk_per_second", "Enqueued by the bulk call, tasks/s", False),
    ("singles_per_second", "Enqueued one by one, tasks/s", False),
    ("p50_ms", "Pickup, median, ms (less is better)", False),
    ("quiet_seconds", "Ten tasks behind a flood, s (less is better)", True),
    ("flood_per_second", "All of the flood, tasks/s", False),
)


def draw(measured: Sequence[Measured], into: Path) -> list[Path]:
    """`peers.png` and `peers.svg` in this directory."""
    panels = [panel for panel in PANELS if any(each.median(panel[0]) is not None for each in measured)]
    most = max(sum(each.median(name) is not None for each in measured) for name, _, _ in panels)
    height = max(2.0, 0.3 * most + 1.0)
    lines = -(-len(panels) // 2)
    with plots.drawn("peers", into, size=(14, height * lines)) as (figure, paths):
        axes = figure.subplots(lines, 2, squeeze=False).flat
        for panel, place in zip(panels, axes, strict=False):
            _draw_panel(place, measured, *panel)
        for place in list(axes)[len(panels) :]:
            place.set_visible(False)
    return paths


def _draw_panel(axes: Any, measured: Sequence[Measured], name: str, title: str, is_wide: bool) -> None:
    bars = [(value, each) for each in measured if (value := each.median(name)) is not None]
    bars.sort(key=lambda bar: bar[0], reverse=not name.endswith(("_ms", "_seconds")))
    for place, (value, each) in enumerate(bars):
        axes.barh(place, value, color=OURS if each.peer.is_ours else PEERS[each.peer.store], height=0.75)
        axes.annotate(
            f"{value:,.0f}" if value >= 100 else f"{value:.3g}",
            (value, place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
        )
    axes.set_yticks(range(len(bars)), [f"{each.peer.name} ({each.peer.store})" for _, each in bars], fontsize=9)
    axes.invert_yaxis()
    axes.margins(x=0.14)
    if is_wide:
        axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.grid(visible=False, axis="y")
    axes.set_title(title, loc="left")
