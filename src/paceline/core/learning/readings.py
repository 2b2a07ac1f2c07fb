"""What the headers of answers show about the quotas of a pool."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from paceline.core.changes import What
from paceline.core.learning.corrections import Corrections
from paceline.core.learning.resets import LEAST_NS, LONGER_PERIOD, MARGIN, ROUNDED_NS, Refill, fits_bucket
from paceline.core.learning.tracker import Note, QuotaTracker
from paceline.core.meters import Meter, Named, Restarting, Window
from paceline.core.quota import NS, Rule
from paceline.core.results import LEARNED, LIMIT_MAX, LIMIT_MIN, NO_NOTES, WAIT_MAX_S, Basis, Reading, Reservation

OPENING_PART = 0.25
"""A counter opens at once if it restarts in less than this part of its period: what is not used of the window is lost.
One that has more time opens gently."""


@dataclass(frozen=True, slots=True)
class _Told:
    """What an answer that came now says of a listed quota.

    Attributes:
        reservation: The attempt.
        note: The note of the attempt about the quota; ``None`` if it had none of it.
        reading: What it says about the part of the limit that is used.
        whole: What it says about all of the limit.
    """

    now_ns: int
    index: int
    reservation: Reservation
    note: Note | None
    reading: Reading
    whole: Reading


class Readings:
    """Learns from readings, which headers have.

    Args:
        corrections: Corrects the quotas.
    """

    def __init__(self, corrections: Corrections) -> None:
        self._corrections = corrections
        self._ledger, self._entries, self._trackers = corrections.ledger, corrections.entries, corrections.trackers
        self._inferred: dict[str, Refill] = {}  # by unit, about quotas of a period that none of the known ones has
        self._written_first: set[str] = set()  # the units whose instants are written when an attempt is admitted

    def observe(self, now_ns: int, readings: Iterable[Reading], reservation: Reservation) -> bool:
        """Learn from the headers of the answer to ``reservation``.

        Returns:
            Whether it has added a quota, or stated another limit.
        """
        changed = False
        reservation.shown = NO_NOTES
        for one in map(_sane_reading, readings):
            states_instant = one.until_s is not None and one.reset_s is not None
            reading = self._as_written(one, now_ns - reservation.granted_ns) if states_instant else one
            index = self._corrections.index_of(reading.unit, reading.period_s)
            if index is not None:
                changed |= self._take_known(now_ns, index, reservation, reading)
            elif self._may_add(reading):
                changed |= self._take_new(now_ns, reservation, reading)
        return changed

    def _take_new(self, now_ns: int, reservation: Reservation, whole: Reading) -> bool:
        """Take a reading that is about no listed quota; whether it has added one.

        What is in flight has a note of it then.
        """
        share = self._corrections.usable_share(None, whole.unit)
        reading = whole if share == 1 else self._usable_reading(None, whole, share)
        added = self._corrections.add_stated(now_ns, reading, reservation.granted_ns)
        index = self._corrections.index_of(whole.unit, whole.period_s)
        if index is not None:
            self._take_restart(
                _Told(now_ns, index, reservation, reservation.notes.get(index), reading, whole), counts=False
            )
        return added

    def _take_known(self, now_ns: int, index: int, reservation: Reservation, whole: Reading) -> bool:
        """Take a reading about the quota at ``index``; whether it states another limit.

        In this order:

        1. The next restart of a quota that restarts, the refill, and the limit.
        2. What a window has left.
        3. The level; see :meth:`_take_level`.
        """
        entry = self._entries[index]
        reading = whole if entry.share == 1 else self._usable_reading(index, whole, entry.share)
        told = _Told(now_ns, index, reservation, reservation.notes.get(index), reading, whole)
        if entry.meter.restarts_by_answers:
            self._take_restart(told)
        # Before the look at the reset, because it may find that the quota itself has the longer period.
        refilled = self._take_refill(told)
        if (whole.reset_s or 0) > LONGER_PERIOD * entry.meter.quota.period_s:
            return False  # it is about a longer period
        limit = None if reading.limit is None else self._corrections.in_period(index, reading.limit)
        limited = limit is not None and self._corrections.take_limit(now_ns, index, limit, reservation.granted_ns)
        if whole.remaining is not None:
            reservation.shown = {**reservation.shown, index: whole.remaining}
        entry.read_ns = now_ns
        m = entry.meter
        # Only if less is left, because each change is a message to the other processes.
        if isinstance(m, Window) and reading.remaining is not None and reading.remaining < m.level(now_ns):
            self._corrections.change(index, now_ns, What.SEEN, reading.remaining)
        if index in self._trackers and told.note is not None and not m.restarts_by_answers:
            self._take_level(told, told.note, limit, changed=limited or refilled)
        return limited

    def _take_level(self, told: _Told, note: Note, limit: float | None, *, changed: bool) -> None:
        """Take the level and the burst of a bucket; what is none restarts, or is spread.

        Args:
            told: What the answer says.
            note: The note of the attempt.
            limit: The stated limit, as an amount per period of the quota; ``None`` for none.
            changed: Whether the limit or the refill has. Then the level is taken without a comparison. A note from
                before the present limit cannot be compared either, but an answer that states this limit may show that
                more is left.
        """
        now_ns, index, reading, sent_ns = told.now_ns, told.index, told.reading, told.reservation.granted_ns
        tracker, m = self._trackers[index], self._entries[index].meter
        stated = m.quota.amount if limit is None else limit
        # What is left of a period is no lack of a smaller burst; a reset is the refill that both lack.
        holds_more = stated > (m.quota.amount if reading.reset_s is not None else min(m.quota.amount, m.quota.burst))
        partly = reading is not told.whole  # the provider refills faster than the part that is used
        no_bucket = tracker.read(now_ns, sent_ns, note, reading, holds_more=holds_more, lower_only=partly)
        if self._take_restart(told, counts=no_bucket or told.whole.reset_number is not None or not m.bursts):
            return
        if no_bucket:
            since = max(tracker.charges.total - note.charged, 0.0)
            self._corrections.spread(now_ns, index, max(m.quota.amount - (reading.remaining or 0.0), 0.0) + since)
        else:
            is_older = note.epoch < tracker.limit_epoch and limit == m.quota.amount
            if not holds_more and (changed or (is_older and tracker.corrects_limited(sent_ns))):
                tracker.take_level(now_ns, sent_ns, note, reading, raise_only=not changed)
        if (kept := tracker.kept) is not None:
            tracker.look_at_kept(now_ns, kept, partial(self._ledger.open_before, index))

    def _as_written(self, reading: Reading, took_ns: int) -> Reading:
        """``reading`` of an instant, with the reset that it had when it was written; its answer took ``took_ns``.

        It is written when the attempt is admitted, or later, up to the answer. Which of the two is known of a server
        that has stated an instant which had passed.
        """
        assert reading.until_s is not None
        if reading.until_s * NS < -LEAST_NS:  # by less, clocks differ
            self._written_first.add(reading.unit)
        took_s, rounded_s = took_ns / NS, max(reading.reset_resolution_s, ROUNDED_NS / NS)
        if reading.unit in self._written_first:
            return replace(reading, reset_s=max(reading.until_s + took_s, 0.0), reset_resolution_s=rounded_s)
        reset_s = max(reading.until_s + took_s / 2, 0.0)
        return replace(reading, reset_s=reset_s, reset_resolution_s=rounded_s + took_s / 2)

    def _may_add(self, reading: Reading) -> bool:
        """Whether a quota may be added for a reading that is about no listed one, by the basis of its period.

        One with a proved period must be the only one on its unit, or readings must agree about the period: some
        readings of a counter look like a bucket's with another period. A quota with an assumed period is not added.
        """
        if reading.period_s is None or reading.basis is Basis.STATED:
            return True
        if reading.basis is Basis.ASSUMED or not self._corrections.counted(reading.unit):
            return reading.basis is Basis.PROVED
        # As many as units are counted: any other one has returned above.
        refill = self._inferred.setdefault(reading.unit, Refill())
        return refill.learn_bucket_period(reading) == reading.period_s

    def _usable_reading(self, index: int | None, reading: Reading, share: float) -> Reading:
        """What ``reading`` says about the ``share`` of the limit that is used; the rest of it stays with the provider.

        The provider's bucket and its used part lack the same amount, which takes the part longer to refill.
        """
        m = None if index is None else self._entries[index].meter
        limit, remaining, reset_s = reading.limit, reading.remaining, reading.reset_s
        size = limit if limit is not None or m is None else m.quota.amount / share
        if m is not None and m.bursts and reset_s is not None and size is not None:
            per_s = size / m.quota.period_s
            if remaining is not None:  # the bucket may be smaller than the limit
                rough = reading.resolution + reading.reset_resolution_s * per_s
                holds = remaining + reset_s * per_s
                size = holds if holds < (1 - MARGIN) * size - rough else size
            reset_s /= share
        return replace(
            reading,
            limit=None if limit is None else limit * share,
            remaining=remaining if remaining is None or size is None else remaining - (1 - share) * size,
            reset_s=reset_s,
        )

    def _take_refill(self, told: _Told) -> bool:
        """Learn how fast a quota refills; whether its rule or its period has changed."""
        now_ns, index, limit, whole = told.now_ns, told.index, told.reading.limit, told.whole
        tracker, entry = self._trackers.get(index), self._entries[index]
        quota = entry.meter.quota
        if tracker is None or quota.rule is Rule.SLIDING:
            return False  # the user has stated the rule, by which its resets have another meaning
        period_s = tracker.refill.learn_bucket_period(whole)
        bucket = period_s is not None
        if not bucket:
            if entry.meter.restarts_by_answers:
                period_s = tracker.restarts.period_s
            elif told.note is not None:
                # With a store, the present amount may be converted from a learned period. The given one never is.
                known, charged = quota.amount if entry.given == math.inf else entry.given, told.note.charged
                period_s = tracker.refill.learn_counter_period(
                    told.reservation.granted_ns, whole, known, quota.period_s, charged, tracker.charges
                )
        if period_s is None or limit is None:
            return False
        stated = whole.period_s is not None and whole.basis is Basis.STATED
        rule_is_new = bucket and self._take_bucket(now_ns, index, tracker)
        period_is_new = not stated and self._take_period(now_ns, index, tracker, period_s, limit, bucket=bucket)
        changed = rule_is_new or period_is_new
        if changed:
            tracker.begin_epoch(now_ns)
        return changed

    def _take_restart(self, told: _Told, *, counts: bool = True) -> bool:
        """Take the instant of the restart that an answer states; whether the quota is counted as one that restarts.

        Without ``counts`` the quota may be a bucket, and the instant is kept until it is known. Processes that share a
        quota spread it: the store knows no such instants.
        """
        now_ns, index, note, sent_ns = told.now_ns, told.index, told.note, told.reservation.granted_ns
        entry, tracker = self._entries[index], self._trackers.get(index)
        reading, reset_s, m = told.reading, _until_restart_s(told.whole), entry.meter
        if tracker is None or tracker.restarts.refuted or self._corrections.shared or m.quota.rule is Rule.SLIDING:
            return False
        if reading.limit is None or reading.remaining is None or reset_s is None or note is None:
            return False
        lack = reading.limit - reading.remaining
        named = tracker.restarts.read(sent_ns, now_ns, reset_s, lack, instant=told.whole.until_s is not None)
        if named is None or not counts:
            pass
        elif _contradicts(named, m, now_ns, lack):
            self._corrections.refute_restarts(now_ns, index)
            if fits_bucket(told.whole, m.quota.period_s) and self._take_bucket(now_ns, index, tracker):
                tracker.take_level(now_ns, sent_ns, note, reading)
        else:
            self._count_restart(told, tracker, named, lack)
        return entry.meter.restarts_by_answers

    def _count_restart(self, told: _Told, tracker: QuotaTracker, named: Named, lack: float) -> None:
        """Count a quota from the restart that an answer has ``named``; it states the ``lack``."""
        now_ns, index, sent_ns, amounts = told.now_ns, told.index, told.reservation.granted_ns, told.reservation.amounts
        m, restarts = self._entries[index].meter, tracker.restarts
        own = amounts[index] if index < len(amounts) else 0.0
        least, most = tracker.used_by(sent_ns, own, lack)
        is_over = restarts.high_ns <= now_ns
        is_soon = restarts.high_ns - now_ns < OPENING_PART * m.quota.period_s * NS
        if not isinstance(m, Restarting):
            started_ns = restarts.low_ns - (0 if is_over else round(m.quota.period_s * NS))
            used = tracker.admitted_since(started_ns)
            used = used if is_over else min(max(least, used), most)
            self._ledger.count_restarts(now_ns, index, restarts.high_ns, used, whole=is_soon)
            tracker.begin_epoch(now_ns)
        elif is_over:
            m.passed(now_ns, restarts.high_ns, restarts.most_s)
        else:
            if named is Named.NEXT and most < math.inf:
                # It may have restarted before anything of about the same time was sent.
                least = max(least, most - lack + own)
            m.stated(sent_ns, named, restarts.high_ns, least, most, whole=is_soon)

    def _take_bucket(self, now_ns: int, index: int, tracker: QuotaTracker) -> bool:
        """Count a spread quota as a bucket again, if its rule is ``bucket``; whether it was spread."""
        if not tracker.entry.meter.is_spread_bucket or self._corrections.shared:
            return False
        self._ledger.count_as_bucket(now_ns, index)
        return True

    def _take_period(
        self, now_ns: int, index: int, tracker: QuotaTracker, period_s: float, limit: float, *, bucket: bool
    ) -> bool:
        """Take the period that readings have shown, and the ``limit`` per that period; whether the period is new.

        A quota that is no ``bucket`` is spread. Where other processes share the quota they find it by unit and period,
        so the period stays, and the limit is converted. Else the period changes, and the given limit is converted.
        """
        entry, quota = self._entries[index], tracker.entry.meter.quota
        known_s = tracker.stated_period_s or quota.period_s
        if abs(period_s - known_s) <= MARGIN * known_s:
            return False
        tracker.stated_period_s = period_s
        if not bucket:
            self._corrections.spread(now_ns, index)
        if self._corrections.shared:
            self._corrections.set_limit(now_ns, index, min(self._corrections.in_period(index, limit), entry.given))
        else:
            entry.given *= period_s / quota.period_s
            self._ledger.adopt(now_ns, index, min(limit, entry.given), period_s)
            entry.source = LEARNED
        return True


def _contradicts(named: Named, m: Meter, now_ns: int, lack: float) -> bool:
    """Whether what an answer states is no restart, or nothing has restarted at it."""
    return named is Named.NONE or (named is Named.NEXT and isinstance(m, Restarting) and m.lacks_more(now_ns, lack))


def _until_restart_s(reading: Reading) -> float | None:
    """The seconds until a restart, if the number of a reading is one; from now, if it states the instant."""
    reset_s = reading.reset_number if reading.reset_s is None else reading.reset_s
    return reset_s if reset_s is None or reading.until_s is None else reading.until_s


_SANE: Final = {
    "limit": (LIMIT_MIN, LIMIT_MAX, None),
    "reset_s": (0.0, WAIT_MAX_S, None),
    "period_s": (0.01, WAIT_MAX_S, None),
    "resolution": (1.0, 1e6, 1.0),
    "reset_resolution_s": (0.0, 3_600.0, 0.0),
    "reset_number": (0.0, WAIT_MAX_S, None),
    "until_s": (-WAIT_MAX_S, WAIT_MAX_S, None),
}
"""The least and the most of the numbers of a reading, and what stands for any other one."""


def _sane_reading(reading: Reading) -> Reading:
    """``reading`` without absurd numbers, and with the resolution that its ``remaining`` shows."""
    wrong: dict[str, Any] = {}
    for name, (low, high, instead) in _SANE.items():
        value = getattr(reading, name)
        if value is not None and not low <= value <= high:
            wrong[name] = instead
    limit, remaining = wrong.get("limit", reading.limit), reading.remaining
    if remaining is not None:
        size, most = (LIMIT_MAX, LIMIT_MAX) if limit is None else (limit, (1 + MARGIN) * limit)
        if not -size <= remaining <= most:
            wrong["remaining"] = None
        if remaining % wrong.get("resolution", reading.resolution):
            wrong["resolution"] = 1.0  # it is no multiple, so it is not rounded
    return replace(reading, **wrong) if wrong else reading
