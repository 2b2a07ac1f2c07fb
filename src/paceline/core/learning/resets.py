"""What the resets of answers show about one quota: how fast it refills, or when it restarts."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from paceline.core.charges import Charges
from paceline.core.meters import Named
from paceline.core.quota import NS
from paceline.core.results import Basis, Reading

LONGER_PERIOD = 2
"""An answer with a reset, or a wait, of more than so many periods is about a quota with a longer period."""

ROUGH = 3
"""A lack or a reset shows a period if it is at least so many times the resolution of its number."""

REFILL_READINGS = 5
"""How many readings show the period of a bucket, if they agree."""

MARGIN = 0.1
"""What differs by a smaller share is the same. A quota whose ``remaining + reset x rate`` is above its burst by a
larger share is not a bucket, and below it a smaller bucket. With 0.15 for "above" alone, 229 of 232 worlds with headers
were the same.

The longest reset of a counter is its period if the readings came for longer than that, and no two of them were further
apart than it is long. Then the counter has restarted in the meantime. It lacks no more than what was charged within its
period: else others use it, or its period is longer."""

PERIODS_S = (60.0, 1.0, 10.0, 30.0, 3_600.0, 86_400.0, 5.0, 15.0, 20.0, 300.0, 600.0, 900.0, 1_800.0, 21_600.0)
"""The usual periods, the most usual ones first."""

ROUNDED_NS = NS
"""By how much a stated instant differs from the true one at most: instants are rounded to whole seconds, up or down."""

PRINTED_S = 0.002
"""By how much a reset is taken to be wrong beside its resolution: the finest ones are printed in milliseconds."""

LEAST_NS = ROUGH * ROUNDED_NS
"""If neither a reset nor their distance is as long, restarts are too close together: the rounding is too large a part
of it."""

JUMP = 0.5
"""An instant that moves by this part of the longest reset is about the next restart. The reset of a trailing period
moves by less."""

TRANSIT_NS = NS // 4
"""How long an attempt, or an answer, is on its way at most: those that were sent within this time of each other may
reach the server in the other order."""


@dataclass(slots=True, eq=False)
class BucketReadings:
    """What readings that agree with each other show about a bucket.

    Attributes:
        count: How many there are.
        low_s: The least period that all of them allow.
        high_s: The greatest one.
        least: The least lack, as a share of the limit.
        most: The greatest one.
    """

    count: int = 0
    low_s: float = 0.0
    high_s: float = math.inf
    least: float = math.inf
    most: float = 0.0

    def add(self, low_s: float, high_s: float, share: float) -> bool:
        """Add one that allows these periods, at such a lack; whether the bucket has one period.

        The bounds are close then, of different lacks.
        """
        self.low_s, self.high_s = max(self.low_s, low_s), min(self.high_s, high_s)
        assert self.low_s <= self.high_s
        self.least, self.most, self.count = min(self.least, share), max(self.most, share), self.count + 1
        agree = self.high_s <= (1 + 2 * MARGIN) * self.low_s and self.most >= 1.5 * self.least
        return agree and self.count >= REFILL_READINGS


@dataclass(slots=True, eq=False)
class CounterReadings:
    """What a series of readings shows about a counter: no two of them are further apart than a reset is long.

    Attributes:
        since_ns: When the attempt of the first one was sent.
        reset_s: The longest reset.
        gap_s: The longest time between two of them.
        fits_no_bucket: Whether no bucket can give these readings: neither one that holds the limit, nor a smaller one.
        most_s: The greatest lower bound of a bucket's period.
        least_s: The least upper bound of it.
        size_low: The least size of a bucket that refills at the known rate.
        size_high: The greatest one.
    """

    since_ns: int
    reset_s: float = 0.0
    gap_s: float = 0.0
    fits_no_bucket: bool = False
    most_s: float = 0.0
    least_s: float = math.inf
    size_low: float = 0.0
    size_high: float = math.inf

    def narrow(self, low_s: float, high_s: float, size: float, rough: float) -> None:
        """Narrow the bounds by a reading of a bucket with such a period, or of one with such a size, more or less."""
        self.most_s, self.least_s = max(self.most_s, low_s), min(self.least_s, high_s)
        self.size_low, self.size_high = max(self.size_low, size - rough), min(self.size_high, size + rough)
        self.fits_no_bucket = self.most_s > LONGER_PERIOD * self.least_s and self.size_low > self.size_high


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
        self.sure, self._last_ns = False, 0
        self._bucket, self._counter = BucketReadings(), CounterReadings(0)

    @property
    def is_counter(self) -> bool:
        """Whether no bucket can give the present series of readings."""
        return not self.sure and self._counter.fits_no_bucket

    def learn_bucket_period(self, reading: Reading) -> float | None:
        """The period of a bucket in seconds, once the readings agree about it; ``None`` before."""
        limit, remaining, reset_s = reading.limit, reading.remaining, reading.reset_s
        if limit is None or remaining is None or reset_s is None:
            return None
        lack, rough_s = limit - remaining, reading.reset_resolution_s + PRINTED_S
        if lack < ROUGH * reading.resolution or reset_s < ROUGH * rough_s or remaining < 0:
            return None  # too little to measure with
        low_s, high_s = _bounds_s(limit, lack, reset_s, reading)
        stated_s = reading.period_s if reading.basis is Basis.STATED else None
        is_other = stated_s is not None and not low_s <= stated_s <= high_s
        if is_other or low_s > self._bucket.high_s or high_s < self._bucket.low_s:  # a contradiction: begin again
            self._bucket = BucketReadings()
        self.sure = self._bucket.add(low_s, high_s, lack / limit)
        return usual(self._bucket.low_s, self._bucket.high_s) if self.sure else None

    def learn_counter_period(
        self, sent_ns: int, reading: Reading, known: float, known_s: float, charged: float, charges: Charges
    ) -> float | None:
        """The period of a counter in seconds, once the readings show it; ``None`` before.

        Args:
            sent_ns: When the attempt was sent; a reading of one that was sent before the last is left out.
            reading: The reading.
            known: The amount of the quota as it was given. The first reading shows the period if its limit and reset
                have the rate of the quota, in a longer period.
            known_s: Its period, in seconds.
            charged: The sum of all charges up to this attempt, which is among them.
            charges: Their log.
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
        if abs(limit / reset_s / (known / known_s) - 1) <= MARGIN and low_s >= LONGER_PERIOD * known_s:
            return usual((1 - MARGIN) * reset_s, (1 + MARGIN) * reset_s)
        longest_s = max(reset_s, self._counter.reset_s)
        before_ns = sent_ns - round((1 + MARGIN) * longest_s * NS)
        if gap_s > self._counter.reset_s:
            self._counter = CounterReadings(sent_ns)
            longest_s, gap_s = reset_s, 0.0
        elif lack > (1 + MARGIN) * (charged - charges.well_before(before_ns)) + reading.resolution:
            # Another use of it, or a longer period, hides the period. It makes no counter look like a bucket.
            self._counter.since_ns, self._counter.gap_s, longest_s, gap_s = sent_ns, 0.0, reset_s, 0.0
        series, per_s = self._counter, limit / known_s
        series.reset_s, series.gap_s = longest_s, max(series.gap_s, gap_s)
        rough = reading.resolution + (reading.reset_resolution_s + PRINTED_S) * per_s
        series.narrow(low_s, high_s, remaining + reset_s * per_s, rough)
        if not series.fits_no_bucket or sent_ns - series.since_ns < (1 + MARGIN) * longest_s * NS:
            return None
        return usual((1 - MARGIN) * longest_s, (1 + MARGIN) * longest_s + series.gap_s)


def fits_bucket(reading: Reading, period_s: float) -> bool:
    """Whether a reading may be about a bucket with such a period; so may one whose reset is a mere number."""
    if reading.limit is None or reading.remaining is None or reading.reset_s is None:
        return True
    low_s, high_s = _bounds_s(reading.limit, reading.limit - reading.remaining, reading.reset_s, reading)
    return low_s <= period_s <= high_s


def _bounds_s(limit: float, lack: float, reset_s: float, reading: Reading) -> tuple[float, float]:
    """The least and the greatest period of a bucket that lacks ``lack`` and is full in ``reset_s``."""
    rough_s, over = reading.reset_resolution_s + PRINTED_S, lack - reading.resolution
    low_s = (reset_s - rough_s) * limit / (lack + reading.resolution)
    return low_s, (reset_s + rough_s) * limit / over if over > 0 else math.inf


def usual(low_s: float, high_s: float) -> float:
    """The most usual period within the bounds, else their middle."""
    usual = [period for period in PERIODS_S if low_s <= period <= high_s]
    return usual[0] if usual else (low_s + high_s) / 2


class Restarts:
    """The instant of the next restart of a counter, as bounds.

    An answer states the time until the restart. It was written between the sending of its attempt and its arrival, so
    each answer bounds the instant from both sides. Where answers take too long for that, both times of writing are
    followed until one of them is refuted. The bounds of answers about one restart have a part in common. The reset of a
    bucket and of a trailing period moves with what is sent, before it is reached.

    Attributes:
        low_ns: The earliest instant of the restart that was named last.
        high_ns: The latest instant of it.
        period_s: The time between two restarts; ``None`` before the second one.
        most_s: What it is at most: the least time between two restarts that were named.
        refuted: Whether the quota does not restart at the stated instants.
    """

    def __init__(self, *, written_first: bool | None = None) -> None:
        # Whether resets are written when an attempt is admitted, or else when it is answered, if that is known.
        self._written_first = written_first
        self._both: tuple[Restarts, ...] = ()  # both possibilities, while it is not
        self.low_ns = self.high_ns = 0
        self.period_s: float | None = None
        self.most_s = math.inf
        self.refuted = False
        self._longest_ns = 0  # the longest reset so far
        self._since_ns = 0  # when the first attempt was sent whose answer has named this restart
        self._late_ns = 0  # by how much the restarts are later than stated
        self._due_ns = 0  # when the present one should have come, if it is late; else 0
        self._most = 0.0  # the most that the quota has lacked since

    def read(self, sent_ns: int, now_ns: int, reset_s: float, lack: float, *, instant: bool = False) -> Named | None:
        """Take the reset of an answer that came now, and what the quota lacked.

        Args:
            sent_ns: When its attempt was sent.
            now_ns: The present.
            reset_s: Seconds until the restart; negative when it has passed.
            lack: What the quota lacked.
            instant: Whether the answer states the instant, so that ``reset_s`` counts from now; else from when it was
                written.

        Returns:
            ``None``: the answer took so long, or the reset is so short, that it names no restart.
        """
        if self._written_first is not None:
            sent_ns, now_ns = self._written_between(sent_ns, now_ns)
        reset_ns, written_ns = round(reset_s * NS), now_ns if instant else sent_ns
        self._longest_ns = max(self._longest_ns, reset_ns + written_ns - sent_ns)
        if self._longest_ns <= ROUNDED_NS:
            return None
        if now_ns - written_ns > JUMP * self._longest_ns:
            return self._try_both(sent_ns, now_ns, reset_s, lack)
        low_ns, high_ns = written_ns + reset_ns - ROUNDED_NS, now_ns + reset_ns + ROUNDED_NS + self._late_ns
        is_past = reset_ns <= 0 < self.high_ns <= sent_ns
        if is_past and low_ns - self.high_ns <= (0 if instant else JUMP * self._longest_ns):
            # The first time alone: from now on each answer moves `high_ns`, until the restart comes.
            self._due_ns = self._due_ns or self.high_ns
            self.high_ns = now_ns + ROUNDED_NS
            return Named.LATE
        if low_ns <= self.high_ns and high_ns >= self.low_ns and sent_ns < self.high_ns:
            self.low_ns, self.high_ns = max(self.low_ns, low_ns), min(self.high_ns, high_ns)
            self._most = max(self._most, lack)
            return Named.SAME
        if high_ns < self.low_ns and sent_ns < self._since_ns:
            return Named.EARLIER
        if not self._jumps(sent_ns, low_ns - self.high_ns, lack):
            self.refuted = True
            return Named.NONE
        self._follow(sent_ns, low_ns, now_ns + reset_ns + ROUNDED_NS, lack)
        return Named.NEXT

    def _written_between(self, sent_ns: int, now_ns: int) -> tuple[int, int]:
        """When the reset of an answer was written, at the earliest and at the latest."""
        if self._written_first:
            return sent_ns, min(now_ns, sent_ns + TRANSIT_NS)
        return max(sent_ns, now_ns - TRANSIT_NS), now_ns

    def _jumps(self, sent_ns: int, by_ns: int, lack: float) -> bool:
        """Whether an instant that is ``by_ns`` later is the next restart: it is far, and what was used is back.

        The first one is it, too.
        """
        if not self.high_ns:
            return True
        back = sent_ns >= self.low_ns or lack < JUMP * self._most
        return back and by_ns >= JUMP * self._longest_ns and max(by_ns, self._longest_ns) >= LEAST_NS

    def _follow(self, sent_ns: int, low_ns: int, high_ns: int, lack: float) -> None:
        """Take the bounds of the next restart."""
        if self._due_ns:
            self._late_ns, self._due_ns = self._late_ns + max(sent_ns - self._due_ns, 0), 0
        high_ns += self._late_ns
        self._take_period(sent_ns - self.high_ns, low_ns - self.high_ns, high_ns - self.low_ns)
        self.low_ns, self.high_ns, self._since_ns, self._most = low_ns, high_ns, sent_ns, lack

    def _try_both(self, sent_ns: int, now_ns: int, reset_s: float, lack: float) -> Named | None:
        """Take the reset of an answer that took long: it was written first or last, and one of the two is refuted."""
        if self.period_s:
            return None
        self._both = self._both or tuple(Restarts(written_first=one) for one in (True, False))
        read = {one: one.read(sent_ns, now_ns, reset_s, lack) for one in self._both if not one.refuted}
        left = [one for one in read if not one.refuted]
        if len(left) != 1 or not left[0].period_s:
            return None
        vars(self).update(vars(left[0]))  # this one goes on as the one that is left
        return read[left[0]]

    def _take_period(self, since_ns: int, low_ns: int, high_ns: int) -> None:
        """Take the bounds of the distance of two restarts.

        An attempt of the later one was sent ``since_ns`` after the earlier one.
        """
        distance_s = usual(low_ns / NS, high_ns / NS)
        self.most_s = min(self.most_s, distance_s)
        if since_ns < self._longest_ns - ROUNDED_NS:  # no restart has passed between
            self.period_s = distance_s
