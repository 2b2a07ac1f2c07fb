"""Retries: whether and when another attempt follows a failed one. Random numbers are arguments (``luck``)."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.core.quota import NS
from paceline.core.results import QuotaError, Refusal, RefusalKind, RefusalScope

RETRIED = frozenset({RefusalKind.RATE, RefusalKind.GROWTH, RefusalKind.CAPACITY})
"""Refusals that may end with time."""


@dataclass(frozen=True, slots=True)
class Again:
    """Try again, not before ``delay_s`` from now; ``pool_wide``: the whole pool waits as long."""

    delay_s: float
    pool_wide: bool


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Make no further attempt.

    Attributes:
        reason: Why not.
        stop_s: For how many seconds no other request of the pool can be served either; 0: that is not known.
    """

    reason: str
    stop_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Bounds on the attempts of one request, and the pauses between them.

    Attributes:
        max_attempts: HTTP attempts in total, with the first.
        max_elapsed_s: No attempt starts later than this after the first, in seconds.
        backoff_s: The first pause when the provider names none, in seconds; it doubles with each attempt.
        backoff_max_s: The longest such pause, in seconds.
        jitter: The random share of a pause, to either side.
        faults: Whether server faults (5xx) and broken connections are retried, too. SDKs retry them, and each of their
            attempts is paced; a bare HTTP client does not.
        max_retry_after_s: No retry if the provider asks for a longer pause (that of a daily quota, for example). The pool
            then stops: it refuses further requests at once, and tries one after that pause, or after 10 minutes.
    """

    max_attempts: int = 6
    max_elapsed_s: float = 600.0
    backoff_s: float = 1.0
    backoff_max_s: float = 60.0
    jitter: float = 0.25
    max_retry_after_s: float = 300.0
    faults: bool = False

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        if self.max_attempts < 1:
            raise QuotaError(f"max_attempts is {self.max_attempts}: it must be 1 or more")

    def after(
        self, attempt: int, elapsed_s: float, refusal: Refusal | None, luck: float, *, in_row: int = 0
    ) -> Again | GiveUp:
        """Decide after a failed attempt.

        Args:
            attempt: The number of attempts made.
            elapsed_s: Seconds since the first one started.
            refusal: The refusal; ``None`` for a server fault (5xx) or a broken connection.
            luck: A random number in [0, 1).
            in_row: The number of refused attempts of the pool in a row; a pause without ``retry_after_s`` grows with it.
        """
        if refusal is not None and refusal.kind not in RETRIED:
            return GiveUp("waiting cannot help")
        asked_s = (refusal.retry_after_s or None) if refusal else None  # a wait of 0 would use up the attempts at once
        if asked_s is not None and asked_s > self.max_retry_after_s:
            stop_s = asked_s if refusal is not None and _about_the_rate_of_the_pool(refusal) else 0.0
            return GiveUp(f"the provider asks to wait {asked_s:,.0f} s", stop_s)
        if attempt >= self.max_attempts:
            return GiveUp(f"{attempt} attempts made")
        pause_s = min(self.backoff_s * 2 ** min(max(attempt, in_row) - 1, 30), self.backoff_max_s)
        pause_s *= 1 + self.jitter * (2 * luck - 1)
        if asked_s is not None:
            # The provider names a minimum. A random part on top spreads the return of many clients.
            pause_s = asked_s + self.jitter * luck * min(asked_s, 1.0)
        if elapsed_s + pause_s > self.max_elapsed_s:
            return GiveUp(f"{elapsed_s:,.0f} s spent on it")
        # A lack of capacity at the provider is not about the rate of the pool: only this request waits.
        return Again(pause_s, refusal is not None and _about_the_rate_of_the_pool(refusal))

    def pause_s(self, refusal: Refusal, decision: Again | GiveUp) -> float:
        """How long the pool pauses after ``refusal``: also when this request gives up but others may continue."""
        if isinstance(decision, Again):
            return decision.delay_s if decision.pool_wide else 0.0
        wanted = _about_the_rate_of_the_pool(refusal) and not decision.stop_s
        return (refusal.retry_after_s or 0.0) if wanted else 0.0


def _about_the_rate_of_the_pool(refusal: Refusal) -> bool:
    return refusal.kind.about_rate and refusal.scope is RefusalScope.POOL


class RetryBudget:
    """Bounds retries after faults to a share of the traffic: further retries wait, spread out.

    Every first attempt earns ``SHARE`` of a retry, and every second earns ``PER_S``. A retry spends one, in advance if
    none is left, and then waits for it. Retries after a refusal for rate need no budget: they wait in the queue.
    """

    SHARE = 0.2
    PER_S = 1.0
    MOST = 20.0

    __slots__ = ("_left", "_now_ns")

    def __init__(self, now_ns: int) -> None:
        self._left = self.MOST
        self._now_ns = now_ns

    def earn(self) -> None:
        """Count a first attempt."""
        self._left = min(self._left + self.SHARE, self.MOST)

    def spend(self, now_ns: int) -> float:
        """Spend one retry; return the seconds to wait for it."""
        self._left = min(self._left + max(now_ns - self._now_ns, 0) / NS * self.PER_S, self.MOST) - 1
        self._now_ns = now_ns
        return max(-self._left, 0.0) / self.PER_S
