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
from bisect import bisect_right
from math import ceil
from typing import Any, Protocol

from paceline.core.quota import NS, Quota

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
