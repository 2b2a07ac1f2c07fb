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
from typing import Any, Protocol

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

    def after(self, now_ns: int, ahead: float, cost: float, slack_ns: int) -> int:
        """Like :meth:`earliest`, when ``ahead`` goes first, and with ``slack_ns`` more kept unused."""

    def state(self) -> State:
        """All that changes, as plain values: what :meth:`restore` takes."""

    def restore(self, quota: Quota, state: State) -> None:
        """Take the quota and the state of another meter of the same kind."""


State = dict[str, Any]
"""A meter's numbers by name; instants in nanoseconds."""


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
        "_low_marks", "_low_rooms", "_moment_ns", "_ns_per_unit", "_open_reach_ns", "_opened", "_reach_ns", "_sequence",
        "capacity", "ceiling", "full_at_ns", "headroom_s", "most", "quota",
    )  # fmt: skip

    def __init__(self, quota: Quota, now_ns: int, headroom_s: float, *, gentle: bool = False) -> None:
        self.headroom_s = headroom_s
        self.full_at_ns = now_ns
        self.capacity = math.inf
        self.ceiling = 1.0
        self._opened = small_burst_s(quota) * quota.rate if gentle else math.inf  # what may be granted at once so far
        self._sequence = 0
        self._low_marks: list[int] = []  # when the bucket was low, and
        self._low_rooms: list[int] = []  # what it lacked from full then, in ns; both ascending
        self._take(quota)

    def _take(self, quota: Quota) -> None:
        self.quota = quota
        self.most = quota.burst
        self._ns_per_unit = quota.ns_per_unit / self.ceiling
        self._open_reach_ns = self._reach_of(quota.burst)
        self._moment_ns = min(MOMENT_NS, math.floor(self.headroom_s * NS))
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

    def shift(self, now_ns: int, by_ns: int) -> None:
        """Move the instant of being full: later when somebody else spent, earlier when we had overcharged."""
        if by_ns > 0:
            before_ns = self.full_at_ns
            self.charge(now_ns, 0.0)  # a low point: what was full until now has nothing to give back
            self.full_at_ns = before_ns
        else:
            self._low_rooms = [max(room + by_ns, 0) for room in self._low_rooms]
        self.full_at_ns += by_ns
        self.not_granted(by_ns / self._ns_per_unit)

    def not_granted(self, amount: float) -> None:
        """``amount`` of what is used was not granted by us just now: it does not count against the opening burst."""
        if self._opened < math.inf:
            self._opened = max(self._opened + amount, small_burst_s(self.quota) * self.quota.rate)
            self._widen()

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
        before, grown = self._ns_per_unit, min(quota.burst - self.quota.burst, 0.0)  # room to grow was no room before
        self.charge(now_ns, 0.0)  # a low point: what was full until now has nothing to give back
        self._take(quota)
        self.full_at_ns = now_ns + math.ceil((quota.burst - min(level, quota.burst)) * self._ns_per_unit)
        self._low_rooms = [max(math.floor((room / before + grown) * self._ns_per_unit), 0) for room in self._low_rooms]

    def _ns(self, cost: float) -> int:
        return ceil(cost * self._ns_per_unit)  # up: against over-admission

    def earliest(self, now_ns: int, cost: float) -> int:  # noqa: ARG002
        cost_ns = ceil(cost * self._ns_per_unit)
        need_ns = cost_ns - self._reach_ns
        if need_ns > 0:
            # Above what is granted at once: when nothing is owed. A cost that needs the whole bucket waits for it to
            # be full and a moment more, not for a whole headroom: it would pay that every time.
            over_ns = max(cost_ns - self._open_reach_ns, 0)
            need_ns = min(over_ns, self._moment_ns) if cost <= self.quota.burst else over_ns
        return self.full_at_ns + need_ns

    def charge(self, now_ns: int, cost: float) -> int:
        full_at_ns = self.full_at_ns
        if full_at_ns < now_ns:
            full_at_ns = now_ns
        room = full_at_ns - now_ns
        self.full_at_ns = full_at_ns + ceil(cost * self._ns_per_unit)
        mark = now_ns if now_ns > self._sequence else self._sequence + 1  # the instant, made unique
        self._sequence = mark
        marks, rooms = self._low_marks, self._low_rooms  # remember that only this much was lacking from full just now
        while rooms and rooms[-1] >= room:
            del marks[-1], rooms[-1]
        marks.append(mark)
        rooms.append(room)
        if len(rooms) > LOW_POINTS_MAX:
            del marks[0], rooms[1]
        return mark

    def correct(self, now_ns: int, mark: int, charged: float, actual: float) -> None:
        room = self.full_at_ns - now_ns
        refund = ceil(charged * self._ns_per_unit) - ceil(actual * self._ns_per_unit)
        if refund < 0:  # a debt
            self.full_at_ns = now_ns + max(room, 0) - refund
            return
        if refund == 0 or room <= 0:
            return
        if mark != self._sequence:  # charged again since then
            room = self._lower(mark, room, refund)
        if refund > room:
            refund = room
        self.full_at_ns -= refund

    def _lower(self, mark: int, room: int, refund: int) -> int:
        """Lower the low points after ``mark`` by ``refund``; what it may be worth, ``room`` at most.

        With that charge lower all along, every later low point would have been lower too.
        """
        marks, rooms = self._low_marks, self._low_rooms
        since = bisect_right(marks, mark)
        room = min([room, *rooms[since : since + 1]])
        if room > 0:
            rooms[since:] = [max(then - refund, 0) for then in rooms[since:]]
            while 0 < since < len(rooms) and rooms[since - 1] >= rooms[since]:
                since -= 1  # undercut now: keep both ascending
                del marks[since], rooms[since]
        return room

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

    def after(self, now_ns: int, ahead: float, cost: float, slack_ns: int) -> int:
        cost_ns = ceil(cost * self._ns_per_unit) + slack_ns
        need_ns = cost_ns - self._reach_ns
        if need_ns > 0:  # as in `earliest`
            over_ns = max(cost_ns - self._open_reach_ns, 0)
            need_ns = min(over_ns, self._moment_ns) if cost <= self.quota.burst else over_ns
        if ahead:
            return max(self.full_at_ns, now_ns) + ceil(ahead * self._ns_per_unit) + need_ns
        return self.full_at_ns + need_ns

    @property
    def opened(self) -> float:
        """What may be granted at once so far; infinite when it is open."""
        return self._opened

    def stand(self, full_at_ns: int, opened: float) -> None:
        """Take where other books say that it stands; nothing is known of its low points."""
        self.full_at_ns = full_at_ns
        self._low_marks, self._low_rooms = [], []
        if opened != self._opened:
            self._opened = opened
            self._widen()

    def turn(self, by_ns: int) -> None:
        """The clock was set by so much: every instant moves with it."""
        self.full_at_ns += by_ns
        self._sequence += by_ns
        self._low_marks = [mark + by_ns for mark in self._low_marks]

    def carry(self, before: Bucket) -> None:
        """What is used of ``before`` is used of this one, in time; refunds of its charges stay guarded."""
        self.full_at_ns, self._sequence = before.full_at_ns, before._sequence
        self._low_marks, self._low_rooms = before._low_marks, before._low_rooms

    def state(self) -> State:
        return {
            "full_at": self.full_at_ns,
            "capacity": self.capacity,
            "ceiling": self.ceiling,
            "opened": self._opened,
            "sequence": self._sequence,
            "low_marks": list(self._low_marks),
            "low_rooms": list(self._low_rooms),
        }

    def restore(self, quota: Quota, state: State) -> None:
        self.full_at_ns, self.capacity, self.ceiling = state["full_at"], state["capacity"], state["ceiling"]
        self._opened, self._sequence = state["opened"], state["sequence"]
        self._low_marks, self._low_rooms = list(state["low_marks"]), list(state["low_rooms"])
        self._take(quota)


SLICES = 512
"""How finely a spread quota remembers its last period."""

TINY = 1e-9
"""Amounts this close are equal: sums of floats come no closer."""


PARTS = 8
"""SharedLedger tell each other in so many parts when in the last period something was used."""


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

    __slots__ = ("_period_ns", "_start_ns", "_stop_ns", "headroom_s", "most", "quota", "used")

    def __init__(self, quota: Quota, headroom_s: float) -> None:
        self.quota = quota
        self.most = quota.amount
        self.headroom_s = min(headroom_s, quota.period_s / 20)
        self.used = 0.0
        self._start_ns = self._stop_ns = 0
        self._period_ns = max(round(quota.period_s * 1e6), 1) * 1_000  # whole microseconds, as clocks count

    def _roll(self, now_ns: int) -> None:
        """Enter the window of ``now_ns`` if it is a later one; a clock that was set back opens no old one again."""
        if self._start_ns - self._period_ns <= now_ns < self._stop_ns:
            return
        days = restarts(self.quota.anchor, now_ns)
        if days is None:
            self._start_ns = now_ns - now_ns % self._period_ns
            self._stop_ns = self._start_ns + self._period_ns
        else:
            self._start_ns, self._stop_ns = days[1] * NS, days[2] * NS
        self.used = 0.0

    def earliest(self, now_ns: int, cost: float) -> int:
        return self.after(now_ns, 0.0, cost, 0)

    def after(self, now_ns: int, ahead: float, cost: float, slack_ns: int) -> int:
        self._roll(now_ns)
        guard_ns = math.ceil(self.headroom_s * NS)
        if now_ns >= self._stop_ns - guard_ns - slack_ns or self.used + ahead + cost > self.quota.amount:
            return self._stop_ns + guard_ns
        return max(self._start_ns + guard_ns, now_ns)

    def lasts_ns(self, now_ns: int) -> int:
        """How long the present window still grants something."""
        self._roll(now_ns)
        return max(self._stop_ns - math.ceil(self.headroom_s * NS) - now_ns, 0)

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

    def seen(self, now_ns: int, remaining: float) -> None:
        """The provider says that only this much is left: somebody else is spending."""
        self._roll(now_ns)
        self.used = max(self.used, self.quota.amount - remaining)

    def release(self, cost: float) -> None:
        """Nothing is in flight in a window."""

    def level(self, now_ns: int) -> float:
        self._roll(now_ns)
        return self.quota.amount - self.used

    def adopt(self, now_ns: int, amount: float) -> None:  # noqa: ARG002
        self.quota = self.quota.with_amount(amount)
        self.most = amount

    def carry(self, before: Window) -> None:
        """What was used of ``before`` is used of this one, until the window that it was in ends."""
        self.used, self._start_ns, self._stop_ns = before.used, before._start_ns, before._stop_ns

    def state(self) -> State:
        return {"used": self.used, "start": self._start_ns, "stop": self._stop_ns}

    def restore(self, quota: Quota, state: State) -> None:
        self.quota, self.most = quota, quota.amount
        self.used, self._start_ns, self._stop_ns = state["used"], state["start"], state["stop"]


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

    def after(self, now_ns: int, ahead: float, cost: float, slack_ns: int) -> int:  # noqa: ARG002
        return self.earliest(now_ns, ahead + cost)

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

    def state(self) -> State:
        return {"used": self.used}

    def restore(self, quota: Quota, state: State) -> None:
        self.quota, self.most, self.used = quota, quota.amount, state["used"]


def meter(quota: Quota, now_ns: int, headroom_s: float, *, gentle: bool = False) -> Meter:
    """The meter for ``quota``, with nothing used yet; ``gentle``: a bucket opens slowly."""
    if quota.rule is Rule.SLOTS:
        return Slots(quota)
    if quota.rule is Rule.WINDOW and quota.anchor is not None:
        return Window(quota, headroom_s)
    if quota.rule is Rule.BUCKET:
        return Bucket(quota, now_ns, headroom_s, gentle=gentle)
    return Spaced(quota, now_ns, headroom_s)
