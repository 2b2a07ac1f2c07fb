"""What answers show about one quota: its level, its burst, its rate, and whether it is a bucket.

See :mod:`paceline.core.learning` for the ideas.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from paceline.core.changes import What
from paceline.core.charges import Charges
from paceline.core.entry import BucketEntry
from paceline.core.learning.resets import LONGER_PERIOD, MARGIN, ROUNDED_NS, TRANSIT_NS, Refill, Restarts
from paceline.core.meters import Bucket
from paceline.core.quota import FAR_NS, NS, REQUESTS, Quota, ns_per_unit
from paceline.core.results import Reading, Refusal, RefusalKind

HEADROOM_S, HEADROOM_MIN_S, HEADROOM_MAX_S = 1.0, TRANSIT_NS / NS, 4.0
"""An adaptive headroom at the start, and its bounds, in seconds of refill: attempts may come together that were sent
within ``TRANSIT_NS``."""

HEADROOM_TEST_NS, LEFT_MIN_NS = 10 * NS, NS // 10
"""The length of a test of an adaptive headroom, and what must be left. The test looks for the least refill that the
provider has left, by its headers. The headroom is halved if with half of it so much would still have been left. It
stays if more than twice the headroom was left at all times, because then the quota was not in demand. A late attempt,
and a refusal that raises the headroom, begin the test again."""

EPOCHS_MAX = 1_000_000
"""How far the epoch moves when the store begins a new shared ledger. A new one counts its epochs from 0, and none of
them may equal the epoch of an older note. A shared ledger has fewer changes of rate and rule in its life."""

LARGE_CUT = 0.6
"""A ceiling that falls below this part of itself, at once or step by step, was far from the rate of the provider. The
next one is near it, if a limit is the reason: then there is no second such fall."""

APART_S = 4.0
"""Two refusals at least this far apart show the rate between them: the level at the server was about zero at both."""

CLIMB = 0.02
"""A ceiling is set so much below that rate, and climbs by as much within the time between the two refusals, so that it
climbs more slowly after a longer time. It climbs faster the longer there is no refusal. If it is set to the whole rate,
refusals are twice as frequent, for 0.3 % of speed."""

CLIMB_NS = NS
"""The shortest time between two steps of a climb."""

SLOW_DOWN_CLIMB_S = 2_200.0
"""After a refusal for growth, the ceiling climbs by one part in this many per second: by half in 15 minutes.
Source: OpenAI's guide to error codes, ``slow_down`` (2026-10)."""

SLOW_DOWN_MIN = 1 / 8
"""How far refusals for growth lower a ceiling: one in ten answers of a minute would otherwise stop a pool for hours."""

CUT_LEAST = 0.4
"""One measurement lowers a ceiling no further than to this share of itself."""


class CeilingTracker:
    """The refusals of one quota, as far as they show its rate: the share of it that the provider admits, its ceiling.

    What was admitted between two refusals of a quota in demand is its refill. Without a refusal the ceiling climbs. The
    meter has the ceiling, and its tracker changes it: the methods return what it is to be.

    Attributes:
        first: The refusal that begins the present measurement: when its attempt was sent, and the amount that was
            admitted before. ``None``: nothing is measured, or no more, because the rate or the rule has changed.
        climbed_ns: When the ceiling climbed last.
        lowered: How many times it has fallen below :data:`LARGE_CUT` of itself, since it was 1.
    """

    def __init__(self) -> None:
        self.first: tuple[int, float] | None = None
        self._busy_s = 0.0  # seconds of demand in which the ceiling has climbed since then
        self._climb_s = APART_S  # seconds of demand in which the ceiling climbs by CLIMB
        self._steady = False  # whether it climbs at one speed, and no faster after a time without refusals
        self._known = 1.0  # the ceiling that a large fall is compared with: the first one, or after the last such fall
        self.climbed_ns = self.lowered = 0

    def share(self, sent_ns: int, admitted: float, true: float, rate: float) -> float | None:
        """The share of the ``rate`` that was admitted between two refusals.

        ``None``: they are too close, or this is the first.

        Args:
            sent_ns: When the refused attempt was sent.
            admitted: What was admitted before it, as charged.
            true: The true costs, as a part of the charges.
            rate: The rate of the quota, per second.
        """
        if self.first is None or sent_ns - self.first[0] < APART_S * NS:
            return None
        self._climb_s = (sent_ns - self.first[0]) / NS
        return (admitted - self.first[1]) * true / (sent_ns - self.first[0]) * NS / rate

    def fall(self, share: float, ceiling: float, before: float) -> None:
        """Note that the ceiling falls from ``before`` to ``ceiling``, because so small a ``share`` was admitted."""
        if share < LARGE_CUT * max(self._known, before):
            self.lowered, self._known = self.lowered + 1, ceiling

    def count(self, sent_ns: int, admitted: float) -> None:
        """Begin a measurement at this refusal, unless the present one is shorter than ``APART_S``."""
        if self.first is None or sent_ns - self.first[0] >= APART_S * NS:
            self.first = (sent_ns, admitted)
        # Also if no measurement begins: the climb becomes faster only while nothing is refused.
        self._busy_s = 0.0

    def slow_down(self, now_ns: int, present: float) -> float:
        """Half of the ``present`` ceiling after a refusal for growth, an eighth at least.

        It climbs by half in 15 minutes at most.
        """
        self.climbed_ns = now_ns
        self._climb_s, self._steady = CLIMB * SLOW_DOWN_CLIMB_S, True
        return max(present / 2, min(SLOW_DOWN_MIN, present))

    def climb_from(self, now_ns: int, climb_s: float) -> None:
        """Climb from now on by ``CLIMB`` in ``climb_s`` seconds of demand."""
        self.climbed_ns, self._climb_s = now_ns, climb_s

    def climb(self, now_ns: int, m: Bucket, amount: float) -> float | None:
        """The ceiling of ``m`` after a step, for an attempt of ``amount``; ``None``: no step is due.

        Idle time adds nothing.
        """
        if now_ns - self.climbed_ns < CLIMB_NS:
            return None
        # Idle time does not count: a pool in demand sends such an attempt at least once in twice the time of its
        # refill. At least the time of a step counts, because many small attempts come between two steps.
        demand_ns = max(2 * amount * m.ns_per_unit, CLIMB_NS)
        step_s = min(now_ns - self.climbed_ns, demand_ns) / NS
        self.climbed_ns = now_ns
        self._busy_s += step_s
        gain = CLIMB * step_s / self._climb_s * (1 if self._steady else 1 + self._busy_s / 60)
        ceiling = m.ceiling * (1 + gain)
        if ceiling >= 1:
            self.lowered, self._known = 0, 1.0
        return ceiling


class Headroom:
    """The adaptive headroom of a bucket.

    Args:
        adapts: Whether it adapts.
    """

    def __init__(self, *, adapts: bool) -> None:
        self._adapts = adapts
        self._tested_ns = 0  # since when it is tested; 0: it is not
        self._left_ns = FAR_NS  # the least that the provider had left since then

    def raise_to(self, bucket: Bucket, headroom_s: float) -> None:
        """Raise it to ``headroom_s``, within its bounds. Its test begins again, also if it is as high."""
        if self._adapts and bucket.bursts:
            self._tested_ns = 0
            if headroom_s > bucket.headroom_s:
                bucket.keep_unused(min(headroom_s, HEADROOM_MAX_S))

    def explains(self, bucket: Bucket, left_ns: float) -> bool:
        """Whether it has become too small, which explains a refusal of a bucket that should have had so much left."""
        return self._adapts and bucket.headroom_s < HEADROOM_S and left_ns < HEADROOM_S * NS

    def test(self, now_ns: int, sent_ns: int, bucket: Bucket, left_ns: int) -> None:
        """Halve it if it is not needed: the provider had ``left_ns`` left after an attempt."""
        if not self._adapts or bucket.headroom_s <= HEADROOM_MIN_S:
            return
        if not self._tested_ns:
            self._tested_ns, self._left_ns = now_ns, FAR_NS
        elif sent_ns >= self._tested_ns:
            # What was sent before the test may have gone with another headroom.
            self._left_ns = min(self._left_ns, left_ns)
            if now_ns - self._tested_ns >= HEADROOM_TEST_NS:
                half_s = max(bucket.headroom_s / 2, HEADROOM_MIN_S)
                least_ns = (bucket.headroom_s - half_s) * NS + LEFT_MIN_NS
                if least_ns <= self._left_ns <= 2 * bucket.headroom_s * NS:  # with more, it shows nothing
                    bucket.keep_unused(half_s)
                self._tested_ns = 0


class Note(NamedTuple):
    """The state of a meter and of its tracker when an attempt was sent.

    The meter's are ``full_at_ns``, without the corrections of the level within the epoch, and ``held_ns``. The other
    fields are the tracker's.

    Its own charge is included. ``refunded``: the sum of all refunds, less the debts.
    """

    full_at_ns: int
    charged: float
    refunded: float
    epoch: int
    held_ns: int = 0


class KeptReading(NamedTuple):
    """A reading that shows more left than its note.

    It is kept as long as refunds of attempts in flight may explain that.

    Attributes:
        sent_ns: When its attempt was sent.
        full_at_ns: When the server's bucket is full at the latest: it lacked what it states when the reading came, and
            counted the charges shortly before the attempt later.
        note: The note of its attempt.
        wrong_ns: By how much the reading may be wrong.
    """

    sent_ns: int
    full_at_ns: int
    note: Note
    wrong_ns: int


class QuotaTracker:
    """The learning about one bucket or spread quota.

    Args:
        entry: The quota.
        change: Makes a change to it.
        adapts: Whether the headroom adapts.

    Attributes:
        entry: The quota.
        charges: The log of all charges.
        shifted_ns: The sum of the corrections of the level within this epoch, by which older notes are brought up to
            date. Corrections by :meth:`take_level` and :meth:`gain` do not count: they come with a new epoch.
        about_ns: Attempts that were sent within this time of each other may reach the server in the other order.
        refused_ns: When the last refusal came.
        limit_as_of_ns: When the attempt was sent whose answer last changed the limit.
        limit_epoch: The epoch that an answer to this process has begun with the present limit.
        epoch: The number of changes of rate and rule: a note of another epoch is not compared.
        rate: What refusals have shown of the rate.
        refill: What readings have shown about the refill.
        restarts: What readings have shown about the restarts.
        stated_period_s: The period that the limits of answers are about; ``None`` for the quota's own.
        kept: A reading that may raise the level later; ``None`` for none.
    """

    def __init__(self, entry: BucketEntry, change: Callable[[int, What, float], None], *, adapts: bool = False) -> None:
        self.entry = entry
        self._headroom = Headroom(adapts=adapts)
        self.limit_as_of_ns = 0
        self.shifted_ns = 0
        self.charges = Charges()
        self.about_ns = TRANSIT_NS
        self.epoch = self.limit_epoch = self.refused_ns = 0
        self.refill = Refill()
        self.restarts = Restarts()
        self.stated_period_s: float | None = None
        self._change = change
        self.rate = CeilingTracker()
        self._as_of_ns = 0  # when the last reading was taken that changed the level
        self.kept: KeptReading | None = None

    def raise_headroom(self, headroom_s: float) -> None:
        """Raise an adaptive headroom to ``headroom_s``, within its bounds."""
        self._headroom.raise_to(self.entry.meter, headroom_s)

    def move_level(self, now_ns: int, by_ns: int) -> None:
        """Move the level by ``by_ns``, in the notes of earlier attempts, too."""
        self._shift(now_ns, now_ns, by_ns)

    def note(self) -> Note:
        """The note of an attempt that is sent now."""
        m, charged = self.entry.meter, self.charges.total
        return Note(m.full_at_ns - self.shifted_ns, charged, charged - self.entry.spent, self.epoch, m.held_ns)

    def take_limit(self, sent_ns: int) -> None:
        """Note that the answer to an attempt that was sent at ``sent_ns`` has changed the limit."""
        self.limit_as_of_ns, self.limit_epoch = sent_ns, self.epoch

    def corrects_limited(self, sent_ns: int) -> bool:
        """Whether an answer may show that the level was taken too low when the limit changed, before its attempt ended.

        It was sent after the one whose answer changed the limit, and after the last one that changed the level: an
        older reading does not know what others have used since. A ceiling that has fallen since then is to slow the
        pool down, with however much left.
        """
        return sent_ns >= max(self.limit_as_of_ns, self._as_of_ns) and self.limit_epoch == self.epoch

    def take_level(self, now_ns: int, sent_ns: int, note: Note, reading: Reading, *, raise_only: bool = False) -> None:
        """Take the level from ``reading`` without a comparison, less the charges since: the limit has changed.

        With ``raise_only`` it has changed before this answer came. The answer that changed it took all that was sent
        after its own attempt for used; the answer to a later one shows what the server has counted of that. Of several
        such answers the one counts that shows most, so that attempts shortly before it are taken to be counted later.
        These can have used no more than it had left.

        The server may have counted the attempts of about the same time after this one, so that all of them are used at
        least.
        """
        bucket = self.entry.meter
        if reading.remaining is None or not bucket.bursts:
            return
        lack_ns = _lack_ns(bucket.quota, reading) / bucket.ceiling
        since, full_ns = 0.0, now_ns
        if not bucket.holds:  # what it holds is not charged yet
            since = max(self.charges.total - note.charged, 0.0) * bucket.ns_per_unit
            full_ns = self._full_since(now_ns, sent_ns - self.about_ns)
            if raise_only:
                since += min(self._charged_about(sent_ns, note)[1], reading.remaining * bucket.ns_per_unit)
        by_ns = max(sent_ns + math.ceil(lack_ns + since), full_ns, now_ns) - bucket.full_at_ns
        if not raise_only or by_ns < 0:
            self._change(now_ns, What.SHIFT, by_ns)

    def _full_since(self, now_ns: int, since_ns: int) -> int:
        """When the quota is full again if the charges since an instant are all that it lacks.

        It is emptied by them at most.
        """
        quota, full_ns = self.entry.meter.quota, 0
        for at_ns, amount in self.charges.since(since_ns):
            full_ns = max(full_ns, at_ns) + math.ceil(amount * ns_per_unit(quota))
        return min(full_ns, now_ns + math.ceil(quota.burst * ns_per_unit(quota)))

    def begin_epoch(self, now_ns: int) -> None:
        """Begin another epoch: the rate or the rule has changed.

        What was measured of them is forgotten, a low headroom, too.
        """
        self.epoch += 1
        self.rate.first = None
        self.raise_headroom(HEADROOM_S)
        self._change(now_ns, What.EPOCH, 0.0)

    def ledger_restarted(self) -> None:
        """Begin an epoch that is above all earlier ones: the store has lost the shared ledger and started a new one."""
        self.epoch += EPOCHS_MAX
        self.charges, self.shifted_ns, self.entry.refused = Charges(), 0, 0.0
        self.rate.first = None

    def learned_elsewhere(
        self, now_ns: int, *, limit: float, ceiling: float, shifted_ns: int, epoch: int, refused_amount: float
    ) -> None:
        """Take the state that another process has learned, before the meter takes it."""
        epoch += self.epoch // EPOCHS_MAX * EPOCHS_MAX
        if epoch != self.epoch:
            self.charges.slices.clear()
            self.rate.first = None
        if self.entry.meter.ceiling != ceiling:
            # The next step counts from this one, or each process would add a step of its own.
            self.rate.climbed_ns = now_ns
        if shifted_ns > self.shifted_ns:
            self._as_of_ns = now_ns  # an earlier reading does not contradict it
        if self.entry.meter.quota.amount != limit:
            self.limit_as_of_ns = now_ns
        if refused_amount > self.entry.refused and self.rate.first is None:
            self.rate.count(now_ns, self.charges.total - refused_amount)
        self.epoch, self.shifted_ns = epoch, shifted_ns

    def read(
        self,
        now_ns: int,
        sent_ns: int,
        note: Note,
        reading: Reading,
        *,
        holds_more: bool = False,
        lower_only: bool = False,
    ) -> bool:
        """Compare a reading with the note of its attempt.

        Args:
            now_ns: The present.
            sent_ns: When the attempt was sent.
            note: Its note.
            reading: The reading.
            holds_more: Whether the provider's limit is above the given one, or its remainder above the burst. Then the
                reading can lower the level, and shows nothing else.
            lower_only: Whether the reading cannot raise the level. It shows all else.

        Returns:
            True: the quota is no bucket.
        """
        bucket = self.entry.meter
        if reading.remaining is None or not bucket.bursts:
            return False
        unit_ns = ns_per_unit(bucket.quota)  # without the ceiling
        if holds_more:
            lack_ns = math.ceil(max(bucket.quota.burst - reading.remaining, 0.0) * unit_ns)
            if lack_ns:
                self._compare(now_ns, sent_ns, note, lack_ns, self.about_ns, lower_only=True)
            return False
        rough_ns = round(reading.resolution * unit_ns) if reading.resolution > 1 else 0
        lack_ns = _lack_ns(bucket.quota, reading)
        self._headroom.test(now_ns, sent_ns, bucket, round(reading.remaining * unit_ns))
        if reading.reset_s is not None:
            if self.refill.is_counter:
                return True
            rough_ns += round(reading.reset_resolution_s * NS)
            size_ns, burst_ns = reading.remaining * unit_ns + lack_ns, bucket.quota.burst * unit_ns
            if size_ns > (1 + MARGIN) * burst_ns + rough_ns:
                return not self.refill.sure
            low, high = (size_ns - rough_ns) / unit_ns, (size_ns + rough_ns) / unit_ns
            is_smaller = high < (1 - MARGIN) * bucket.quota.burst
            if not low <= bucket.burst_cap <= (high if is_smaller else math.inf):  # else it may hold what is known
                self._cap_burst(now_ns, low if is_smaller else math.inf)
            if is_smaller:
                self._lack_at_most(now_ns, sent_ns, note, size_ns + rough_ns)
        lack_ns = round(lack_ns / bucket.ceiling)  # it takes longer to refill below a ceiling
        self._compare(now_ns, sent_ns, note, lack_ns, self.about_ns + rough_ns, lower_only=lower_only)
        return False

    def _lack_at_most(self, now_ns: int, sent_ns: int, note: Note, size_ns: float) -> None:
        """Raise the level of a bucket that holds so much: it lacked no more, and a larger one was taken for empty."""
        bucket = self.entry.meter
        since_ns = math.ceil((self.charges.total - note.charged) * bucket.ns_per_unit)
        if (late_ns := bucket.full_at_ns - now_ns - round(size_ns / bucket.ceiling) - since_ns) > 0:
            self._shift(now_ns, sent_ns, -late_ns)

    def _compare(
        self, now_ns: int, sent_ns: int, note: Note, lack_ns: int, wrong_ns: int, *, lower_only: bool = False
    ) -> None:
        """Correct the level if the server's bucket lacks more or less than the noted one can.

        It must be by more than ``wrong_ns``.
        """
        noted_ns = note.full_at_ns + self.shifted_ns  # with the corrections since
        fits = sent_ns + lack_ns <= noted_ns + wrong_ns and now_ns + lack_ns >= noted_ns - wrong_ns
        if fits or note.epoch != self.epoch:
            return  # nearly always: it fits, with any charges in between
        later, earlier = self._charged_about(sent_ns, note)
        later += note.held_ns  # some of it may have been charged
        latest_ns = now_ns + lack_ns + earlier
        if sent_ns + lack_ns > noted_ns + later + wrong_ns:  # others use the key, too
            self._shift(now_ns, sent_ns, sent_ns + lack_ns - noted_ns - later)
        # One is kept until it is decided: a newer one would wait for the refunds of later attempts, again and again.
        elif not lower_only and self.kept is None and latest_ns < noted_ns - wrong_ns:
            self.kept = KeptReading(sent_ns, latest_ns, note, wrong_ns)  # even if it was taken just now

    def look_at_kept(self, now_ns: int, kept: KeptReading, open_before: Callable[[int], float]) -> None:
        """Raise the level if the charges were too high at the reading that is ``kept`` for it.

        What the attempts before it were overcharged by has been refunded since, or will be: that is no reason. A
        reading before the last one that changed the level is not used: what it does not count yet has been learned
        since.

        Args:
            now_ns: The present.
            kept: The reading.
            open_before: The charges of the attempts in flight that were sent at an instant or before.
        """
        note, open_charges, by_ns, unit_ns = kept.note, 0.0, 0, self.entry.meter.ns_per_unit
        if note.epoch == self.epoch and kept.sent_ns >= self._as_of_ns:
            open_charges = open_before(kept.sent_ns)
            refunds = max(self.charges.total - self.entry.spent - note.refunded, 0.0) + open_charges
            by_ns = kept.full_at_ns - note.full_at_ns - self.shifted_ns + math.ceil(refunds * unit_ns)
        if by_ns < -kept.wrong_ns:
            self._shift(now_ns, kept.sent_ns, by_ns)
        if by_ns < -kept.wrong_ns or not open_charges:
            self.kept = None

    def _charged_about(self, sent_ns: int, note: Note) -> tuple[int, int]:
        """The charges shortly after and shortly before the attempt, in nanoseconds of refill; beyond the log, all."""
        later = self.charges.until(sent_ns + self.about_ns) - note.charged
        earlier = note.charged - self.charges.well_before(sent_ns - self.about_ns)
        learned_unit_ns = self.entry.meter.ns_per_unit
        return math.ceil(max(later, 0.0) * learned_unit_ns), math.ceil(earlier * learned_unit_ns)

    def used_by(self, sent_ns: int, amount: float, lack: float) -> tuple[float, float]:
        """The least and the most that is used now of a counter.

        It lacked ``lack`` at an attempt of ``amount``, sent at ``sent_ns``.

        The attempt is in the lack, and others of about the same time may be. So may all that were sent since: some
        servers write the lack when they answer. Of a quota whose charges are corrected, the most is unknown.
        """
        since = self.charges.total - self.charges.before(sent_ns - self.about_ns)
        return lack, lack + since - amount if self.entry.unit == REQUESTS else math.inf

    def admitted_since(self, since_ns: int) -> float:
        """What this pool has used since an instant: its true costs, without refused attempts."""
        return self.entry.spent - self.entry.refused - self.charges.before(since_ns)

    def used_lately(self, now_ns: int) -> tuple[int, float]:
        """Since when this pool has sent attempts, a period ago at most, and what of them was not refused."""
        slices = self.charges.since(now_ns - round(self.entry.meter.quota.period_s * NS))
        since_ns = slices[0][0] if slices else now_ns
        return since_ns, max(self.admitted_since(since_ns), 0.0)

    def least_limit(self, since_ns: int, sent_ns: int) -> float:
        """The least limit of a bucket that has served all attempts from ``since_ns``, the first one, to ``sent_ns``.

        In any time it serves no more than a full bucket and its refill.
        """
        period_s, served = self.entry.meter.quota.period_s, self.charges.until(sent_ns) - self.entry.refused
        begun = [(since_ns, 0.0), *(one for one in self.charges.slices if one[0] <= sent_ns)]
        return max((served - before) / ((sent_ns - at_ns) / NS + period_s) for at_ns, before in begun) * period_s

    def fall_back(self, now_ns: int, limit: float) -> None:
        """Run at ``limit`` per period, half of the present amount, and climb from there."""
        self._cap_burst(now_ns, limit)
        self._change(now_ns, What.SET_CEILING, 0.5)
        self._lack_at_most(now_ns, now_ns, self.note(), limit * ns_per_unit(self.entry.meter.quota))
        self.rate.climb_from(now_ns, self.entry.meter.quota.period_s)

    def gain(self, now_ns: int, amount: float) -> None:
        """Raise the level by ``amount``: the provider has more than was assumed."""
        self._change(now_ns, What.SHIFT, -math.ceil(amount * self.entry.meter.ns_per_unit))

    def _shift(self, now_ns: int, as_of_ns: int, by_ns: int) -> None:
        self._as_of_ns = max(self._as_of_ns, as_of_ns)
        self._change(now_ns, What.SHIFT, by_ns)
        self.shifted_ns += by_ns

    def _cap_burst(self, now_ns: int, amount: float) -> None:
        if amount != self.entry.meter.burst_cap:
            self._change(now_ns, What.CAP_BURST, amount)

    def refused(
        self, now_ns: int, sent_ns: int, note: Note, amount: float, refusal: Refusal, pause_ns: int | None
    ) -> bool:
        """Learn from the refusal of an attempt that was sent at ``sent_ns``; True: the quota is no bucket.

        ``pause_ns``: how long the pool pauses; ``None``: the request was alone.
        """
        if refusal.kind is RefusalKind.GROWTH:
            if sent_ns > self.refused_ns:
                self.refused_ns = now_ns
                self._change(now_ns, What.SET_CEILING, self.rate.slow_down(now_ns, self.entry.meter.ceiling))
                self.begin_epoch(now_ns)
            return False
        if self.rate.first and sent_ns <= self.refused_ns:
            return False  # it was sent before the last refusal came, and adds nothing
        self.refused_ns = now_ns
        bucket, asked_s = self.entry.meter, refusal.retry_after_s
        if asked_s is not None and asked_s > LONGER_PERIOD * bucket.quota.period_s:
            asked_s = None  # it is about a longer period; the pause of the pool is enough
        counter = asked_s is not None and self.asks_like_a_counter(asked_s, amount)
        if counter and self.refill.sure:  # the headers of answers have shown a bucket: the wait is about another time
            counter, asked_s, pause_ns = False, None, 0
        if bucket.bursts and not counter:
            if not bucket.holds:  # else what answers in flight have produced explains it
                self._blame_burst(now_ns, sent_ns, note, amount)
            full_at_ns = self._full_after(now_ns, amount, refusal, asked_s, pause_ns)
            if full_at_ns > bucket.full_at_ns:
                self._shift(now_ns, now_ns, full_at_ns - bucket.full_at_ns)
        return self._measure(now_ns, sent_ns, note) or counter

    def asks_like_a_counter(self, asked_s: float, amount: float) -> bool:
        """Whether a refusal asks to wait longer than until a bucket has refilled ``amount``.

        Then it asks to wait until a counter restarts. The wait is rounded, and the burst known to ``MARGIN``.
        """
        bucket = self.entry.meter
        return asked_s * NS > (amount + MARGIN * bucket.quota.burst) * bucket.ns_per_unit + ROUNDED_NS

    def _blame_burst(self, now_ns: int, sent_ns: int, note: Note, amount: float) -> None:
        """Lower the burst cap to what was used when the attempt was refused, if the bucket should have had enough left.

        If it was nearly empty, an adaptive headroom that has become too small explains the refusal: it is raised
        instead.
        """
        bucket = self.entry.meter
        learned_unit_ns = bucket.ns_per_unit
        noted_ns = note.full_at_ns + self.shifted_ns  # with the corrections since
        used = (noted_ns - sent_ns - math.ceil(amount * learned_unit_ns)) / learned_unit_ns  # before this attempt
        size = bucket.size
        if note.epoch != self.epoch or used >= size:
            return
        if self._headroom.explains(bucket, (size - used - amount) * learned_unit_ns):
            self.raise_headroom(HEADROOM_S)
        else:
            self._cap_burst(now_ns, max(used, amount))

    def _full_after(
        self, now_ns: int, amount: float, refusal: Refusal, asked_s: float | None, pause_ns: int | None
    ) -> int:
        """When the bucket will be full, by the refusal of an attempt of ``amount``.

        By the wait that it asks for, ``asked_s``: then the bucket holds the amount. Else by the numbers of the refusal,
        if it has them: what is left now, and the charge of the attempt, which is kept. Else it is empty after the
        pause, if others wait or are in flight. To a lone request a refusal without numbers says nothing of the level.
        """
        bucket = self.entry.meter
        learned_unit_ns, burst = bucket.ns_per_unit, bucket.quota.burst
        cost_ns, size_ns = math.ceil(amount * learned_unit_ns), math.ceil(bucket.size * learned_unit_ns)
        if asked_s is not None:
            return now_ns + round(asked_s * NS) + max(size_ns - cost_ns, 0)
        if refusal.limit is not None and refusal.used is not None:
            left = min(max(refusal.limit - refusal.used, -burst), burst)
            return now_ns + size_ns - min(math.floor(left * learned_unit_ns), size_ns) + min(cost_ns, size_ns)
        return now_ns if pause_ns is None else now_ns + pause_ns + size_ns

    def _measure(self, now_ns: int, sent_ns: int, note: Note) -> bool:
        """Measure the rate: what was admitted between two refusals is the refill. True: the quota is no bucket."""
        admitted = note.charged - self.entry.refused
        true = 1 - note.refunded / note.charged if note.charged else 1.0  # the true costs, as a part of the charges
        bucket = self.entry.meter
        share = self.rate.share(sent_ns, admitted, true, bucket.quota.rate)
        if share is not None and not bucket.bursts:
            # A used-up window admits nothing until it has room again, so that it has at least what it has admitted in
            # the last period.
            share = max(share, self.used_lately(sent_ns)[1] / bucket.quota.amount)
        if share is not None and share < bucket.ceiling:
            least = CUT_LEAST * bucket.ceiling
            ceiling = max((1 - CLIMB) * share, least)
            self.rate.fall(share, ceiling, bucket.ceiling)
            if share < least and bucket.bursts and not self.refill.sure:
                self.rate.first = None
                return True  # the refill is so low that the quota is a counter that restarts
            self._change(now_ns, What.SET_CEILING, ceiling)
            self.begin_epoch(now_ns)
        self.rate.count(sent_ns, admitted)
        return False

    def sent(self, now_ns: int, amount: float, *, logged: bool) -> Note:
        """The note of an attempt of ``amount`` that is sent now. A learned ceiling climbs by one step, if one is due.

        ``logged``: whether its charge is in the log.
        """
        bucket = self.entry.meter
        if bucket.ceiling < 1 and (ceiling := self.rate.climb(now_ns, bucket, amount)) is not None:
            self._change(now_ns, What.SET_CEILING, ceiling)
        if not logged:
            self.charges.log(now_ns, self.charges.total + amount)
        return self.note()

    def forget_burst(self, now_ns: int) -> None:
        """Forget the burst that refusals have shown: they have come by chance."""
        self._cap_burst(now_ns, math.inf)

    def forget_ceiling(self, now_ns: int) -> None:
        """Forget the rate that refusals have shown: it is measured, or they have come by chance."""
        if self.entry.meter.ceiling < 1:
            self._change(now_ns, What.SET_CEILING, 1.0)
            self.begin_epoch(now_ns)


def _lack_ns(quota: Quota, reading: Reading) -> int:
    """What the server's bucket lacks from full, in nanoseconds at the rate of the quota.

    Its reset tells it, or else ``remaining``.
    """
    if reading.reset_s is not None:
        return round(reading.reset_s * NS)
    return round(max(quota.amount - (reading.remaining or 0.0), 0.0) * ns_per_unit(quota))
