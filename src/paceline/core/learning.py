"""Learning: readings (the headers of answers) and refusals correct the meters of a pool.

A reading is a noisy sample. The server takes it when it admits the attempt, it may or may not count the attempts
that were sent at about the same time, and it arrives when the answer ends. So each attempt carries a note of the level
of each meter when it was sent, and its reading is compared with that note. If all attempts of about the same time are
counted, the server should have one level left, and if none of them is, another. Between the two the meter is taken
to be right. A reading beyond them means that others use the key, too, or that the charges are too high.

A provider's ``reset`` is the time until its bucket is full, so ``remaining + reset x rate`` is the size of the bucket.
It is less than the limit when the limit is divided into shorter periods. It is more when the reset follows a clock,
and the quota is not a bucket.

A refusal teaches in this order: the level; the burst, when the meter had much left; the rule, when the provider asks
to wait longer than a bucket would; the rate, when refusals repeat.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from paceline.core.guesses import RETEST_STEP, Guess, Guesses
from paceline.core.ledger import DEBT_MAX, Ledger
from paceline.core.meters import FAR_NS, Bucket, Slots, Spread, Window
from paceline.core.quota import CONCURRENCY, INPUT_TOKENS, NS, OWN_RULES, TOKENS, Quota, Rule
from paceline.core.results import LEARNED, Basis, Reading, Refusal, RefusalKind, Reservation, Source, SourceKind

ABOUT_NS = NS // 4
"""Attempts that were sent within this time of each other may reach the server in the other order."""

SLICE_NS = NS // 20
SLICES_MAX = 4_096
"""The length of a slice in the log of charges, and the number of slices that are kept."""

HEADROOM_S, HEADROOM_MIN_S, HEADROOM_MAX_S = 1.0, 0.25, 4.0
"""An adaptive headroom at the start, and its bounds, in seconds of refill."""

HEADROOM_TEST_NS, LEFT_MIN_NS = 10 * NS, NS // 10
"""An adaptive headroom is halved after a test of this length if the provider, by its headers, always had at least so much
refill left beyond the half, and once at most twice the headroom: with more, the quota was not in demand. A late attempt,
and a refusal that raises the headroom, begin the test again."""

CLOCK_MARGIN = 1.15
"""A quota whose ``remaining + reset x rate`` is above this multiple of the burst is not a bucket."""

QUANTISED_MARGIN = 0.9
"""One below this share of the burst is a smaller bucket."""

LONGER_PERIOD = 2
"""An answer with a reset, or a wait, of more than so many periods is about a quota with a longer period."""

COUNTER_PART, COUNTER_NS = 20, 2 * NS
"""A refusal is that of a counter if it asks to wait longer than the refill of the refused amount, one part in so many of the
burst, and so much time."""

MEASURED_S = 4.0
"""Two refusals at least this far apart measure a rate: the level at the server was about zero at both."""

MEASURED_PART = 0.97
"""A ceiling is set to this part of the measured rate. With the whole of it, refusals were twice as frequent, for 0.3 % of speed."""

CLIMB = 0.02
"""By how much a learned ceiling climbs within the time over which its rate was measured: after a longer measurement it
climbs more slowly. It climbs faster the longer there is no refusal."""

CLIMB_NS = NS // 2
"""The shortest time between two steps of a climb."""

SLOW_DOWN_CLIMB_S = 2_200.0
"""After a refusal for growth, the ceiling climbs by one part in this many per second: by half in 15 minutes.
Source: OpenAI's guide to error codes, ``slow_down`` (2026-10)."""

EPOCHS_MAX = 1_000_000
"""How far a new shared ledger moves the epoch: its own starts at 0, and must not match an older note. It is more than the
changes of rate and rule in the life of a shared ledger."""

SLOW_DOWN_MIN = 1 / 8
"""How far refusals for growth lower a ceiling: one in ten answers of a minute would otherwise stop a pool for hours."""

CUT_LEAST = 0.4
"""One measurement lowers a ceiling no further than to this share of itself."""

LIMIT_MIN, LIMIT_MAX = 1e-3, 1e12
WAIT_MAX_S = 32 * 86_400.0
"""The range of limits and waits of providers; a number outside of it counts as missing."""

REFILL_LACK, REFILL_SHARE = 10, 0.25
"""A lack shows a period if it is so many times as large as the resolution of its number, or such a share of the limit: with
smaller ones, a few attempts in a trailing period look like a bucket that takes an hour to refill."""

REFILL_READINGS = 5
"""How many readings show the period of a bucket, if they agree."""

PERIOD_MARGIN = 0.1
"""A learned period that differs by a smaller share from the known one is the known one."""

PERIODS_S = (60.0, 1.0, 10.0, 30.0, 3_600.0, 86_400.0, 5.0, 15.0, 20.0, 300.0, 600.0, 900.0, 1_800.0, 21_600.0)
"""The usual periods, the most usual ones first."""

PLENTY = 0.5
"""A refusal that names no quota is blamed on assumed slots if every other quota has more than this share left."""

RENEWAL_GAP, RENEWAL_TIMES = 0.25, 1.2
"""The longest reset is the period of a counter when readings were no further apart than this share of it, for so many times its
length: a restart was among them."""

RENEWAL_LACK = 1.25
"""A counter lacks at most so many times what was charged within its period: else others use it, or its period is longer."""

UNITS_MAX = 16
"""How many quotas a pool has at most, with those that answers add."""


class Note(NamedTuple):
    """The state of a meter (``full_at_ns``) and of its tracker (the other fields) when an attempt was sent.

    Its own charge is included. ``refunded``: the sum of all refunds, less the debts.
    """

    full_at_ns: int
    shifted_ns: int
    charged: float
    refunded: float
    epoch: int
    held_ns: int = 0


class Above(NamedTuple):
    """A reading that shows more left than noted. It may be no more than what the attempts in flight are overcharged by."""

    sent_ns: int
    now_ns: int
    lack_ns: int
    note: Note
    earlier_ns: int
    about_ns: int


class Refill:
    """The period of a quota, from readings.

    The reset of a bucket is the part of its period that the lack is of the limit. So every reading bounds the period; the bounds
    of a bucket have a part in common, those of a counter that restarts, of a trailing period, or of a smaller bucket than the
    limit have not. The longest reset of a counter is its period.

    Attributes:
        sure: Whether the readings so far are those of a bucket with one period.
    """

    __slots__ = (
        "_count", "_gap_s", "_high_s", "_last_ns", "_least", "_least_s", "_low_s", "_most", "_most_s", "_reset_s", "_since_ns", "sure",
    )  # fmt: skip

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

    @property
    def is_counter(self) -> bool:
        """Whether the present series of readings is that of no bucket."""
        return self._most_s > LONGER_PERIOD * self._least_s

    def period_s(self, reading: Reading) -> float | None:
        """The period of a bucket, once the readings agree about it; ``None`` before."""
        limit, remaining, reset_s = reading.limit, reading.remaining, reading.reset_s
        if limit is None or remaining is None or reset_s is None:
            return None
        lack, rough_s = limit - remaining, reading.reset_resolution_s + 0.002
        if (
            lack < max(3, min(REFILL_LACK, REFILL_SHARE * limit)) * reading.resolution
            or reset_s < 3 * rough_s
            or remaining < 0
        ):
            return None  # too little to measure with
        low_s, high_s = _bounds_s(limit, lack, reset_s, reading)
        if low_s > self._high_s or high_s < self._low_s:  # a contradiction: begin again
            self.sure = False
            self._begin()
        self._low_s, self._high_s = max(self._low_s, low_s), min(self._high_s, high_s)
        self._least, self._most = min(self._least, lack / limit), max(self._most, lack / limit)
        self._count += 1
        agree = self._high_s <= (1 + 2 * PERIOD_MARGIN) * self._low_s and self._most >= 1.5 * self._least
        self.sure = agree and self._count >= REFILL_READINGS
        if not self.sure:
            return None
        return _usual(self._low_s, self._high_s)

    def renewal_s(
        self, sent_ns: int, reading: Reading, known: Quota, charged_since: Callable[[int], float]
    ) -> float | None:
        """The period of a counter, or of a trailing period, once the readings show it; ``None`` before.

        Args:
            sent_ns: When the attempt was sent; a reading of one that was sent before the last is left out.
            reading: The reading.
            known: The quota as it was given. The first reading shows the period where it states the known rate in another one.
            charged_since: The charges from an instant to this attempt, which is among them.
        """
        limit, remaining, reset_s = reading.limit, reading.remaining, reading.reset_s
        if limit is None or remaining is None or not reset_s or self.sure or sent_ns < self._last_ns:
            return None
        lack, gap_s = limit - remaining, (sent_ns - self._last_ns) / NS
        self._last_ns = sent_ns
        low_s, high_s = _bounds_s(limit, lack, reset_s, reading)
        if abs(limit / reset_s / known.rate - 1) <= PERIOD_MARGIN and low_s >= LONGER_PERIOD * known.period_s:
            return _usual((1 - PERIOD_MARGIN) * reset_s, (1 + PERIOD_MARGIN) * reset_s)
        longest_s = max(reset_s, self._reset_s)
        charged = charged_since(sent_ns - round((1 + PERIOD_MARGIN) * longest_s * NS))
        if gap_s > RENEWAL_GAP * self._reset_s or lack > RENEWAL_LACK * charged + reading.resolution:
            self._begin_series(sent_ns)
            longest_s, gap_s = reset_s, 0.0
        self._reset_s, self._gap_s = longest_s, max(self._gap_s, gap_s)
        self._most_s, self._least_s = max(self._most_s, low_s), min(self._least_s, high_s)
        if not self.is_counter or sent_ns - self._since_ns < RENEWAL_TIMES * longest_s * NS:
            return None
        return _usual(0.97 * longest_s, 1.03 * longest_s + self._gap_s)


def _bounds_s(limit: float, lack: float, reset_s: float, reading: Reading) -> tuple[float, float]:
    """The least and the greatest period of a bucket that lacks ``lack`` from its ``limit`` and is full in ``reset_s``."""
    rough_s = reading.reset_resolution_s + 0.002
    over = lack - reading.resolution
    return (reset_s - rough_s) * limit / (lack + reading.resolution), (
        (reset_s + rough_s) * limit / over if over > 0 else math.inf
    )


def _usual(low_s: float, high_s: float) -> float:
    """The most usual period within the bounds, else their middle."""
    usual = [period for period in PERIODS_S if 0.99 * low_s <= period <= 1.01 * high_s]
    return usual[0] if usual else (low_s + high_s) / 2


Report = Callable[[int, str, "float | Quota"], None]
"""Receives a change to the quota at an index: its kind and its value, as in
:class:`~paceline.shared.messages.Learned`."""


def _report_nothing(index: int, kind: str, value: float | Quota) -> None:
    """Do nothing: no other process shares the quotas."""


class QuotaTracker:
    """The learning about one bucket or spread quota, the meter at ``index``.

    Attributes:
        meter: The meter.
        charged: The sum of all charges.
        shifted_ns: The sum of the corrections of the level within this epoch, by which older notes are brought up to date.
            :meth:`take_level` and :meth:`gain` go through ``_move`` and do not count: they come with a new epoch.
        refused_amount: The sum of the charges of refused attempts.
        limit_as_of_ns: When the attempt was sent whose answer last changed the limit.
        epoch: The number of changes of rate and rule: a note of another epoch is not compared.
        refill: What readings have shown about the refill.
        period_s: The period that the limits of answers are about; ``None`` for that of the quota.
    """

    __slots__ = (
        "_above", "_adapts", "_as_of_ns", "_busy_s", "_climb_s", "_climbed_ns", "_index", "_last_ns", "_left_ns", "_lives", "_refusal",
        "_report", "_slices", "_steady", "_tested_ns", "about_ns", "charged", "epoch", "limit_as_of_ns", "meter", "period_s",
        "refill", "refused_amount", "shifted_ns",
    )  # fmt: skip

    def __init__(
        self, meter: Bucket, index: int = 0, report: Report = _report_nothing, *, adapts: bool = False
    ) -> None:
        self.meter = meter
        self._adapts = adapts
        self._tested_ns = 0  # since when the headroom is tested; 0: it is not
        self._left_ns = FAR_NS  # the least that the provider had left since then
        self.limit_as_of_ns = 0
        self.shifted_ns = 0
        self.charged = 0.0
        self.about_ns = ABOUT_NS
        self.epoch = 0
        self.refused_amount = 0.0
        self.refill = Refill()
        self.period_s: float | None = None
        self._index, self._report = index, report
        self._slices: list[tuple[int, float]] = []  # instants, and the sum of all charges before
        # The refusal that begins the present measurement: when its attempt was sent, and the amount admitted before.
        self._refusal: tuple[int, float] | None = None
        self._busy_s = 0.0  # seconds of demand in which the ceiling has climbed since then
        self._last_ns = 0  # when the last refusal came
        self._climb_s = MEASURED_S  # seconds of demand in which the ceiling climbs by CLIMB
        self._climbed_ns = 0  # when the ceiling climbed last
        self._steady = False  # whether it climbs at one speed, and no faster after a time without refusals
        self._as_of_ns = 0  # when the last reading was taken that changed the level
        self._above: Above | None = None
        self._lives = 0  # EPOCHS_MAX times the number of new starts of the shared ledger

    def raise_headroom(self, headroom_s: float) -> None:
        """Raise an adaptive headroom to ``headroom_s``, within its bounds."""
        if self._adapts and not isinstance(self.meter, Spread):
            self._tested_ns = 0
            if headroom_s > self.meter.headroom_s:
                self.meter.keep_unused(min(headroom_s, HEADROOM_MAX_S))

    def hold(self, now_ns: int, by_ns: int) -> None:
        """Move the level by ``by_ns``: the bucket has not refilled, because charged attempts are not sent yet."""
        self._shift(now_ns, now_ns, by_ns)

    def _test_headroom(self, now_ns: int, sent_ns: int, left_ns: int) -> None:
        """Halve an adaptive headroom if it is not needed: the provider had ``left_ns`` left after an attempt."""
        bucket = self.meter
        if not self._tested_ns:
            self._tested_ns, self._left_ns = now_ns, FAR_NS
        elif sent_ns >= self._tested_ns:
            self._left_ns = min(self._left_ns, left_ns)
            if now_ns - self._tested_ns >= HEADROOM_TEST_NS:
                half_s = max(bucket.headroom_s / 2, HEADROOM_MIN_S)
                least_ns = (bucket.headroom_s - half_s) * NS + LEFT_MIN_NS
                if least_ns <= self._left_ns <= 2 * bucket.headroom_s * NS:  # with more, it shows nothing
                    bucket.keep_unused(half_s)
                self._tested_ns = 0

    def granted(self, now_ns: int, amount: float, spent: float) -> Note:
        """Count an attempt that is sent now, charged ``amount``; return its note. ``spent``: as in the ledger."""
        if self.meter.ceiling < 1:
            self.climb(now_ns, amount)
        charged = self.charged + amount
        if not self._slices or now_ns - self._slices[-1][0] >= SLICE_NS:
            self.log_charges(now_ns, charged)
        self.charged = charged
        return Note(self.meter.full_at_ns, self.shifted_ns, charged, charged - spent, self.epoch, self.meter.held_ns)

    def log_charges(self, now_ns: int, charged: float) -> None:
        """Log that the sum of all charges is ``charged`` now."""
        if not self._slices or now_ns - self._slices[-1][0] >= SLICE_NS:
            self._slices.append((now_ns, self.charged))
            if len(self._slices) > SLICES_MAX:
                del self._slices[: SLICES_MAX // 2]
        self.charged = charged

    def note(self, spent: float) -> Note:
        """The note of an attempt that is sent now; ``spent``: as in the ledger."""
        return Note(self.meter.full_at_ns, self.shifted_ns, self.charged, self.charged - spent, self.epoch)

    def take_level(self, now_ns: int, sent_ns: int, note: Note, reading: Reading) -> None:
        """Take the level from ``reading`` without a comparison, less the charges since: the limit has changed."""
        if reading.remaining is None or isinstance(self.meter, Spread):
            return
        learned_unit_ns = self.meter.ns_per_unit
        lack_ns = _lack_ns(self.meter.quota, reading) / self.meter.ceiling
        since = max(self.charged - note.charged, 0.0) * learned_unit_ns
        self._move(now_ns, max(sent_ns + math.ceil(lack_ns + since), now_ns) - self.meter.full_at_ns)

    def changed(self) -> None:
        """Begin another epoch: the rate or the rule has changed, and with it what two refusals would measure."""
        self.epoch += 1
        self._refusal = None
        self.raise_headroom(HEADROOM_S)
        self._report(self._index, "epoch", 0.0)

    def ledger_restarted(self) -> None:
        """Begin an epoch that is above all earlier ones: the store has lost the shared ledger and started a new one."""
        self._lives += EPOCHS_MAX
        self.epoch += EPOCHS_MAX
        self.charged, self.shifted_ns, self.refused_amount = 0.0, 0, 0.0
        self._slices.clear()
        self._refusal = None

    def learned_elsewhere(
        self, now_ns: int, *, limit: float, ceiling: float, shifted_ns: int, epoch: int, refused_amount: float
    ) -> None:
        """Take the state that another process has learned, before the meter takes it."""
        epoch += self._lives
        if self.epoch != epoch:
            self._slices.clear()
        if self.meter.ceiling != ceiling:
            self._climbed_ns = now_ns
        if shifted_ns > self.shifted_ns:
            self._as_of_ns = now_ns  # an earlier reading does not contradict it
        if self.meter.quota.amount != limit:
            self.limit_as_of_ns = now_ns
        if epoch != self.epoch:
            self._refusal = None
        if self._refusal is None and refused_amount > self.refused_amount:  # a refusal there begins a measurement here
            self._refusal, self._busy_s = (now_ns, self.charged - refused_amount), 0.0
        self.epoch, self.shifted_ns, self.refused_amount = epoch, shifted_ns, refused_amount

    def read(
        self,
        now_ns: int,
        sent_ns: int,
        note: Note,
        reading: Reading,
        *,
        above: bool = False,
        lower_only: bool = False,
    ) -> bool:
        """Compare a reading with the note of its attempt, which was sent at ``sent_ns``; whether the quota is not a bucket.

        ``above``: the provider's limit is above the given one, so the reading can only lower the level. ``lower_only``: it
        can only lower the level, too, but shows all else.
        """
        bucket = self.meter
        if reading.remaining is None or isinstance(bucket, Spread):
            return False
        published_unit_ns = bucket.quota.ns_per_unit
        if above:
            lack_ns = math.ceil(max(bucket.quota.burst - reading.remaining, 0.0) * published_unit_ns)
            if lack_ns and note.epoch == self.epoch:
                self._compare(now_ns, sent_ns, note, lack_ns, self.about_ns, lower_only=True)
            return False
        rough_ns = round(reading.resolution * published_unit_ns) if reading.resolution > 1 else 0
        lack_ns = _lack_ns(bucket.quota, reading)
        if self._adapts and bucket.headroom_s > HEADROOM_MIN_S:
            self._test_headroom(now_ns, sent_ns, round(reading.remaining * published_unit_ns))
        if reading.reset_s is not None:
            if self.refill.is_counter:
                return True
            rough_ns += round(reading.reset_resolution_s * NS)
            holds_ns, burst_ns = reading.remaining * published_unit_ns + lack_ns, bucket.quota.burst * published_unit_ns
            if holds_ns > CLOCK_MARGIN * burst_ns + rough_ns:
                return not self.refill.sure
            if holds_ns < QUANTISED_MARGIN * burst_ns - rough_ns:
                self._cap_burst((holds_ns - rough_ns) / published_unit_ns)
            elif bucket.burst_cap < math.inf:
                self._cap_burst(math.inf)
        if note.epoch == self.epoch:  # the lack takes longer to refill below a ceiling
            lack_ns, about_ns = round(lack_ns / bucket.ceiling), self.about_ns + rough_ns
            self._compare(now_ns, sent_ns, note, lack_ns, about_ns, lower_only=lower_only)
        return False

    def _compare(
        self, now_ns: int, sent_ns: int, note: Note, lack_ns: int, about_ns: int, *, lower_only: bool = False
    ) -> None:
        """Correct the level if the server's bucket lacks more or less than the noted one can, by ``about_ns`` or more."""
        noted_ns = note.full_at_ns + self.shifted_ns - note.shifted_ns  # with the corrections since
        if sent_ns + lack_ns <= noted_ns + about_ns and now_ns + lack_ns >= noted_ns - about_ns:
            return  # nearly always: neither holds, with any charges in between
        later, earlier = self._charged_about(sent_ns, note)
        later += note.held_ns  # some of it may have been charged
        if sent_ns + lack_ns > noted_ns + later + about_ns:  # others use the key, too
            self._shift(now_ns, sent_ns, sent_ns + lack_ns - noted_ns - later)
        elif not lower_only and self._above is None and now_ns + lack_ns < noted_ns - earlier - about_ns:
            self._above = Above(sent_ns, now_ns, lack_ns, note, earlier, about_ns)  # even if it was taken just now

    def look_above(self, now_ns: int, spent: float, open_before: Callable[[int], float]) -> None:
        """Raise the level if the charges were too high at the reading that is kept for it.

        What the attempts before it were overcharged by has been refunded since, or will be: that is no reason. A reading
        before the last one that changed the level is not used: what it does not count yet has been learned since.

        Args:
            now_ns: The present.
            spent: As in the ledger.
            open_before: The charges of the attempts in flight that were sent at an instant or before.
        """
        above = self._above
        if above is None:
            return
        note, open_charges, by_ns = above.note, 0.0, 0
        if note.epoch == self.epoch and above.sent_ns >= self._as_of_ns:
            open_charges = open_before(above.sent_ns)
            refunds = max(self.charged - spent - note.refunded, 0.0) + open_charges
            noted_ns = note.full_at_ns + self.shifted_ns - note.shifted_ns - math.ceil(refunds * self.meter.ns_per_unit)
            by_ns = above.now_ns + above.lack_ns - noted_ns + above.earlier_ns
        if by_ns < -above.about_ns:
            self._shift(now_ns, above.sent_ns, by_ns)
        if by_ns < -above.about_ns or not open_charges:
            self._above = None

    def _charged_about(self, sent_ns: int, note: Note) -> tuple[int, int]:
        """The charges shortly after and shortly before the attempt, in nanoseconds of refill; beyond the log, all."""
        after = bisect_right(self._slices, (sent_ns + self.about_ns, 0.0))
        later = (self._slices[after][1] if after < len(self._slices) else self.charged) - note.charged
        earlier = self.charged_since(note, sent_ns - self.about_ns)
        learned_unit_ns = self.meter.ns_per_unit
        return math.ceil(max(later, 0.0) * learned_unit_ns), math.ceil(earlier * learned_unit_ns)

    def least_limit(self, since_ns: int, sent_ns: int) -> float:
        """The least limit of a bucket that has served all attempts from ``since_ns``, the first one, to ``sent_ns``.

        In any time it serves no more than a full bucket and its refill.
        """
        slices, period_s = self._slices, self.meter.quota.period_s
        end = bisect_right(slices, (sent_ns, 0.0))
        served = (slices[end][1] if end < len(slices) else self.charged) - self.refused_amount
        bounds = [
            (served - before) / ((sent_ns - at_ns) / NS + period_s)
            for at_ns, before in [(since_ns, 0.0), *slices[:end]]
        ]
        return max(bounds) * period_s

    def fall_back(self, now_ns: int, limit: float) -> None:
        """Run at ``limit`` per period, half of the present amount, and climb from there."""
        self._cap_burst(limit)
        self._set_ceiling(now_ns, 0.5)
        self._climbed_ns, self._climb_s = now_ns, self.meter.quota.period_s

    def gain(self, now_ns: int, amount: float) -> None:
        """Raise the level by ``amount``: the provider has more than was assumed."""
        self._move(now_ns, -math.ceil(amount * self.meter.ns_per_unit))

    def lack_at_least(self, now_ns: int, amount: float) -> None:
        """Charge the rest if the quota lacks less than ``amount``."""
        missing = amount - max(self.meter.full_at_ns - now_ns, 0) / self.meter.ns_per_unit
        if missing > 0:
            self.meter.charge(now_ns, missing)
            self._report(self._index, "shift", math.ceil(missing * self.meter.ns_per_unit))

    def charged_since(self, note: Note, since_ns: int) -> float:
        """The charges from an instant to the attempt of ``note``; beyond the log, all."""
        before = bisect_right(self._slices, (since_ns, 0.0)) - 1
        return note.charged - (self._slices[before][1] if before >= 0 else 0.0)

    def _shift(self, now_ns: int, as_of_ns: int, by_ns: int) -> None:
        self._as_of_ns = max(self._as_of_ns, as_of_ns)
        self._move(now_ns, by_ns)
        self.shifted_ns += by_ns

    def _move(self, now_ns: int, by_ns: int) -> None:
        self.meter.shift(now_ns, by_ns)
        self._report(self._index, "shift", by_ns)

    def _cap_burst(self, amount: float) -> None:
        if amount != self.meter.burst_cap:
            self.meter.cap_burst(amount)
            self._report(self._index, "cap_burst", amount)

    def _set_ceiling(self, now_ns: int, ceiling: float) -> None:
        self.meter.set_ceiling(now_ns, ceiling)
        self._report(self._index, "set_ceiling", self.meter.ceiling)

    def refused(self, now_ns: int, sent_ns: int, note: Note, amount: float, refusal: Refusal, pause_ns: int) -> bool:
        """Learn from the refusal of an attempt that was sent at ``sent_ns``; whether the quota is not a bucket."""
        if refusal.kind is RefusalKind.GROWTH:
            return self._slow_down(now_ns, sent_ns)
        if self._refusal is not None and sent_ns <= self._last_ns:
            return False  # it was sent before the last refusal came, and adds nothing
        self._last_ns = now_ns
        asked_s = refusal.retry_after_s
        if asked_s is not None and asked_s > LONGER_PERIOD * self.meter.quota.period_s:
            asked_s = None  # it is about a longer period; the pause of the pool is enough
        counter = asked_s is not None and self._asks_like_a_counter(asked_s, amount)
        if counter and self.refill.sure:  # the headers of answers have shown a bucket: the wait is about another time
            counter, asked_s, pause_ns = False, None, 0
        if not isinstance(self.meter, Spread) and not counter:
            self._blame_burst(sent_ns, note, amount)
            full_at_ns = self._full_after(now_ns, amount, refusal, asked_s, pause_ns)
            if full_at_ns > self.meter.full_at_ns:
                self._shift(now_ns, now_ns, full_at_ns - self.meter.full_at_ns)
        return self._measure(now_ns, sent_ns, note) or counter

    def _asks_like_a_counter(self, asked_s: float, amount: float) -> bool:
        """Whether a refusal asks to wait longer than until a bucket has refilled ``amount``: until a counter restarts."""
        bucket = self.meter
        refill_ns = math.ceil(amount * bucket.ns_per_unit)
        return asked_s * NS > refill_ns + bucket.quota.burst * bucket.ns_per_unit / COUNTER_PART + COUNTER_NS

    def _blame_burst(self, sent_ns: int, note: Note, amount: float) -> None:
        """Lower the burst cap to what was used when the attempt was refused, if the bucket should have had enough left.

        If it was nearly empty, an adaptive headroom that has become too small explains the refusal: it is raised instead.
        """
        bucket = self.meter
        learned_unit_ns = bucket.ns_per_unit
        noted_ns = note.full_at_ns + self.shifted_ns - note.shifted_ns  # with the corrections since
        used = (noted_ns - sent_ns - math.ceil(amount * learned_unit_ns)) / learned_unit_ns  # before this attempt
        holds = min(bucket.burst_cap, bucket.quota.burst)
        if note.epoch != self.epoch or used >= holds:
            return
        nearly_empty = (holds - used - amount) * learned_unit_ns < HEADROOM_S * NS
        if self._adapts and bucket.headroom_s < HEADROOM_S and nearly_empty:
            self.raise_headroom(HEADROOM_S)
        else:
            self._cap_burst(max(used, amount))

    def _full_after(self, now_ns: int, amount: float, refusal: Refusal, asked_s: float | None, pause_ns: int) -> int:
        """When the bucket will be full, by the refusal of an attempt of ``amount``.

        By the numbers of the refusal, if it has them: what is left now, and the charge of the attempt, which is kept. Else
        by the wait that it asks for, ``asked_s``: then the bucket holds the amount. Else it is empty after the pause.
        """
        bucket = self.meter
        learned_unit_ns, burst = bucket.ns_per_unit, bucket.quota.burst
        cost_ns, holds_ns = (
            math.ceil(amount * learned_unit_ns),
            math.ceil(min(bucket.burst_cap, burst) * learned_unit_ns),
        )
        if refusal.limit is not None and refusal.used is not None:
            left = min(max(refusal.limit - refusal.used, -burst), burst)
            return now_ns + holds_ns - min(math.floor(left * learned_unit_ns), holds_ns) + min(cost_ns, holds_ns)
        if asked_s is not None:
            return now_ns + round(asked_s * NS) + max(holds_ns - cost_ns, 0)
        return now_ns + pause_ns + holds_ns

    def _slow_down(self, now_ns: int, sent_ns: int) -> bool:
        """Halve the ceiling after a refusal for growth, to an eighth at least; it climbs by half in 15 minutes at most."""
        if sent_ns > self._last_ns:
            self._last_ns = self._climbed_ns = now_ns
            self._set_ceiling(now_ns, max(self.meter.ceiling / 2, min(SLOW_DOWN_MIN, self.meter.ceiling)))
            self.changed()
            self._climb_s, self._steady = CLIMB * SLOW_DOWN_CLIMB_S, True
        return False

    def _measure(self, now_ns: int, sent_ns: int, note: Note) -> bool:
        """Measure the rate: what was admitted between two refusals is the refill. Whether the quota is not a bucket."""
        admitted = note.charged - self.refused_amount
        if self._refusal is not None and sent_ns - self._refusal[0] >= MEASURED_S * NS:
            true = 1 - note.refunded / note.charged if note.charged else 1.0  # the true costs, as a part of the charges
            rate = (admitted - self._refusal[1]) * true / (sent_ns - self._refusal[0]) * NS
            share = rate / self.meter.quota.rate
            self._climb_s = (sent_ns - self._refusal[0]) / NS
            if share < CUT_LEAST * self.meter.ceiling and not (isinstance(self.meter, Spread) or self.refill.sure):
                self._refusal = None
                return True  # the refill is so low that the quota is a counter that restarts
            if share < self.meter.ceiling:
                self._set_ceiling(now_ns, max(MEASURED_PART * share, CUT_LEAST * self.meter.ceiling))
                self.changed()
        if self._refusal is None or sent_ns - self._refusal[0] >= MEASURED_S * NS:
            self._refusal = (sent_ns, admitted)
        self._busy_s = 0.0
        return False

    def climb(self, now_ns: int, amount: float) -> None:
        """Raise a learned ceiling by one step, for an attempt of ``amount``; idle time adds nothing."""
        if self.meter.ceiling >= 1 or now_ns - self._climbed_ns < CLIMB_NS:
            return
        # Idle time does not count: a pool in demand sends such an attempt at least once in twice the time of its refill.
        # At least 1 s counts, because many small attempts come between two steps.
        demand_s = max(2 * amount * self.meter.ns_per_unit / NS, 1.0)
        step_s = min((now_ns - self._climbed_ns) / NS, demand_s)
        self._climbed_ns = now_ns
        self._busy_s += step_s
        gain = CLIMB * step_s / self._climb_s * (1 if self._steady else 1 + self._busy_s / 60)
        self._set_ceiling(now_ns, self.meter.ceiling * (1 + gain))


def _lack_ns(quota: Quota, reading: Reading) -> int:
    """What the server's bucket lacks from full, in nanoseconds at the published rate: its reset, else from ``remaining``."""
    if reading.reset_s is not None:
        return round(reading.reset_s * NS)
    return round(max(quota.amount - (reading.remaining or 0.0), 0.0) * quota.ns_per_unit)


class Learning:
    """The learning about all quotas of a ledger.

    Args:
        ledger: The ledger, whose meters are corrected.
        report: Called with every change, so that other processes can make it, too.
        raises: Whether an answer may raise a limit that the user has given.
        adapts: Whether the headroom of buckets adapts: to attempts that are sent late, and to refusals of a bucket that
            was nearly empty.

    Attributes:
        trackers: The learning about each quota.
        guesses: The limits that no answer has confirmed.
        notices: What the user should know, for the log; the reader empties it.
    """

    def __init__(
        self, ledger: Ledger, report: Report = _report_nothing, *, raises: bool = False, adapts: bool = False
    ) -> None:
        self._ledger = ledger
        self._report = report
        self._shared = report is not _report_nothing  # whether other processes make the same changes
        self._raises, self._adapts = raises, adapts
        self.trackers: list[QuotaTracker | None] = []
        self.guesses = Guesses(ledger)
        self.notices: list[str] = []
        self._inferred: dict[str, Refill] = {}  # by unit, about quotas of a period that none of the known ones has
        self._doubted: dict[int, set[int]] = {}  # of windows, the starts of those with refusals
        self._shown: dict[int, float] = {}  # what was left of each quota, by the last headers
        self._shown_for: Reservation | None = None
        self.track_new()

    def track_new(self) -> None:
        """Track the meters that the ledger has got since."""
        for i, m in enumerate(self._ledger.meters[len(self.trackers) :], len(self.trackers)):
            bucket = m if isinstance(m, Bucket) and m.quota.rule not in OWN_RULES else None
            tracker = QuotaTracker(bucket, i, self._report, adapts=self._adapts) if bucket is not None else None
            self.trackers.append(tracker)

    def sent_late(self, late_s: float) -> None:
        """Raise adaptive headrooms: an attempt was sent ``late_s`` after its grant.

        While it was on its way, a full bucket of the provider did not refill, and the ledger's did.
        """
        for tracker in self.trackers:
            if tracker is not None:
                tracker.raise_headroom(late_s)

    def granted(self, now_ns: int, reservation: Reservation) -> None:
        """Take the notes of an attempt that is sent now."""
        notes: list[Note | None] = []
        for tracker, amount, spent in zip(self.trackers, reservation.amounts, self._ledger.spent, strict=True):
            notes.append(tracker.granted(now_ns, amount, spent) if tracker is not None and amount else None)
        reservation.notes = notes

    def granted_by_store(self, now_ns: int, reservation: Reservation) -> None:
        """Take the notes of an attempt whose charge the shared ledger has counted."""
        notes: list[Note | None] = []
        for tracker, amount, spent in zip(self.trackers, reservation.amounts, self._ledger.spent, strict=False):
            if tracker is not None and amount:
                tracker.climb(now_ns, amount)
            notes.append(tracker.note(spent) if tracker is not None and amount else None)
        reservation.notes = notes

    def notes_of_now(self) -> list[Note | None]:
        """The notes of an attempt without a charge that is sent now."""
        notes = zip(self.trackers, self._ledger.spent, strict=True)
        return [tracker.note(spent) if tracker is not None else None for tracker, spent in notes]

    def observe(self, now_ns: int, readings: Iterable[Reading], reservation: Reservation) -> list[int]:
        """Learn from the headers of the answer to ``reservation``.

        Returns:
            The indexes of the quotas that the answer has added, or whose limit it has changed. Limits that follow from
            what the pool observed are not in it.
        """
        changed: list[int] = []
        self._shown, self._shown_for = {}, reservation
        for whole in map(_sane_reading, readings):
            sent_ns, index = reservation.granted_ns, self._index(whole.unit, whole.period_s)
            if index is None and not self._has_period(whole):
                continue
            share = self._usable_share(index, whole.unit)
            reading = whole if share == 1 else self._usable_reading(index, whole, share)
            note = None if index is None else self._note(reservation, index)
            refilled = index is not None and self._take_refill(now_ns, index, sent_ns, note, whole, reading.limit)
            if index is not None and (whole.reset_s or 0) > LONGER_PERIOD * self._ledger.meters[index].quota.period_s:
                continue  # it is about a longer period
            limited = self._take_limit(now_ns, index, reading, sent_ns)
            changed += limited
            if index is None:
                continue
            if whole.remaining is not None:
                self._shown[index] = whole.remaining
            tracker, m = self.trackers[index], self._ledger.meters[index]
            above = reading.limit is not None and self._in_period(index, reading.limit) > m.quota.amount
            if isinstance(m, Window) and reading.remaining is not None and reading.remaining < m.level(now_ns):
                m.seen(now_ns, reading.remaining)
                self._report(index, "seen", reading.remaining)
            if tracker is None or note is None:
                continue
            partly = share < 1  # the provider refills faster than the part that is used
            if tracker.read(now_ns, sent_ns, note, reading, above=above, lower_only=partly):
                since = max(tracker.charged - note.charged, 0.0)
                self._spread(now_ns, index, max(m.quota.amount - (reading.remaining or 0.0), 0.0) + since)
            elif (limited or refilled) and not above:
                tracker.take_level(now_ns, sent_ns, note, reading)
            tracker.look_above(now_ns, self._ledger.spent[index], partial(self._ledger.open_before, index))
        return changed

    def _has_period(self, reading: Reading) -> bool:
        """Whether a quota may be added for the period of a reading, if it has one.

        A proved one must be the only one on the unit, or readings must agree about it. An assumed one is not added.
        Of a counter, some readings look like those of a bucket with another period.
        """
        if reading.period_s is None or reading.basis is Basis.STATED:
            return True
        if reading.basis is Basis.ASSUMED or reading.unit not in self._ledger.units:
            return reading.basis is Basis.PROVED
        refill = self._inferred.setdefault(reading.unit, Refill())
        return refill.period_s(reading) == reading.period_s

    def _usable_share(self, index: int | None, unit: str | None) -> float:
        """The share that is used of a limit on ``unit``, that of the quota at ``index`` if there is one."""
        if index is not None:
            return self._ledger.share_of(self._ledger.meters[index].quota)
        return 1.0 if unit == CONCURRENCY else self._ledger.usable

    def _usable_reading(self, index: int | None, reading: Reading, share: float) -> Reading:
        """What ``reading`` says about the ``share`` of the limit that is used; the rest of it stays with the provider.

        The provider's bucket and its used part lack the same amount, which takes the part longer to refill.
        """
        m = None if index is None else self._ledger.meters[index]
        limit, remaining, reset_s = reading.limit, reading.remaining, reading.reset_s
        size = limit if limit is not None or m is None else m.quota.amount / share
        if isinstance(m, Bucket) and not isinstance(m, Spread) and reset_s is not None and size is not None:
            per_s = size / m.quota.period_s
            if remaining is not None:  # the bucket may be smaller than the limit
                rough = reading.resolution + reading.reset_resolution_s * per_s
                holds = remaining + reset_s * per_s
                size = holds if holds < QUANTISED_MARGIN * size - rough else size
            reset_s /= share
        return replace(
            reading,
            limit=None if limit is None else limit * share,
            remaining=remaining if remaining is None or size is None else remaining - (1 - share) * size,
            reset_s=reset_s,
        )

    def _take_refill(
        self, now_ns: int, index: int, sent_ns: int, note: Note | None, reading: Reading, limit: float | None
    ) -> bool:
        """Learn from ``reading`` how fast the quota at ``index`` refills; whether its period or its rule has changed.

        ``limit``: the part of the reading's limit that is used.
        """
        tracker = self.trackers[index]
        stated = reading.period_s is not None and reading.basis is Basis.STATED
        if tracker is None or stated or tracker.meter.quota.rule is Rule.SLIDING:
            return False  # it has stated its period, or the user the rule, by which its resets have another meaning
        period_s, spread = tracker.refill.period_s(reading), isinstance(tracker.meter, Spread)
        bucket, quota, given = period_s is not None, tracker.meter.quota, self._ledger.given
        if not bucket and note is not None:
            known = quota if given[index] == math.inf else quota.with_amount(given[index])
            period_s = tracker.refill.renewal_s(sent_ns, reading, known, partial(tracker.charged_since, note))
        if period_s is None or limit is None:
            return False
        changed = False
        if spread and bucket and quota.rule is Rule.BUCKET and not self._shared:
            tracker.meter, changed = self._ledger.count_as_bucket(now_ns, index), True
        known_s = tracker.period_s or quota.period_s
        if abs(period_s - known_s) > PERIOD_MARGIN * known_s:
            tracker.period_s, changed = period_s, True
            if not bucket:
                self._spread(now_ns, index)
            if self._shared:  # other processes match it by unit and period: the period stays, the amount is converted
                self._adopt(now_ns, index, min(self._in_period(index, limit), given[index]))
            else:
                given[index] *= period_s / quota.period_s
                self._ledger.adopt(now_ns, index, min(limit, given[index]), period_s)
                self._ledger.sources[index] = LEARNED
        if changed:
            tracker.changed()
        return changed

    def _in_period(self, index: int, limit: float) -> float:
        """A ``limit`` of an answer, as an amount per period of the quota at ``index``."""
        tracker = self.trackers[index]
        if tracker is None or tracker.period_s is None:
            return limit
        return limit * tracker.meter.quota.period_s / tracker.period_s

    def charge_kept(self, reservation: Reservation) -> None:
        """Count the charge of a refused attempt: it stays, but the provider has not admitted it."""
        for tracker, amount in zip(self.trackers, reservation.amounts, strict=False):
            if tracker is not None:
                tracker.refused_amount += amount

    def refused(self, now_ns: int, reservation: Reservation, refusal: Refusal, pause_ns: int) -> list[int]:
        """Learn from a refusal for rate or growth.

        Returns:
            The indexes of the quotas that the answer has added, or whose limit it has changed. Limits that follow from
            what the pool observed are not in it.
        """
        if refusal.kind not in (RefusalKind.RATE, RefusalKind.GROWTH):
            return []
        named = refusal.unit is not None  # numbers without a unit may be about a quota that is not listed
        refusal = replace(
            refusal,
            retry_after_s=_within(refusal.retry_after_s, 0.0, WAIT_MAX_S),
            period_s=_within(refusal.period_s, 0.01, WAIT_MAX_S),
            limit=_within(refusal.limit, LIMIT_MIN, LIMIT_MAX) if named else None,
            used=_within(refusal.used, 0.0, LIMIT_MAX) if named else None,
        )
        sent_ns = reservation.granted_ns
        shown = self._shown if reservation is self._shown_for else {}
        amounts = dict(enumerate(reservation.amounts))
        ample = {i for i, left in shown.items() if left > amounts.get(i, 0.0)}  # of these the provider had enough
        index = self._index(refusal.unit, refusal.period_s) if refusal.unit else self._tightest(now_ns, ample)
        if refusal.limit is not None:
            refusal = replace(refusal, limit=refusal.limit * self._usable_share(index, refusal.unit))
        before = self._ledger.meters[index].quota.amount if index is not None else 0.0
        source = self._ledger.sources[index] if index is not None else LEARNED
        changed = self._take_limit(now_ns, index, refusal, sent_ns)
        if index is not None:
            m = self._ledger.meters[index]
            if isinstance(m, Slots):
                if (fewer := self.guesses.refused(now_ns, sent_ns, index, m.used, before, source)) < m.quota.amount:
                    self._adopt(now_ns, index, fewer, self._ledger.sources[index])
            elif refusal.limit is None and (guess := self.guesses.open.get(index)) is not None:
                self._fall_back(now_ns, index, guess, sent_ns)
            elif refusal.limit is None and isinstance(m, Window):
                self._doubt_window(now_ns, index, m)
            tracker, note = self.trackers[index], self._note(reservation, index)
            if tracker is not None and note is not None:
                amount = reservation.amounts[index]
                # With enough left of it, a refusal that names none is about a quota that is not listed.
                other = refusal.unit is None and index in ample
                if tracker.refused(now_ns, sent_ns, note, amount, refusal, pause_ns) and not other:
                    self._spread(now_ns, index)
        return changed

    def _doubt_window(self, now_ns: int, index: int, m: Window) -> None:
        """Spread a window that should have had enough, after refusals in two of its periods.

        It restarts at another time, or has another amount, which is measured then as that of any other counter.
        """
        if self._shared:  # the store keeps its windows
            return
        doubted = self._doubted.setdefault(index, set())
        doubted.add(m.start_ns)
        if len(doubted) > 1:
            del self._doubted[index]
            spread = self._ledger.spread(now_ns, index)
            self.trackers[index] = QuotaTracker(spread, index, self._report, adapts=self._adapts)

    def _index(self, unit: str | None, period_s: float | None) -> int | None:
        """The index of the one quota on ``unit`` and period; ``None`` for none or several.

        A quota whose period was learned is that of any other period: what answers say of its period is wrong.
        """
        meters = self._ledger.meters
        on_unit = [i for i, m in enumerate(meters) if m.quota.unit == unit and m.quota.rule not in OWN_RULES]
        found = [i for i in on_unit if period_s in (None, meters[i].quota.period_s)]
        if not found:
            found = [i for i in on_unit if (tracker := self.trackers[i]) is not None and tracker.period_s]
        return found[0] if len(found) == 1 else None

    def _is_new(self, unit: str, period_s: float | None) -> bool:
        """Whether a quota that an answer names is to be added."""
        quotas = [m.quota for m in self._ledger.meters if m.quota.rule not in OWN_RULES]
        units = {quota.unit for quota in quotas if period_s in (None, quota.period_s)}
        split = unit == TOKENS and INPUT_TOKENS in units  # the quotas count input and output separately
        named = re.fullmatch(r"[a-z_][a-z0-9_]{0,40}", unit) is not None
        return named and unit not in units and not split and len(self._ledger.meters) < UNITS_MAX

    def _tightest(self, now_ns: int, ample: Collection[int]) -> int | None:
        """The index of the quota with the least left, for a refusal that names none; assumed slots if others have plenty.

        Quotas that are ``ample`` are left out, unless all are.
        """
        counted = [(i, m) for i, m in enumerate(self._ledger.meters) if m.quota.rule not in (Rule.SLOTS, *OWN_RULES)]
        # Of a guess that is raised a few attempts at a time, nothing is ever left.
        counted = [(i, m) for i, m in counted if not self.guesses.is_stepped(i)] or counted
        counted = [(i, m) for i, m in counted if i not in ample] or counted
        shares = [(m.level(now_ns) / m.quota.burst, i) for i, m in counted]
        # Slots are not the reason for the refusal of an attempt that was alone in flight.
        open_meters = [(i, self._ledger.meters[i]) for i in self.guesses.open]
        slots = [i for i, m in open_meters if isinstance(m, Slots) and m.used]
        if slots and (not shares or min(shares)[0] > PLENTY):
            return slots[0]
        return min(shares)[1] if shares else None

    def _note(self, reservation: Reservation, index: int) -> Note | None:
        return reservation.notes[index] if index < len(reservation.notes) else None

    def _take_limit(self, now_ns: int, index: int | None, answer: Reading | Refusal, sent_ns: int) -> list[int]:
        """Take the limit of the answer to an attempt that was sent at ``sent_ns``; return the index of the changed quota.

        With an ``index`` it is the limit of that quota, unless a later attempt has met another one. Without, the quota
        is added, if it is new.
        """
        limit = answer.limit
        if limit is None:
            return []
        if index is None:
            if not answer.unit or not self._is_new(answer.unit, answer.period_s):
                return []
            slots = answer.unit == CONCURRENCY
            rule = Rule.SLOTS if slots else Rule.BUCKET
            quota = Quota(answer.unit, limit, 0.0 if slots else answer.period_s or 60.0, rule=rule)
            self._ledger.add(now_ns, quota)
            self.track_new()
            index = len(self._ledger.meters) - 1
            if slots:
                self.guesses.found_slots(index)
            self._report(index, "add", quota)
            return [index]
        tracker, ledger = self.trackers[index], self._ledger
        if tracker is not None and sent_ns < tracker.limit_as_of_ns:
            return []
        limit = self._in_period(index, limit)
        if limit > ledger.given[index] and not self._raises:
            self._stated_above(index, limit)
            limit = ledger.given[index]
        before = ledger.meters[index].quota.amount
        lowered = self.guesses.is_lowered(index) and isinstance(answer, Refusal)
        if not lowered:
            self.guesses.confirm(index)
        if isinstance(answer, Refusal) and limit < before and not isinstance(ledger.meters[index], Slots):
            self.guesses.lowered(now_ns, index, before)
        if limit == before:
            if ledger.sources[index].kind is not SourceKind.GIVEN:
                ledger.sources[index] = LEARNED
            return []
        self._adopt(now_ns, index, limit)
        if tracker is not None:
            tracker.limit_as_of_ns = sent_ns
        return [index]

    def _adopt(self, now_ns: int, index: int, limit: float, source: Source = LEARNED) -> None:
        self._ledger.adopt(now_ns, index, limit)
        self._ledger.sources[index] = source
        self._report(index, "adopt", limit)
        if (tracker := self.trackers[index]) is not None:
            tracker.changed()

    def _stated_above(self, index: int, limit: float) -> None:
        """Note that the provider allows more than the user has given; the given limit holds."""
        limit /= self._usable_share(index, None)
        if index not in self._ledger.stated:
            self.notices.append(
                f"the provider states a limit of {limit:,.0f} {self._ledger.units[index]}, and"
                f" {str(self._ledger.whole(index))!r} was given: the given limit holds; learn='up' would take the higher one"
            )
        self._ledger.stated[index] = limit

    def served(self, now_ns: int, reservation: Reservation, true: list[float]) -> None:
        """Raise guessed limits that bind, after an attempt that the provider has served at the cost ``true``."""
        for index, amount, gain in self.guesses.served(now_ns, reservation, true):
            m, tracker, source = self._ledger.meters[index], self.trackers[index], self._ledger.sources[index]
            guess = self.guesses.open[index]
            if not guess.warned and not isinstance(m, Slots):
                guess.warned = True
                self.notices.append(
                    self.about_guess(index) + "; the provider serves more, so it is raised step by step"
                )
            if amount == guess.most:
                source = guess.source
                if not isinstance(m, Slots) or amount == m.quota.amount:  # else it has yet to hold
                    self.guesses.confirm(index)
            self._adopt(now_ns, index, amount, source)
            if gain and tracker is not None and not isinstance(tracker.meter, Spread):
                tracker.gain(now_ns, gain)

    def _fall_back(self, now_ns: int, index: int, guess: Guess, sent_ns: int) -> None:
        """Replace a limit that was raised too far by what was served before the attempt that was refused."""
        if self.guesses.is_lowered(index):
            if guess.amount:
                self._adopt(now_ns, index, guess.amount / RETEST_STEP)
                self.guesses.lowered(now_ns, index, guess.most)
            return
        self.guesses.confirm(index)
        tracker = self.trackers[index]
        if guess.amount and tracker is not None and not isinstance(tracker.meter, Spread):
            limit = tracker.least_limit(guess.since_ns, sent_ns)
            if 0 < limit < tracker.meter.quota.amount:
                self._adopt(now_ns, index, 2 * limit, self._ledger.sources[index])
                tracker.fall_back(now_ns, limit)

    def outgrown(self, now_ns: int, true: list[float]) -> None:
        """Raise limits, up to the given ones, that a served attempt has exceeded by far.

        The debt of the attempt would stop the pool for many periods.
        """
        for index, amount in enumerate(true):
            limit = min(amount * self._usable_share(index, None), self._ledger.given[index])
            if limit > DEBT_MAX * self._ledger.meters[index].most:
                self._adopt(now_ns, index, limit, self._ledger.sources[index])

    def learned_elsewhere(self, now_ns: int, index: int, before: float) -> None:
        """Note that another process has changed the limit at ``index`` from ``before``, unless this one has raised it so far."""
        guess = self.guesses.open.get(index)
        if guess is None or guess.amount != self._ledger.meters[index].quota.amount:
            m = self._ledger.meters[index]
            if self.guesses.is_lowered(index):
                self.guesses.changed_elsewhere(now_ns, index, before)
            elif m.quota.amount < before:  # the process that saw the refusal may end
                self.guesses.lowered(now_ns, index, before)
            else:
                self.guesses.confirm(index)
            self._ledger.sources[index] = LEARNED

    def stalled(self, now_ns: int, amounts: list[float]) -> None:
        """Add a notice, once for each guess, if a guess makes a request with ``amounts`` wait longer than a minute."""
        index = self.guesses.stalled(now_ns, amounts)
        if index is not None:
            self.notices.append(self.about_guess(index) + "; requests wait for it")

    def about_guess(self, index: int) -> str:
        """A sentence about a guessed limit: its source, and what the user can do."""
        name, source = self._ledger.names[index], self._ledger.sources[index]
        # A published limit is that of the tier that was named, or of the only one.
        tier = "name the tier of the account (tier=...), " if source.kind is SourceKind.ASSUMED else ""
        return (
            f"the limit {name!r} is {source}, and no answer has confirmed it: {tier}give the limits, or measure them with"
            " `paceline check`"
        )

    def _spread(self, now_ns: int, index: int, lack: float = 0.0) -> None:
        """Spread the quota at ``index``, which lacks at least ``lack``, evenly, which is safe under every rule: it is not a bucket."""
        tracker = self.trackers[index]
        if tracker is not None and not isinstance(tracker.meter, Spread):
            tracker.meter = self._ledger.spread(now_ns, index)
            self._report(index, "spread", 0.0)
            tracker.lack_at_least(now_ns, lack)
            tracker.changed()


def _within(value: float | None, least: float, most: float) -> float | None:
    """``value`` if it is within the range, else ``None``, as for NaN."""
    return value if value is not None and least <= value <= most else None


def _sane_reading(reading: Reading) -> Reading:
    limit = _within(reading.limit, LIMIT_MIN, LIMIT_MAX)
    most = LIMIT_MAX if limit is None else CLOCK_MARGIN * limit
    sane = (
        limit,
        _within(reading.remaining, -LIMIT_MAX if limit is None else -limit, most),
        _within(reading.reset_s, 0.0, WAIT_MAX_S),
        _within(reading.period_s, 0.01, WAIT_MAX_S),
        _within(reading.resolution, 1.0, 1e6) or 1.0,
        _within(reading.reset_resolution_s, 0.0, 3_600.0) or 0.0,
    )
    given = (reading.limit, reading.remaining, reading.reset_s, reading.period_s)
    same = sane == (*given, reading.resolution, reading.reset_resolution_s)
    return reading if same else Reading(reading.unit, *sane, basis=reading.basis)
