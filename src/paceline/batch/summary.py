"""The summary of a run: counts, and quantiles of the waits in bounded memory."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from paceline.batch import cost
from paceline.batch.acceptance import NAMES, UNREAD, UNSTABLE
from paceline.batch.caller import Caller
from paceline.batch.cost import Bill, dollars
from paceline.batch.ideal import IdealSpeed
from paceline.batch.requests import INVALID_ROW
from paceline.core.hints import counted
from paceline.core.quota import USD
from paceline.responses.finish import State

_STEP = math.log(1.05)  # each class of the histogram is 5 % wider than the one before
_LEAST_S = 0.001

ERRORS_SHOWN: Final = 10
"""How many error codes a summary names."""

ERRORS_MAX: Final = 100
"""How many error codes are counted apart."""


FIRST: Final = 20
"""After so many requests a run says that most of its answers are cut off: early, and no chance."""


class Quantiles:
    """Quantiles of durations, within 5 %, in little memory: 160 days have 480 classes."""

    def __init__(self) -> None:
        self._counts = Counter[int]()

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self._counts[0 if seconds < _LEAST_S else 1 + int(math.log(seconds / _LEAST_S) / _STEP)] += 1

    def at(self, share: float) -> float:
        """The duration, in seconds, that ``share`` of all stay below; 0 below a millisecond."""
        wanted, seen = math.ceil(share * self._counts.total()), 0
        for place, count in sorted(self._counts.items()):
            seen += count
            if seen >= wanted:
                return round(_LEAST_S * math.exp(place * _STEP), 4) if place else 0.0
        return 0.0


@dataclass(frozen=True, slots=True)
class RunStart:
    """What there was before the first request: ``limiter.status()["pools"]``, and the clocks of the system and of the process."""

    pools: dict[str, Any] = field(default_factory=dict)
    at_s: float = field(default_factory=time.monotonic)
    cpu_s: float = field(default_factory=time.process_time)


@dataclass(slots=True)
class Calls:
    """HTTP calls: how many were made, and how many of them were refused with a 429."""

    made: int = 0
    refused: int = 0


@dataclass(slots=True)
class Sent:
    """What a run has sent.

    Attributes:
        attempts: The calls that have sent requests one by one.
        waits: The time in the queue, for each of these requests.
        calls: The calls of Batch APIs.
        batches: How many batches it has created.
    """

    attempts: Calls = field(default_factory=Calls)
    waits: Quantiles = field(default_factory=Quantiles)
    calls: Calls = field(default_factory=Calls)
    batches: int = 0


@dataclass(slots=True)
class RunTally:
    """The counts of a run.

    Attributes:
        requests: All requests of the input; estimated by its size while ``about`` is not empty.
        skipped: Those answered by an earlier run.
        ok: Those answered by this run.
        failed: Those that failed in this run; ``errors`` counts them by code, ``ended`` those that the same command leaves.
        sent: What was sent.
        start: What there was before the first one.
        bill: Counts what answers used and cost.
        ideal: Counts what the limits have admitted for them.
        final: Those that an earlier run has left as failed, by code; the ones that may be answered as ``UNREAD``.
    """

    requests: int = 0
    skipped: int = 0
    ok: int = 0
    failed: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    sent: Sent = field(default_factory=Sent)
    start: RunStart = field(default_factory=RunStart)
    about: str = ""
    bill: Bill = field(default_factory=lambda: Bill({}))
    ideal: IdealSpeed = field(default_factory=IdealSpeed)
    final: Counter[str] = field(default_factory=Counter)

    @property
    def left(self) -> int:
        """The requests that are neither answered nor failed."""
        return self.requests - self.before - self.ok - self.failed

    @property
    def before(self) -> int:
        """Those that an earlier run has done with."""
        return self.skipped + self.final.total()

    @property
    def every_error(self) -> dict[str, int]:
        """The failed requests of this run and of earlier ones by code, the most frequent ones."""
        # Copied in one step: a page and a note are made in other threads.
        return dict((Counter(self.errors) + Counter(self.final)).most_common(ERRORS_SHOWN))

    def count(self, code: str, *, again: bool) -> None:
        """Count a request that is done, by the code of its error; ``again``: whether the same command would send it again."""
        if code:
            self.fail(code, again=again)
        else:
            self.ok += 1

    @property
    def cuts(self) -> bool:
        """Whether most of the first requests have ended in an answer that is cut off."""
        return self.ok + self.failed == FIRST and self.errors[State.CUT_OFF] * 2 > FIRST

    def fail(self, code: str, *, again: bool = True) -> None:
        """Count a failed request."""
        self.failed += 1
        code = code if code in self.errors or len(self.errors) < ERRORS_MAX else "other"
        self.errors[code] += 1
        self.ended[code] += not again

    def recount(self, answered: int, errors: Counter[str], ended: Counter[str]) -> int:
        """Count what the output has by now; return how many requests it lacks that were counted before."""
        before = self.left
        errors["bad_line"] += self.errors["bad_line"]  # these are in no output
        self.final &= errors  # of an earlier run
        errors, ended = errors - self.final, ended - self.final
        self.skipped = min(self.skipped, answered)
        self.ok, self.failed, self.errors = answered - self.skipped, errors.total(), errors
        self.ended = ended
        return self.left - before

    def remedies(self, report: Mapping[str, Any], caller: Caller) -> Iterator[str]:
        """What sends the requests without an answer again, and what that costs.

        Args:
            report: The summary.
            caller: How the user has called the run.
        """
        giving, same = caller.giving, f"the same {caller.noun} again"
        if self.left:
            yield f"{same} sends the rest"
        rows, ended = self.errors[INVALID_ROW], self.ended + self.final
        unread, stays = ended[UNREAD], {name: ended[name] for name in NAMES if ended[name]}
        again = self.failed - rows - self.ended.total()
        if again:
            twice = sum(self.errors[name] - self.ended[name] for name in UNSTABLE)
            usd = report.get("usd", 0.0) / max(self.bill.answers, 1) * (again + twice)
            about = "up to" if twice else "about"
            cost = f", for {about} {dollars(usd)} USD" if usd and not report.get("unpriced") else ""
            yield f"{same} sends the {counted(again, 'failed request')} once more{cost}"
        if self.errors["paceline_budget"]:
            yield from _used_up(report["pools"])
        if rows:
            yield f"rows that cannot be sent ({INVALID_ROW}): {rows:,}; correct them, and {same} sends them"
        if cut := stays.pop(State.CUT_OFF.value, 0):
            way = giving("cut_off", "raise")
            yield f"answers that are cut off: {cut:,}; {way} asks for them again with a larger maximum of tokens"
        if stays:
            told = ", ".join(f"{count:,} {name}" for name, count in stays.items())
            way = giving("again", ",".join(stays))
            yield f"not sent again, because they are paid for and most likely end the same: {told}; {way} sends them"
        if unread:
            way = giving("repair", value=True)
            yield f"{counted(unread, 'request')} may be answered, but the result was not read: {way} sends them again"

    def report(
        self,
        pools: dict[str, Any],
        *,
        calls: Calls,
        interrupted: bool,
        store: str | None = None,
        output: str | None = None,
    ) -> dict[str, Any]:
        """The summary as plain JSON values; durations in seconds.

        Args:
            pools: ``limiter.status()["pools"]``.
            calls: The calls of :attr:`sent` by which it has ended: one by one, or in batches.
            interrupted: Whether a signal stopped the run.
            store: Where the quotas are kept; ``None``: in this process.
            output: The path of the answers; ``None``: they are nowhere after the run.
        """
        share = self.ideal.share
        return {
            "requests": self.requests,
            "ok": self.ok,
            "failed": self.failed + self.final.total(),
            "errors": self.every_error,
            "skipped": self.skipped,
            "refused": calls.refused,
            "attempts": calls.made,
            "seconds": round(time.monotonic() - self.start.at_s, 3),
            "cpu_us_per_request": round((time.process_time() - self.start.cpu_s) / max(self.ok + self.failed, 1) * 1e6),
            "ideal_share": None if share is None else round(share, 4),
            "wait_p50_s": self.sent.waits.at(0.5),
            "wait_p99_s": self.sent.waits.at(0.99),
            "input_tokens": self.bill.input_tokens,
            "output_tokens": self.bill.output_tokens,
            **self.bill.report(),
            "pools": since(self.start.pools, pools),
            "store": store,
            "output": output,
            "interrupted": interrupted,
        }


def _used_up(pools: Mapping[str, Any]) -> Iterator[str]:
    """When the budgets that are used up restart."""
    for name, pool in pools.items():
        empty = [quota for quota in pool["quotas"] if quota["unit"] == USD and quota["remaining"] <= 0]
        restarts = [quota["resets_at"] for quota in empty if quota["resets_at"] is not None]
        if restarts:
            yield f"{name}: nothing is left until {max(restarts)}; raise the budget to continue earlier"


_SUMS: Final = "spent", "refused"
_AMOUNTS: Final = *_SUMS, "burst", "remaining"


def since(start: dict[str, Any], pools: dict[str, Any]) -> dict[str, Any]:
    """``pools`` as they changed from ``start``: other runs may have spent from the same quotas before.

    Returns:
        The same, but ``spent``, ``refused`` and ``counts`` begin at the start; ``used_before`` of each quota is what was used of it
        then.
    """
    changed = {}
    for name, pool in pools.items():
        first = start.get(name, {"quotas": [], "counts": {}})
        before = {(quota["unit"], quota["period_s"]): quota for quota in first["quotas"]}
        counts = {word: count - first["counts"].get(word, 0) for word, count in pool["counts"].items()}
        quotas = []
        for quota in pool["quotas"]:
            then = before.get((quota["unit"], quota["period_s"]), dict.fromkeys(_AMOUNTS, 0.0))
            sums = {name: round(max(quota[name] - then[name], 0.0), 3) for name in _SUMS}
            quotas.append(quota | sums | {"used_before": round(then["burst"] - then["remaining"], 3)})
        changed[name] = pool | {"quotas": quotas, "counts": {word: count for word, count in counts.items() if count}}
    return changed


def in_words(report: dict[str, Any], tally: RunTally) -> list[str]:
    """The summary as lines of text."""
    share, left, about = report["ideal_share"], tally.left, tally.about
    speed = f", {share:.1%} of the ideal speed" if share is not None else ""
    reasons = ", ".join(f"{count:,} {code}" for code, count in report["errors"].items())
    parts = [f"{report['ok']:,} answered", f"{report['failed']:,} failed" + (f" ({reasons})" if reasons else "")]
    parts += [f"{report['skipped']:,} answered before"] if report["skipped"] else []
    parts += [f"{about}{left:,} not sent"] if left else []
    waits = f"wait in the queue p50 {report['wait_p50_s']:.2f} s, p99 {report['wait_p99_s']:.2f} s"
    where = f"; answers are in {report['output']}" if report["output"] else ""
    return [
        f"{about}{counted(report['requests'], 'request')}: {', '.join(parts)}, in {in_time(report['seconds'])}{speed}",
        f"{counted(report['attempts'], 'attempt')}, {report['refused']:,} of them refused with a 429; {waits}",
        f"{report['input_tokens']:,} tokens in, {report['output_tokens']:,} out{where}",
        *cost.in_words(report, tally.bill.answers),
    ]


def in_time(seconds: float) -> str:
    """A duration as text: ``42 s``, ``3 min 05 s``, ``2 h 10 min``."""
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"
