"""What the demo says at its end: a table, the same picture drawn in the terminal, and a verdict."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from paceline.demo.batch import Half

TERMINAL_COLOURS = ("red", "green")
PLOT_HEIGHT = 22


def table(halves: tuple[Half, Half]) -> Table:
    """Both halves side by side."""
    shown = Table(title="the same batch, twice", title_justify="left", title_style="bold")
    shown.add_column("")
    for half, colour in zip(halves, TERMINAL_COLOURS, strict=True):
        shown.add_column(half.title, justify="right", style=colour)
    rows = {
        "answered": [f"{half.done:,} of {half.requests:,}" for half in halves],
        "lost (gave up)": [f"{half.lost:,}" for half in halves],
        "not finished": [f"{unfinished(half):,}" for half in halves],
        "refused (429)": [f"{half.refused:,}" for half in halves],
        "HTTP attempts": [f"{half.attempts:,}" for half in halves],
        "seconds": [
            f"stopped after {half.elapsed_s:.0f} s" if half.stopped else f"{half.elapsed_s:.1f} s" for half in halves
        ],
        "share of the ideal speed": ["-" if half.speed is None else f"{half.speed:.3f}" for half in halves],
        "seconds a request, p50 / p99": [_spans(half) for half in halves],
    }
    if any(half.errors for half in halves):
        rows["other errors"] = [", ".join(f"{n:,} {kind}" for kind, n in half.errors.items()) or "0" for half in halves]
    for name, cells in rows.items():
        shown.add_row(name, *cells)
    return shown


def unfinished(half: Half) -> int:
    """How many requests had no end of any kind when the half was over."""
    return half.requests - half.done - half.lost - sum(half.errors.values())


def _spans(half: Half) -> str:
    median, most = half.span_s(0.5), half.span_s(0.99)
    return "-" if median is None or most is None else f"{median:.1f} / {most:.1f}"


def plot(halves: tuple[Half, Half], rate: float, console: Console) -> Text:
    """Admitted and refused per second as characters."""
    import plotext

    figure = plotext.figure
    figure.clear()
    figure.plot_size(min(console.width, 100), PLOT_HEIGHT)
    figure.subplots(2, 1)
    headings = (f"admitted per second (allowed: {rate:g}; the opening burst is cut off)", "refused per second (429)")
    for column, heading in enumerate(headings):
        panel = figure.subplot(column + 1, 1)
        panel.theme("colorless").title(heading)
        heights = [[counts[column] for counts in half.timeline()] for half in halves]
        top = 3 * round(rate) if column == 0 else max(max(map(max, filter(None, heights)), default=0), 1)
        for half, line, colour in zip(halves, heights, TERMINAL_COLOURS, strict=True):
            marker = plotext.marker("braille", colour)
            seconds = [second + 0.5 for second in range(len(line))]
            signal = panel.signal(seconds, [min(height, top) for height in line], marker=marker)
            panel.draw(signal.lines().label(half.title) if column else signal.lines())
        panel.ruler("y").lim(0, top)
        panel.ruler("y").ticks([0, top // 3, 2 * top // 3, top])
        panel.ruler("x").lim(0, max(map(len, heights)))
        panel.ruler("x").ticks(list(range(0, max(map(len, heights)) + 1, 5)))
        panel.legend(x=figure.size()[0] - 30)
    return Text.from_ansi(figure.build().string())


def verdict(paced: Half) -> list[str]:
    """Why the paced half is not as promised; empty when it is."""
    faults = []
    if paced.refused:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in paced.tally["refused"].items())
        faults.append(
            f"the server refused {paced.refused:,} attempts of the paced half ({kinds}): a busy machine delays the first "
            "requests, and the headroom of this short demo absorbs no more than a quarter of a second of that"
        )
    if paced.done < paced.requests:
        faults.append(f"{paced.requests - paced.done:,} requests of the paced half were not answered")
    return faults
