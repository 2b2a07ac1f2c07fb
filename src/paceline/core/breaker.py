"""When to stop trying a provider that fails: after some failures in a row, for a while, then one probe."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.core.outcomes import QuotaError
from paceline.core.quota import NS


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
