"""What a person sees while a batch runs: a live line on a terminal, a plain one every ten seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Collection
from typing import Any, Protocol

from paceline.batch.check import Plan
from paceline.batch.summary import Tally, in_time, since

PLAIN_EVERY_S = 10.0
LIVE_EVERY_S = 0.5
_RATE_OVER = 60  # samples, one for each update
_KNOWN_AFTER = 50  # answers after which their true cost says more than the estimate


class View(Protocol):
    """Shows how far a run is."""

    every_s: float

    def say(self, text: str) -> None:
        """A line that stays."""

    def show(self, text: str, share: float) -> None:
        """How far it is; ``share`` from 0 to 1."""

    def close(self) -> None:
        """It is over."""


class Quiet:
    """Shows nothing."""

    every_s = PLAIN_EVERY_S

    def say(self, text: str) -> None:
        """Nothing."""

    def show(self, text: str, share: float) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Plain(Quiet):
    """Writes lines to standard error."""

    def say(self, text: str) -> None:
        """A line."""
        print(text, file=sys.stderr, flush=True)  # noqa: T201

    def show(self, text: str, share: float) -> None:
        """A line."""
        self.say(f"{share:6.1%}  {text}")


class Live:
    """A bar on the terminal with a line below it; lines that stay scroll above."""

    every_s = LIVE_EVERY_S

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live as Display

        self._console = Console(stderr=True)
        self._display = Display(console=self._console, transient=True, auto_refresh=False)

    def say(self, text: str) -> None:
        """A line above the bar."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def show(self, text: str, share: float) -> None:
        """Move the bar."""
        from rich.console import Group
        from rich.padding import Padding
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        self._display.start()
        bar = Padding(ProgressBar(total=1.0, completed=share, width=60), 0)
        self._display.update(Group(bar, Text(f"{share:.1%}  {text}")), refresh=True)

    def close(self) -> None:
        """Take the bar away."""
        self._display.stop()


def view(*, quiet: bool) -> View:
    """The view that fits this terminal, or the lack of one."""
    return Quiet() if quiet else Live() if sys.stderr.isatty() else Plain()


class Meter:
    """Turns a run's state into one line: how far, how fast, what binds, how long still."""

    def __init__(self, plan: Plan, tally: Tally, workers: int) -> None:
        self._plan, self._tally, self._workers = plan, tally, workers
        self._samples: deque[tuple[float, int]] = deque([(time.monotonic(), 0)], maxlen=_RATE_OVER)
        self._shared: set[str] = set()  # pools from which others spend, too

    def line(self, pools: dict[str, Any], refused: int) -> tuple[str, float]:
        """The line, and the share that is done.

        Args:
            pools: ``limiter.status()["pools"]``.
            refused: How many answers were a 429.
        """
        tally, now_s = self._tally, time.monotonic()
        pools = since(tally.start, pools)
        self._shared.update(name for name, pool in pools.items() if pool.get("store", {}).get("peers", 1) > 1)
        done = tally.ok + tally.failed
        self._samples.append((now_s, done))
        then_s, before = self._samples[0]
        rate = (done - before) / (now_s - then_s) if now_s > then_s else 0.0
        held_by, waits = binding(pools, tally.left, self._workers)
        wait_s = eta_s(self._plan, pools, tally.left, self._shared)
        if not waits and rate:
            wait_s = max(wait_s, tally.left / rate)
        tokens = tally.input_tokens + tally.output_tokens
        parts = [
            f"{done + tally.skipped:,}/{tally.requests:,}",
            f"{rate * 60:,.0f} requests/min",
            f"{refused:,} x 429",
            f"{tokens:,} tokens",
            f"limited by {held_by}",
            f"{in_time(wait_s)} left" if tally.left else "done",
        ]
        if tally.failed:
            parts.insert(1, f"{tally.failed:,} failed")
        return "  ".join(parts), (done + tally.skipped) / max(tally.requests, 1)


def binding(pools: dict[str, Any], left: int, workers: int) -> tuple[str, bool]:
    """What limits the speed now, in words, and whether anybody waits for it."""
    name, pool = max(pools.items(), key=lambda item: item[1]["waiting"], default=("", {"waiting": 0}))
    if pool["waiting"] and pool["binds"]:
        return (f"{name}: {pool['binds']}" if len(pools) > 1 else str(pool["binds"])), True
    if left > workers:
        return f"{workers:,} workers", False
    return "the answers", False


def eta_s(plan: Plan, pools: dict[str, Any], left: int, shared: Collection[str] = ()) -> float:
    """The seconds in which the limits let through what is left, after a cool-down if there is one; pools run side by side.

    Of ``shared`` ones nobody knows what our requests cost: what others spend is in the same books.
    """
    longest = 0.0
    for name, share in plan.shares.items():
        if name not in pools or not share.requests:
            continue
        longest = max(longest, pools[name]["cool_down_s"])
        requests = left * share.requests / plan.requests
        granted = 0 if name in shared else pools[name]["counts"].get("granted", 0)
        for quota in pools[name]["quotas"]:
            if not quota["period_s"]:
                continue
            estimate = share.cost.get(quota["unit"], 0.0) / share.requests
            each = quota["spent"] / granted if granted >= _KNOWN_AFTER else estimate
            missing = requests * each - max(quota["remaining"], 0.0)
            longest = max(longest, missing * quota["period_s"] / quota["limit"])
    return longest
