"""How long refusals take to come, and which share of the waits that they state is kept."""

from __future__ import annotations

from paceline.core.quota import NS

VERDICT_NS, VERDICT_MIN_NS, VERDICT_MAX_NS = NS, NS // 20, 2 * NS
"""An attempt is admitted if it was not refused within twice the time of the slowest refusal. Before the first refusal
that time is ``VERDICT_NS``. The others bound it: the network delays an attempt, too, and an overloaded provider must
not stop the measurement."""


class RefusalDelay:
    """How long refusals take, and so, after which time an attempt is admitted.

    Attributes:
        slowest_ns: The time from an attempt to its refusal, of the slowest one. It fades. It is 0 before the first
            refusal.
    """

    def __init__(self) -> None:
        self.slowest_ns = 0

    def add(self, took_ns: int) -> None:
        """Count a refusal that came after ``took_ns``."""
        # It fades, or one refusal that the network has held would delay all later verdicts.
        self.slowest_ns = max(self.slowest_ns - self.slowest_ns // 100, took_ns)

    @property
    def verdict_ns(self) -> int:
        """After this time, an attempt that was not refused is admitted."""
        if not self.slowest_ns:
            return VERDICT_NS
        return min(max(2 * self.slowest_ns, VERDICT_MIN_NS), VERDICT_MAX_NS)


class StatedWaits:
    """Which share of the waits that refusals state is kept.

    At first each stated wait is tested, then every second one, every fourth, and so on: the probe goes after half of
    what would be waited. If it is admitted, half of each stated wait is waited from then on. If it is refused, the wait
    is right, and the tests become rarer. So an honest provider is tested a few times in all, and a provider that always
    states the same long wait costs little after a few tests.

    Attributes:
        share: The share of a stated wait that is kept.
        every: One wait of so many is tested.
        left: The waits until the next test; 0 while one is tested.
    """

    def __init__(self) -> None:
        self.share = 1.0
        self.every = self.left = 1

    def kept_s(self, stated_s: float, *, again: bool) -> float:
        """How long to wait after a refusal that states ``stated_s``; ``again``: it is the refusal of a probe."""
        if not self.left:  # the test was refused
            self.every *= 2
            self.left = self.every
        elif again:
            self.share = min(2 * self.share, 1.0)
        self.left -= 1
        return stated_s * self.share / (1 if self.left else 2)

    def admitted(self) -> None:
        """Count a probe that was admitted."""
        if not self.left:
            self.share /= 2
            self.every = self.left = 1
