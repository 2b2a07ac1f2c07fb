"""What a run says before its first request and on its way: what is left to do, the limits, the speed, what binds, the time left.

The progress is a bar on a terminal and in a notebook, and a line every ten seconds elsewhere.
"""

from __future__ import annotations

import math
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from html import escape
from importlib import import_module
from itertools import groupby
from types import MappingProxyType
from typing import Any, cast

from rich.console import Console, Group
from rich.live import Live as Display
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.text import Text

from paceline.batch.check import SHOWN, InputPlan
from paceline.batch.ideal import Served
from paceline.batch.results import Recovered
from paceline.batch.summary import RunTally, in_time
from paceline.core.hints import counted
from paceline.core.quota import REQUESTS, USD, brief
from paceline.core.results import COOL_DOWN, PacelineError, SourceKind
from paceline.limiter.limiter import Limiter
from paceline.planner.forecast import eta
from paceline.stores import Store

_RATE_OVER = 60  # samples, one for each update
_LEFT_MIN_S = 0.1
FORECAST = 5_000
"""The most requests of a pool that are forecast before the start, in less than 0.2 s."""

_UNSEEN, _NONE = Served(), cast("Mapping[str, Served]", MappingProxyType({}))
_KNOWN_AFTER = 50  # answers after which their true cost is a better estimate of the rest than the input


class ProgressView:
    """Shows the progress of a run. This one shows nothing."""

    every_s = 10.0

    def say(self, text: str) -> None:
        """Print a line that stays."""

    def show(self, text: str, share: float) -> None:
        """Show the progress; ``share`` is from 0 to 1."""

    def close(self) -> None:
        """End the display."""


class LineView(ProgressView):
    """Writes lines to standard error."""

    def say(self, text: str) -> None:
        """Print a line; not on a terminal that was closed."""
        with suppress(OSError):
            print(text, file=sys.stderr, flush=True)  # noqa: T201

    def show(self, text: str, share: float) -> None:
        """Print a line."""
        self.say(f"{share:6.1%}  {text}")


class Live(ProgressView):
    """A bar on the terminal with a line below it; lines that stay scroll above it."""

    every_s = 0.5

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bar, self._text = ProgressBar(total=1.0, width=60), Text()
        shown = Group(Padding(self._bar, 0), self._text)
        self._display = Display(shown, console=self._console, transient=True, auto_refresh=False)

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        with suppress(OSError):
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def show(self, text: str, share: float) -> None:
        """Update the bar."""
        self._bar.update(share)
        self._text.plain = f"{share:.1%}  {text}"
        with suppress(OSError):
            self._display.start()
            self._display.refresh()

    def close(self) -> None:
        """Remove the bar."""
        with suppress(OSError):
            self._display.stop()


class InNotebook(ProgressView):
    """A bar with a line below it in the output of a notebook's cell; lines that stay are standard output: notebooks show errors in red.

    Args:
        display: IPython's function of this name.
    """

    every_s = 0.5

    def __init__(self, display: Callable[..., Any]) -> None:
        self._display, self._shown = display, cast("Any", None)

    def say(self, text: str) -> None:
        """Print a line."""
        print(text, flush=True)  # noqa: T201

    def show(self, text: str, share: float) -> None:
        """Update the bar."""
        line = f"{share:.1%}  {text}"
        bar = f'<progress value="{share:.4f}" max="1" style="width: 30em"></progress><pre>{escape(line)}</pre>'
        self._put({"text/plain": line, "text/html": bar})

    def close(self) -> None:
        """Remove the bar."""
        if self._shown is not None:
            self._put({"text/plain": "", "text/html": ""})

    def _put(self, shown: dict[str, str]) -> None:
        if self._shown is None:
            self._shown = self._display(shown, raw=True, display_id=True)
        else:
            self._shown.update(shown, raw=True)


def view(*, quiet: bool) -> ProgressView:
    """The view for standard error, or for the cell of a notebook."""
    if quiet:
        return ProgressView()
    ipython = sys.modules.get("IPython")
    if hasattr(ipython and ipython.get_ipython(), "kernel"):
        return InNotebook(import_module("IPython.display").display)
    return Live() if sys.stderr.isatty() else LineView()


class ProgressLine:
    """The state of a run as one line: progress, speed, the limit that binds, and the time left.

    Attributes:
        per_min: The speed at the last line, in requests a minute.
        left_s: The time left then, in seconds; ``None``: unknown.
    """

    def __init__(self, plan: InputPlan, tally: RunTally, workers: int) -> None:
        self.per_min, self.left_s = 0.0, cast("float | None", None)
        self._plan, self._tally, self._workers = plan, tally, workers
        self._started_s = time.monotonic()
        self._samples: deque[tuple[float, int]] = deque([(self._started_s, 0)], maxlen=_RATE_OVER)

    def line(self, pools: dict[str, Any], unwritten: str = "", lacking: str = "") -> tuple[str, float]:
        """The line, and the share of the requests that is done.

        Args:
            pools: ``limiter.status()["pools"]``.
            unwritten: Why the output cannot be written, while sending is paused for it.
            lacking: What this machine lacks for more requests in flight.
        """
        tally, now_s = self._tally, time.monotonic()
        done = tally.ok + tally.failed
        self._samples.append((now_s, done))
        then_s, before = self._samples[0]
        rate = (done - before) / (now_s - then_s) if now_s > then_s else 0.0
        limit, waits = binding(pools, tally.left * self._plan.per_row, self._workers)
        limit = lacking if lacking and not waits else limit
        left_s = eta_s(self._plan, pools, tally.left, tally.ideal.served)
        # The provider may admit less than the limits. Where requests wait for a quota, the last minute may have been the
        # pause of a window, so that the faster of the two measured rates counts.
        # A restart that the provider states is known better than a speed that was measured before it.
        fastest = max(rate, done / max(now_s - self._started_s, 1e-9)) if waits else rate
        if fastest and not (waits and until_restart(pools)):
            left_s = max(left_s, tally.left / fastest, _LEFT_MIN_S)
        self.per_min, self.left_s = rate * 60, left_s or None
        parts = [
            f"{done + tally.before:,}/{tally.about}{tally.requests:,}",
            *([f"{failed:,} failed"] if (failed := tally.failed + tally.final.total()) else []),
            f"{rate * 60:,.0f} requests/min",
            f"{tally.sent.attempts.refused:,} x 429",
            f"{tally.bill.input_tokens + tally.bill.output_tokens:,} tokens",
            f"paused: {unwritten}" if unwritten else f"limited by {limit}",
        ]
        if not unwritten:
            parts.append((f"{in_time(left_s)} left" if left_s else "time left unknown") if tally.left else "done")
        return "  ".join(parts), (done + tally.before) / max(tally.requests, 1)


def binding(pools: dict[str, Any], left: float, workers: int) -> tuple[str, bool]:
    """What limits the speed now, in words, and whether requests wait for a quota."""
    name, pool = max(pools.items(), key=lambda item: item[1]["waiting"], default=("", {"waiting": 0}))
    if pool["waiting"] and pool["binds"]:
        binds = str(pool["binds"])
        if binds == COOL_DOWN:  # after a refusal: the quota that it was about, if one is used up
            quotas = [one for one in cast("Any", pool["quotas"]) if one["period_s"] and one["unit"] != USD]
            used_up = [one for one in quotas if one["remaining"] < 1]
            binds = max(used_up, key=lambda one: one["period_s"], default={"quota": binds})["quota"]
        binds = brief(binds)
        return (f"{name}: {binds}" if len(pools) > 1 else binds), True
    return (f"{workers:,} workers" if left > workers else "the answers"), False


def until_restart(pools: dict[str, Any]) -> bool:
    """Whether requests wait for a quota whose restart the provider states."""
    return any(
        quota.get("resets_at") and quota["quota"] == pool["binds"]
        for pool in pools.values()
        if pool["waiting"]
        for quota in pool["quotas"]
    )


def eta_s(plan: InputPlan, pools: dict[str, Any], left: int, served: Mapping[str, Served] = _NONE) -> float:
    """The seconds in which the limits admit the requests that are left, after a cool-down if there is one.

    Pools are used side by side, and those that several models pass by the requests of all of them. ``served``: the run's
    answers so far, which show what a request costs.
    """
    amounts = defaultdict[str, defaultdict[str, float]](lambda: defaultdict(float))
    for name, share in plan.shares.items():
        if not share.requests:
            continue
        seen, requests = served.get(name, _UNSEEN), left * share.requests / plan.requests
        is_known = seen.answers >= _KNOWN_AFTER
        cost, of = (seen.charged, seen.answers) if is_known else (share.cost, share.requests)
        for pool in (name, *share.passes):
            needed = amounts[pool]
            for unit, amount in cost.items():
                needed[unit] += requests * amount / of
    longest = 0.0
    for name in amounts.keys() & pools.keys():
        longest = max(longest, pools[name]["cool_down_s"])
        for quota in (quota for quota in pools[name]["quotas"] if quota["period_s"]):
            missing = amounts[name][quota["unit"]] - max(quota["remaining"], 0.0)
            if quota.get("resets_at") and missing > 0:
                needs_s = quota["reset_s"] + (math.ceil(missing / quota["limit"]) - 1) * quota["period_s"]
            else:
                needs_s = missing * quota["period_s"] / quota["limit"]
            longest = max(longest, needs_s)
    return longest


def forecast_s(limiter: Limiter, plan: InputPlan, left: int) -> float:
    """The same before the start, by a forecast of the first ``FORECAST`` requests of each pool.

    It knows what a closed formula does not: buckets that open slowly, slots that pools share, pauses, all at once. Of units that
    are charged as the answer is produced the amounts are unknown before the first answers, and left out.
    """
    shares = {}
    for name, share in plan.shares.items():
        after = limiter.pacer.pools.scheduler(name).pool.ledger.charged_after if share.requests else ()
        known = {unit: amount for unit, amount in share.cost.items() if unit not in after}
        shares[name] = replace(share, cost=known)
    needs_s = eta_s(replace(plan, shares=shares), limiter.status()["pools"], left)
    work = {
        name: [{unit: amount / share.requests for unit, amount in share.cost.items() if unit != REQUESTS}]
        * min(round(left * share.requests / plan.requests), FORECAST)
        for name, share in shares.items()
        if share.requests
    }
    with suppress(PacelineError):  # the run itself says what is wrong
        forecast = eta(limiter, work)
        if forecast.total_s < math.inf:
            needs_s = max(needs_s, forecast.total_s)
    return needs_s


def opening(plan: InputPlan, recovered: Recovered, tally: RunTally) -> Iterator[str]:
    """The lines before the first request: what an earlier run has left, and what is left to do."""
    if recovered.torn:
        yield "the last line of the output was incomplete, and has been cut"
    if recovered.added:
        yield f"{counted(recovered.added, 'answer')} that the earlier run could not write: now in the output"
    if recovered.doubtful:
        yield (
            f"warning: {recovered.doubtful:,} lines of the output have status 200 and no result, or are of requests whose result was"
            " not read: --repair moves them to another file and sends their requests again"
        )
    if recovered.corrupt:
        yield f"corrupt lines moved to {recovered.aside}: {recovered.corrupt:,}; their requests are sent again"
    if recovered.unknown:
        yield f"warning: {recovered.unknown:,} answers in the output have ids that the input does not have; they stay"
    yield _to_do(plan, recovered, tally)
    if 0 < tally.skipped == tally.requests and not tally.about:
        yield "nothing is left to send: every id has its answer. If you changed a request, --restart sends all again"


def _to_do(plan: InputPlan, recovered: Recovered, tally: RunTally) -> str:
    """How many requests there are, and which of them are sent."""
    before = f", {tally.skipped:,} answered before" if tally.skipped else ""
    again = f", {recovered.failed:,} sent again because they failed before" if recovered.failed else ""
    again += f", {recovered.final.total():,} with a final error" if recovered.final else ""
    again += f", {plan.refused:,} that cannot be sent" if plan.refused else ""
    later = ", each checked when it is sent" if tally.about else ""
    return f"{tally.about}{counted(tally.requests, 'request')}{before}{again}{later}"


def limits_now(plan: InputPlan, tally: RunTally, limiter: Limiter, store: Store | None) -> Iterator[str]:
    """The limits, and how long it takes under them."""
    yield f"state: {store.url if store else 'in this process only'}"
    known = {name: tally.start.pools[name]["quotas"] for name in plan.shares}
    for name in list(known)[:SHOWN]:
        if quotas := known[name]:  # a warning has named the others
            yield f"{name}: {_limits(quotas)}"
    if not all(known.values()):
        return  # how long it takes is not known before an answer states a limit, or one is measured
    needs_s = forecast_s(limiter, plan, tally.left)
    if needs_s >= 1:
        yield f"{tally.about}{tally.left:,} to send: about {in_time(needs_s)} under these limits"


def _limits(quotas: Sequence[Mapping[str, Any]]) -> str:
    """Quotas and their sources, grouped by source."""
    parts = []
    for source, group in groupby(quotas, lambda quota: quota["source"]):
        shown = "learned from answers" if source == SourceKind.LEARNED else source
        parts.append(f"{', '.join(quota['quota'] for quota in group)} ({shown})")
    return ", ".join(parts)
