"""How fast one quota refills, from the headers of answers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from paceline.core.quota import NS
from paceline.core.results import Reading

LONGER_PERIOD = 2
"""An answer with a reset, or a wait, of more than so many periods is about a quota with a longer period."""

ROUGH = 3
"""A lack or a reset shows a period if it is at least so many times the resolution of its number."""

REFILL_READINGS = 5
"""How many readings show the period of a bucket, if they agree."""

PERIOD_MARGIN = 0.1
"""A learned period that differs by a smaller share from the known one is the known one."""

PERIODS_S = (60.0, 1.0, 10.0, 30.0, 3_600.0, 86_400.0, 5.0, 15.0, 20.0, 300.0, 600.0, 900.0, 1_800.0, 21_600.0)
"""The usual periods, the most usual ones first."""

RENEWAL = 1.2
"""The longest reset of a counter is its period if the readings came for so many times its length, and no two of them
were further apart than it is long. Then the counter has restarted in the meantime. It lacks at most so many times what
was charged within its period: else others use it, or its period is longer."""


class Refill:
    """The period of a quota, from readings.

    A bucket that lacks a share of its limit is full after the same share of its period. So a reading with a lack and a
    reset has bounds for the period. The bounds of a bucket have a part in common. The bounds of a counter that
    restarts, of a trailing period, and of a bucket that is smaller than the limit have none. Of the smaller bucket
    ``remaining + reset x rate`` is its size in all readings. The longest reset of a counter is its period.

    Attributes:
        sure: Whether the readings so far come from a bucket with one period.
    """

    def __init__(self) -> None:
        self.sure = False
        self._since_ns = self._last_ns = 0  # the first and the last reading of a series about a counter
        self._begin()
        self._begin_series(0)

    def _begin(self) -> None:
        self._count, self._low_s, self._high_s = 0, 0.0, math.inf
        self._least, self._most = math.inf, 0.0  # of the lacks, as shares of the limit

    def _begin_series(self, sent_ns: int) -> None:
        self._since_ns, self._reset_s, self._gap_s = sent_ns, 0.0, 0.0
        self._most_s, self._least_s = 0.0, math.inf  # of the bounds of a bucket's period
        self._size_low, self._size_high = 0.0, math.inf  # of a bucket that refills at the known rate

    @property
    def is_counter(self) -> bool:
        """Whether no bucket can give the present series of readings.

        Neither one that holds the limit, nor a smaller one.
        """
        return not self.sure and self._most_s > LONGER_PERIOD * self._least_s and self._size_low > self._size_high

    def learn_bucket_period(self, reading: Reading) -> float | None:
        """The period of a bucket in seconds, once the readings agree about it; ``None`` before."""
        limit, remaining, reset_s = reading.limit, reading.remaining, reading.reset_s
        if limit is None or remaining is None or reset_s is None:
            return None
        lack, rough_s = limit - remaining, reading.reset_resolution_s + 0.002
        if lack < ROUGH * reading.resolution or reset_s < ROUGH * rough_s or remaining < 0:
            return None  # too little to measure with
        low_s, high_s = _bounds_s(limit, lack, reset_s, reading)
        if low_s > self._high_s or high_s < self._low_s:  # a contradiction: begin again
            self.sure = False
            self._begin()
        self._low_s, self._high_s = max(self._low_s, low_s), min(self._high_s, high_s)
        assert self._low_s <= self._high_s
        self._least, self._most = min(self._least, lack / limit), max(self._most, lack / limit)
        self._count += 1
        agree = self._high_s <= (1 + 2 * PERIOD_MARGIN) * self._low_s and self._most >= 1.5 * self._least
        self.sure = agree and self._count >= REFILL_READINGS
        if not self.sure:
            return None
        return usual(self._low_s, self._high_s)

    def learn_counter_period(
        self, sent_ns: int, reading: Reading, known: float, known_s: float, charged_since: Callable[[int], float]
    ) -> float | None:
        """The period of a counter in seconds, once the readings show it; ``None`` before.

        Args:
            sent_ns: When the attempt was sent; a reading of one that was sent before the last is left out.
            reading: The reading.
            known: The amount of the quota as it was given. The first reading shows the period if its limit and reset
                have the rate of the quota, in a longer period.
            known_s: Its period, in seconds.
            charged_since: The charges from an instant to this attempt, which is among them.
        """
        limit, remaining, reset_s = reading.limit, reading.remaining, reading.reset_s
        if limit is None or remaining is None or not reset_s or self.sure or sent_ns < self._last_ns:
            return None
        lack, gap_s = limit - remaining, (sent_ns - self._last_ns) / NS
        self._last_ns = sent_ns
        # Who states the period mostly has a bucket. Resets in whole seconds are rounded there, whether or not the
        # provider says so: as exact times, the resets of Azure's tokens contradicted every bucket.
        if reading.period_s is not None and reset_s % 1 == 0:
            reading = replace(reading, reset_resolution_s=max(reading.reset_resolution_s, 1.0))
        low_s, high_s = _bounds_s(limit, lack, reset_s, reading)
        if abs(limit / reset_s / (known / known_s) - 1) <= PERIOD_MARGIN and low_s >= LONGER_PERIOD * known_s:
            return usual((1 - PERIOD_MARGIN) * reset_s, (1 + PERIOD_MARGIN) * reset_s)
        longest_s = max(reset_s, self._reset_s)
        charged = charged_since(sent_ns - round((1 + PERIOD_MARGIN) * longest_s * NS))
        if gap_s > self._reset_s:
            self._begin_series(sent_ns)
            longest_s, gap_s = reset_s, 0.0
        elif lack > RENEWAL * charged + reading.resolution:
            # Another use of it, or a longer period, hides the period. It makes no counter look like a bucket.
            self._since_ns, self._gap_s, longest_s, gap_s = sent_ns, 0.0, reset_s, 0.0
        self._reset_s, self._gap_s = longest_s, max(self._gap_s, gap_s)
        self._most_s, self._least_s = max(self._most_s, low_s), min(self._least_s, high_s)
        per_s = limit / known_s
        size, rough = remaining + reset_s * per_s, reading.resolution + (reading.reset_resolution_s + 0.002) * per_s
        self._size_low, self._size_high = max(self._size_low, size - rough), min(self._size_high, size + rough)
        if not self.is_counter or sent_ns - self._since_ns < RENEWAL * longest_s * NS:
            return None
        return usual(0.97 * longest_s, 1.03 * longest_s + self._gap_s)


def _bounds_s(limit: float, lack: float, reset_s: float, reading: Reading) -> tuple[float, float]:
    """The least and the greatest period of a bucket that lacks ``lack`` and is full in ``reset_s``."""
    rough_s = reading.reset_resolution_s + 0.002
    over = lack - reading.resolution
    return (reset_s - rough_s) * limit / (lack + reading.resolution), (
        (reset_s + rough_s) * limit / over if over > 0 else math.inf
    )


def usual(low_s: float, high_s: float) -> float:
    """The most usual period within the bounds, else their middle."""
    usual = [period for period in PERIODS_S if 0.99 * low_s <= period <= 1.01 * high_s]
    return usual[0] if usual else (low_s + high_s) / 2
