"""A ledger's meters under watch: which answer speaks of which quota, and what follows from it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from paceline.core.bucket import Bucket
from paceline.core.ledger import Ledger
from paceline.core.outcomes import Reading, Refusal, RefusalKind, Reservation
from paceline.core.quota import INPUT_TOKENS, TOKENS, Quota
from paceline.core.spaced import Spaced
from paceline.core.watch import CLOCK_MARGIN, Note, Watch
from paceline.core.window import Window

AMOUNT_MIN, AMOUNT_MAX = 1e-3, 1e12
WAIT_MAX_S = 32 * 86_400.0
"""What lies beyond is no limit and no wait of any provider's: such a number counts as missing."""

UNITS_MAX = 16
"""Quotas that answers may add to a pool."""


Tell = Callable[[int, str, "float | Quota"], None]
"""Hears of a change to the quota at an index, as :class:`~paceline.core.message.Learned` has it."""


def _nobody(index: int, what: str, value: float | Quota) -> None:
    """The books are our own."""


class Feedback:
    """A ledger's meters under watch; ``tell`` hears of every change that answers make to them."""

    def __init__(self, ledger: Ledger, tell: Tell = _nobody) -> None:
        self._ledger = ledger
        self._tell = tell
        self.watches: list[Watch | None] = []
        self.follow()

    def follow(self) -> None:
        """Watch the meters that are new."""
        for i, m in enumerate(self._ledger.meters[len(self.watches) :], len(self.watches)):
            self.watches.append(Watch(m, partial(self._tell, i)) if isinstance(m, Bucket) else None)

    def granted(self, now_ns: int, reservation: Reservation) -> None:
        """An attempt leaves: note where the books stand."""
        reservation.notes = [
            watch.granted(now_ns, amount) if watch is not None and amount else None
            for watch, amount in zip(self.watches, reservation.amounts, strict=True)
        ]

    def drawn(self, now_ns: int, reservation: Reservation) -> None:
        """An attempt leaves that shared books have been charged for already."""
        notes: list[Note | None] = []
        for watch, amount in zip(self.watches, reservation.amounts, strict=False):
            if watch is not None and amount:
                watch.climb(now_ns, amount)
            notes.append(watch.note() if watch is not None and amount else None)
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
                watch, note = self.watches[index], self._note(reservation, index)
                if limit is not None and self._adopt(now_ns, index, limit, reservation.granted_ns):
                    changed.append(index)
                    if watch is not None:
                        watch.restart(now_ns, reservation.granted_ns, note, reading)
                m = self._ledger.meters[index]
                if isinstance(m, Window) and reading.remaining is not None and reading.remaining < m.level(now_ns):
                    m.seen(now_ns, reading.remaining)
                    self._tell(index, "seen", reading.remaining)
                if watch is not None and note is not None and watch.read(now_ns, reservation.granted_ns, note, reading):
                    self._spread(now_ns, index)
        return changed

    def kept(self, reservation: Reservation) -> None:
        """The attempt was refused: what it was charged stays, and was never admitted."""
        for watch, amount in zip(self.watches, reservation.amounts, strict=False):
            if watch is not None:
                watch.refused_amount += amount

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
            watch, note = self.watches[index], self._note(reservation, index)
            if watch is not None and note is not None:
                amount = reservation.amounts[index]
                if watch.refused(now_ns, reservation.granted_ns, note, amount, refusal, pause_ns):
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
        watch = self.watches[index]
        if limit == self._ledger.meters[index].quota.amount or (watch is not None and left_ns < watch.limit_as_of_ns):
            return False
        self._ledger.adopt(now_ns, index, limit)
        self._tell(index, "adopt", limit)
        if watch is not None:
            watch.limit_as_of_ns = left_ns
            watch.changed()
        return True

    def _spread(self, now_ns: int, index: int) -> None:
        """The quota at ``index`` is no bucket: from now on spread evenly, which is safe under every rule."""
        watch = self.watches[index]
        if watch is not None and not isinstance(watch.meter, Spaced):
            watch.meter = self._ledger.spread(now_ns, index)
            self._tell(index, "spread", 0.0)
            watch.changed()


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
