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
from bisect import bisect_left, bisect_right
from datetime import datetime, timedelta
from functools import reduce
from math import ceil
from operator import add
from typing import Protocol

from paceline.core.quota import NS, Quota, Rule

FAR_NS = 2**63 - 1
"""Later than any instant: nobody knows when, an event will tell."""

SMALL_BURST_S, SMALL_PERIODS = 2.0, 1 / 30
"""The burst of a quota that opens, or that must be spread evenly: seconds of its own rate, or a part of its period."""

CEILING_MIN = 0.01
"""A learned ceiling never falls below this share of the published rate: it must be able to find out better."""

MOMENT_NS = NS // 20
"""What a cost as large as the bucket waits beyond its being full."""

LOW_POINTS_MAX = 16
"""How many low points a bucket remembers; the oldest merge, which can only shrink a refund."""


class Meter(Protocol):
    """One quota and how much of it is used."""

    quota: Quota
    headroom_s: float
    most: float
    """The largest cost that can ever fit."""

    def earliest(self, now_ns: int, cost: float, ahead: float = 0.0, slack_ns: int = 0) -> int:
        """The first instant at which ``cost`` fits; ``now_ns`` or before: it fits now.

        Args:
            now_ns: The present.
            cost: At most ``most``.
            ahead: The cost of what goes first.
            slack_ns: How much later than that it may be used: so much more of the refill is kept unused.
        """

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


def small_burst_s(quota: Quota) -> float:
    """The small burst of ``quota``, in seconds of its rate: 2 s of a minute, 48 minutes of a day."""
    return max(SMALL_BURST_S, SMALL_PERIODS * quota.period_s)


class Bucket:
    """A continuously refilled quota, kept as the instant at which it will be full (as in GCRA).

    Attributes:
        full_at_ns: When it will be full if nothing more is charged.
        capacity: What it holds at once as far as is known: the burst, or less when answers have said so.
        ceiling: The learned share of the published rate, at most 1.
    """

    __slots__ = (
        "capacity",
        "ceiling",
        "full_at_ns",
        "headroom_s",
        "low_marks",
        "low_rooms",
        "moment_ns",
        "most",
        "ns_per_unit",
        "open_reach_ns",
        "opened",
        "quota",
        "reach_ns",
        "sequence",
    )  # fmt: skip

    def __init__(self, quota: Quota, now_ns: int, headroom_s: float, *, gentle: bool = False) -> None:
        self.headroom_s = headroom_s
        self.full_at_ns = now_ns
        self.capacity = math.inf
        self.ceiling = 1.0
        self.opened = small_burst_s(quota) * quota.rate if gentle else math.inf  # what may be granted at once so far
        self.sequence = 0
        self.low_marks: list[int] = []  # when the bucket was low, and
        self.low_rooms: list[int] = []  # what it lacked from full then, in ns; both ascending
        self.configure(quota)

    def configure(self, quota: Quota) -> None:
        self.quota = quota
        self.most = quota.burst
        self.ns_per_unit = quota.ns_per_unit / self.ceiling
        self.open_reach_ns = self._reach_of(quota.burst)
        self.moment_ns = min(MOMENT_NS, math.floor(self.headroom_s * NS))
        self.widen()

    def _reach_of(self, burst: float) -> int:
        """How far ahead of now a charge may push the instant of being full, for a bucket that holds ``burst``."""
        burst_ns = burst * self.ns_per_unit
        # A burst smaller than the headroom would leave nothing to grant: keep half of it.
        return math.floor(burst_ns - min(self.headroom_s * NS, burst_ns / 2))

    def widen(self) -> None:
        self.reach_ns = self.open_reach_ns
        if self.capacity < self.quota.burst:
            self.reach_ns = self._reach_of(self.capacity)
        if self.opened < math.inf:
            self.reach_ns = min(self.reach_ns, math.floor(self.opened * self.ns_per_unit))

    def hold(self, capacity: float) -> None:
        """It holds only ``capacity`` at once: what remains charged, and what a cost above it needs, stay as they are."""
        self.capacity = max(capacity, 0.0)
        self.widen()

    def shift(self, now_ns: int, by_ns: int) -> None:
        """Move the instant of being full: later when somebody else spent, earlier when we had overcharged."""
        if by_ns > 0:
            before_ns = self.full_at_ns
            self.charge(now_ns, 0.0)  # a low point: what was full until now has nothing to give back
            self.full_at_ns = before_ns
        else:
            self.low_rooms = [max(room + by_ns, 0) for room in self.low_rooms]
        self.full_at_ns += by_ns
        self.not_granted(by_ns / self.ns_per_unit)

    def not_granted(self, amount: float) -> None:
        """``amount`` of what is used was not granted by us just now: it does not count against the opening burst."""
        if self.opened < math.inf:
            self.opened = max(self.opened + amount, small_burst_s(self.quota) * self.quota.rate)
            self.widen()

    def press(self, now_ns: int, ceiling: float) -> None:
        """Run at the share ``ceiling`` of the published rate from now on; the level stays."""
        level = self.level(now_ns)
        self.ceiling = min(max(ceiling, CEILING_MIN), 1.0)
        self._resize(now_ns, self.quota, level)

    def adopt(self, now_ns: int, amount: float) -> None:
        level = self.level(now_ns)
        grown = amount - self.quota.amount
        self.ceiling = 1.0
        self._resize(now_ns, self.quota.with_amount(amount), level)
        self.not_granted(max(grown, 0.0))

    def _resize(self, now_ns: int, quota: Quota, level: float) -> None:
        """Take another rate or size. A larger bucket fills from where it stands, a smaller one spills."""
        before, grown = self.ns_per_unit, min(quota.burst - self.quota.burst, 0.0)  # room to grow was no room before
        self.charge(now_ns, 0.0)  # a low point: what was full until now has nothing to give back
        self.configure(quota)
        self.full_at_ns = now_ns + math.ceil((quota.burst - min(level, quota.burst)) * self.ns_per_unit)
        self.low_rooms = [max(math.floor((room / before + grown) * self.ns_per_unit), 0) for room in self.low_rooms]

    def _ns(self, cost: float) -> int:
        return ceil(cost * self.ns_per_unit)  # up: against over-admission

    def earliest(self, now_ns: int, cost: float, ahead: float = 0.0, slack_ns: int = 0) -> int:
        cost_ns = ceil(cost * self.ns_per_unit) + slack_ns
        need_ns = cost_ns - self.reach_ns
        if need_ns > 0:
            # Above what is granted at once: when nothing is owed. A cost that needs the whole bucket waits for it to
            # be full and a moment more, not for a whole headroom: it would pay that every time.
            over_ns = max(cost_ns - self.open_reach_ns, 0)
            need_ns = min(over_ns, self.moment_ns) if cost <= self.quota.burst else over_ns
        if ahead:
            return max(self.full_at_ns, now_ns) + ceil(ahead * self.ns_per_unit) + need_ns
        return self.full_at_ns + need_ns

    def charge(self, now_ns: int, cost: float) -> int:
        full_at_ns = self.full_at_ns
        if full_at_ns < now_ns:
            full_at_ns = now_ns
        room = full_at_ns - now_ns
        self.full_at_ns = full_at_ns + ceil(cost * self.ns_per_unit)
        mark = now_ns if now_ns > self.sequence else self.sequence + 1  # the instant, made unique
        self.sequence = mark
        marks, rooms = self.low_marks, self.low_rooms  # remember that only this much was lacking from full just now
        while rooms and rooms[-1] >= room:
            del marks[-1], rooms[-1]
        marks.append(mark)
        rooms.append(room)
        if len(rooms) > LOW_POINTS_MAX:
            del marks[0], rooms[1]
        return mark

    def correct(self, now_ns: int, mark: int, charged: float, actual: float) -> None:
        room = self.full_at_ns - now_ns
        refund = ceil(charged * self.ns_per_unit) - ceil(actual * self.ns_per_unit)
        if refund < 0:  # a debt
            self.full_at_ns = now_ns + max(room, 0) - refund
            return
        if refund == 0 or room <= 0:
            return
        if mark != self.sequence:  # charged again since then
            room = self._lower(mark, room, refund)
        if refund > room:
            refund = room
        self.full_at_ns -= refund

    def _lower(self, mark: int, room: int, refund: int) -> int:
        """Lower the low points after ``mark`` by ``refund``; what it may be worth, ``room`` at most.

        With that charge lower all along, every later low point would have been lower too.
        """
        marks, rooms = self.low_marks, self.low_rooms
        since = bisect_right(marks, mark)
        room = min([room, *rooms[since : since + 1]])
        if room > 0:
            rooms[since:] = [max(then - refund, 0) for then in rooms[since:]]
            while 0 < since < len(rooms) and rooms[since - 1] >= rooms[since]:
                since -= 1  # undercut now: keep both ascending
                del marks[since], rooms[since]
        return room

    def answered(self, cost: float) -> None:
        if self.opened < math.inf:
            self.opened += cost
            if self.opened >= self.quota.burst:
                self.opened = math.inf
            self.widen()

    def release(self, cost: float) -> None:
        """Nothing is in flight in a bucket."""

    def level(self, now_ns: int) -> float:
        return self.quota.burst - max(self.full_at_ns - now_ns, 0) / self.ns_per_unit


SLICES = 512
"""How finely a spread quota remembers its last period."""

TINY = 1e-9
"""Amounts this close are equal: sums of floats come no closer."""


class Spaced(Bucket):
    """A sliding window, or a window that restarts nobody knows when: spread evenly, and never more than the amount.

    A bucket of burst b and rate r lets at most ``b + r x period`` through in any period, so
    ``r = (amount - b) / period`` is safe under every rule. A cost above b goes when nothing is owed. Beside it
    a log, in slices, of what the last period was charged, so that large costs do not add up to more than the amount.
    The period is lengthened by a quarter of the headroom: what leaves us at the two ends of a period can arrive
    that much closer together.
    """

    __slots__ = ("_burst", "amounts", "ends", "period_ns", "used")

    def __init__(self, quota: Quota, now_ns: int, headroom_s: float) -> None:
        self.ends: list[int] = []  # of the slices that something was charged in
        self.amounts: list[float] = []
        self.used = 0.0
        super().__init__(quota, now_ns, headroom_s)

    def configure(self, quota: Quota) -> None:
        self.quota = quota
        self.most = quota.amount
        self.period_ns = math.ceil((quota.period_s + min(self.headroom_s, quota.period_s) / 4) * NS)
        small_s = small_burst_s(quota)
        self._burst = min(small_s / (quota.period_s + small_s) * quota.amount, quota.burst)
        slice_ns = self.period_ns / SLICES  # a slice counts as charged at its end
        self.ns_per_unit = (self.period_ns + slice_ns) / (quota.amount - self._burst) / self.ceiling
        self.reach_ns = math.floor(self._burst * self.ns_per_unit)

    def earliest(self, now_ns: int, cost: float, ahead: float = 0.0, slack_ns: int = 0) -> int:
        from_ns = max(self.full_at_ns, now_ns) + self._ns(ahead) if ahead else self.full_at_ns
        evenly_ns = from_ns + min(self._ns(cost) + slack_ns - self.reach_ns, 0)
        self.forget(now_ns)
        over = self.used + ahead + cost - self.quota.amount
        if over <= TINY:
            return evenly_ns
        for end_ns, amount in zip(self.ends, self.amounts, strict=True):
            over -= amount
            if over <= TINY:
                return max(evenly_ns, end_ns + self.period_ns)
        return max(evenly_ns, now_ns + self.period_ns)

    def charge(self, now_ns: int, cost: float) -> int:
        mark = super().charge(now_ns, cost)
        self.forget(now_ns)
        if not self.ends or self.ends[-1] < now_ns:
            self.ends.append(now_ns + self.period_ns // SLICES)
            self.amounts.append(0.0)
        self.amounts[-1] += cost
        self.used += cost
        return mark

    def correct(self, now_ns: int, mark: int, charged: float, actual: float) -> None:
        super().correct(now_ns, mark, charged, actual)
        self.forget(now_ns)
        i = bisect_left(self.ends, mark)  # of the slice that it was charged in, if that has not left
        if i < len(self.ends) and self.ends[i] - self.period_ns // SLICES <= mark:
            change = max(actual - charged, -self.amounts[i])
            self.amounts[i] += change
            self.used += change

    def forget(self, now_ns: int) -> None:
        gone = bisect_right(self.ends, now_ns - self.period_ns)
        if gone:
            del self.ends[:gone], self.amounts[:gone]
            self.used = reduce(add, self.amounts, 0.0)

    def level(self, now_ns: int) -> float:
        self.forget(now_ns)
        return self.quota.amount - self.used

    def press(self, now_ns: int, ceiling: float) -> None:
        self._rescale(now_ns, self.quota, min(max(ceiling, CEILING_MIN), 1.0))

    def adopt(self, now_ns: int, amount: float) -> None:
        self._rescale(now_ns, self.quota.with_amount(amount), 1.0)

    def _rescale(self, now_ns: int, quota: Quota, ceiling: float) -> None:
        """Take another rate; what is owed stays owed."""
        owed = max(self.full_at_ns - now_ns, 0) / self.ns_per_unit
        self.ceiling = ceiling
        self.configure(quota)
        self.full_at_ns = now_ns + math.ceil(owed * self.ns_per_unit)
        self.low_marks, self.low_rooms = [], []

    def hold(self, capacity: float) -> None:
        """Spread evenly, it holds next to nothing at once anyway."""

    def answered(self, cost: float) -> None:
        """It does not open."""


def restarts(anchor: str | None, now_ns: int) -> tuple[int, ...] | None:
    """When a day's window restarts at the place ``anchor``; ``None`` where that needs no time zone.

    Those of yesterday, today and the two days after, in seconds since the epoch. A midnight that the clocks skip is
    the instant at which they do; of one that they show twice it is the first.
    """
    if anchor in (None, "utc"):
        return None
    from zoneinfo import ZoneInfo  # few need it

    local = datetime.fromtimestamp(now_ns / NS, ZoneInfo(str(anchor)))
    today = local.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    return tuple(int((today + timedelta(days=days)).timestamp()) for days in (-1, 0, 1, 2))  # wall time: 23 to 25 hours


class Window:
    """A counter that restarts at known instants, guarded at both edges against clock error."""

    __slots__ = ("headroom_s", "most", "period_ns", "quota", "start_ns", "stop_ns", "used")

    def __init__(self, quota: Quota, headroom_s: float) -> None:
        self.quota = quota
        self.most = quota.amount
        self.headroom_s = min(headroom_s, quota.period_s / 20)
        self.used = 0.0
        self.start_ns = self.stop_ns = 0
        self.period_ns = max(round(quota.period_s * 1e6), 1) * 1_000  # whole microseconds, as clocks count

    def roll(self, now_ns: int) -> None:
        """Enter the window of ``now_ns`` if it is a later one; a clock that was set back opens no old one again."""
        if self.start_ns - self.period_ns <= now_ns < self.stop_ns:
            return
        days = restarts(self.quota.anchor, now_ns)
        if days is None:
            self.start_ns = now_ns - now_ns % self.period_ns
            self.stop_ns = self.start_ns + self.period_ns
        else:
            self.start_ns, self.stop_ns = days[1] * NS, days[2] * NS
        self.used = 0.0

    def earliest(self, now_ns: int, cost: float, ahead: float = 0.0, slack_ns: int = 0) -> int:
        self.roll(now_ns)
        guard_ns = math.ceil(self.headroom_s * NS)
        if now_ns >= self.stop_ns - guard_ns - slack_ns or self.used + ahead + cost > self.quota.amount:
            return self.stop_ns + guard_ns
        return max(self.start_ns + guard_ns, now_ns)

    def charge(self, now_ns: int, cost: float) -> int:
        self.roll(now_ns)
        self.used += cost
        return self.start_ns

    def correct(self, now_ns: int, mark: int, charged: float, actual: float) -> None:
        self.roll(now_ns)
        if mark in (0, self.start_ns):  # what a past window was charged is gone with it; 0: nothing was
            self.used = max(self.used + actual - charged, 0.0)

    def answered(self, cost: float) -> None:
        """A window with a known start is open from the start."""

    def seen(self, now_ns: int, remaining: float) -> None:
        """The provider says that only this much is left: somebody else is spending."""
        self.roll(now_ns)
        self.used = max(self.used, self.quota.amount - remaining)

    def release(self, cost: float) -> None:
        """Nothing is in flight in a window."""

    def level(self, now_ns: int) -> float:
        self.roll(now_ns)
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

    def earliest(self, now_ns: int, cost: float, ahead: float = 0.0, slack_ns: int = 0) -> int:  # noqa: ARG002
        return now_ns if self.used + ahead + cost <= self.quota.amount else FAR_NS

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


def meter(quota: Quota, now_ns: int, headroom_s: float, *, gentle: bool = False) -> Meter:
    """The meter for ``quota``, with nothing used yet; ``gentle``: a bucket opens slowly."""
    if quota.rule is Rule.SLOTS:
        return Slots(quota)
    if quota.rule is Rule.WINDOW and quota.anchor is not None:
        return Window(quota, headroom_s)
    if quota.rule is Rule.BUCKET:
        return Bucket(quota, now_ns, headroom_s, gentle=gentle)
    return Spaced(quota, now_ns, headroom_s)
