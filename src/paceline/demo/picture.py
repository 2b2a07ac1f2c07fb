"""The picture at the end: admitted requests and refusals per second, both halves over the same time axis."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paceline.demo.batch import Half

COLOURS = ("#d1495b", "#1b7f79")
INK = "#2f3640"
DPI = 120


def draw(halves: tuple[Half, Half], rate: float, stem: Path) -> list[Path]:
    """Write the picture as SVG and PNG.

    Args:
        halves: The half without paceline, and the one with it.
        rate: The allowed rate, in requests per second.
        stem: The files' path without its suffix.

    Returns:
        The files.
    """
    mpl.use("Agg")
    style: Any = {
        "font.family": "sans-serif", "font.size": 11.5, "text.color": INK, "axes.edgecolor": "#b8bfc6", "axes.labelcolor": INK,
        "xtick.color": INK, "ytick.color": INK, "svg.fonttype": "path", "svg.hashsalt": "paceline",
    }  # fmt: skip
    with mpl.rc_context(style):
        figure = Figure(figsize=(10, 5.84), dpi=DPI, facecolor="white")
        upper, lower = figure.subplots(2, 1, sharex=True)
        _admitted(upper, halves, rate)
        _refused(lower, halves)
        lower.set_xlim(0, max(len(half.timeline()) for half in halves) + 0.5)
        lower.set_xlabel("seconds since the start")
        figure.suptitle(title(halves), x=0.012, y=0.975, ha="left", fontsize=15, fontweight="bold")
        for half, colour, x in zip(halves, COLOURS, (0.012, 0.5), strict=True):
            figure.text(
                x, 0.893, f"\u2501 {half.title}: {_outcome(half)}", color=colour, fontsize=12.5, fontweight="bold"
            )
        figure.subplots_adjust(left=0.06, right=0.985, top=0.82, bottom=0.09, hspace=0.26)
        files = [stem.with_name(stem.name + suffix) for suffix in (".svg", ".png")]
        for file in files:
            figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
    return files


def title(halves: tuple[Half, Half]) -> str:
    """The content of the picture in one sentence."""
    plain, paced = halves
    refused = f"{paced.refused:,}" if paced.refused else "none"
    return f"The same {paced.requests:,} requests: {plain.refused:,} refusals without paceline, {refused} with it"


def _admitted(axes: Axes, halves: tuple[Half, Half], rate: float) -> None:
    """All that was admitted so far, below what the limit allows: the first minute's amount at once, then ``rate`` a second."""
    lines = [list(accumulate((admitted for admitted, _ in half.timeline()), initial=0)) for half in halves]
    end = max(len(line) for line in lines) - 1
    axes.plot([0, end], [60 * rate, (60 + end) * rate], color=INK, linestyle=(0, (5, 3)), linewidth=1.2, zorder=5)
    for line, colour in zip(lines, COLOURS, strict=True):
        axes.plot(line, color=colour, linewidth=2.2)
    axes.fill_between(range(len(lines[1])), lines[1], color=COLOURS[1], alpha=0.16, linewidth=0)
    axes.annotate(
        f"allowed: {60 * rate:,.0f} at once, then {rate:g} a second",
        xy=(0.985, 0.06),
        xycoords="axes fraction",
        ha="right",
    )
    axes.set_ylim(0, max(halves[1].requests, *(line[-1] for line in lines)) * 1.1)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    _dress(axes, "admitted since the start (dashed: allowed)")


def _outcome(half: Half) -> str:
    if half.stopped:
        return f"stopped after {half.elapsed_s:.0f} s, {half.done:,} answered"
    if half.done == half.requests:
        return f"all {half.done:,} answered in {half.elapsed_s:.0f} s"
    return f"{half.done:,} answered"


def _refused(axes: Axes, halves: tuple[Half, Half]) -> None:
    for half, colour in zip(halves, COLOURS, strict=True):
        heights = [refused for _, refused in half.timeline()]
        axes.stairs(heights, color=colour, fill=True, alpha=0.16, linewidth=0)
        axes.stairs(heights, color=colour, linewidth=2.2, baseline=None, clip_on=False)
    axes.set_ylim(0, max(axes.get_ylim()[1], 1))
    _dress(axes, "refused per second (429)")


def _dress(axes: Axes, heading: str) -> None:
    axes.set_title(heading, loc="left", fontsize=12, pad=6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e6e9ec", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
