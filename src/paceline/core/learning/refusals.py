"""What refusals show about the quotas of a pool."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from paceline.core.learning.corrections import Corrections
from paceline.core.learning.guesses import RETEST_STEP, Guess
from paceline.core.learning.resets import ROUNDED_NS
from paceline.core.learning.tracker import QuotaTracker
from paceline.core.ledger import amount_of
from paceline.core.meters import Named, Restarting, Slots, Spread, Window
from paceline.core.quota import CONCURRENCY, NS, OWN_RULES, Rule
from paceline.core.results import (
    LIMIT_MAX,
    LIMIT_MIN,
    WAIT_MAX_S,
    Refusal,
    RefusalKind,
    Reservation,
    within,
)

PLENTY = 0.5
"""A refusal that names no quota is blamed on assumed slots if every other quota has more than this share left."""

LOWERED = 2
"""The rate of a stated limit is measured after so many large falls of its ceiling: ``CeilingTracker.lowered``."""

FULL = 0.9
"""A refusal that states no number and no wait refutes a limit if more than this share of it was left."""


class Refusals:
    """Learns from refusals for rate and growth.

    A refusal that names no quota is taken for one about the tightest quota. One that names a quota which is not listed
    adds it, if it states the limit; else that limit is measured.

    Args:
        corrections: Corrects the quotas.
    """

    def __init__(self, corrections: Corrections) -> None:
        self._corrections = corrections
        self._ledger, self._entries, self._guesses = corrections.ledger, corrections.entries, corrections.guesses
        self._trackers, self._unstated = corrections.trackers, corrections.unstated
        self._doubted: dict[int, set[int]] = {}  # of windows, the starts of those with refusals

    def refused(self, now_ns: int, reservation: Reservation, refusal: Refusal, pause_ns: int) -> bool:
        """Learn from a refusal; whether it has added a quota, or stated another limit.

        One for want of capacity may show an unstated limit. Any other one that is not for rate or growth shows only
        that no unstated limit was the reason. Else:

        1. A refusal about an unstated limit is for :class:`~paceline.core.unstated.unstated.Unstated` alone. If that
           finds that refusals come by chance, what they have taught about the stated limit is forgotten.
        2. A stated limit is taken, or added as a quota.
        3. Where next to nothing of the quota was used, another limit must hold. It is measured from now on, and the
           attempt is taken off the quota. After a refusal that states nothing, to a request that was alone, it is so
           with what is left, too.
        4. What has a rule of its own: slots become fewer, a guess falls back, windows and stated restarts are doubted.
        5. The tracker learns the level, the burst and the rate; it may show that the quota is no bucket. Where it would
           lower the rate again and again, the rate is measured from then on.
        """
        refusal = _sane_refusal(refusal)
        if refusal.kind is RefusalKind.CAPACITY:
            return self._unstated.refused_by_full(now_ns, reservation, refusal)
        if not refusal.kind.about_rate:
            self._unstated.explained(now_ns, reservation)
            return False
        if self._is_refuted(now_ns, refusal):
            refusal = replace(refusal, limit=None, used=None)
        index = self._index(now_ns, reservation, refusal)
        if self._is_unstated(now_ns, reservation, refusal, index):
            return self._refused_unstated(now_ns, reservation, refusal, index)
        self._unstated.explained(now_ns, reservation)
        test = None if index is None else self._guesses.new_test(index)  # up to the number before this refusal
        changed = False
        if refusal.limit is not None:
            limit, sent_ns = refusal.limit * self._corrections.usable_share(index, refusal.unit), reservation.granted_ns
            refusal = replace(refusal, limit=limit)
            if index is None:
                changed = self._corrections.add_stated(now_ns, refusal, sent_ns)
            else:
                limit = self._corrections.in_period(index, limit)
                changed = self._corrections.take_limit(now_ns, index, limit, sent_ns, refused=True)
        if self._shows_another(now_ns, reservation, refusal, index):
            self._unstated.begin(now_ns, refusal.unit)
            if self._fitted(now_ns, reservation, refusal, index):
                self._corrections.give_back(now_ns, reservation)
                return True
            changed = True
        if index is None or not self._take_own_rule(now_ns, index, reservation.granted_ns, refusal, test):
            return changed
        return self._track(now_ns, index, reservation, refusal, pause_ns) or changed

    def _take_own_rule(self, now_ns: int, index: int, sent_ns: int, refusal: Refusal, test: Guess | None) -> bool:
        """Lower slots, let a guess fall back, doubt a window or restarts; whether the tracker learns, too.

        ``test``: how slots that become fewer are tested from now on; ``None`` for another quota.
        """
        m, guess = self._entries[index].meter, self._guesses.tested.get(index)
        if test is not None:
            fewer = self._guesses.slots_refused(now_ns, sent_ns, index, test)
            if fewer < m.quota.amount:
                self._corrections.set_limit(now_ns, index, fewer, self._entries[index].source)
        # The stated limit was taken before, and explains the refusal: neither a guess nor a window is doubted.
        elif refusal.limit is not None:
            pass
        elif guess is not None:
            self._fall_back(now_ns, index, guess, sent_ns)
        elif isinstance(m, Window):
            self._doubt_window(now_ns, index, m)
        if isinstance(m, Restarting) and refusal.kind is RefusalKind.RATE:
            return self._refutes(now_ns, index, m, refusal)
        return True

    def _track(self, now_ns: int, index: int, reservation: Reservation, refusal: Refusal, pause_ns: int) -> bool:
        """Let the tracker of a bucket or a spread quota learn; whether the rate is measured from now on."""
        tracker, note = self._trackers.get(index), reservation.notes.get(index)
        if tracker is None or note is None:
            return False
        amount = reservation.amounts[index]
        # With enough left of it, a refusal that names none is about a quota that is not listed.
        other = refusal.unit is None and reservation.shown.get(index, 0.0) > amount
        after_ns = None if reservation.alone and _is_bare(refusal) else pause_ns
        if tracker.refused(now_ns, reservation.granted_ns, note, amount, refusal, after_ns) and not other:
            self._corrections.spread(now_ns, index, wait_s=refusal.sooner_s or refusal.retry_after_s)
        return self._measure_instead(now_ns, index, tracker, reservation, refusal)

    def _refused_unstated(self, now_ns: int, reservation: Reservation, refusal: Refusal, index: int | None) -> bool:
        """Learn from a refusal about an unstated limit; whether there are more entries."""
        changed = self._unstated.refused(now_ns, reservation, refusal)
        tracker = None if index is None else self._trackers.get(index)
        if index is not None and tracker is not None and self._unstated.finds_chance(self._entries[index].unit):
            tracker.forget_ceiling(now_ns)
            tracker.forget_burst(now_ns)
        if reservation.alone:
            # In a crowd the kept charges slow the others down, which is right if the stated limit is too high.
            self._corrections.give_back(now_ns, reservation)
        return changed

    def _is_measured(self, index: int) -> bool:
        """Whether the rate of the quota at ``index`` is measured, not its ceiling, or refusals come by chance."""
        tracker = self._trackers.get(index)
        lowered = tracker is not None and tracker.rate.lowered >= LOWERED
        return lowered or self._unstated.finds_chance(self._entries[index].unit)

    def _measure_instead(
        self, now_ns: int, index: int, tracker: QuotaTracker, reservation: Reservation, refusal: Refusal
    ) -> bool:
        """Measure the rate of a quota in place of its ceiling, which has fallen by much more than once.

        Returns whether that begins now.

        The first fall should have come near the rate of the provider. Either that falls, or it refuses by chance.
        """
        unit = self._entries[index].unit
        if tracker.rate.lowered < LOWERED or refusal.kind is not RefusalKind.RATE or refusal.limit is not None:
            return False
        if tracker.entry.meter.quota.is_long or reservation.shown:
            return False
        tracker.forget_ceiling(now_ns)
        self._unstated.begin(now_ns, unit, as_stated=True)
        if refusal.unit is None:
            self._unstated.begin(now_ns, CONCURRENCY)
        return True

    def is_unstated(self, now_ns: int, reservation: Reservation, refusal: Refusal) -> bool:
        """Whether a refusal is about a limit that neither the user nor an answer states."""
        if not refusal.kind.about_rate:
            return refusal.kind is RefusalKind.CAPACITY and self._unstated.explains_full(reservation, refusal)
        return self._is_unstated(now_ns, reservation, refusal, self._index(now_ns, reservation, refusal))

    def _is_unstated(self, now_ns: int, reservation: Reservation, refusal: Refusal, index: int | None) -> bool:
        """As :meth:`is_unstated`, of a refusal for rate or growth: it is about the quota at ``index``, if any."""
        unit = refusal.unit
        if refusal.limit is not None:
            return False
        if index is not None:
            return self._unstated.measures(unit) and (
                self._is_measured(index)
                or self._left(now_ns, index) > PLENTY
                or self._fitted(now_ns, reservation, refusal, index)
            )
        if unit is None or unit == CONCURRENCY:
            return self._unstated.measures(unit)
        # A rate of what requests do not cost, such as a plan's "prompts", would hold none back: the pool's pause does.
        return amount_of(unit, reservation.cost) > 0 and self._corrections.is_new(unit, refusal.period_s)

    def is_of_another(self, now_ns: int, reservation: Reservation, refusal: Refusal) -> bool:
        """Whether another limit than the stated ones has refused a lone request, so that it is taken off them."""
        if not reservation.alone:
            return False
        index = self._index(now_ns, reservation, refusal)
        return self.is_unstated(now_ns, reservation, refusal) or (
            self._shows_another(now_ns, reservation, refusal, index)
            and self._fitted(now_ns, reservation, refusal, index)
        )

    def _is_refuted(self, now_ns: int, refusal: Refusal) -> bool:
        """Whether more was admitted than the limit allows that a refusal states: it may be about another model.

        A limit that is stated already may have been lowered.
        """
        unit, amount, period_s = refusal.unit, refusal.limit, refusal.period_s
        if not (unit and amount and period_s and self._corrections.is_new(unit, period_s)):
            return False
        return self._unstated.refutes(now_ns, unit, amount, period_s)

    def _index(self, now_ns: int, reservation: Reservation, refusal: Refusal) -> int | None:
        """The index of the stated quota that a refusal is about, or else may be about; ``None`` for none.

        A refusal that states a limit without a period must not change the limit of another quota on its unit.
        """
        index = self._corrections.index_of(refusal.unit, refusal.period_s) if refusal.unit else None
        if index is not None or (refusal.unit and (refusal.period_s or refusal.limit)):
            return index
        # What had enough left at the provider for the attempt, by the headers of its answer.
        amounts = dict(enumerate(reservation.amounts))
        ample = {i for i, left in reservation.shown.items() if left > amounts.get(i, 0.0)}
        return self._tightest(now_ns, ample, refusal.unit)

    def _left(self, now_ns: int, index: int) -> float:
        """The share that is left of what the quota at ``index`` holds at once."""
        m = self._entries[index].meter
        return 1 - m.lack(now_ns) / m.size if m.size else 0.0

    def _fitted(self, now_ns: int, reservation: Reservation, refusal: Refusal, index: int | None) -> bool:
        """Whether the quota at ``index`` had enough for a request that was alone, and is refused without a number.

        Nothing else of it was used, or there is enough left for another such attempt. In a crowd the refusals
        themselves show what is left.
        """
        if index is None or not reservation.alone or not _is_bare(refusal):
            return False
        m, amounts = self._entries[index].meter, reservation.amounts
        own = amounts[index] if index < len(amounts) else 0.0
        return m.lack(now_ns) <= own or m.level(now_ns) >= own + m.headroom_s * m.quota.rate

    def _shows_another(self, now_ns: int, reservation: Reservation, refusal: Refusal, index: int | None) -> bool:
        """Whether a refusal that states no limit shows that the one at ``index`` is not the provider's.

        Next to nothing of it was used, so another limit holds, which neither the user nor an answer states. So it does
        without an index: there are slots only, or quotas of a day. Else a stated wait is enough for a counter that
        others have used up. A short one shows another limit if the quota was spread before the attempt was sent.
        """
        if refusal.limit is not None or refusal.kind is not RefusalKind.RATE:
            return False
        if reservation.shown or self._unstated.measures(refusal.unit):
            return False
        if index is None:
            return refusal.unit is None
        wait_s = refusal.sooner_s or refusal.retry_after_s
        m, tracker = self._entries[index].meter, self._trackers.get(index)
        if m.quota.is_long:
            return False
        if m.level(now_ns) <= FULL * m.quota.burst and not self._fitted(now_ns, reservation, refusal, index):
            return False
        if not wait_s:
            return m.bursts
        if tracker is None or type(m) is not Spread or reservation.granted_ns <= tracker.refused_ns:
            return False
        return not tracker.asks_like_a_counter(wait_s, reservation.amounts[index])

    def _doubt_window(self, now_ns: int, index: int, m: Window) -> None:
        """Spread a window that should have had enough, after refusals in two of its periods.

        It restarts at another time, or has another amount. The amount is measured then, as for any other counter.
        """
        # Shared windows are kept by the store.
        if not self._corrections.shared and self._is_second(index, m.start_ns):
            self._ledger.spread(now_ns, index)
            self._corrections.track(index)

    def _is_second(self, index: int, start_ns: int) -> bool:
        """Whether refusals have come in two windows of the quota at ``index``; the last one began at ``start_ns``."""
        # Few: at the second one the quota is spread, so that no further window of it is doubted.
        doubted = self._doubted.setdefault(index, set())
        doubted.add(start_ns)
        return len(doubted) > 1

    def _refutes(self, now_ns: int, index: int, m: Restarting, refusal: Refusal) -> bool:
        """Whether a refusal has refuted the restarts that answers state; then the quota is spread.

        It has not if the window is used up, as one that asks to wait until the restart says, too: the provider may
        count more than was charged. One that asks to wait until the restart after it says that the next window has
        begun, and is used up. Before an answer has named the window, another one has in the second such window only.
        """
        if m.level(now_ns) <= 0:
            return False
        restarts = self._trackers[index].restarts
        end_ns, period_ns = now_ns + round((refusal.retry_after_s or 0.0) * NS), round(m.quota.period_s * NS)
        for later_ns in (0, period_ns) if refusal.retry_after_s else ():
            if restarts.low_ns - ROUNDED_NS <= end_ns - later_ns <= restarts.high_ns + ROUNDED_NS:
                if later_ns:
                    m.stated(now_ns, Named.NEXT, restarts.high_ns + later_ns, 0.0, m.quota.amount)
                m.use_up()
                return False
        if self._is_second(index, m.since_ns) or m.named:
            self._corrections.refute_restarts(now_ns, index)
            return True
        m.use_up()
        return False

    def _tightest(self, now_ns: int, ample: Collection[int], unit: str | None) -> int | None:
        """The index of the quota with the least left, for a refusal that names none; assumed slots if that is plenty.

        One that names a ``unit`` alone is about the tightest of its quotas: a second's and a minute's have one name.

        Quotas that are ``ample`` are left out, unless all are and no slots are tested. So are those with a long period:
        a refusal that asks for such a wait is about an allowance, and one of the next minute must not spread them over
        a day.
        """
        counted = [
            (i, m) for i, entry in enumerate(self._entries)
            if (m := entry.meter).quota.rule not in (Rule.SLOTS, *OWN_RULES) and not m.quota.is_long
            and unit in (None, entry.unit)
        ]  # fmt: skip
        left = [(i, m) for i, m in counted if i not in ample]
        shares = [(m.level(now_ns) / m.quota.burst, i) for i, m in left or counted]
        # Slots are not the reason for the refusal of an attempt that was alone in flight.
        slots = [i for i in self._guesses.tested if isinstance(m := self._entries[i].meter, Slots) and m.used]
        if slots and unit is None and (not left or min(shares)[0] > PLENTY):
            return slots[0]
        return min(shares)[1] if shares else None

    def _fall_back(self, now_ns: int, index: int, guess: Guess, sent_ns: int) -> None:
        """Replace a limit that was raised too far by what was served before the attempt that was refused."""
        if guess.is_bounded:
            if guess.amount:
                self._corrections.set_limit(now_ns, index, guess.amount / RETEST_STEP)
                self._guesses.lowered(now_ns, index, guess.most)
            return
        self._guesses.end(index)
        tracker = self._trackers.get(index)
        if guess.amount and tracker is not None and tracker.entry.meter.bursts:
            limit = tracker.least_limit(guess.since_ns, sent_ns)
            if 0 < limit < tracker.entry.meter.quota.amount:
                self._corrections.set_limit(now_ns, index, 2 * limit, self._entries[index].source)
                tracker.fall_back(now_ns, limit)


def _sane_refusal(refusal: Refusal) -> Refusal:
    """``refusal`` without absurd numbers; those without a unit may be about a quota that is not listed."""
    named = refusal.unit is not None
    return replace(
        refusal,
        retry_after_s=within(refusal.retry_after_s, 0.0, WAIT_MAX_S),
        sooner_s=within(refusal.sooner_s, 0.0, WAIT_MAX_S),
        period_s=within(refusal.period_s, 0.01, WAIT_MAX_S),
        limit=within(refusal.limit, LIMIT_MIN, LIMIT_MAX) if named else None,
        used=within(refusal.used, 0.0, LIMIT_MAX) if named else None,
    )


def _is_bare(refusal: Refusal) -> bool:
    """Whether it states no amount and no wait."""
    return not refusal.limits and {refusal.limit, refusal.used, refusal.retry_after_s, refusal.sooner_s} == {None}
