"""The starts as a picture: the number of started agents over time, in each mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starts import Started

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {"even": "#1b7f79", "window": "#d1762b", "off": "#d1495b"}
OTHERS = "#5b6ee1"
INK = "#2f3640"
STYLE: dict[str, Any] = {
    "font.family": "sans-serif", "font.size": 11, "text.color": INK, "axes.edgecolor": "#b8bfc6", "axes.labelcolor": INK,
    "xtick.color": INK, "ytick.color": INK, "svg.fonttype": "path", "svg.hashsalt": "paceline",
}  # fmt: skip


def draw(runs: Mapping[str, Sequence[Started]], start_s: float, speed: int, stem: Path) -> list[Path]:
    """Write the picture as SVG and PNG.

    Args:
        runs: The starts of each mode.
        start_s: The time at which all agents called, in seconds.
        speed: The seconds of the plan in one real second; the picture shows the plan's.
        stem: The files' path without its suffix.

    Returns:
        The files.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10, 6), dpi=120, facecolor="white")
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
        rows = list(_rows(runs, start_s, speed))
        end_s = max(at_s for _, _, instants in rows for at_s in instants)
        for label, colour, instants in rows:
            count = range(len(instants) + 1)
            above.step([0.0, *instants], count, where="post", color=colour, linewidth=2, label=label)
            above.plot(instants[-1], count[-1], "o", color=colour, markersize=5)
        above.legend(loc="lower right", frameon=False)
        _dress(above, "agents started")
        below.eventplot(
            [instants for _, _, instants in rows], colors=[colour for _, colour, _ in rows], linelengths=0.7
        )
        below.set_yticks(range(len(rows)), [label.partition(":")[0] for label, _, _ in rows])
        below.invert_yaxis()
        below.set_xlim(-0.02 * end_s, 1.02 * end_s)
        below.set_xlabel("seconds since all agents called")
        _dress(below, "each start")
        below.grid(visible=False)
        figure.suptitle("Fifty agents under seven starts a minute", x=0.012, ha="left", fontsize=15, fontweight="bold")
        figure.subplots_adjust(left=0.12, right=0.985, top=0.88, bottom=0.09, hspace=0.26)
        files = [stem.with_name(stem.name + suffix) for suffix in (".svg", ".png")]
        for file in files:
            figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
    return files


def _rows(
    runs: Mapping[str, Sequence[Started]], start_s: float, speed: int
) -> Sequence[tuple[str, str, Sequence[float]]]:
    """Label, colour and instants of each curve; one for the other backend, which is alike in all runs."""
    what = {"even": "7 at once, then one each 60/7 s", "window": "7 in any 60 s", "off": "no limit"}
    rows = []
    for mode, started in runs.items():
        limited = sorted((s.at_s - start_s) * speed for s in started if s.backend == "gemini")
        rows.append((f"{mode}: {what[mode]}", COLOURS[mode], limited))
    others = [sorted((s.at_s - start_s) * speed for s in started if s.backend != "gemini") for started in runs.values()]
    slowest = max(others, key=lambda instants: instants[-1])
    rows.append(("no limit: another backend, at the same time", OTHERS, slowest))
    return rows


def _dress(axes: Axes, heading: str) -> None:
    axes.set_title(heading, loc="left", fontsize=12, pad=6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e6e9ec", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
