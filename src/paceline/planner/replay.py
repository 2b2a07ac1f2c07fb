"""Recorded traffic as work for a plan: what would have waited, been refused or cost under other limits."""

from __future__ import annotations

from collections.abc import Iterable

from paceline.core.results import SettingsError
from paceline.planner.logs import Logged
from paceline.planner.workload import Item, Work


def work_of(log: Iterable[Logged], *, speed: float = 1.0) -> Work:
    """The requests of a log as work: each arrives when it was sent, ``speed`` times as fast as then.

    Requests that the provider refused, or that failed, are not in it: the program will have sent them again.

    Raises:
        SettingsError: None is left.
    """
    served = [one for one in log if not (one.refused or one.failed)]
    if not served:
        raise SettingsError("the provider has served none of the requests of the log")
    begin_s = served[0].start_s
    items = [Item([[one.request]], (one.start_s - begin_s) / speed) for one in served]
    models = list(dict.fromkeys(one.request.model for one in served))
    seconds = sorted(one.seconds for one in served if one.seconds is not None)
    provider = {"latency_s": seconds[len(seconds) // 2]} if seconds else {}
    return Work(items, models, provider=provider)
