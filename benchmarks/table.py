"""The rows of the table, and three ways to print them: rich, plain, Markdown."""

from __future__ import annotations

import os
import platform
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

COLUMNS = ("what", "paceline", "goal", "peers")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        what: What was measured.
        ours: paceline's figure, with its unit.
        goal: What was promised; empty for none.
        met: Whether the goal was met; ``None`` without one.
        peers: The others' figures.
    """

    what: str
    ours: str
    goal: str = ""
    met: bool | None = None
    peers: str = ""

    def cells(self) -> tuple[str, str, str, str]:
        """The text of the four columns."""
        mark = "" if self.met is None else (" (met)" if self.met else " (MISSED)")
        return self.what, self.ours, self.goal + mark, self.peers


def spread(values: Sequence[float], unit: str, digits: int = 1) -> str:
    """The median, with the least and the most: they show how noisy the machine was."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:,.{digits}f} {unit} ({low:,.{digits}f} to {high:,.{digits}f})"


def below(what: str, values: Sequence[float], unit: str, most: float, peers: str = "", *, digits: int = 1) -> Row:
    """A row whose median should be at most ``most``."""
    met = statistics.median(values) <= most
    return Row(what, spread(values, unit, digits), f"<= {most:g} {unit}", met, peers)


def machine() -> str:
    """Where and when this was measured."""
    load = f", load {os.getloadavg()[0]:.1f} at the start" if hasattr(os, "getloadavg") else ""
    names = ("paceline", "aiolimiter", "limits", "async-batch-llm", "httpx2", "openai")
    versions = ", ".join(f"{name} {_version(name)}" for name in names)
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} CPUs ({platform.machine()}){load}, "
        f"Python {platform.python_version()}, {versions}"
    )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def show(rows: Sequence[Row], *, markdown: bool = False) -> None:
    """Print the table."""
    if markdown:
        print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
        for row in rows:
            print(f"| {' | '.join(row.cells())} |".replace("; ", "<br>"))
        return
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        for row in rows:
            print(" | ".join(row.cells()))
        return
    table = Table(*COLUMNS, show_lines=True)
    for row in rows:
        colour = {None: "", True: "green", False: "bold red"}[row.met]
        what, ours, goal, peers = row.cells()
        table.add_row(what, f"[{colour}]{ours}[/]" if colour else ours, goal, peers)
    Console(width=None if sys.stdout.isatty() else 160).print(table)
