"""Admitted requests over time as an SVG: a line for each limiter, paceline's on top."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 400, 52, 250, 34, 40
OURS = "#0b7a75"
STYLES = [
    ("#c8553d", ""), ("#6b4fa0", ""), ("#b8860b", ""), ("#2f6fb0", ""), ("#7a4a2b", ""),
    ("#d1469a", "7 3"), ("#4d8a2f", "7 3"), ("#555", "7 3"), ("#c98bdb", "2 3"), ("#3aa6c9", "2 3"),
]  # fmt: skip
"""A colour and a pattern of dashes for each limiter but paceline."""


def _ticks(most: float) -> list[float]:
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000) if most / step <= 7)
    return [step * number for number in range(int(most / step) + 1)]


def _path(points: Sequence[tuple[float, float]], most: tuple[float, float]) -> str:
    across, up = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    return " ".join(f"{LEFT + x / most[0] * across:.1f},{HEIGHT - BOTTOM - y / most[1] * up:.1f}" for x, y in points)


def draw(title: str, names: Sequence[str], lines: Sequence[tuple[str, str, Sequence[tuple[float, float]]]]) -> str:
    """The picture.

    Args:
        title: Above the axes.
        names: Of all limiters but paceline, in the order of their styles: each has the same style in every picture.
        lines: Name, remark in the legend, and points (seconds, admitted) of each; those of ``paceline`` and ``ideal`` stand out.
    """
    most_x = max((points[-1][0] for _, _, points in lines if points), default=1.0) * 1.02
    most_y = max((points[-1][1] for _, _, points in lines if points), default=1.0) * 1.04
    most, floor = (most_x, most_y), HEIGHT - BOTTOM
    parts = [f'<text x="{LEFT}" y="20" class="t">{escape(title)}</text>']
    for value in _ticks(most_y):
        level = _path([(0, value)], most).split(",")[1]
        parts.append(f'<path d="M{LEFT} {level}H{WIDTH - RIGHT}" class="g"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{float(level) + 4:.1f}" class="y">{value:g}</text>')
    for value in _ticks(most_x):
        at = _path([(value, 0)], most).split(",")[0]
        parts.append(f'<path d="M{at} {floor}v4" class="g"/><text x="{at}" y="{floor + 17}" class="x">{value:g}</text>')
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" class="x">seconds after the first admission</text>')  # fmt: skip
    drawn: list[str] = []
    keys: list[str] = []
    for number, (name, remark, points) in enumerate(lines):
        if name == "paceline":
            stroke = f'stroke="{OURS}" stroke-width="3.4"'
        elif name == "ideal":
            stroke = 'stroke="#000" stroke-width="1.2" stroke-dasharray="1 3"'
        else:
            color, dashes = STYLES[names.index(name) % len(STYLES)]
            stroke = f'stroke="{color}" stroke-width="1.6"' + (f' stroke-dasharray="{dashes}"' if dashes else "")
        line = f'<polyline points="{_path(points, most)}" {stroke} class="l"/>' if points else ""
        (drawn.append if name == "paceline" else lambda text: drawn.insert(0, text))(line)
        down = TOP + 12 + number * 27
        x = WIDTH - RIGHT + 16
        weight = ' font-weight="bold"' if name == "paceline" else ""
        keys.append(f'<path d="M{x} {down - 4}h26" {stroke} class="l"/><text x="{x + 33}" y="{down}"{weight}>{escape(name)}</text>')  # fmt: skip
        keys.append(f'<text x="{x + 33}" y="{down + 12}" class="r">{escape(remark)}</text>')
    style = (
        "text{font:12px sans-serif;fill:#222}.t{font-size:14px;font-weight:bold}.y{text-anchor:end}.x{text-anchor:middle}"
        ".r{font-size:10px;fill:#666}.g{stroke:#ddd;fill:none}.l{fill:none;stroke-linejoin:round}"
    )
    body = "\n".join([*parts, *filter(None, drawn), *keys])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
        f' aria-label="{escape(title)}">\n<style>{style}</style>\n<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>\n{body}\n</svg>\n'
    )
