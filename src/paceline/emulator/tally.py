"""The counts of an emulated provider: requests, a timeline, and how close the traffic came to the ideal speed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from paceline.emulator.rules import CountingRule

DAY_S = 86_400
MOST_IDS = 1_000_000


class Count:
    """Counts for the requests of one pool, or of all pools."""

    __slots__ = ("admitted", "answered", "faults", "first_s", "in_flight", "in_flight_peak", "last_s", "refused")

    def __init__(self) -> None:
        self.admitted = self.answered = self.in_flight = self.in_flight_peak = 0
        self.refused: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.first_s: float | None = None
        self.last_s: float | None = None

    def admit(self, now: float) -> None:
        """One more in flight."""
        self.admitted += 1
        self.in_flight += 1
        if self.in_flight > self.in_flight_peak:
            self.in_flight_peak = self.in_flight
        if self.first_s is None:
            self.first_s = now
        self.last_s = now

    def report(self, charges: dict[str, float], ideal_s: float | None, steady_s: float | None) -> dict[str, Any]:
        """The counts as plain values; the speeds are the ideal and steady times over the elapsed time."""
        elapsed_s = 0.0 if self.first_s is None or self.last_s is None else self.last_s - self.first_s
        return {
            **{name: getattr(self, name) for name in self.__slots__},
            "refused": dict(self.refused),
            "refused_total": self.refused.total(),
            "faults": dict(self.faults),
            "charges": charges,
            "elapsed_s": elapsed_s,
            "ideal_s": ideal_s,
            "steady_s": steady_s,
            "speed_vs_ideal": _ratio(ideal_s, elapsed_s),
            "speed_vs_steady": _ratio(steady_s, elapsed_s),
        }


def _ratio(yardstick_s: float | None, elapsed_s: float) -> float | None:
    return yardstick_s / elapsed_s if yardstick_s and yardstick_s > 0 and elapsed_s > 0 else None


class RateTimeline:
    """Admitted and refused requests per second since the start; the last 24 hours."""

    def __init__(self, start: float) -> None:
        self._start = start
        self._seconds: dict[int, list[int]] = {}

    def add(self, now: float, column: int) -> None:
        """Count one admitted (column 0) or refused (1) request."""
        second = int(now - self._start)
        self._seconds.setdefault(second, [0, 0])[column] += 1
        if len(self._seconds) > DAY_S:
            del self._seconds[next(iter(self._seconds))]

    def rows(self) -> list[list[int]]:
        """``[second, admitted, refused]`` for every second with a request."""
        return [[second, *row] for second, row in self._seconds.items()]


class AnswerCounts:
    """The number of answers to each custom id; up to a million ids."""

    def __init__(self) -> None:
        self._ids: Counter[str] = Counter()
        self.overflow = 0

    def add(self, custom_id: str) -> None:
        """One complete answer for this id."""
        if len(self._ids) < MOST_IDS or custom_id in self._ids:
            self._ids[custom_id] += 1
        else:
            self.overflow += 1

    def report(self) -> dict[str, Any]:
        """``distinct`` ids, the ``most`` answers to one id, and up to 100 ids that were ``repeated``."""
        repeated = [(name, count) for name, count in self._ids.most_common(100) if count > 1]
        most = max(self._ids.values(), default=0)
        return {"distinct": len(self._ids), "most": most, "repeated": dict(repeated), "overflow": self.overflow}


class Supply:
    """One quota: its rule, and the charges of admitted requests."""

    __slots__ = ("at_last_admission", "charged", "opening", "period_s", "rates", "rule", "unit")

    def __init__(self, unit: str, period_s: float, rule: CountingRule, now: float) -> None:
        self.unit, self.period_s, self.rule = unit, period_s, rule
        self.charged = self.at_last_admission = 0.0
        self.opening: float | None = None  # the level at the first admission: usually one full burst
        self.rates: list[tuple[float, float]] = []  # (from, amount per second), when the rate has changed
        self.note_rate(now)

    def note_rate(self, now: float) -> None:
        """Record the true rate from now on; the ideal depends on all of them (the last thousand changes)."""
        self.rates.append((now, self.rule.rate))
        del self.rates[:-1_000]

    def admit(self, now: float, cost: float) -> None:
        """Charge a request at its admission."""
        if self.opening is None:
            self.opening = self.rule.remaining(now)
        self.charge(now, cost)
        self.at_last_admission = self.charged

    def charge(self, now: float, amount: float) -> None:
        """Charge the rule, and record it."""
        self.rule.charge(now, amount)
        self.charged += amount

    def ideal_s(self, start: float) -> float:
        """The shortest time for all charges up to the last admission: the opening level first, then the rate."""
        return _time_to_supply(self.rates, start, self.at_last_admission - (self.opening or 0.0))

    def steady_s(self, start: float) -> float:
        """The same with an opening level of 0."""
        return _time_to_supply(self.rates, start, self.at_last_admission)


def _time_to_supply(rates: list[tuple[float, float]], start: float, amount: float) -> float:
    at = start
    for (_, rate), (until, _) in pairwise(rates):
        if until <= at:
            continue
        if amount <= rate * (until - at):
            return at - start + amount / rate
        amount -= rate * (until - at)
        at = until
    return at - start + amount / rates[-1][1]


def slowest(times: Iterable[float | None]) -> float | None:
    """The longest time: of the quota that binds. ``None`` without any."""
    return max((time for time in times if time is not None), default=None)
