"""The demo from start to end: both halves, one after the other, and their comparison.

While they run, a terminal shows a panel of each; elsewhere there are plain lines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final

import openai
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from paceline.demo.batch import MODEL, RETRY_PAUSES_S, DemoBatch, Half, ask, plain, run_half
from paceline.demo.picture import draw
from paceline.emulator import Emulator
from paceline.limiter.limiter import Limiter

COLOURS = ("red", "green")
BARS = "▁▂▃▄▅▆▇█"
LINE_EVERY_S = 5.0
# The SDK gives up a connection after 5 s. On a busy machine, the paced half lost 5 of 2,300 requests to this.
TIMEOUT = openai.Timeout(600, connect=60)


def show(batch: DemoBatch, file: Path) -> int:
    """Run both halves, print the comparison, and draw the picture.

    Args:
        batch: The requests and the limits.
        file: The path of the picture.

    Returns:
        The exit code: 1 if the paced half has not kept its promises, 130 if it was interrupted.
    """
    console = Console(highlight=False)
    try:
        halves = _run(batch, console)
    except KeyboardInterrupt:
        console.print("stopped; nothing was written")
        return 130
    console.print(table(halves))
    pauses = ", ".join(f"{pause_s:g}" for pause_s in RETRY_PAUSES_S)
    console.print(
        f"SDK alone: openai's AsyncOpenAI with its own 2 retries (they honour retry-after), inside a loop that sleeps {pauses} s "
        f"after a RateLimitError, then gives up; stopped after {batch.cut_s:g} s. With paceline: limiter.attach(client), "
        f"no loop, headroom {batch.headroom_s:g} s. In both, the workers start one after another over "
        f"{batch.start_s:g} s. Refusals and speed are the server's count.",
        style="dim",
    )
    file.write_text(draw(halves, batch.requests_per_min / 60), "utf-8")
    console.print(f"written: {file}")
    faults = verdict(halves[1])
    for fault in faults:
        console.print(f"not as promised: {fault}", style="bold red")
    return 1 if faults else 0


def _run(batch: DemoBatch, console: Console) -> tuple[Half, Half]:
    console.print(
        f"{batch.requests:,} requests, {batch.workers:,} workers; an emulated provider on this machine allows "
        f"{batch.requests_per_min:,} requests and {batch.tokens_per_min:,} tokens a minute"
    )
    with Emulator({MODEL: batch.limits}, process=True, latency_s=batch.latency_s) as emulator:
        return asyncio.run(_halves(batch, emulator, console))


async def _halves(batch: DemoBatch, emulator: Emulator, console: Console) -> tuple[Half, Half]:
    """Both halves, one after the other; the screen shows them together."""
    first, second = Half("SDK alone", batch.requests), Half("with paceline", batch.requests)
    url = f"{emulator.base_url}/v1"
    screen = Screen(console, (first, second), batch.requests_per_min / 60)
    with screen.shown():
        async with openai.AsyncOpenAI(api_key="none", base_url=url, timeout=TIMEOUT) as client:
            emulator.reset()
            await run_half(first, emulator, batch, plain(client), screen.tick, cut_s=batch.cut_s)
        async with openai.AsyncOpenAI(api_key="none", base_url=url, timeout=TIMEOUT) as client:
            limiter = Limiter({f"openai/{MODEL}": batch.limits}, headroom_s=batch.headroom_s)
            limiter.attach(client, provider="openai")
            emulator.reset()
            await run_half(second, emulator, batch, lambda prompt: ask(client, prompt), screen.tick)
    return first, second


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
        return Group(*(self._panel(half, colour) for half, colour in zip(self._halves, COLOURS, strict=True)))

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


def table(halves: tuple[Half, Half]) -> Table:
    """Both halves side by side."""
    shown = Table(title="the same batch, twice", title_justify="left", title_style="bold")
    shown.add_column("")
    for half, colour in zip(halves, COLOURS, strict=True):
        shown.add_column(half.title, justify="right", style=colour)
    for name, cell in _ROWS.items():
        if name != OTHER_ERRORS or any(half.errors for half in halves):
            shown.add_row(name, *map(cell, halves))
    return shown


def unfinished(half: Half) -> int:
    """Requests without any result when the half was over."""
    return half.requests - half.done - half.lost - sum(half.errors.values())


def _spans(half: Half) -> str:
    median, most = half.span_s(0.5), half.span_s(0.99)
    return "-" if median is None or most is None else f"{median:.1f} / {most:.1f}"


OTHER_ERRORS: Final = "other errors"

_ROWS: Final[Mapping[str, Callable[[Half], str]]] = {
    "answered": lambda half: f"{half.done:,} of {half.requests:,}",
    "lost (gave up)": lambda half: f"{half.lost:,}",
    "not finished": lambda half: f"{unfinished(half):,}",
    "refused (429)": lambda half: f"{half.refused:,}",
    "HTTP attempts": lambda half: f"{half.attempts:,}",
    "seconds": lambda half: f"stopped after {half.elapsed_s:.0f} s" if half.stopped else f"{half.elapsed_s:.1f} s",
    "share of the ideal speed": lambda half: "-" if half.speed is None else f"{half.speed:.3f}",
    "seconds a request, p50 / p99": _spans,
    OTHER_ERRORS: lambda half: ", ".join(f"{n:,} {kind}" for kind, n in half.errors.items()) or "0",
}
"""The rows of the table: the name of each, and its cell for a half."""


def verdict(paced: Half) -> list[str]:
    """The promises that the paced half has not kept."""
    faults = []
    if paced.refused:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in paced.tally["refused"].items())
        faults.append(
            f"the server refused {paced.refused:,} attempts of the paced half ({kinds}): a busy machine delays the first "
            "requests, and the headroom of this short demo absorbs at most a second of delay"
        )
    if paced.done < paced.requests:
        faults.append(f"{paced.requests - paced.done:,} requests of the paced half were not answered")
    return faults
