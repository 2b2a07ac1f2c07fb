"""The picture at the end: what was admitted and refused, both halves over the same time axis."""

from __future__ import annotations

from itertools import accumulate

from paceline.demo.batch import Half
from paceline.planner.picture import Line, Panel, picture, stairs


def draw(halves: tuple[Half, Half], rate: float) -> str:
    """The picture as SVG.

    Args:
        halves: The half without paceline, and the one with it.
        rate: The allowed rate, in requests per second: the first minute's amount goes at once.
    """
    both = halves[::-1]  # the first colour is paceline's, as on the pages
    names = [f"{half.title}: {_outcome(half)}" for half in both]
    end = max(*(len(half.timeline()) for half in both), 1)
    admitted = [list(enumerate(accumulate((n for n, _ in half.timeline()), initial=0))) for half in both]
    refused = [stairs([n for _, n in half.timeline()]) for half in both]
    allowed = (f"allowed: {60 * rate:,.0f} at once, then {rate:g} a second", [(0, 60 * rate), (end, (60 + end) * rate)])
    most = 1.1 * max(halves[1].requests, *(line[-1][1] for line in admitted))
    lines: list[Line] = [*zip(names, admitted, strict=True), allowed]
    most_refused = max([n for line in refused for _, n in line], default=0)
    return picture(
        title(halves),
        [
            Panel("admitted since the start (seconds)", lines, end, most),
            Panel("refused per second (429; seconds)", list(zip(names, refused, strict=True)), end, max(most_refused, 5)),
        ],
    )  # fmt: skip


def title(halves: tuple[Half, Half]) -> str:
    """The content of the picture in one sentence."""
    plain, paced = halves
    refused = f"{paced.refused:,}" if paced.refused else "none"
    return f"The same {paced.requests:,} requests: {plain.refused:,} refusals without paceline, {refused} with it"


def _outcome(half: Half) -> str:
    if half.stopped:
        return f"stopped after {half.elapsed_s:.0f} s, {half.done:,} answered"
    if half.done == half.requests:
        return f"all {half.done:,} answered in {half.elapsed_s:.0f} s"
    return f"{half.done:,} answered"
