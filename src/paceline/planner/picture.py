"""The picture of plans: for each, how much of every quota is used over time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.planner.plan import BINS, Plan

COLOURS = ("#1b7f79", "#d1495b", "#edae49", "#30638e", "#7a5195", "#66a182", "#8d6a9f", "#b56576")
INK = "#2f3640"
TOP = 1.5
"""The share of a rate up to which the picture goes: a burst is above it."""


def draw(plans: Mapping[str, Plan], file: Path) -> None:
    """Write the picture of ``plans``, by their titles; the suffix of ``file`` decides on its form.

    Raises:
        ValueError: There is no such form.
        OSError: The file cannot be written.
        ImportError: matplotlib is not installed.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.use("Agg")
    style: Any = {
        "font.family": "sans-serif",
        "text.color": INK,
        "svg.hashsalt": "paceline",
        "axes.edgecolor": "#b8bfc6",
    }
    with mpl.rc_context(style):
        figure = Figure(figsize=(10, 0.6 + 2.6 * len(plans)), dpi=120, facecolor="white", layout="constrained")
        rows = figure.subplots(len(plans), 1, squeeze=False)[:, 0]
        for axes, (title, plan) in zip(rows, plans.items(), strict=True):
            _draw(axes, title, plan)
        figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)


def _draw(axes: Any, title: str, plan: Plan) -> None:
    unit, scale = (
        ("hours", 3_600.0) if plan.seconds > 7_200 else ("minutes", 60.0) if plan.seconds > 120 else ("seconds", 1.0)
    )
    uses = [(name, use) for name, pool in plan.pools.items() for use in pool.quotas]
    uses = sorted(uses, key=lambda named: -named[1].share)[: len(COLOURS)]
    edges = [part * plan.seconds / scale / BINS for part in range(BINS + 1)]
    for (name, use), colour in zip(uses, COLOURS, strict=False):
        axes.stairs(
            [min(part, TOP) for part in use.timeline], edges, color=colour, linewidth=1.8, label=f"{name}: {use.quota}"
        )
    axes.axhline(1.0, color=INK, linestyle=(0, (5, 3)), linewidth=1)
    axes.set_ylim(0, TOP)
    axes.set_yticks([0, 0.5, 1.0], ["0 %", "50 %", "100 %"])
    axes.set_xlim(0, edges[-1] or 1)
    axes.set_xlabel(unit)
    axes.set_title(title, loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    if uses:
        axes.legend(frameon=False, fontsize=8, loc="upper right")
