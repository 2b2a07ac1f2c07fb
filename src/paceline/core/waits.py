"""How long the granted requests of a pool have waited, by lane, as histograms."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from paceline.core.quota import NS

BOUNDS_S: Final = (0.001, 0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1_800.0, 3_600.0)
"""The upper bounds of the counts, in seconds; the last count has no bound. Clients of a gateway give up at 300 or 600
s."""

LANES_MAX: Final = 100
"""The lanes with counts of their own, the first ones: names of lanes come from callers. Later ones count as
:data:`OTHER`."""

OTHER: Final = "other"

_BOUNDS_NS: Final = tuple(round(bound_s * NS) for bound_s in BOUNDS_S)


class Waits:
    """The waits of a pool.

    Attributes:
        total_ns: Their sum.
        longest_ns: The longest of them.
        lanes: Of each lane how many waits ended in each of the ranges that :data:`BOUNDS_S` divide; then their sum in
            nanoseconds.
    """

    def __init__(self) -> None:
        self.total_ns = self.longest_ns = 0
        self.lanes: dict[str, list[int]] = {}

    def add(self, lane: str, waited_ns: int) -> None:
        """Count a wait."""
        counts = self.lanes.get(lane) or self._counts(lane)
        # Most requests don't wait, and need no search.
        if waited_ns <= 0:
            counts[0] += 1
            return
        counts[bisect_left(_BOUNDS_NS, waited_ns)] += 1
        counts[-1] += waited_ns
        self.total_ns += waited_ns
        if waited_ns > self.longest_ns:
            self.longest_ns = waited_ns

    def _counts(self, lane: str) -> list[int]:
        """The counts of a lane, which are made where there is room."""
        # Two more than the bounds: the waits above the last one, and the sum.
        return self.lanes.setdefault(lane if len(self.lanes) < LANES_MAX else OTHER, [0] * (len(BOUNDS_S) + 2))
