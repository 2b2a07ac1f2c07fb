"""Apache Beam's ``RateLimiter`` over a quota that all workers share (tested with apache-beam 2.77).

For ``RunInference``'s model handlers (``rate_limiter=``), and for a ``DoFn`` of one's own::

    PacelineRateLimiter("openai/gpt-6-luna", ["500 requests/min", "400k tokens/min"], tokens=900)
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from paceline.core.results import AcquireTimeoutError, StoreError
from paceline.integrations import package
from paceline.limiter.limiter import Limiter

_beam = package("apache_beam.io.components.rate_limiter", "apache-beam>=2.77")


@lru_cache(maxsize=64)
def _limiter(pool: str, limits: tuple[str, ...], store: str) -> Limiter:
    """One limiter in each process of a worker, for all of its threads. Workers are killed: they keep no share."""
    return Limiter({pool: list(limits)}, store=store, on_store_failure="fail_closed")


class PacelineRateLimiter(_beam.RateLimiter):  # type: ignore[misc,name-defined]
    """Wait until the shared quota of ``pool`` has enough. Workers get it by pickle, and make the limiter themselves.

    Args:
        pool: The pool to charge, e.g. ``openai/gpt-6-luna``.
        limits: Its quotas: ``["500 requests/min", "400k tokens/min"]``.
        store: Where the workers share them, a URL without a password; by default ``PACELINE_STORE`` in their environment.
        timeout_s: The longest wait in one call of :meth:`allow`, in seconds. Then it returns ``False``, and the
            granted part of its requests stays charged.
        **cost: The amounts of one request, by unit, e.g. ``tokens=900``.
    """

    def __init__(
        self, pool: str, limits: Sequence[str], *, store: str = "", timeout_s: float | None = None, **cost: float
    ) -> None:
        super().__init__(namespace="paceline")
        Limiter({pool: list(limits)}).try_acquire(pool, **cost)  # a wrong quota or unit is an error now
        if "@" in store:
            raise StoreError("store has a password, which Beam would pickle: leave store out, and set PACELINE_STORE")
        self._pool, self._limits, self._store = pool, tuple(limits), store
        self._timeout_s = timeout_s
        self._cost: dict[str, Any] = dict(cost)

    def allow(self, hits_added: int = 1, **_: Any) -> bool:
        """Wait for ``hits_added`` requests; return whether all of them may be sent.

        Raises:
            StoreError: There is no store, or it cannot be used.
            NeverFitsError: The cost is above a limit.
        """
        store = self._store or os.environ.get("PACELINE_STORE", "")
        if not store:
            raise StoreError("the workers have no store: set PACELINE_STORE in their environment, or give store")
        limiter, waited_s = _limiter(self._pool, self._limits, store), 0.0
        self.requests_counter.inc(hits_added)
        try:
            for _hit in range(hits_added):  # one at a time: a batch may be above what the limit admits at once
                left_s = None if self._timeout_s is None else max(self._timeout_s - waited_s, 0.0)
                permit = limiter.acquire(self._pool, timeout=left_s, **self._cost).wait()
                permit.settle()
                waited_s += permit.waited_s
        except AcquireTimeoutError:
            self.requests_throttled.inc(hits_added)
            return False
        if waited_s >= 1:
            self.throttling_signaler.signal_throttled(math.floor(waited_s))  # the runner then adds no workers
        self.requests_allowed.inc(hits_added)
        return True
