"""What a limiter does when its providers fail: breakers, and budgets for retries."""

from __future__ import annotations

import logging
import threading

from paceline.clock import Clock
from paceline.core.breaker import Breaker, BreakerPolicy
from paceline.core.retry import RetryBudget, RetryPolicy
from paceline.gate import Gate

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
        self._gates: dict[str, Gate] = {}  # by pool
        self._lock = threading.RLock()

    def succeeded(self, provider: str) -> None:
        """An answer of ``provider`` came; if its breaker was open, that ends the pause."""
        breaker = self._breakers.get(provider)
        if breaker is not None and breaker.in_row:
            with self._lock:
                until_ns = breaker.open_until_ns
                breaker.succeeded()
                gates = self._gates_of(provider) if until_ns else []
            for gate in gates:
                gate.lift(until_ns)

    def failed(self, provider: str, left_ns: int) -> None:
        """An attempt at ``provider`` that left at ``left_ns`` failed; too many in a row pause all of its pools."""
        if self._breaker is None:
            return
        with self._lock:
            breaker = self._breakers.setdefault(provider, Breaker(self._breaker))
            opened = breaker.failed(self.clock.now_ns(), left_ns)
            until_ns, in_row, gates = breaker.open_until_ns, breaker.in_row, self._gates_of(provider)
        if opened:
            log.warning("%s: %d failures in a row; pausing for %g s", provider, in_row, self._breaker.pause_s)
            for gate in gates:
                gate.pause(until_ns)

    def retry_delay_s(self, gate: Gate) -> float:
        """Spend one retry of the pool's budget; how long to wait for it, in seconds."""
        now_ns = self.clock.now_ns()
        with self._lock:
            return self._budget(gate, now_ns).spend(now_ns)

    def first_attempt(self, gate: Gate) -> None:
        """A request makes its first attempt: it earns a share of a retry."""
        with self._lock:
            self._budget(gate, self.clock.now_ns()).earn()

    def _gates_of(self, provider: str) -> list[Gate]:
        return [gate for name, gate in self._gates.items() if name.partition("/")[0] == provider]

    def _budget(self, gate: Gate, now_ns: int) -> RetryBudget:
        return self._budgets.setdefault(gate.pool.name, RetryBudget(now_ns))
