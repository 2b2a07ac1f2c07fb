"""Pictures of amounts over time, as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from math import floor, log10
from typing import Final, NamedTuple

from paceline.planner.plan import BINS, Plan

Line = tuple[str, Sequence[tuple[float, float]]]
"""The name of a line, and its points."""

COLOURS: Final = ("#0b7a75", "#c8553d", "#6b4fa0", "#8a6d00", "#30638e", "#b56576", "#4c8c4a", "#7a5c48")
WIDTH, PANEL, LEFT, ROW, LETTER = 520, 216, 48, 22, 6.4
STYLE: Final = (
    "text{font:13px sans-serif;fill:#333}.t{font-weight:bold}.y{text-anchor:end}.x{text-anchor:middle}"
    ".g{stroke:#ddd;stroke-width:1}.l{fill:none;stroke-width:2.2}"
)

TOP: Final = 1.5
"""The share of a rate up to which the picture of a plan goes: a burst is above it."""


class Panel(NamedTuple):
    """One diagram of a picture.

    Attributes:
        title: What stands above it.
        lines: Its lines; what is above ``top`` is cut off.
        end: The last value of the abscissa.
        top: The highest value of the ordinate.
    """

    title: str
    lines: Sequence[Line]
    end: float
    top: float


def picture(alt: str, panels: Sequence[Panel]) -> str:
    """An SVG of diagrams, one below the other; the names of lines stand above the first diagram that has them."""
    parts, named, low = [""], list[str](), 0
    for panel in panels:
        names = [name for name, _ in panel.lines]
        if not named or names != named[: len(names)]:
            keys, low = _keys(names, low)
            parts, named = [*parts, *keys], names
        parts += _panel(panel, low)
        low += PANEL
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH * 1.25:.0f}" viewBox="0 0 {WIDTH} {low}" role="img"'
    body = "\n".join(parts)
    return f'{head} aria-label="{escape(alt)}">\n<style>{STYLE}</style>\n<rect width="{WIDTH}" height="{low}" fill="#fff"/>{body}\n</svg>\n'


def stairs(values: Sequence[float], width: float = 1.0) -> list[tuple[float, float]]:
    """The points of a line that stays at each value for ``width``."""
    return [((at + side) * width, value) for at, value in enumerate(values) for side in (0, 1)]


def _keys(names: Sequence[str], low: int) -> tuple[list[str], int]:
    """The colours of lines, in rows below ``low``; also where these end."""
    parts, at, row = [], LEFT, low + ROW
    for colour, name in zip(COLOURS, names, strict=False):
        wide = 44 + round(LETTER * len(name))
        if at > LEFT and at + wide > WIDTH:
            at, row = LEFT, row + ROW
        parts.append(
            f'<path d="M{at} {row - 4}h18" stroke="{colour}" class="l"/><text x="{at + 24}" y="{row}">{escape(name)}</text>'
        )
        at += wide
    return parts, row + ROW // 2


def _steps(top: float) -> Iterator[float]:
    """The marks of an axis: at most seven round values."""
    power = 10.0 ** floor(log10(top / 5))
    step = next(each * power for each in (1, 2, 5, 10) if top / (each * power) <= 6)
    return (n * step for n in range(floor(top / step + 1e-9) + 1))


def _panel(panel: Panel, at: int) -> Iterator[str]:
    """One diagram, with its upper edge at ``at``."""
    right, low, high = WIDTH - 16, at + PANEL - 30, PANEL - 62

    def place(x: float, y: float) -> tuple[float, float]:
        return LEFT + x / panel.end * (right - LEFT), low - y / panel.top * high

    yield f'<text x="{LEFT}" y="{at + 18}" class="t">{escape(panel.title)}</text>'
    for value in _steps(panel.top):
        y = place(0, value)[1]
        yield f'<path d="M{LEFT} {y:.1f}H{right}" class="g"/><text x="{LEFT - 8}" y="{y + 4:.1f}" class="y">{value:g}</text>'
    for value in _steps(panel.end):
        yield f'<text x="{place(value, 0)[0]:.1f}" y="{low + 18}" class="x">{value:g}</text>'
    for colour, (_, points) in zip(COLOURS, panel.lines, strict=False):
        places = (place(x, max(0.0, min(y, panel.top))) for x, y in points if x <= panel.end)
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        yield f'<polyline points="{path}" stroke="{colour}" class="l"/>'


def of_plans(plans: Mapping[str, Plan]) -> str:
    """The picture of ``plans``, by their titles: how much of every quota is used over time."""
    return picture("The used share of each quota over time", [_of_plan(title, plan) for title, plan in plans.items()])


def _of_plan(title: str, plan: Plan) -> Panel:
    units = {"hours": 3_600.0, "minutes": 60.0, "seconds": 1.0}
    unit = next((name for name, scale in units.items() if plan.seconds > 2 * scale), "seconds")
    end = max(plan.seconds, 1.0) / units[unit]
    uses = [(f"{name}: {use.quota}", use) for name, pool in plan.pools.items() for use in pool.quotas]
    uses = sorted(uses, key=lambda named: -named[1].share)[: len(COLOURS)]
    lines = [(name, stairs(use.timeline, end / BINS)) for name, use in uses]
    return Panel(f"{title + ': ' if title else ''}used share of each rate ({unit})", lines, end, TOP)
