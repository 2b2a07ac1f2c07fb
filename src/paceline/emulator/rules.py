"""The rules by which a server counts one quota, each the arithmetic of one account, with time as an argument.

Nothing here is shared with the limiter that it tests. Times are float seconds on any clock that does not go back;
amounts are in the quota's unit. A level may go below zero: the server charges the true usage, even above what is left.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections import deque

EPSILON = 1e-6
"""Amounts this close are equal: far below one request, far above the rounding of float seconds since 1970."""


class CountingRule(ABC):
    """One quota as a server counts it.

    Attributes:
        limit: The amount per period that the server publishes.
        period_s: The period in seconds; 0 for slots.
        share: The part of the rate that other users of the same key use, from ``share_from`` on.
    """

    def __init__(self, limit: float, period_s: float) -> None:
        self.limit, self.period_s = limit, period_s
        self.share, self.share_from = 0.0, 0.0

    @property
    def rate(self) -> float:
        """Amount per second that the other users leave; 0 for slots."""
        return self.limit * (1 - self.share) / self.period_s if self.period_s else 0.0

    def fits(self, now: float, cost: float) -> bool:
        """Whether ``cost`` could be charged now."""
        return self.remaining(now) >= cost - EPSILON

    def share_with(self, now: float, share: float) -> None:
        """Set the share of the rate that other users take evenly from now on."""
        self.remaining(now)
        self.share, self.share_from = share, now

    def set_limit(self, now: float, limit: float) -> None:
        """Change the published amount; the used amount remains."""
        self.remaining(now)
        self.limit = limit

    @abstractmethod
    def remaining(self, now: float) -> float:
        """The amount left now; may be negative."""

    @abstractmethod
    def charge(self, now: float, amount: float) -> None:
        """Charge ``amount``, also into debt."""

    @abstractmethod
    def give_back(self, now: float, amount: float, since: float) -> None:
        """Correct a charge made at ``since``: positive gives back, negative charges more."""

    def wait(self, now: float, cost: float) -> float:
        """Seconds until ``cost`` fits without other traffic (as a server prints it); ``inf`` for never."""
        return math.inf if cost > self.limit else self._wait(now, cost)

    def _wait(self, now: float, cost: float) -> float:
        return 0.0 if self.fits(now, cost) else self.reset(now)

    @abstractmethod
    def reset(self, now: float) -> float:
        """Seconds until the quota is full again, as a server prints it."""


class BucketRule(CountingRule):
    """Refills continuously, up to a burst.

    With ``quantum_s`` the limit is quantised ("60 000 per minute may be enforced as 1 000 per second"): the bucket
    holds ``quantum_s`` worth of the rate. A cost between that and the limit needs a full bucket and leaves a debt;
    otherwise 3 requests/min in quanta of one second would admit nothing at all.
    """

    def __init__(self, limit: float, period_s: float, now: float, *, quantum_s: float = 0.0, full: float = 1.0) -> None:
        super().__init__(limit, period_s)
        self._quantum_s = quantum_s
        self._level, self._at = self.burst * full, now

    @property
    def burst(self) -> float:
        """The bucket's size: the limit, or one quantum's worth of it."""
        return min(self.limit, self.limit * self._quantum_s / self.period_s) if self._quantum_s else self.limit

    def remaining(self, now: float) -> float:
        if now > self._at:
            self._level = min(self.burst, self._level + (now - self._at) * self.rate)
            self._at = now
        return self._level

    def fits(self, now: float, cost: float) -> bool:
        return cost <= self.limit and self.remaining(now) >= min(cost, self.burst) - EPSILON

    def charge(self, now: float, amount: float) -> None:
        self._level = self.remaining(now) - amount

    def give_back(self, now: float, amount: float, since: float) -> None:  # noqa: ARG002
        self._level = min(self.burst, self.remaining(now) + amount)

    def set_limit(self, now: float, limit: float) -> None:
        """A larger bucket fills from its level; a smaller one loses the excess."""
        super().set_limit(now, limit)
        self._level = min(self._level, self.burst)

    def _wait(self, now: float, cost: float) -> float:
        """``(used + requested - limit) x period / limit``, as OpenAI's and Groq's refusals print it."""
        return max(0.0, min(cost, self.burst) - self.remaining(now)) * self.period_s / self.limit

    def reset(self, now: float) -> float:
        """``(limit - remaining) x period / limit``, as the headers print it."""
        return (self.burst - self.remaining(now)) * self.period_s / self.limit


class WindowRule(CountingRule):
    """A counter that restarts every period, at ``offset_s`` past the clock's multiples of it."""

    def __init__(self, limit: float, period_s: float, now: float, *, offset_s: float = 0.0, full: float = 1.0) -> None:
        super().__init__(limit, period_s)
        self._offset_s = offset_s
        self._start = self._window_of(now)
        self._used = limit * (1 - full)

    def _window_of(self, now: float) -> float:
        return math.floor((now - self._offset_s) / self.period_s) * self.period_s + self._offset_s

    def remaining(self, now: float) -> float:
        start = self._window_of(now)
        if start > self._start:
            self._start, self._used = start, 0.0
        others = self.share * self.limit / self.period_s * (now - max(self._start, self.share_from))
        return self.limit - self._used - others

    def charge(self, now: float, amount: float) -> None:
        self.remaining(now)
        self._used += amount

    def give_back(self, now: float, amount: float, since: float) -> None:
        self.remaining(now)
        if since >= self._start or amount < 0:
            self._used -= amount

    def reset(self, now: float) -> float:
        """To the window's end, however much is left (Azure and Cerebras show a clock, not a level)."""
        self.remaining(now)
        return self._start + self.period_s - now


class SlidingRule(CountingRule):
    """Any trailing period, from an exact log: one entry per charge of the last period."""

    def __init__(self, limit: float, period_s: float, now: float, *, full: float = 1.0) -> None:
        super().__init__(limit, period_s)
        self._times, self._amounts = deque[float](), deque[float]()
        self._used = 0.0
        if full < 1:
            self.charge(now, limit * (1 - full))

    def remaining(self, now: float) -> float:
        while self._times and self._times[0] + self.period_s <= now:
            self._times.popleft()
            self._used -= self._amounts.popleft()
        if not self._times:
            self._used = 0.0  # an empty log has no rounding errors
        others = self.share * self.limit * min(1.0, (now - self.share_from) / self.period_s)
        return self.limit - self._used - others

    def charge(self, now: float, amount: float) -> None:
        self.remaining(now)
        self._times.append(max(now, self._times[-1]) if self._times else now)
        self._amounts.append(amount)
        self._used += amount

    def give_back(self, now: float, amount: float, since: float) -> None:
        self.remaining(now)
        at = bisect_left(self._times, since)
        if at < len(self._times) and self._times[at] == since:
            self._amounts[at] -= amount
            self._used -= amount
        elif amount < 0:
            self.charge(now, -amount)

    def _wait(self, now: float, cost: float) -> float:
        missing = cost - self.remaining(now) - EPSILON
        if missing <= 0:
            return 0.0
        for at, amount in zip(self._times, self._amounts, strict=True):
            missing -= amount
            if missing <= 0:
                return max(0.0, at + self.period_s - now)
        return self.period_s

    def reset(self, now: float) -> float:
        self.remaining(now)
        newest = bisect_right(self._times, now) - 1
        return max(0.0, self._times[newest] + self.period_s - now) if newest >= 0 else 0.0


class SlotsRule(CountingRule):
    """A number of requests in flight."""

    def __init__(self, limit: float) -> None:
        super().__init__(limit, 0.0)
        self._used = 0.0

    def remaining(self, now: float) -> float:  # noqa: ARG002
        return self.limit * (1 - self.share) - self._used

    def charge(self, now: float, amount: float) -> None:  # noqa: ARG002
        self._used += amount

    def give_back(self, now: float, amount: float, since: float) -> None:  # noqa: ARG002
        self._used -= amount

    def reset(self, now: float) -> float:
        """A second: the end of an answer cannot be predicted."""
        return 0.0 if self.remaining(now) >= self.limit else 1.0
