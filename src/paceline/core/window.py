"""The two rules without a refill: a counter that restarts at known instants, and slots."""

from __future__ import annotations

import math
from datetime import datetime, timedelta

from paceline.core.bucket import FAR_NS, State
from paceline.core.quota import NS, Quota


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
