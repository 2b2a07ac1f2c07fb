"""The corrections that follow from answers: of limits, rules and levels of the quotas.

They are also reported to other processes.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, cast

from paceline.core.capacity import NOTICES_MAX
from paceline.core.changes import Change, What, apply
from paceline.core.learning.guesses import Guesses
from paceline.core.learning.resets import LONGER_PERIOD
from paceline.core.learning.tracker import QuotaTracker
from paceline.core.ledger import Ledger
from paceline.core.meters import Bucket
from paceline.core.quota import CONCURRENCY, INPUT_TOKENS, OWN_RULES, TOKENS, Quota, Rule, rounded
from paceline.core.results import LEARNED, Reading, Refusal, Reservation, Source, SourceKind
from paceline.core.unstated.unstated import Unstated

if TYPE_CHECKING:
    from paceline.core.entry import BucketEntry

QUOTAS_MAX = 16
"""How many quotas a pool has at most, with those that answers add."""


class Corrections:
    """Corrects the quotas of a ledger after answers.

    A correction passes three levels. ``Meter.become`` changes the arithmetic for another amount. ``Ledger.adopt``
    changes the name and the given limit of the entry with it. :meth:`set_limit` also changes the source, begins an
    epoch, and informs the other processes. A quota is spread by ``Spread`` (a meter), ``Ledger.spread`` and
    :meth:`spread` in the same way.

    :class:`~paceline.core.learning.learning.Learning` has the arguments, and the attributes ``guesses``, ``unstated``
    and ``notices``.

    Attributes:
        ledger: The ledger.
        entries: Its quotas.
        trackers: What answers have shown about each of them that is a bucket or spread, by its index.
        shared: Whether other processes make the same changes.
    """

    def __init__(self, ledger: Ledger, report: Callable[[Change], None] | None, *, raises: bool, adapts: bool) -> None:
        self.ledger, self.entries = ledger, ledger.entries
        self.trackers: dict[int, QuotaTracker] = {}
        self.shared = report is not None
        self.notices: deque[str] = deque(maxlen=NOTICES_MAX)
        self.guesses = Guesses(ledger, self.notices)
        self.unstated = Unstated(ledger, self.notices)
        self._report = report
        self._raises, self._adapts = raises, adapts
        self._tracked = 0  # the number of entries that have a tracker, or need none
        self.track_new()

    def track_new(self) -> None:
        """Track the entries that the ledger has got since."""
        for i, entry in enumerate(self.entries[self._tracked :], self._tracked):
            m = entry.meter
            if isinstance(m, Bucket) and m.quota.rule not in OWN_RULES:
                self.track(i)
        self._tracked = len(self.entries)

    def track(self, index: int) -> None:
        """Begin to learn about the quota at ``index``, which is a bucket or spread."""
        entry = cast("BucketEntry", self.entries[index])
        self.trackers[index] = QuotaTracker(entry, partial(self.change, index), adapts=self._adapts)

    def change(self, index: int, now_ns: int, what: What, value: float = 0.0) -> None:
        """Make a change, here and in the other processes. Two kinds change more than the state of a meter."""
        change = Change(index, what, value)
        if what is What.ADOPT:
            self.ledger.adopt(now_ns, index, value)
        elif what is What.SPREAD:
            self.ledger.spread(now_ns, index)
        else:
            apply(now_ns, self.entries[index].meter, change)
        if self._report is not None:
            self._report(change)

    def index_of(self, unit: str | None, period_s: float | None) -> int | None:
        """The index of the one quota on ``unit`` and period; ``None`` for none or several.

        A quota whose period was learned matches every period, because the answers state a wrong one.
        """
        found = self.counted(unit, period_s)
        if not found:
            found = [i for i, one in self.trackers.items() if one.stated_period_s and self.entries[i].unit == unit]
        return found[0] if len(found) == 1 else None

    def is_new(self, unit: str, period_s: float | None) -> bool:
        """Whether a quota that an answer names is to be added."""
        split = unit == TOKENS and self.counted(INPUT_TOKENS, period_s)  # input and output are counted separately
        # An answer may name anything. Quota() would raise on another name, and no answer may break a pool.
        named = re.fullmatch(r"[a-z_][a-z0-9_]{0,40}", unit) is not None
        return named and not split and not self.counted(unit, period_s) and len(self.entries) < QUOTAS_MAX

    def counted(self, unit: str | None, period_s: float | None = None) -> list[int]:
        """The quotas on ``unit`` that a provider counts; with a period, those that have it."""
        found = []
        for i, entry in enumerate(self.entries):
            quota = entry.meter.quota
            if entry.unit == unit and quota.rule not in OWN_RULES and period_s in (None, quota.period_s):
                found.append(i)
        return found

    def usable_share(self, index: int | None, unit: str | None) -> float:
        """The used share of a limit on ``unit``: the share of the quota at ``index``, if there is one."""
        if index is not None:
            return self.entries[index].share
        return 1.0 if unit == CONCURRENCY else self.ledger.usable

    def give_back(self, now_ns: int, reservation: Reservation) -> None:
        """Take a refused attempt off the stated quotas, because another limit has refused it.

        Where processes share them, the store keeps the charge. So does a quota of a day: some hosts count refused
        attempts for it.
        """
        for index, entry in enumerate(self.entries):
            quota = entry.meter.quota
            if not (self.shared or quota.is_long or quota.rule in OWN_RULES):
                self.ledger.give_back(now_ns, reservation, index)

    def in_period(self, index: int, limit: float) -> float:
        """A ``limit`` of an answer, as an amount per period of the quota at ``index``."""
        tracker = self.trackers.get(index)
        if tracker is None or tracker.stated_period_s is None:
            return limit
        return limit * tracker.entry.meter.quota.period_s / tracker.stated_period_s

    def add(self, now_ns: int, quota: Quota) -> int:
        """Charge a further quota from now on, here and in the other processes; return its index."""
        self.ledger.add_quota(now_ns, quota)
        self.added(now_ns)
        return len(self.entries) - 1

    def added(self, now_ns: int) -> None:
        """Track the quota that the ledger has got last. The limit of its unit is stated."""
        self.unstated.off(now_ns, self.entries[-1].unit)
        self.track_new()

    def take_limit(self, now_ns: int, index: int, limit: float, sent_ns: int, *, refused: bool = False) -> bool:
        """Take the limit of the quota at ``index``, unless a later attempt has met another one.

        Args:
            now_ns: The present.
            index: The quota.
            limit: Its limit, as an amount per period of the quota.
            sent_ns: When the attempt was sent whose answer states it.
            refused: Whether the answer is a refusal.

        Returns:
            Whether it has changed.
        """
        entry, tracker = self.entries[index], self.trackers.get(index)
        if tracker is not None and sent_ns < tracker.limit_as_of_ns:
            return False
        before = entry.meter.quota.amount
        if limit > entry.given and not self._raises:
            self._stated_above(index, limit)
            limit = entry.given
        guess = self.guesses.tested.get(index)
        if guess is not None and not (refused and guess.is_bounded):
            self.guesses.end(index)
        if refused and limit < before and entry.meter.quota.rule is not Rule.SLOTS:
            self.guesses.lowered(now_ns, index, before)
        if limit == before:
            if entry.source.kind is not SourceKind.GIVEN:
                entry.source = LEARNED
            return False
        self.set_limit(now_ns, index, limit)
        if tracker is not None:
            tracker.take_limit(sent_ns)
        return True

    def add_stated(self, now_ns: int, answer: Reading | Refusal, sent_ns: int) -> bool:
        """Add the quota whose limit the answer to an attempt that was sent at ``sent_ns`` states.

        It is slots, or a bucket, which readings may show to be none.

        Returns:
            Whether it states one, and there was none such.
        """
        limit = answer.limit
        if limit is None or not answer.unit or not self.is_new(answer.unit, answer.period_s):
            return False
        if answer.unit == CONCURRENCY:
            self.guesses.found_slots(self.add(now_ns, Quota(answer.unit, limit, 0.0, rule=Rule.SLOTS)))
            return True
        index = self.add(now_ns, Quota(answer.unit, limit, answer.period_s or 60.0))
        if isinstance(answer, Reading):
            # Without a measured rate before it, what is missing may be the size of a smaller bucket.
            left = answer.remaining if self.unstated.measures(answer.unit) else None
            used = 0.0 if left is None else limit - left
            if left is not None and not self.shared and self._refills_soon(index, answer):
                used = (answer.reset_s or 0.0) * limit / (answer.period_s or 60.0)
                self.change(index, now_ns, What.CAP_BURST, min(left + used, limit))
            self._take_sent(now_ns, index, used, sent_ns)
        return True

    def _refills_soon(self, index: int, reading: Reading) -> bool:
        """Whether what is in flight explains the reset of a new quota.

        What else is missing is the size of a smaller bucket.

        Another reset may belong to a counter, which has no more until then.
        """
        quota, ledger = self.entries[index].meter.quota, self.ledger
        if reading.reset_s is None:
            return False
        sent = sum(ledger.fitting(ledger.amounts(one.cost))[index] for one in ledger.open_reservations)
        return (reading.reset_s - reading.reset_resolution_s) * quota.rate <= sent

    def _take_sent(self, now_ns: int, index: int, used: float, sent_ns: int) -> None:
        """Charge a quota that an answer has just stated: what is in flight, and what else is ``used`` by the answer.

        What is in flight is charged as it was sent. The answer to an attempt that was sent at ``sent_ns`` may have
        counted some of it: the attempts of about the same time come to the server in any order. A store charges what it
        grants from now on, and this process tells it what it lacks.
        """
        entry, ledger, tracker = self.entries[index], self.ledger, self.trackers[index]
        m, sent = entry.meter, sorted(ledger.open_reservations, key=lambda one: one.granted_ns)
        assert isinstance(m, Bucket)
        amounts = [ledger.fitting(ledger.amounts(one.cost))[index] for one in sent]
        later = earlier = 0.0
        if not m.holds:  # else the server has not charged it yet
            later = sum(amount for one, amount in zip(sent, amounts, strict=True) if one.granted_ns > sent_ns)
            earlier = sum(amounts) - later
        # Full when the first of them was sent: each is charged at its own instant below, and refilled since.
        m.full_at_ns = sent[0].granted_ns if sent else now_ns
        if not self.shared:
            entry.spent = max(used - earlier, 0.0)
            tracker.charges.log(m.full_at_ns, entry.spent)
        for one, amount in zip(sent, amounts, strict=True):
            if not self.shared:
                ledger.charge_open(one.granted_ns, one, index, m, amount)
                entry.spent += amount
                tracker.charges.log(one.granted_ns, tracker.charges.total + amount)
                one.notes = {**one.notes, index: tracker.note()}
            elif not m.holds:
                m.charge(one.granted_ns, amount)
        lack = m.lack(now_ns)
        missing = min(max(used + later, lack), m.quota.burst)
        if self.shared:
            # Undone, because the store keeps the level: the change that follows tells it the whole lack.
            m.full_at_ns, lack = now_ns, 0.0
        m.not_granted(lack)
        tracker.move_level(now_ns, math.ceil((missing - lack) * m.ns_per_unit))

    def set_limit(self, now_ns: int, index: int, limit: float, source: Source = LEARNED) -> None:
        """Set the limit of the quota at ``index``, here and in the other processes."""
        self.change(index, now_ns, What.ADOPT, limit)
        self.entries[index].source = source
        if index in self.trackers:
            self.trackers[index].begin_epoch(now_ns)

    def _stated_above(self, index: int, limit: float) -> None:
        """Note that the provider allows more than the user has given; the given limit holds."""
        entry = self.entries[index]
        limit /= entry.share
        if entry.stated is None:
            # An answer may have lowered the present one.
            given = entry.meter.quota.with_amount(rounded(entry.given / entry.share))
            self.notices.append(
                f"the provider states a limit of {limit:,.0f} {self.ledger.entries.units[index]}, and"
                f" {str(given)!r} was given: paceline uses yours. To use the"
                " higher limit, delete yours, or set learn='up'"
            )
        entry.stated = limit

    def spread(self, now_ns: int, index: int, lack: float = 0.0, wait_s: float | None = None) -> None:
        """Spread the quota at ``index`` evenly, which is safe under every rule: it is not a bucket.

        Args:
            now_ns: The present.
            index: Of the quota.
            lack: What it lacks at least.
            wait_s: How long the provider asks to wait; see :meth:`Ledger.spread`.
        """
        tracker = self.trackers.get(index)
        if tracker is None or not tracker.entry.meter.bursts:
            return
        if wait_s is None or wait_s > LONGER_PERIOD * tracker.entry.meter.quota.period_s or self.shared:
            self.change(index, now_ns, What.SPREAD)  # in a store, the wait counts for the pool alone
        else:
            self.ledger.spread(now_ns, index, wait_s)
        m = tracker.entry.meter
        if (missing := lack - m.lack(now_ns)) > 0:
            m.charge(now_ns, missing)
            if self._report is not None:
                self._report(Change(index, What.SHIFT, math.ceil(missing * m.ns_per_unit)))
        tracker.begin_epoch(now_ns)

    def refute_restarts(self, now_ns: int, index: int) -> None:
        """Spread the quota at ``index`` in this process: it does not restart at the instants that answers state."""
        tracker = self.trackers[index]
        tracker.restarts.refuted = True
        if tracker.entry.meter.restarts_by_answers:
            self.ledger.spread(now_ns, index)
            tracker.begin_epoch(now_ns)
