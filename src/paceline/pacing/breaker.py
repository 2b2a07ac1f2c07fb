"""When to stop trying a provider that fails: after some failures in a row, for a while, then one probe."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

from paceline.core.quota import NS
from paceline.core.results import QuotaError
from paceline.pacing.clock import Clock
from paceline.pacing.retry import RetryBudget, RetryPolicy
from paceline.pacing.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class BreakerPolicy:
    """When a provider's breaker opens, and for how long.

    Attributes:
        failures: Failures in a row that open it: 5xx, 503, 529, broken connections and timeouts, of any model.
        pause_s: How long nothing is sent then. One attempt goes next; if that fails, too, the pause starts again.
    """

    failures: int = 5
    pause_s: float = 60.0

    def __post_init__(self) -> None:
        """Refuse a breaker that is always open."""
        if self.failures < 1 or not 0 <= self.pause_s < float("inf"):
            raise QuotaError(f"{self}: failures must be 1 or more, and pause_s finite, 0 or more")


class Breaker:
    """One provider's failures in a row.

    Attributes:
        in_row: How many there have been since the last success.
        open_until_ns: When it lets a probe through again; 0 while it is closed.
    """

    __slots__ = ("in_row", "open_until_ns", "policy")

    def __init__(self, policy: BreakerPolicy) -> None:
        self.policy = policy
        self.in_row = 0
        self.open_until_ns = 0

    def succeeded(self) -> None:
        """An answer came: all is well."""
        self.in_row = 0
        self.open_until_ns = 0

    def failed(self, now_ns: int, left_ns: int) -> bool:
        """An attempt that left at ``left_ns`` failed; whether that opens the breaker (again)."""
        self.in_row += 1
        if self.in_row < self.policy.failures or left_ns < self.open_until_ns:
            return False  # too few, or it was on its way when the breaker opened
        self.open_until_ns = now_ns + round(self.policy.pause_s * NS)
        return True


log = logging.getLogger("paceline")


class Faults:
    """The side of a :class:`~paceline.Limiter` that attempts report to.

    Args:
        clock: The clock.
        retry: What to do when the provider refuses.
        breaker: When to stop trying a provider that fails; ``None`` for never.
    """

    def __init__(self, clock: Clock, retry: RetryPolicy | None, breaker: BreakerPolicy | None) -> None:
        self.clock = clock
        self.retry = retry or RetryPolicy()
        self._breaker = breaker
        self._breakers: dict[str, Breaker] = {}  # by provider
        self._budgets: dict[str, RetryBudget] = {}  # by pool
        self._schedulers: dict[str, Scheduler] = {}  # by pool
        self._lock = threading.RLock()

    def succeeded(self, provider: str) -> None:
        """An answer of ``provider`` came; if its breaker was open, that ends the pause."""
        breaker = self._breakers.get(provider)
        if breaker is not None and breaker.in_row:
            with self._lock:
                until_ns = breaker.open_until_ns
                breaker.succeeded()
                schedulers = self._schedulers_of(provider) if until_ns else []
            for scheduler in schedulers:
                scheduler.lift(until_ns)

    def failed(self, provider: str, left_ns: int) -> None:
        """An attempt at ``provider`` that left at ``left_ns`` failed; too many in a row pause all of its pools."""
        if self._breaker is None:
            return
        with self._lock:
            breaker = self._breakers.setdefault(provider, Breaker(self._breaker))
            opened = breaker.failed(self.clock.now_ns(), left_ns)
            until_ns, in_row, schedulers = breaker.open_until_ns, breaker.in_row, self._schedulers_of(provider)
        if opened:
            log.warning("%s: %d failures in a row; pausing for %g s", provider, in_row, self._breaker.pause_s)
            for scheduler in schedulers:
                scheduler.pause(until_ns)

    def retry_delay_s(self, scheduler: Scheduler) -> float:
        """Spend one retry of the pool's budget; how long to wait for it, in seconds."""
        now_ns = self.clock.now_ns()
        with self._lock:
            return self._budget(scheduler, now_ns).spend(now_ns)

    def first_attempt(self, scheduler: Scheduler) -> None:
        """A request makes its first attempt: it earns a share of a retry."""
        with self._lock:
            self._budget(scheduler, self.clock.now_ns()).earn()

    def _schedulers_of(self, provider: str) -> list[Scheduler]:
        return [scheduler for name, scheduler in self._schedulers.items() if name.partition("/")[0] == provider]

    def _budget(self, scheduler: Scheduler, now_ns: int) -> RetryBudget:
        return self._budgets.setdefault(scheduler.pool.name, RetryBudget(now_ns))
