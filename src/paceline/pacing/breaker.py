"""The breaker of a provider: after some failures in a row, its pools pause, and then send one probe."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from paceline.core.quota import NS
from paceline.core.results import QuotaError
from paceline.pacing.clock import Clock
from paceline.pacing.retry import RetryBudget
from paceline.pacing.scheduler import Scheduler

log = logging.getLogger("paceline")


@dataclass(frozen=True, slots=True)
class BreakerPolicy:
    """When the breaker of a provider opens, and for how long.

    Attributes:
        failures: How many failures in a row open it: 5xx, broken connections and timeouts, of any model.
        pause_s: The pause in seconds. One attempt goes next; if it fails, too, the pause starts again.
    """

    failures: int = 5
    pause_s: float = 60.0

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        if self.failures < 1 or not 0 <= self.pause_s < float("inf"):
            raise QuotaError(f"{self}: failures must be 1 or more, and pause_s finite, 0 or more")


class Breaker:
    """The failures of one provider in a row.

    Attributes:
        in_row: The number of failures since the last success.
        open_until_ns: When a probe may go; 0 while the breaker is closed.
    """

    __slots__ = ("in_row", "open_until_ns", "policy")

    def __init__(self, policy: BreakerPolicy) -> None:
        self.policy = policy
        self.in_row = 0
        self.open_until_ns = 0

    def succeeded(self) -> None:
        """Count a success: close the breaker."""
        self.in_row = 0
        self.open_until_ns = 0

    def failed(self, now_ns: int, sent_ns: int) -> bool:
        """Count a failed attempt that was sent at ``sent_ns``; whether it opens the breaker (again)."""
        self.in_row += 1
        if self.in_row < self.policy.failures or sent_ns < self.open_until_ns:
            return False  # too few failures, or it was in flight when the breaker opened
        self.open_until_ns = now_ns + round(self.policy.pause_s * NS)
        return True


class ProviderHealth:
    """The breakers of all providers, and the retry budgets of all pools.

    Args:
        clock: The clock.
        policy: When breakers open; ``None`` for never.
        schedulers_of: Returns the schedulers of a provider's pools.
    """

    def __init__(
        self, clock: Clock, policy: BreakerPolicy | None, schedulers_of: Callable[[str], list[Scheduler]]
    ) -> None:
        self._clock = clock
        self.policy = policy
        self._schedulers_of = schedulers_of
        self._breakers: dict[str, Breaker] = {}
        self._budgets: dict[str, RetryBudget] = {}
        self._lock = threading.RLock()

    def succeeded(self, provider: str) -> None:
        """Count an answer of ``provider``; if its breaker was open, the pause ends."""
        breaker = self._breakers.get(provider)
        if breaker is not None and breaker.in_row:
            with self._lock:
                until_ns = breaker.open_until_ns
                breaker.succeeded()
            for scheduler in self._schedulers_of(provider) if until_ns else []:
                scheduler.lift(until_ns)

    def failed(self, provider: str, sent_ns: int) -> None:
        """Count a failed attempt at ``provider`` that was sent at ``sent_ns``; enough in a row pause all of its pools."""
        if self.policy is None:
            return
        with self._lock:
            breaker = self._breakers.setdefault(provider, Breaker(self.policy))
            opened = breaker.failed(self._clock.now_ns(), sent_ns)
            until_ns, in_row = breaker.open_until_ns, breaker.in_row
        if opened:
            log.warning("%s: %d failures in a row; pausing for %g s", provider, in_row, self.policy.pause_s)
            for scheduler in self._schedulers_of(provider):
                scheduler.pause(until_ns)

    def first_attempt(self, scheduler: Scheduler) -> None:
        """Count the first attempt of a request in the retry budget of its pool."""
        with self._lock:
            self._budget(scheduler, self._clock.now_ns()).earn()

    def retry_delay_s(self, scheduler: Scheduler) -> float:
        """Spend one retry of the pool's budget; return the seconds to wait for it."""
        now_ns = self._clock.now_ns()
        with self._lock:
            return self._budget(scheduler, now_ns).spend(now_ns)

    def _budget(self, scheduler: Scheduler, now_ns: int) -> RetryBudget:
        return self._budgets.setdefault(scheduler.pool.name, RetryBudget(now_ns))
