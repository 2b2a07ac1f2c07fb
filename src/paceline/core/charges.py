"""What a pool was charged for one quota, in slices of time."""

from __future__ import annotations

from bisect import bisect_right
from math import inf

from paceline.core.quota import NS

SLICE_NS = NS // 20
SLICES_MAX = 4_096
"""The length of a slice in the log of charges, and the number of slices that are kept."""


class Charges:
    """The log of the charges of one quota.

    Attributes:
        total: The sum of all charges.
        slices: When each slice with a charge begins, and the sum of all charges before.
    """

    def __init__(self) -> None:
        self.total = 0.0
        self.slices: list[tuple[int, float]] = []

    def log(self, now_ns: int, total: float) -> None:
        """Note that the sum of all charges is ``total`` now."""
        if not self.slices or now_ns - self.slices[-1][0] >= SLICE_NS:
            self.slices.append((now_ns, self.total))
            # Half at once, because to drop one for each that comes would move the whole list. The rest covers 102 s.
            if len(self.slices) > SLICES_MAX:
                del self.slices[: SLICES_MAX // 2]
        self.total = total

    def before(self, at_ns: int) -> float:
        """The sum of all charges before an instant, and before its slice; of an instant before the log, 0."""
        if not self.slices or at_ns < self.slices[0][0]:
            return 0.0
        return self._sum_before(self._first_after(at_ns - SLICE_NS))

    def well_before(self, at_ns: int) -> float:
        """The sum of all charges before the slice before an instant, however long ago that began; before the log, 0.

        What was charged since has an attempt too many, because attempts overtake each other.
        """
        begun = bisect_right(self.slices, (at_ns, 0.0))
        return self.slices[begun - 1][1] if begun else 0.0

    def until(self, at_ns: int) -> float:
        """The sum of all charges until an instant, and in its slice."""
        return self._sum_before(bisect_right(self.slices, (at_ns, 0.0)))

    def since(self, at_ns: int) -> list[tuple[int, float]]:
        """When each slice began that ends after an instant, and what was charged in it."""
        first = self._first_after(at_ns - SLICE_NS)
        return [
            (at_ns, self._sum_before(i) - before) for i, (at_ns, before) in enumerate(self.slices[first:], first + 1)
        ]

    def _first_after(self, at_ns: int) -> int:
        """The first slice that begins after an instant."""
        return bisect_right(self.slices, (at_ns, inf))

    def _sum_before(self, index: int) -> float:
        """The sum of all charges before a slice."""
        return self.slices[index][1] if index < len(self.slices) else self.total
