"""The arithmetic of one quota under each rule. No clock: every method takes ``now_ns``.

Every meter answers four questions: when does this cost fit, charge it, correct a charge whose true
cost is known now, and what is left. All of it is a few integer operations on a handful of numbers.

Headroom, not a safety factor
    Two grants a second apart can reach the server closer together. A meter therefore keeps a *fixed*
    amount unused: what comes back within ``headroom_s``. That absorbs the jitter, and the meter still
    runs at the full rate; a factor would waste its share for ever.

Opening gently
    At the start nobody knows whether the provider's bucket is full, how large it is, and how far off our
    estimates are. A gentle bucket grants a small burst first and widens it by what has been answered, as
    TCP's slow start does. That costs nothing: what is not granted at once is still there a second later.

Refunds are exact, and therefore safe
    A refund arrives late. Plain add-back would grant capacity that the provider never had: had the
    cost been lower from the start, the bucket would have been full earlier and its refill would have
    been lost. The level with a charge lowered by ``r`` differs from ours by ``min(r, room)``, where
    ``room`` is the least that the bucket lacked from full at any moment since. So each bucket
    remembers its low points (a short list: only those that no later one undercuts), and a refund is
    worth what it would have been worth.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Protocol
from zoneinfo import ZoneInfo

from paceline.core.quota import NS, Quota, Rule

FAR_NS = 2**63 - 1
"""Later than any instant: nobody knows when, an event will tell."""

SMALL_BURST_S = 2.0
"""The burst of a quota that opens, or that must be spread evenly, in seconds of its own rate."""

CEILING_MIN = 0.01
"""A learned ceiling never falls below this share of the published rate: it must be able to find out better."""

LOW_POINTS_MAX = 64
"""How many low points a bucket remembers; the oldest merge, which can only shrink a refund."""


class Meter(Protocol):
    """One quota and how much of it is used."""

    quota: Quota
    headroom_s: float
    most: float
    """The largest cost that can ever fit."""

    def earliest(self, now_ns: int, cost: float) -> int:
        """The first instant at which ``cost`` fits (``now_ns`` or before: it fits now). ``cost`` <= ``most``."""

    def charge(self, now_ns: int, cost: float) -> int:
        """Charge ``cost`` and return a mark for :meth:`correct`."""

    def correct(self, now_ns: int, mark: int, charged: float, actual: float) -> None:
        """Turn a charge of ``charged`` into one of ``actual``: a guarded refund, or debt."""

    def answered(self, cost: float) -> None:
        """An attempt that was charged ``cost`` has been answered: an opening bucket may widen its burst."""

    def release(self, cost: float) -> None:
        """The attempt is over (only slots care)."""

    def level(self, now_ns: int) -> float:
        """What is left, headroom included; negative in debt."""

    def adopt(self, now_ns: int, amount: float) -> None:
        """Take another amount for the same quota; what is used stays used."""


def meter(quota: Quota, now_ns: int, headroom_s: float, *, gentle: bool = False) -> Meter:
    """The meter for ``quota``, with nothing used yet; ``gentle``: a bucket opens slowly."""
    if quota.rule is Rule.SLOTS:
        return Slots(quota)
    if quota.rule is Rule.WINDOW and quota.anchor is not None:
        return Window(quota, headroom_s)
    if quota.rule is Rule.BUCKET:
        return Bucket(quota, now_ns, headroom_s, gentle=gentle)
    return Spaced(quota, now_ns, headroom_s)


class Bucket:
    """A continuously refilled quota, kept as the instant at which it will be full (as in GCRA).

    Attributes:
        full_at_ns: When it will be full if nothing more is charged.
        capacity: What it holds at once as far as is known: the burst, or less when answers have said so.
        ceiling: The learned share of the published rate, at most 1.
    """

    __slots__ = (
        "_low", "_ns_per_unit", "_open_reach_ns", "_opened", "_reach_ns", "_sequence", "capacity", "ceiling",
        "full_at_ns", "headroom_s", "most", "quota",
    )  # fmt: skip

    def __init__(self, quota: Quota, now_ns: int, headroom_s: float, *, gentle: bool = False) -> None:
        self.headroom_s = headroom_s
        self.full_at_ns = now_ns
        self.capacity = math.inf
        self.ceiling = 1.0
        self._opened = SMALL_BURST_S * quota.rate if gentle else math.inf  # what may be granted at once so far
        self._sequence = 0
        self._low: list[tuple[int, int]] = []  # (sequence, room in ns), both ascending
        self._take(quota)

    def _take(self, quota: Quota) -> None:
        self.quota = quota
        self.most = quota.burst
        self._ns_per_unit = quota.ns_per_unit / self.ceiling
        self._open_reach_ns = self._reach_of(quota.burst)
        self._widen()

    def _reach_of(self, burst: float) -> int:
        """How far ahead of now a charge may push the instant of being full, for a bucket that holds ``burst``."""
        burst_ns = burst * self._ns_per_unit
        # A burst smaller than the headroom would leave nothing to grant: keep half of it.
        return math.floor(burst_ns - min(self.headroom_s * NS, burst_ns / 2))

    def _widen(self) -> None:
        self._reach_ns = self._open_reach_ns
        if self.capacity < self.quota.burst:
            self._reach_ns = self._reach_of(self.capacity)
        if self._opened < math.inf:
            self._reach_ns = min(self._reach_ns, math.floor(self._opened * self._ns_per_unit))

    @property
    def ns_per_unit(self) -> float:
        """Nanoseconds in which one unit comes back, ceiling included."""
        return self._ns_per_unit

    def hold(self, capacity: float) -> None:
        """It holds only ``capacity`` at once: what remains charged, and what a cost above it needs, stay as they are."""
        self.capacity = max(capacity, 0.0)
        self._widen()

    def shift(self, by_ns: int) -> None:
        """Move the instant of being full: later when somebody else spent, earlier when we had overcharged."""
        self.full_at_ns += by_ns
        if by_ns < 0:
            self._low = [(sequence, max(room + by_ns, 0)) for sequence, room in self._low]
        self._not_granted(by_ns / self._ns_per_unit)

    def _not_granted(self, amount: float) -> None:
        """``amount`` of what is used was not granted by us just now: it does not count against the opening burst."""
        if self._opened < math.inf:
            self._opened = max(self._opened + amount, SMALL_BURST_S * self.quota.rate)
            self._widen()

    def press(self, now_ns: int, ceiling: float) -> None:
        """Run at the share ``ceiling`` of the published rate from now on; the level stays."""
        level = self.level(now_ns)
        self.ceiling = min(max(ceiling, CEILING_MIN), 1.0)
        self._rescale(now_ns, self.quota, level)

    def adopt(self, now_ns: int, amount: float) -> None:
        level = self.level(now_ns)
        grown = amount - self.quota.amount
        self.ceiling = 1.0
        self._rescale(now_ns, self.quota.with_amount(amount), level)
        self._not_granted(max(grown, 0.0))

    def _rescale(self, now_ns: int, quota: Quota, level: float) -> None:
        """Take another rate or size. A larger bucket fills from where it stands, a smaller one spills."""
        before, grown = self._ns_per_unit, min(quota.burst - self.quota.burst, 0.0)  # room to grow was no room before
        self.charge(now_ns, 0.0)  # a low point: what was full until now has nothing to give back
        self._take(quota)
        self.full_at_ns = now_ns + math.ceil((quota.burst - min(level, quota.burst)) * self._ns_per_unit)
        self._low = [
            (sequence, max(math.floor((room / before + grown) * self._ns_per_unit), 0)) for sequence, room in self._low
        ]

    def _ns(self, cost: float) -> int:
        return math.ceil(cost * self._ns_per_unit)

    def earliest(self, now_ns: int, cost: float) -> int:  # noqa: ARG002
        cost_ns = math.ceil(cost * self._ns_per_unit)
        need_ns = cost_ns - self._reach_ns
        if need_ns > 0 and self._reach_ns < self._open_reach_ns:  # above the small burst: when nothing is owed
            need_ns = max(cost_ns - self._open_reach_ns, 0)
        return self.full_at_ns + need_ns

    def charge(self, now_ns: int, cost: float) -> int:
        room = self.full_at_ns - now_ns
        if room < 0:
            room = 0
        self.full_at_ns = now_ns + room + self._ns(cost)  # up: against over-admission
        low = self._low
        while low and low[-1][1] >= room:
            low.pop()
        self._sequence += 1
        low.append((self._sequence, room))
        if len(low) > LOW_POINTS_MAX:
            low[:2] = [(low[1][0], low[0][1])]
        return self._sequence

    def correct(self, now_ns: int, mark: int, charged: float, actual: float) -> None:
        room = self.full_at_ns - now_ns
        if actual > charged:
            self.full_at_ns = now_ns + max(room, 0) + self._ns(actual) - self._ns(charged)
            return
        refund = self._ns(charged) - self._ns(actual)
        since = len(self._low)
        while since and self._low[since - 1][0] > mark:
            since -= 1
        if since < len(self._low):
            room = min(room, self._low[since][1])
        if refund <= 0 or room <= 0:
            return
        self.full_at_ns -= min(refund, room)
        # With this charge lower all along, every later low point would have been lower too.
        for i in range(since, len(self._low)):
            sequence, low = self._low[i]
            self._low[i] = (sequence, max(low - refund, 0))
        while 0 < since < len(self._low) and self._low[since - 1][1] >= self._low[since][1]:
            since -= 1  # undercut now: keep both ascending
            del self._low[since]

    def answered(self, cost: float) -> None:
        if self._opened < math.inf:
            self._opened += cost
            if self._opened >= self.quota.burst:
                self._opened = math.inf
            self._widen()

    def release(self, cost: float) -> None:
        """Nothing is in flight in a bucket."""

    def level(self, now_ns: int) -> float:
        return self.quota.burst - max(self.full_at_ns - now_ns, 0) / self._ns_per_unit


class Spaced(Bucket):
    """A sliding window, or a window that restarts nobody knows when: spread evenly.

    A bucket of burst b and rate r lets at most ``b + r x period`` through in any period, so
    ``r = (amount - b) / period`` is safe under every rule. A cost above b is let through when nothing is
    owed, and is charged as if it were the burst itself. The period is lengthened by a quarter of the headroom:
    what leaves us at the two ends of a period can arrive that much closer together.
    """

    __slots__ = ("_burst", "_period_ns")

    def _take(self, quota: Quota) -> None:
        self.quota = quota
        self.most = quota.amount
        self._period_ns = (quota.period_s + min(self.headroom_s, quota.period_s) / 4) * NS / self.ceiling
        spaced = SMALL_BURST_S / (quota.period_s + SMALL_BURST_S) * quota.amount
        self._burst = min(spaced, quota.burst)
        self._ns_per_unit = self._period_ns / (quota.amount - self._burst)
        self._reach_ns = self._open_reach_ns = math.floor(self._burst * self._ns_per_unit)

    def _ns(self, cost: float) -> int:
        left = self.quota.amount - max(cost, self._burst)
        whole = math.ceil(self._period_ns)
        return min(math.ceil(cost * self._period_ns / left), whole) if left > 0 else whole

    def earliest(self, now_ns: int, cost: float) -> int:  # noqa: ARG002
        return self.full_at_ns + min(self._ns(cost) - self._reach_ns, 0)

    def level(self, now_ns: int) -> float:
        return self.quota.burst - max(self.full_at_ns - now_ns, 0) / self._ns_per_unit

    def hold(self, capacity: float) -> None:
        """Spread evenly, it holds next to nothing at once anyway."""


class Window:
    """A counter that restarts at known instants, guarded at both edges against clock error."""

    __slots__ = ("_start_ns", "_stop_ns", "_zone", "headroom_s", "most", "quota", "used")

    def __init__(self, quota: Quota, headroom_s: float) -> None:
        self.quota = quota
        self.most = quota.amount
        self.headroom_s = min(headroom_s, quota.period_s / 20)
        self.used = 0.0
        self._start_ns = self._stop_ns = 0
        self._zone = None if quota.anchor in (None, "utc") else ZoneInfo(str(quota.anchor))

    def _roll(self, now_ns: int) -> None:
        """Enter the window of ``now_ns`` if it is another."""
        if self._start_ns <= now_ns < self._stop_ns:
            return
        if self._zone is None:
            period_ns = math.ceil(self.quota.period_s * NS)
            self._start_ns = now_ns - now_ns % period_ns
            self._stop_ns = self._start_ns + period_ns
        else:
            local = datetime.fromtimestamp(now_ns / NS, self._zone)
            midnight = local.replace(hour=0, minute=0, second=0, microsecond=0)
            after = (midnight + timedelta(days=1)).replace(tzinfo=self._zone)  # wall time: 23 to 25 hours on
            self._start_ns = int(midnight.astimezone(UTC).timestamp()) * NS
            self._stop_ns = int(after.astimezone(UTC).timestamp()) * NS
        self.used = 0.0

    def earliest(self, now_ns: int, cost: float) -> int:
        self._roll(now_ns)
        guard_ns = math.ceil(self.headroom_s * NS)
        if now_ns >= self._stop_ns - guard_ns or self.used + cost > self.quota.amount:
            return self._stop_ns + guard_ns
        return max(self._start_ns + guard_ns, now_ns)

    def charge(self, now_ns: int, cost: float) -> int:
        self._roll(now_ns)
        self.used += cost
        return self._start_ns

    def correct(self, now_ns: int, mark: int, charged: float, actual: float) -> None:
        self._roll(now_ns)
        if mark in (0, self._start_ns):  # what a past window was charged is gone with it; 0: nothing was
            self.used = max(self.used + actual - charged, 0.0)

    def answered(self, cost: float) -> None:
        """A window with a known start is open from the start."""

    def release(self, cost: float) -> None:
        """Nothing is in flight in a window."""

    def level(self, now_ns: int) -> float:
        self._roll(now_ns)
        return self.quota.amount - self.used

    def adopt(self, now_ns: int, amount: float) -> None:  # noqa: ARG002
        self.quota = self.quota.with_amount(amount)
        self.most = amount


class Slots:
    """How many may be in flight at the same time."""

    __slots__ = ("headroom_s", "most", "quota", "used")

    def __init__(self, quota: Quota) -> None:
        self.quota = quota
        self.most = quota.amount
        self.headroom_s = 0.0
        self.used = 0.0

    def earliest(self, now_ns: int, cost: float) -> int:
        return now_ns if self.used + cost <= self.quota.amount else FAR_NS

    def charge(self, now_ns: int, cost: float) -> int:  # noqa: ARG002
        self.used += cost
        return 0

    def correct(self, now_ns: int, mark: int, charged: float, actual: float) -> None:
        """A slot is held or released; its cost does not change."""

    def answered(self, cost: float) -> None:
        """Slots are open from the start."""

    def release(self, cost: float) -> None:
        self.used = max(self.used - cost, 0.0)

    def level(self, now_ns: int) -> float:  # noqa: ARG002
        return self.quota.amount - self.used

    def adopt(self, now_ns: int, amount: float) -> None:  # noqa: ARG002
        self.quota = self.quota.with_amount(amount)
        self.most = amount
