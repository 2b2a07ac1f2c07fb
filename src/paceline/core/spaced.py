"""A quota that must be spread evenly, because nobody knows when its period starts."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from functools import reduce
from operator import add

from paceline.core.bucket import CEILING_MIN, Bucket, State, small_burst_s
from paceline.core.quota import NS, Quota

SLICES = 512
"""How finely a spread quota remembers its last period."""

TINY = 1e-9
"""Amounts this close are equal: sums of floats come no closer."""


PARTS = 8
"""Books tell each other in so many parts when in the last period something was used."""


class Spaced(Bucket):
    """A sliding window, or a window that restarts nobody knows when: spread evenly, and never more than the amount.

    A bucket of burst b and rate r lets at most ``b + r x period`` through in any period, so
    ``r = (amount - b) / period`` is safe under every rule. A cost above b goes when nothing is owed. Beside it
    a log, in slices, of what the last period was charged, so that large costs do not add up to more than the amount.
    The period is lengthened by a quarter of the headroom: what leaves us at the two ends of a period can arrive
    that much closer together.
    """

    __slots__ = ("_amounts", "_burst", "_ends", "_period_ns", "_used")

    def __init__(self, quota: Quota, now_ns: int, headroom_s: float) -> None:
        self._ends: list[int] = []  # of the slices that something was charged in
        self._amounts: list[float] = []
        self._used = 0.0
        super().__init__(quota, now_ns, headroom_s)

    def _take(self, quota: Quota) -> None:
        self.quota = quota
        self.most = quota.amount
        self._period_ns = math.ceil((quota.period_s + min(self.headroom_s, quota.period_s) / 4) * NS)
        small_s = small_burst_s(quota)
        self._burst = min(small_s / (quota.period_s + small_s) * quota.amount, quota.burst)
        slice_ns = self._period_ns / SLICES  # a slice counts as charged at its end
        self._ns_per_unit = (self._period_ns + slice_ns) / (quota.amount - self._burst) / self.ceiling
        self._reach_ns = math.floor(self._burst * self._ns_per_unit)

    def use(self, now_ns: int, used: float) -> None:
        """Take what other books say was used of the last period: what is more than was known was charged just now."""
        self._forget(now_ns)
        more = used - self._used
        if more > 0:
            self._log(now_ns, more)
        while more < 0 and self._amounts:  # which of it came back nobody says: the oldest, to be sure
            back = min(self._amounts[0], -more)
            more += back
            self._amounts[0] -= back
            if self._amounts[0] <= TINY:
                del self._ends[0], self._amounts[0]
        self._used = used

    def parts(self, now_ns: int) -> list[float]:
        """What each eighth of the last period was charged, the latest first."""
        self._forget(now_ns)
        parts = [0.0] * PARTS
        for end_ns, amount in zip(self._ends, self._amounts, strict=True):
            parts[min(max(now_ns - end_ns, 0) * PARTS // self._period_ns, PARTS - 1)] += amount
        return parts

    def fill(self, now_ns: int, parts: list[float]) -> None:
        """Add what each eighth of the last period was charged elsewhere; nothing is owed for it."""
        self._forget(now_ns)
        for part, amount in enumerate(parts[:PARTS]):
            if amount > 0:
                self._log(now_ns - part * (self._period_ns // PARTS), amount)
        self._used = reduce(add, self._amounts, 0.0)

    def part_of(self, whole: Spaced, share: float) -> None:
        """Stand where ``whole`` stands, with a share of what is used of it."""
        self.full_at_ns = whole.full_at_ns
        self._ends, self._amounts = list(whole._ends), [amount * share for amount in whole._amounts]
        self._used = reduce(add, self._amounts, 0.0)

    def _log(self, end_ns: int, amount: float) -> None:
        i = bisect_left(self._ends, end_ns)
        if i < len(self._ends) and self._ends[i] == end_ns:
            self._amounts[i] += amount
        else:
            self._ends.insert(i, end_ns)
            self._amounts.insert(i, amount)

    @property
    def used(self) -> float:
        """What the last period was charged."""
        return self._used

    def earliest(self, now_ns: int, cost: float) -> int:
        return self.after(now_ns, 0.0, cost, 0)

    def after(self, now_ns: int, ahead: float, cost: float, slack_ns: int) -> int:
        from_ns = max(self.full_at_ns, now_ns) + self._ns(ahead) if ahead else self.full_at_ns
        evenly_ns = from_ns + min(self._ns(cost) + slack_ns - self._reach_ns, 0)
        self._forget(now_ns)
        over = self._used + ahead + cost - self.quota.amount
        if over <= TINY:
            return evenly_ns
        for end_ns, amount in zip(self._ends, self._amounts, strict=True):
            over -= amount
            if over <= TINY:
                return max(evenly_ns, end_ns + self._period_ns)
        return max(evenly_ns, now_ns + self._period_ns)

    def charge(self, now_ns: int, cost: float) -> int:
        mark = super().charge(now_ns, cost)
        self._forget(now_ns)
        if not self._ends or self._ends[-1] < now_ns:
            self._ends.append(now_ns + self._period_ns // SLICES)
            self._amounts.append(0.0)
        self._amounts[-1] += cost
        self._used += cost
        return mark

    def correct(self, now_ns: int, mark: int, charged: float, actual: float) -> None:
        super().correct(now_ns, mark, charged, actual)
        self._forget(now_ns)
        i = bisect_left(self._ends, mark)  # of the slice that it was charged in, if that has not left
        if i < len(self._ends) and self._ends[i] - self._period_ns // SLICES <= mark:
            change = max(actual - charged, -self._amounts[i])
            self._amounts[i] += change
            self._used += change

    def _forget(self, now_ns: int) -> None:
        gone = bisect_right(self._ends, now_ns - self._period_ns)
        if gone:
            del self._ends[:gone], self._amounts[:gone]
            self._used = reduce(add, self._amounts, 0.0)

    def level(self, now_ns: int) -> float:
        self._forget(now_ns)
        return self.quota.amount - self._used

    def press(self, now_ns: int, ceiling: float) -> None:
        self._rescale(now_ns, self.quota, min(max(ceiling, CEILING_MIN), 1.0))

    def adopt(self, now_ns: int, amount: float) -> None:
        self._rescale(now_ns, self.quota.with_amount(amount), 1.0)

    def _rescale(self, now_ns: int, quota: Quota, ceiling: float) -> None:
        """Take another rate; what is owed stays owed."""
        owed = max(self.full_at_ns - now_ns, 0) / self._ns_per_unit
        self.ceiling = ceiling
        self._take(quota)
        self.full_at_ns = now_ns + math.ceil(owed * self._ns_per_unit)
        self._low_marks, self._low_rooms = [], []

    def hold(self, capacity: float) -> None:
        """Spread evenly, it holds next to nothing at once anyway."""

    def answered(self, cost: float) -> None:
        """It does not open."""

    def turn(self, by_ns: int) -> None:
        super().turn(by_ns)
        self._ends = [end_ns + by_ns for end_ns in self._ends]

    def carry(self, before: Bucket) -> None:
        super().carry(before)
        if isinstance(before, Spaced):
            state = before.state()
            self._ends, self._amounts, self._used = state["ends"], state["amounts"], state["used"]

    def state(self) -> State:
        return {**super().state(), "ends": list(self._ends), "amounts": list(self._amounts), "used": self._used}

    def restore(self, quota: Quota, state: State) -> None:
        super().restore(quota, state)
        self._ends, self._amounts, self._used = list(state["ends"]), list(state["amounts"]), state["used"]
