"""Draws what was measured: what companies got of their fair share, Jain's index, and waits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench import plots

if TYPE_CHECKING:
    from bench.fairness.measurement import Shares
    from bench.fairness.waits import Waits

COLOURS: Final = {"ours": "#0b6e4f", "FIFO": "#c1440e", "LATERAL": "#3b5b92"}
MARKERS: Final = {"ours": "o", "FIFO": "s", "LATERAL": "D"}


def draw(of_shares: Sequence[Shares], of_waits: Sequence[Waits], into: Path) -> list[Path]:
    """`fairness.png` and `fairness.svg` in this directory."""
    with plots.drawn("fairness", into, size=(13, 10.5), dots_per_inch=130) as (figure, paths):
        above, below = figure.subfigures(2, 1)
        _draw_shares(above.subplots(), of_shares)
        index, waits = below.subplots(1, 2)
        _draw_index(index, of_shares)
        _draw_waits(waits, of_waits)
    return paths


def _label(measured: Shares) -> str:
    workers = f"{measured.load.workers} worker{'s' * (measured.load.workers > 1)}"
    companies = "company" if measured.load.name == "1" else "companies"
    count, _, what = measured.load.name.partition(", ")
    return "\n".join(filter(None, [f"{count} {companies}", what, workers]))


def _by_load(of_shares: Sequence[Shares]) -> tuple[list[str], dict[str, list[Shares]]]:
    by_side = {side: [each for each in of_shares if each.side == side] for side in COLOURS}
    return [_label(each) for each in by_side["ours"]], by_side


def _draw_shares(axes: Any, of_shares: Sequence[Shares]) -> None:
    labels, by_side = _by_load(of_shares)
    for offset, (side, measured) in zip((-0.25, 0.0, 0.25), by_side.items(), strict=True):
        points = [
            (place + offset + _spread(number, len(each.of_fair)), share)
            for place, each in enumerate(measured)
            for number, share in enumerate(each.of_fair[company] for company in sorted(each.of_fair))
        ]
        axes.scatter(
            *zip(*points, strict=True), s=14, c=COLOURS[side], marker=MARKERS[side], alpha=0.55, lw=0, label=side
        )
    axes.axhline(1, color="#222222", lw=1, ls="--")
    axes.set_yscale("symlog", linthresh=1)
    axes.set_ylim(bottom=-0.06)
    ticks = [0, 0.5, 1, 2, 5, 10, 100, 1_000]
    most = max(max(each.of_fair.values()) for each in of_shares)
    axes.set_yticks([tick for tick in ticks if tick <= most * 1.3], minor=False)
    axes.yaxis.set_major_formatter("{x:g} ×")
    axes.minorticks_off()
    axes.set_xticks(range(len(labels)), labels, fontsize=9)
    axes.grid(visible=False, axis="x")
    axes.set_ylabel("slot-seconds, to the fair share")
    axes.set_title("What each company got of its fair share (one mark a company, dashed: fair)", loc="left")
    axes.legend(loc="upper left", ncols=3, markerscale=2)


def _spread(number: int, of: int) -> float:
    """Where in its column a company's mark is, so that equal ones do not hide each other."""
    return 0.18 * (number / (of - 1) - 0.5) if of > 1 else 0.0


def _draw_index(axes: Any, of_shares: Sequence[Shares]) -> None:
    labels, by_side = _by_load(of_shares)
    for offset, (side, measured) in zip((-0.27, 0.0, 0.27), by_side.items(), strict=True):
        places = [place + offset for place in range(len(measured))]
        axes.barh(places, [each.jain for each in measured], height=0.25, color=COLOURS[side], label=side)
    axes.set_yticks(
        range(len(labels)), ["\n".join(label.rsplit("\n", 1)).replace("\n", ", ", 1) for label in labels], fontsize=9
    )
    axes.invert_yaxis()
    axes.set_xlim(0, 1.0)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("Jain's index (1: everybody has the fair share)")
    axes.set_title("How even that is", loc="left")


def _draw_waits(axes: Any, of_waits: Sequence[Waits]) -> None:
    floods = sorted({each.flood for each in of_waits})
    longest = max(wait for each in of_waits for wait in (each.median, each.p95) if math.isfinite(wait))
    top = max(longest * 1_000, 1_000) * 4
    for side, colour in COLOURS.items():
        by_flood = sorted((each for each in of_waits if each.side == side), key=lambda each: each.flood)
        for name, line, figures in (
            ("p95", "-", [each.p95 for each in by_flood]),
            ("p50", ":", [each.median for each in by_flood]),
        ):
            shown = [wait * 1_000 if math.isfinite(wait) else top for wait in figures]
            axes.plot(
                range(len(shown)), shown, ls=line, color=colour, marker=MARKERS[side], ms=5, label=f"{side}, {name}"
            )
            unserved = [place for place, wait in enumerate(figures) if math.isinf(wait)]
            axes.plot(unserved, [top] * len(unserved), ls="", color=colour, marker="^", ms=12, mfc="white")
    axes.set_yscale("log")
    axes.set_ylim(top=top * 2)
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.set_xticks(range(len(floods)), [f"{flood:,}" if flood else "none" for flood in floods])
    axes.set_xlabel("tasks of the company that floods")
    axes.set_ylabel("wait of the quiet companies, ms")
    axes.set_title("Waits of quiet companies (△: unserved in the run)", loc="left")
    axes.legend(fontsize=9)
