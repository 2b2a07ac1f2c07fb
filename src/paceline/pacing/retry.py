"""What to do after an attempt: hand the answer up, or try again, and when.

The policy is a value; chance is an argument (``luck``, a number in [0, 1)), so that a test can play both ends.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.core.quota import NS
from paceline.core.results import QuotaError, Refusal, RefusalKind

RETRIED = frozenset({RefusalKind.RATE, RefusalKind.GROWTH, RefusalKind.CAPACITY})
"""Refusals that time can heal. Money and a request that never fits cannot be waited out."""


@dataclass(frozen=True, slots=True)
class Again:
    """Try again, not before ``delay_s`` from now; ``pool_wide``: nobody in the pool may go earlier either."""

    delay_s: float
    pool_wide: bool


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Hand it up."""

    reason: str


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Bounds on what one request may cost when it keeps failing.

    Attributes:
        max_attempts: HTTP attempts in total, the first included.
        max_elapsed_s: No attempt starts later than this after the first.
        backoff_s: The first pause when the provider names none; it doubles.
        backoff_max_s: The longest such pause.
        jitter: The share of a pause that is left to chance, to either side.
        faults: Whether server faults (5xx) and broken connections are tried again, too. SDKs do that by
            themselves, and every attempt of theirs is paced; a bare HTTP client does not.
        max_retry_after_s: A provider that asks for a longer pause is handed up instead (a day quota, say).
    """

    max_attempts: int = 6
    max_elapsed_s: float = 600.0
    backoff_s: float = 1.0
    backoff_max_s: float = 60.0
    jitter: float = 0.25
    max_retry_after_s: float = 300.0
    faults: bool = False

    def __post_init__(self) -> None:
        """Refuse bounds that bound nothing."""
        if self.max_attempts < 1:
            raise QuotaError(f"max_attempts is {self.max_attempts}: at least the first attempt must be allowed")

    def after(
        self, attempt: int, elapsed_s: float, refusal: Refusal | None, luck: float, *, in_row: int = 0
    ) -> Again | GiveUp:
        """Decide after attempt number ``attempt`` (from 1) failed.

        Args:
            attempt: How many attempts have been made.
            elapsed_s: Seconds since the first one started.
            refusal: What the answer said; ``None`` for a server fault (5xx) or a broken connection.
            luck: A number in [0, 1).
            in_row: How many attempts the pool has seen refused in a row: a pause that nobody named grows with it.
        """
        if refusal is not None and refusal.kind not in RETRIED:
            return GiveUp("waiting cannot help")
        if attempt >= self.max_attempts:
            return GiveUp(f"{attempt} attempts made")
        asked_s = refusal.retry_after_s if refusal else None
        if asked_s is not None and asked_s > self.max_retry_after_s:
            return GiveUp(f"the provider asks to wait {asked_s:,.0f} s")
        pause_s = min(self.backoff_s * 2 ** min(max(attempt, in_row) - 1, 30), self.backoff_max_s)
        pause_s *= 1 + self.jitter * (2 * luck - 1)
        if asked_s is not None:
            # What was asked is a minimum; a little chance on top keeps many clients from returning as one.
            pause_s = asked_s + self.jitter * luck * min(asked_s, 1.0)
        if elapsed_s + pause_s > self.max_elapsed_s:
            return GiveUp(f"{elapsed_s:,.0f} s spent on it")
        # Their capacity is not our rate: who was refused for that waits alone.
        return Again(pause_s, pool_wide=refusal is not None and refusal.kind is not RefusalKind.CAPACITY)

    def pause_s(self, refusal: Refusal, decision: Again | GiveUp) -> float:
        """How long the whole pool pauses after ``refusal``: also when this request gives up, if others may still go."""
        if isinstance(decision, Again):
            return decision.delay_s if decision.pool_wide else 0.0
        asked_s = refusal.retry_after_s or 0.0
        ours = refusal.kind in (RefusalKind.RATE, RefusalKind.GROWTH)
        return asked_s if ours and asked_s <= self.max_retry_after_s else 0.0


class RetryBudget:
    """Lets retries after faults be no more than a share of the traffic: beyond that they wait, spread out.

    Retries after a refusal of our rate need no budget: they wait in the line, and the quotas pace them. Every first attempt earns ``SHARE`` of a retry and every second ``PER_S``; a retry spends one, in advance if it must.
    """

    SHARE = 0.2
    PER_S = 1.0
    MOST = 20.0

    __slots__ = ("_left", "_now_ns")

    def __init__(self, now_ns: int) -> None:
        self._left = self.MOST
        self._now_ns = now_ns

    def earn(self) -> None:
        """A first attempt has been made."""
        self._left = min(self._left + self.SHARE, self.MOST)

    def spend(self, now_ns: int) -> float:
        """Spend one retry; return the seconds to wait for it."""
        self._left = min(self._left + max(now_ns - self._now_ns, 0) / NS * self.PER_S, self.MOST) - 1
        self._now_ns = now_ns
        return max(-self._left, 0.0) / self.PER_S
