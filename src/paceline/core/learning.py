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
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from paceline.core.ledger import Ledger
from paceline.core.meters import Bucket, Spaced, Window
from paceline.core.quota import INPUT_TOKENS, NS, TOKENS, Quota
from paceline.core.results import Reading, Refusal, RefusalKind, Reservation

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


class QuotaTracker:
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

    def learned_elsewhere(
        self, now_ns: int, *, limit: float, ceiling: float, shifted_ns: int, epoch: int, refused_amount: float
    ) -> None:
        """Another process has learned something about the quota: all that is known now, before the meter takes it."""
        epoch += self._lives
        if self.epoch != epoch:
            self._slices.clear()
        if self.meter.ceiling != ceiling:
            self._climbed_ns = now_ns
        if shifted_ns > self.shifted_ns:
            self._as_of_ns = now_ns  # readings of attempts that left before say nothing against it
        if self.meter.quota.amount != limit:
            self.limit_as_of_ns = now_ns
        self.epoch, self.shifted_ns, self.refused_amount = epoch, shifted_ns, refused_amount

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
                full_at_ns = now_ns + holds_ns - min(math.floor(left * unit_ns), holds_ns) + min(cost_ns, holds_ns)
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


AMOUNT_MIN, AMOUNT_MAX = 1e-3, 1e12
WAIT_MAX_S = 32 * 86_400.0
"""What lies beyond is no limit and no wait of any provider's: such a number counts as missing."""

UNITS_MAX = 16
"""Quotas that answers may add to a pool."""


Tell = Callable[[int, str, "float | Quota"], None]
"""Hears of a change to the quota at an index, as :class:`~paceline.shared.messages.Learned` has it."""


def _no_one(index: int, what: str, value: float | Quota) -> None:
    """The books are our own."""


class Learning:
    """A ledger's meters under tracker; ``tell`` hears of every change that answers make to them."""

    def __init__(self, ledger: Ledger, tell: Tell = _no_one) -> None:
        self._ledger = ledger
        self._tell = tell
        self.trackers: list[QuotaTracker | None] = []
        self.follow()

    def follow(self) -> None:
        """QuotaTracker the meters that are new."""
        for i, m in enumerate(self._ledger.meters[len(self.trackers) :], len(self.trackers)):
            self.trackers.append(QuotaTracker(m, partial(self._tell, i)) if isinstance(m, Bucket) else None)

    def granted(self, now_ns: int, reservation: Reservation) -> None:
        """An attempt leaves: note where the books stand."""
        reservation.notes = [
            tracker.granted(now_ns, amount) if tracker is not None and amount else None
            for tracker, amount in zip(self.trackers, reservation.amounts, strict=True)
        ]

    def drawn(self, now_ns: int, reservation: Reservation) -> None:
        """An attempt leaves that shared books have been charged for already."""
        notes: list[Note | None] = []
        for tracker, amount in zip(self.trackers, reservation.amounts, strict=False):
            if tracker is not None and amount:
                tracker.climb(now_ns, amount)
            notes.append(tracker.note() if tracker is not None and amount else None)
        reservation.notes = notes

    def observe(self, now_ns: int, readings: Iterable[Reading], reservation: Reservation) -> list[int]:
        """Learn from the headers of an answer to ``reservation``'s attempt.

        Returns:
            The indexes of the quotas whose limit is another now, or that are new.
        """
        changed = []
        for said in readings:
            reading = _sane_reading(said)
            index, limit = self._index(reading.unit, reading.period_s), reading.limit
            if index is not None and (reading.reset_s or 0) > 2 * self._ledger.meters[index].quota.period_s:
                continue  # a longer period's
            if index is None and limit is not None and self._is_new(reading.unit, reading.period_s):
                changed.append(self._add(now_ns, Quota(reading.unit, limit, reading.period_s or 60.0)))
            elif index is not None:
                tracker, note = self.trackers[index], self._note(reservation, index)
                if limit is not None and self._adopt(now_ns, index, limit, reservation.granted_ns):
                    changed.append(index)
                    if tracker is not None:
                        tracker.restart(now_ns, reservation.granted_ns, note, reading)
                m = self._ledger.meters[index]
                if isinstance(m, Window) and reading.remaining is not None and reading.remaining < m.level(now_ns):
                    m.seen(now_ns, reading.remaining)
                    self._tell(index, "seen", reading.remaining)
                if (
                    tracker is not None
                    and note is not None
                    and tracker.read(now_ns, reservation.granted_ns, note, reading)
                ):
                    self._spread(now_ns, index)
        return changed

    def kept(self, reservation: Reservation) -> None:
        """The attempt was refused: what it was charged stays, and was never admitted."""
        for tracker, amount in zip(self.trackers, reservation.amounts, strict=False):
            if tracker is not None:
                tracker.refused_amount += amount

    def refused(self, now_ns: int, reservation: Reservation, refusal: Refusal, pause_ns: int) -> list[int]:
        """Learn from a refusal of our own rate.

        Returns:
            The indexes of the quotas whose limit is another now, or that are new.
        """
        if refusal.kind not in (RefusalKind.RATE, RefusalKind.GROWTH):
            return []
        changed = []
        refusal = _sane_refusal(refusal)
        limit = refusal.limit
        index = self._index(refusal.unit, refusal.period_s) if refusal.unit else self._tightest(now_ns)
        if index is None and limit is not None and refusal.unit and self._is_new(refusal.unit, refusal.period_s):
            changed.append(self._add(now_ns, Quota(refusal.unit, limit, refusal.period_s or 60.0)))
        elif index is not None:
            if limit is not None and self._adopt(now_ns, index, limit, reservation.granted_ns):
                changed.append(index)
            tracker, note = self.trackers[index], self._note(reservation, index)
            if tracker is not None and note is not None:
                amount = reservation.amounts[index]
                if tracker.refused(now_ns, reservation.granted_ns, note, amount, refusal, pause_ns):
                    self._spread(now_ns, index)
        return changed

    def _index(self, unit: str | None, period_s: float | None) -> int | None:
        """The one quota on ``unit``; ``None`` when there is none, or nobody can tell which."""
        found = [
            i
            for i, m in enumerate(self._ledger.meters)
            if m.quota.unit == unit and m.quota.period_s and period_s in (None, m.quota.period_s)
        ]
        return found[0] if len(found) == 1 else None

    def _is_new(self, unit: str, period_s: float | None = None) -> bool:
        """Whether a quota that an answer names is one that we did not know of."""
        units = {m.quota.unit for m in self._ledger.meters if period_s in (None, m.quota.period_s)}
        split = unit == TOKENS and INPUT_TOKENS in units  # the user counts input and output apart
        named = re.fullmatch(r"[a-z_][a-z0-9_]{0,40}", unit) is not None
        return named and unit not in units and not split and len(self._ledger.meters) < UNITS_MAX

    def _tightest(self, now_ns: int) -> int | None:
        """The quota with the least left, when a refusal does not say which it was."""
        shares = [(m.level(now_ns) / m.quota.burst, i) for i, m in enumerate(self._ledger.meters) if m.quota.period_s]
        return min(shares)[1] if shares else None

    def _note(self, reservation: Reservation, index: int) -> Note | None:
        return reservation.notes[index] if index < len(reservation.notes) else None

    def _add(self, now_ns: int, quota: Quota) -> int:
        self._ledger.add(now_ns, quota)
        self.follow()
        index = len(self._ledger.meters) - 1
        self._tell(index, "add", quota)
        return index

    def _adopt(self, now_ns: int, index: int, limit: float, left_ns: int) -> bool:
        """Take the limit that an attempt which left at ``left_ns`` met, unless a later one met another."""
        tracker = self.trackers[index]
        if limit == self._ledger.meters[index].quota.amount or (
            tracker is not None and left_ns < tracker.limit_as_of_ns
        ):
            return False
        self._ledger.adopt(now_ns, index, limit)
        self._tell(index, "adopt", limit)
        if tracker is not None:
            tracker.limit_as_of_ns = left_ns
            tracker.changed()
        return True

    def _spread(self, now_ns: int, index: int) -> None:
        """The quota at ``index`` is no bucket: from now on spread evenly, which is safe under every rule."""
        tracker = self.trackers[index]
        if tracker is not None and not isinstance(tracker.meter, Spaced):
            tracker.meter = self._ledger.spread(now_ns, index)
            self._tell(index, "spread", 0.0)
            tracker.changed()


def _within(value: float | None, least: float, most: float) -> float | None:
    """``value``, or ``None`` when it is outside (NaN is, too)."""
    return value if value is not None and least <= value <= most else None


def _sane_reading(said: Reading) -> Reading:
    limit = _within(said.limit, AMOUNT_MIN, AMOUNT_MAX)
    most = AMOUNT_MAX if limit is None else CLOCK_MARGIN * limit
    return Reading(
        said.unit,
        limit,
        _within(said.remaining, -AMOUNT_MAX if limit is None else -limit, most),
        _within(said.reset_s, 0.0, WAIT_MAX_S),
        _within(said.period_s, 0.01, WAIT_MAX_S),
        _within(said.resolution, 1.0, 1e6) or 1.0,
    )


def _sane_refusal(said: Refusal) -> Refusal:
    return replace(
        said,
        retry_after_s=_within(said.retry_after_s, 0.0, WAIT_MAX_S),
        period_s=_within(said.period_s, 0.01, WAIT_MAX_S),
        limit=_within(said.limit, AMOUNT_MIN, AMOUNT_MAX),
        used=_within(said.used, 0.0, AMOUNT_MAX),
        requested=_within(said.requested, 0.0, AMOUNT_MAX),
    )
