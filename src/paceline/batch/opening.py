"""What a run says before its first request: what an earlier run has left, what is left to do, and under which limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from paceline.batch.check import SHOWN, InputPlan
from paceline.batch.progress import forecast_s
from paceline.batch.results import Recovered
from paceline.batch.summary import RunTally, in_time
from paceline.core.hints import counted
from paceline.core.results import SourceKind
from paceline.limiter.limiter import Limiter
from paceline.stores import Store


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
    answered = recovered.answered - recovered.doubtful
    yield _to_do(plan, recovered, tally, answered)
    if 0 < answered == tally.requests and not tally.about:
        yield "nothing is left to send: every id has its answer. If you changed a request, --restart sends all again"


def _to_do(plan: InputPlan, recovered: Recovered, tally: RunTally, answered: int) -> str:
    """How many requests there are, and which of them are sent."""
    before = f", {answered:,} answered before" if answered else ""
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
