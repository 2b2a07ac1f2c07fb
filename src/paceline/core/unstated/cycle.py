"""The course of a measured rate with time.

After a refusal the rate goes a tenth below the measured one, back to it, and then above it as a test. It rises slowly
at first, and ever faster while nothing is refused. A cycle takes longer, and begins less far below, while successive
tests find the same rate.
"""

from __future__ import annotations

BELOW = 0.1
"""How far below the measured rate a cycle begins, as a share of it. A bucket must refill after a refusal. The mean loss
of a cycle is a quarter of it, and less in a longer cycle."""

CYCLE_S, CYCLE_N = 5.0, 20
"""A test above the measured rate comes after the time that the last measurement has taken, but after ``CYCLE_S`` at
least, and after the time of ``CYCLE_N`` attempts at most, if that is longer. A test costs one refusal, so this bounds
the refusals in the long run: one in 20, and with the longest cycles one in 120."""

STEADY_MAX = 6.0
"""How many times longer a cycle becomes while its tests find the same rate. At 5 per second 0.6 % of the attempts are
refused then, and a doubled rate is found in 40 s. With 3 times it is 1.1 % and 13 s, with 12 times 0.4 % and 100 s."""

SAME = 0.07
"""Two measured rates that differ by a smaller share are the same."""


class Cycle:
    """The course of the rate about a measured one: from a tenth below it to twice as much, and slowest near it.

    Attributes:
        top: The measured rate of attempts, per second; 0 before the first measurement. Where a share is refused by
            chance, that share of it is refused, too.
        span_s: The time over which a refusal last measured it. After little evidence the next test comes soon. A
            blocked time does not count: it may have been an outage, and then the rate must rise quickly.
        period_s: The period of a counter that restarts; 0 if none is likely. A cycle takes as long, up to the longest
            one: what is left of a period admits a higher rate than the counter does.
        progress: The place in the cycle: 0 at its beginning, 1 at ``top``, 2 at twice ``top``.
        steady: How many times longer the cycle is, because successive tests have found the same rate.
    """

    def __init__(self) -> None:
        self.top = self.span_s = self.period_s = self.progress = 0.0
        self.steady = 1.0

    def begin(self, top: float, *, lengthen: bool) -> None:
        """Begin at the measured rate ``top``.

        Args:
            top: The rate.
            lengthen: Whether the cycle is longer than the last one, if that has found the same rate. It is not, if the
                rate is found without a test: such rates become lower step by step while the limit falls.
        """
        if abs(top - self.top) >= SAME * self.top:
            self.steady = 1.0
        elif lengthen:
            self.steady = min(2 * self.steady, STEADY_MAX)
        self.top, self.progress = top, 0.0

    def advance(self, waited_s: float, mean: float) -> bool:
        """Go on by ``waited_s``, with attempts of the cost ``mean``.

        Returns whether the rate has come to ``top``, so that a test begins.

        At twice ``top`` the rate is the new ``top``: all of it was admitted.
        """
        before = self.progress
        longest_s = max(CYCLE_S, CYCLE_N * mean / self.top)
        steady_s = min(max(self.span_s, CYCLE_S), longest_s) * self.steady
        self.progress += waited_s / max(steady_s, min(self.period_s, CYCLE_S * STEADY_MAX))
        if self.progress >= 2:
            self.top, self.progress, self.steady = 2 * self.top, 1.0, 1.0
            return True
        return before < 1 <= self.progress

    @property
    def rate(self) -> float:
        """The rate at this place."""
        past = self.progress - 1
        return self.top * (1 + past**3 * (BELOW / self.steady if past < 0 else 1))
