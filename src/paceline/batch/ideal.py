"""The ideal speed of a run: the shortest time in which the limits admit what was answered.

Each quota is counted here once more, beside the meters of the limiter, with the run's own answers alone: without refused
attempts, and without what other processes spend. A quota that refills begins with a full bucket. It gets back the amount of
each answer at the rate in effect then, and cannot get back more in a time than that time refills. So no share is above 1,
also after a limit has changed, and for answers that cost more than was held for them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from paceline.core.meters import Bucket, Meter
from paceline.core.quota import NS, Cost, Rule
from paceline.http.binding import Exchanged
from paceline.limiter.limiter import Limiter
from paceline.pacing.scheduler import Scheduler

_ROUNDING = 1e-9


class _Refill:
    """A quota that refills: when it would be full again, and how long it was full; in seconds."""

    __slots__ = ("_begin_s", "_full_s", "_idle_s", "_m", "_rate")

    def __init__(self, begin_s: float, lack_s: float) -> None:
        self._begin_s, self._full_s, self._idle_s = begin_s, begin_s + lack_s, 0.0
        self._m, self._rate = cast("Meter | None", None), 1.0

    def take(self, at_s: float, amount: float, m: Meter) -> None:
        """Charge ``amount``."""
        self._m, self._rate = m, m.quota.rate * (m.ceiling if isinstance(m, Bucket) else 1.0)
        if self._full_s < at_s:
            self._idle_s += at_s - self._full_s
            self._full_s = at_s
        self._full_s += amount / self._rate

    def ideal_s(self, at_s: float) -> float:
        """The time in which it has refilled until now, less what is left of it, which a faster run has used before."""
        lack_s = self._full_s - at_s
        refilled_s = at_s - self._begin_s - self._idle_s - max(-lack_s, 0.0)
        size_s = 0.0 if self._m is None else self._m.size / self._rate
        return refilled_s - max(size_s - max(lack_s, 0.0), 0.0)


class _Windows:
    """A quota that restarts: how much of each window was used, as parts of its amount. Without known restarts, one window."""

    __slots__ = ("_end_s", "_full", "_starts_s", "_used", "known")

    def __init__(self, begin_s: float) -> None:
        self.known = False
        self._starts_s, self._end_s, self._full, self._used = [begin_s], math.inf, 0.0, 0.0

    def take(self, at_s: float, amount: float, m: Meter) -> None:
        """Charge ``amount``."""
        end_ns, period_s = m.restart_ns(round(at_s * NS)), m.quota.period_s
        self.known = end_ns is not None
        if end_ns is not None:
            end_s = end_ns / NS
            if self._end_s <= at_s and self._end_s < end_s:
                self._starts_s.append(max(self._end_s, min(end_s - period_s, at_s)))
                self._full += min(self._used, 1.0)
                self._used = max(self._used - 1.0, 0.0)
                self._end_s = end_s
            elif end_s < self._end_s + period_s / 2:
                self._end_s = end_s  # else it is the end of a later window, in which attempts are in flight
        self._used += amount / m.quota.amount

    def ideal_s(self) -> float:
        """The time until the last window that the amount needs."""
        needed = math.ceil(self._full + min(self._used, 1.0) - _ROUNDING)
        return self._starts_s[max(needed, 1) - 1] - self._starts_s[0]


@dataclass(slots=True)
class Served:
    """The answered requests of a pool: how many, and what they were charged in all, per unit."""

    answers: int = 0
    charged: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))


class IdealSpeed:
    """Counts the answered requests of a run.

    Attributes:
        served: Them, by pool.
    """

    def __init__(self) -> None:
        self.served: dict[str, Served] = {}
        self._begin_s = self._last_s = 0.0
        self._lacks_s: dict[tuple[str, str, float], float] = {}
        self._quotas: dict[tuple[str, int, str], tuple[_Refill, _Windows]] = {}
        self._measured: set[str] = set()  # the pools with a measured limit

    def begin(self, now_s: float, pools: Mapping[str, Any]) -> None:
        """Begin the run: on the limiter's clock, with ``limiter.status()["pools"]`` as they were before it.

        A second call changes nothing: what is sent again, after another program has cut the output, belongs to the same run.
        """
        if self._begin_s:
            return
        self._begin_s = self._last_s = now_s
        for name, pool in pools.items():
            for quota in pool["quotas"]:
                if quota["rule"] == Rule.BUCKET and quota["limit"]:  # what a window lacks comes back at an unknown time
                    lack_s = (quota["burst"] - quota["remaining"]) * quota["period_s"] / quota["limit"]
                    self._lacks_s[name, quota["unit"], quota["period_s"]] = max(lack_s, 0.0)

    def sent(self, granted_s: float) -> None:
        """Count the time until an attempt, answered or not."""
        self._last_s = max(self._last_s, granted_s)

    def take(self, limiter: Limiter, record: Exchanged) -> None:
        """Count the last attempt of a request, and its answer if it has one."""
        if record.charged is not None:
            pacer, granted_s = limiter.pacer, record.granted_ns / NS
            of_lane = pacer.allowances.rates(pacer.lanes.of())
            self.answered(pacer.pools.scheduler(record.pool), record.charged, granted_s, of_lane)
        elif record.granted_ns:
            self.sent(record.granted_ns / NS)

    def answered(self, scheduler: Scheduler, cost: Cost, granted_s: float, of_lane: Sequence[Scheduler] = ()) -> None:
        """Count an answer with its true ``cost``, to an attempt that was granted then, also by the limits ``of_lane``.

        Answers come in another order than their attempts were granted. Each counts at the latest of these instants so far.
        """
        self.sent(granted_s)
        served = self.served.setdefault(scheduler.pool.name, Served())
        served.answers += 1
        for unit, amount in cost.items():
            served.charged[unit] += amount
        for each in (scheduler, *scheduler.further, *of_lane):
            ledger, name, measured = each.pool.ledger, each.pool.name, False
            for i, (entry, amount) in enumerate(zip(list(ledger.entries), ledger.amounts(cost), strict=False)):
                m = entry.meter
                if m.quota.rule is Rule.MEASURED:
                    measured = measured or m.is_known
                elif amount and m.quota.rate:
                    self._count((name, i, entry.unit), amount, m)
            (self._measured.add if measured else self._measured.discard)(name)

    def _count(self, key: tuple[str, int, str], amount: float, m: Meter) -> None:
        found = self._quotas.get(key)
        if found is None:
            lack_s = self._lacks_s.get((key[0], key[2], m.quota.period_s), 0.0)
            found = self._quotas[key] = _Refill(self._begin_s, lack_s), _Windows(self._begin_s)
        refill, windows = found
        refill.take(self._last_s, amount, m)
        windows.take(self._last_s, amount, m)

    @property
    def share(self) -> float | None:
        """The ideal time over the time to the last attempt.

        ``None`` if no limit was reached, because a burst held everything, or if one is known by measurement only: the provider's
        own limit is not known then.
        """
        ideal_s = 0.0
        for refill, windows in () if self._measured else self._quotas.values():
            ideal_s = max(ideal_s, windows.ideal_s() if windows.known else refill.ideal_s(self._last_s))
        return ideal_s / (self._last_s - self._begin_s) if ideal_s > 0 else None
