"""What answers teach about a pool's quotas. Pure: readings and refusals in, corrected meters out.

A reading is a noisy sample: it was taken when the server admitted the attempt, it may or may not count what left us
at about the same moment, and it arrives when the answer ends. So each attempt carries a note of where our books
stood when it left, and a reading is held against that note. Between "all that left at about the same time is
counted" and "none of it is" there is a band: inside it we believe our own books; beyond, somebody else is
spending, or we overcharge.

A provider's ``reset`` is the time until its bucket is full, so ``remaining + reset x rate`` is what that bucket holds:
less than the limit when it is quantised, more when the reset follows a clock and it is no bucket at all.

A refusal teaches in this order: the level; the burst, when our books had plenty left; the rule, when the provider
asks to wait longer than any bucket would; the rate, when it happens again.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from paceline.core.bucket import Bucket
from paceline.core.outcomes import Reading, Refusal, RefusalKind
from paceline.core.quota import NS, Quota
from paceline.core.spaced import Spaced

if TYPE_CHECKING:
    from paceline.core.message import Lesson

ABOUT_NS = NS // 4
"""What left this much before or after an attempt may have reached the server on its other side."""

SLICE_NS = NS // 20
SLICES_MAX = 4_096
"""How finely, and how far back, charges are remembered: in slices of 50 ms with something in them."""

CLOCK_MARGIN = 1.15
"""A ``remaining + reset x rate`` this much above the burst is no bucket's."""

QUANTISED_MARGIN = 0.9
"""One this much below is a smaller bucket's."""

MEASURED_S = 4.0
"""Two refusals this far apart measure a rate: the server's level was about zero at both."""

CLIMB = 0.02
"""What a learned ceiling gains, by and by, in as long as its rate was measured: the surer, the slower. The longer
nobody is refused, the faster."""

CLIMB_NS = NS // 2
"""It gains in steps no shorter than this."""

GROWTH_S = 2_200.0
"""A speed gains one part in so many a second after the provider said that we grew too fast: half in 15 minutes.
Source: OpenAI's guide to error codes, ``slow_down`` (2026-10)."""

EPOCHS_MAX = 1_000_000
"""No books live through more changes of rate and rule."""

CUT_MAX = 0.4
"""No measurement cuts a rate by more than this."""


class Note(NamedTuple):
    """Where a meter's books stood when an attempt left."""

    full_at_ns: int
    shifted_ns: int
    charged: float
    epoch: int


def _nobody(what: str, value: float) -> None:
    """The books are our own."""


class Watch:
    """What answers have said about one meter; ``tell`` hears of every change that they make to it."""

    __slots__ = (
        "_as_of_ns",
        "_blame",
        "_busy_s",
        "_climbed_ns",
        "_last_ns",
        "_lives",
        "_measured_s",
        "_slices",
        "_steady",
        "about_ns",
        "charged",
        "epoch",
        "limit_as_of_ns",
        "meter",
        "refused_amount",
        "shifted_ns",
        "tell",
    )

    def __init__(self, meter: Bucket, tell: Callable[[str, float], None] = _nobody) -> None:
        self.meter = meter
        self.tell = tell
        self.limit_as_of_ns = 0  # when the last attempt left that met another limit
        self.shifted_ns = 0  # the sum of all corrections so far
        self.charged = 0.0  # all charges so far
        self.about_ns = ABOUT_NS
        self.epoch = 0  # changes with rate and rule: notes from before compare no more
        self._slices: list[tuple[int, float]] = []  # instants, and all charges by then
        self.refused_amount = 0.0  # what refused attempts were charged
        self._blame: tuple[int, float] | None = (
            None  # when the last refusal that taught left, and what was admitted by then
        )
        self._busy_s = 0.0  # busy seconds since then
        self._last_ns = 0
        self._measured_s = MEASURED_S
        self._climbed_ns = 0
        self._steady = False  # climb no faster with time
        self._as_of_ns = 0  # when the last reading that counted was taken
        self._lives = 0  # how often shared books were forgotten and began again, in epochs

    def granted(self, now_ns: int, amount: float) -> Note:
        """An attempt leaves, charged ``amount``."""
        self.climb(now_ns, amount)
        self.saw(now_ns, self.charged + amount)
        return self.note()

    def saw(self, now_ns: int, charged: float) -> None:
        """So much was charged in all by now."""
        if not self._slices or now_ns - self._slices[-1][0] >= SLICE_NS:
            self._slices.append((now_ns, self.charged))
            if len(self._slices) > SLICES_MAX:
                del self._slices[: SLICES_MAX // 2]
        self.charged = charged

    def note(self) -> Note:
        """Where the books stand."""
        return Note(self.meter.full_at_ns, self.shifted_ns, self.charged, self.epoch)

    def restart(self, now_ns: int, left_ns: int, note: Note | None, reading: Reading) -> None:
        """The limit is another, so compare nothing: what the server has left, less what left us since, is what is left."""
        if note is None or reading.remaining is None:
            return
        unit_ns = self.meter.ns_per_unit
        room_ns = _room_ns(self.meter.quota, reading) / self.meter.ceiling
        since = max(self.charged - note.charged, 0.0) * unit_ns
        self._move(now_ns, max(left_ns + math.ceil(room_ns + since), now_ns) - self.meter.full_at_ns)

    def changed(self) -> None:
        """Rate or rule are others now."""
        self.epoch += 1
        self._slices.clear()
        self.tell("epoch", 0.0)

    def forgotten(self) -> None:
        """Shared books have begun again: what was noted before compares no more, whatever they say."""
        self._lives += EPOCHS_MAX
        self.epoch += EPOCHS_MAX
        self.charged, self.shifted_ns, self.refused_amount = 0.0, 0, 0.0
        self._slices.clear()
        self._blame = None

    def learned_elsewhere(self, now_ns: int, lesson: Lesson) -> None:
        """Another process has taught the books something: here is all that they know."""
        epoch = lesson.epoch + self._lives
        if self.epoch != epoch:
            self._slices.clear()
        if self.meter.ceiling != lesson.ceiling:
            self._climbed_ns = now_ns
        if lesson.shifted_ns > self.shifted_ns:
            self._as_of_ns = now_ns  # what left before says nothing against it
        if self.meter.quota.amount != lesson.quota.amount:
            self.limit_as_of_ns = now_ns
        self.epoch, self.shifted_ns, self.refused_amount = epoch, lesson.shifted_ns, lesson.refused

    def read(self, now_ns: int, left_ns: int, note: Note, reading: Reading) -> bool:
        """Hold a reading against the note of its attempt, which left at ``left_ns``; whether it is no bucket's."""
        bucket = self.meter
        if reading.remaining is None or isinstance(bucket, Spaced):
            return False
        unit_ns = bucket.quota.ns_per_unit
        rough_ns = round(reading.resolution * unit_ns) if reading.resolution > 1 else 0
        room_ns = _room_ns(bucket.quota, reading)
        if reading.reset_s is not None:
            rough_ns += NS if rough_ns else 0  # who rounds what remains, rounds the reset to seconds
            holds_ns, burst_ns = reading.remaining * unit_ns + room_ns, bucket.quota.burst * unit_ns
            if holds_ns > CLOCK_MARGIN * burst_ns + rough_ns:
                return True
            if holds_ns < QUANTISED_MARGIN * burst_ns - rough_ns:
                self._hold((holds_ns - rough_ns) / unit_ns)
            elif bucket.capacity < math.inf:
                self._hold(math.inf)
        if note.epoch == self.epoch:  # the server's room in our own time: a ceiling makes it longer
            self._compare(now_ns, left_ns, note, round(room_ns / bucket.ceiling), self.about_ns + rough_ns)
        return False

    def _compare(self, now_ns: int, left_ns: int, note: Note, room_ns: int, about_ns: int) -> None:
        ours_ns = note.full_at_ns + self.shifted_ns - note.shifted_ns
        later, earlier = self._charged_about(left_ns, note)
        if left_ns + room_ns > ours_ns + later + about_ns:  # somebody else is spending
            self._shift(now_ns, left_ns, left_ns + room_ns - ours_ns - later)
        elif left_ns >= self._as_of_ns and now_ns + room_ns < ours_ns - earlier - about_ns:
            # We overcharge, even if it was read just now. An older reading than the last that counted may say so, too,
            # but what it did not see yet has been learned since.
            self._shift(now_ns, left_ns, now_ns + room_ns - ours_ns + earlier)

    def _charged_about(self, left_ns: int, note: Note) -> tuple[int, int]:
        """What left shortly after and shortly before the attempt, in nanoseconds of refill; all, where forgotten."""
        after = bisect_right(self._slices, (left_ns + self.about_ns, 0.0))
        before = bisect_right(self._slices, (left_ns - self.about_ns, 0.0)) - 1
        later = (self._slices[after][1] if after < len(self._slices) else self.charged) - note.charged
        earlier = note.charged - (self._slices[before][1] if before >= 0 else 0.0)
        unit_ns = self.meter.ns_per_unit
        return math.ceil(max(later, 0.0) * unit_ns), math.ceil(earlier * unit_ns)

    def _shift(self, now_ns: int, as_of_ns: int, by_ns: int) -> None:
        self._as_of_ns = max(self._as_of_ns, as_of_ns)
        self._move(now_ns, by_ns)
        self.shifted_ns += by_ns

    def _move(self, now_ns: int, by_ns: int) -> None:
        self.meter.shift(now_ns, by_ns)
        self.tell("shift", by_ns)

    def _hold(self, capacity: float) -> None:
        if capacity != self.meter.capacity:
            self.meter.hold(capacity)
            self.tell("hold", capacity)

    def _press(self, now_ns: int, ceiling: float) -> None:
        self.meter.press(now_ns, ceiling)
        self.tell("press", self.meter.ceiling)

    def refused(self, now_ns: int, left_ns: int, note: Note, amount: float, refusal: Refusal, pause_ns: int) -> bool:
        """An attempt that left at ``left_ns`` was refused; whether that shows that the quota is no bucket."""
        if refusal.kind is RefusalKind.GROWTH:
            return self._slow_down(now_ns, left_ns)
        if self._blame is not None and left_ns <= self._last_ns:
            return False  # it left before the last refusal was heard, and says the same
        self._last_ns = now_ns
        bucket = self.meter
        unit_ns = bucket.ns_per_unit
        cost_ns = math.ceil(amount * unit_ns)
        asked_s = refusal.retry_after_s
        if asked_s is not None and asked_s > 2 * bucket.quota.period_s:
            asked_s = None  # a longer period's; the pool's pause will do
        clock = asked_s is not None and asked_s * NS > cost_ns + bucket.quota.burst * unit_ns / 20 + 2 * NS
        if not isinstance(bucket, Spaced) and not clock:
            ours_ns = note.full_at_ns + self.shifted_ns - note.shifted_ns  # as we know by now that it was
            used = (ours_ns - left_ns - cost_ns) / unit_ns  # before this attempt
            if note.epoch == self.epoch and used < min(bucket.capacity, bucket.quota.burst):
                self._hold(max(used, amount))
            holds_ns = math.ceil(min(bucket.capacity, bucket.quota.burst) * unit_ns)
            if refusal.limit is not None and refusal.used is not None:
                left = min(max(refusal.limit - refusal.used, -bucket.quota.burst), bucket.quota.burst)
                full_at_ns = now_ns + holds_ns - min(math.floor(left * unit_ns), holds_ns) + cost_ns
            elif asked_s is not None:
                full_at_ns = now_ns + round(asked_s * NS) + max(holds_ns - cost_ns, 0)
            else:
                full_at_ns = now_ns + pause_ns + holds_ns
            if full_at_ns > bucket.full_at_ns:
                self._shift(now_ns, now_ns, full_at_ns - bucket.full_at_ns)
        return self._measure(now_ns, left_ns, note) or clock

    def _slow_down(self, now_ns: int, left_ns: int) -> bool:
        """The provider says that we grew too fast: half the speed, then up by half in a quarter of an hour at most."""
        if left_ns > self._last_ns:
            self._last_ns = self._climbed_ns = now_ns
            self._press(now_ns, self.meter.ceiling / 2)
            self.changed()
            self._measured_s, self._steady = CLIMB * GROWTH_S, True
        return False

    def _measure(self, now_ns: int, left_ns: int, note: Note) -> bool:
        """Between two refusals at an empty bucket, what was admitted is what came in; whether it can be no bucket."""
        admitted = note.charged - self.refused_amount
        if self._blame is not None and left_ns - self._blame[0] >= MEASURED_S * NS:
            rate = (admitted - self._blame[1]) / (left_ns - self._blame[0]) * NS
            share = rate / self.meter.quota.rate
            self._measured_s = (left_ns - self._blame[0]) / NS
            if share < CUT_MAX * self.meter.ceiling and not isinstance(self.meter, Spaced):
                self._blame = None
                return True  # next to nothing came in: rather a counter that will restart than so low a rate
            if share < self.meter.ceiling:
                self._press(now_ns, max(share, CUT_MAX * self.meter.ceiling))
                self.changed()
        if self._blame is None or left_ns - self._blame[0] >= MEASURED_S * NS:
            self._blame = (left_ns, admitted)
        self._busy_s = 0.0
        return False

    def climb(self, now_ns: int, amount: float) -> None:
        """Grow a learned ceiling while we push; time in which nobody waited for it teaches nothing."""
        if self.meter.ceiling >= 1 or now_ns - self._climbed_ns < CLIMB_NS:
            return
        step_s = min((now_ns - self._climbed_ns) / NS, max(2 * amount * self.meter.ns_per_unit / NS, 1.0))
        self._climbed_ns = now_ns
        if step_s > 0:
            self._busy_s += step_s
            gain = CLIMB * step_s / self._measured_s * (1 if self._steady else 1 + self._busy_s / 60)
            self._press(now_ns, self.meter.ceiling * (1 + gain))


def _room_ns(quota: Quota, reading: Reading) -> int:
    """What the server lacks from full, in nanoseconds of the published rate: its reset, else what does not remain."""
    if reading.reset_s is not None:
        return round(reading.reset_s * NS)
    return round(max(quota.amount - (reading.remaining or 0.0), 0.0) * quota.ns_per_unit)
