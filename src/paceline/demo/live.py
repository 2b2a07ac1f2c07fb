"""The display while the demo runs: two panels on a terminal, plain lines elsewhere."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from paceline.demo.batch import Half

BARS = "▁▂▃▄▅▆▇█"
LINE_EVERY_S = 5.0


def sparkline(values: list[int], top: float, width: int) -> str:
    """The last ``width`` values as bars; a value of ``top`` or more is a full bar."""
    shown = values[-width:]
    steps = len(BARS) - 1
    return "".join(" " if not v else BARS[min(round(v / top * steps), steps)] for v in shown)


class Screen:
    """Shows both halves.

    Args:
        console: The output; without a terminal, plain lines are written.
        halves: Both halves, in the order in which they run.
        rate: The allowed rate, in requests per second: a full upper bar is four times it.
    """

    def __init__(self, console: Console, halves: tuple[Half, Half], rate: float) -> None:
        self._console, self._halves, self._rate = console, halves, rate
        self._live = Live(self._picture(), console=console, refresh_per_second=4) if console.is_terminal else None
        self._printed_s = dict.fromkeys((half.title for half in halves), 0.0)

    def tick(self, half: Half) -> None:
        """Show the state of ``half``."""
        if self._live is not None:
            self._live.update(self._picture())
        elif half.elapsed_s - self._printed_s[half.title] >= LINE_EVERY_S or half.over:
            self._printed_s[half.title] = half.elapsed_s
            self._console.print(
                f"{half.title:<15} {half.elapsed_s:4.0f} s  answered {half.done:>5,} of {half.requests:,}"
                f"  refused {half.refused:>6,}  lost {half.lost:,}",
                highlight=False,
            )

    def _picture(self) -> Group:
        return Group(*(self._panel(half, colour) for half, colour in zip(self._halves, ("red", "green"), strict=True)))

    def _panel(self, half: Half, colour: str) -> Panel:
        seconds = half.timeline()
        seconds = seconds if half.over else seconds[:-1]  # the current second is not complete
        admitted, refused = ([row[column] for row in seconds] for column in (0, 1))
        width = max(min(self._console.width - 40, 80), 10)
        grid = Table.grid(padding=(0, 2))
        grid.add_row("admitted/s", Text(sparkline(admitted, 4 * self._rate, width), "cyan"), _now(admitted, half))
        grid.add_row("refused/s", Text(sparkline(refused, 400, width), "red"), _now(refused, half))
        grid.add_row(
            "answered",
            ProgressBar(half.requests, half.done, width=width, complete_style=colour, finished_style=colour),
            f"{half.done:,} of {half.requests:,}",
        )
        lost = f", {half.lost:,} lost" if half.lost else ""
        state = f"{half.elapsed_s:.0f} s, {half.refused:,} refused{lost}" if half.elapsed_s else "not started"
        return Panel(
            grid, title=half.title, title_align="left", subtitle=state, subtitle_align="right", border_style=colour
        )

    def shown(self) -> AbstractContextManager[object]:
        """The display, while the block runs."""
        return self._live or nullcontext()


def _now(values: list[int], half: Half) -> str:
    if half.over or not values:
        return f"most {max(values):,}" if values else ""
    return f"now {values[-1]:,}"
