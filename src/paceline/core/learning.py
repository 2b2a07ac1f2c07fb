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
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import partial

from paceline.core.changes import Change, What
from paceline.core.guesses import RETEST_STEP, Guess, Guesses
from paceline.core.ledger import DEBT_MAX, Ledger
from paceline.core.meters import Bucket, Slots, Window
from paceline.core.quota import CONCURRENCY, INPUT_TOKENS, OWN_RULES, TOKENS, Quota, Rule
from paceline.core.refill import LONGER_PERIOD, PERIOD_MARGIN, Refill
from paceline.core.results import LEARNED, Basis, Reading, Refusal, RefusalKind, Reservation, Source, SourceKind
from paceline.core.tracker import CLOCK_MARGIN, QUANTISED_MARGIN, Note, QuotaTracker

LIMIT_MIN, LIMIT_MAX = 1e-3, 1e12
WAIT_MAX_S = 32 * 86_400.0
"""The range of limits and waits of providers; a number outside of it counts as missing."""

PLENTY = 0.5
"""A refusal that names no quota is blamed on assumed slots if every other quota has more than this share left."""

UNITS_MAX = 16
"""How many quotas a pool has at most, with those that answers add."""


class Learning:
    """The learning about all quotas of a ledger.

    Args:
        ledger: The ledger, whose meters are corrected.
        report: Called with every change, and with every quota that is added, so that other processes can make it, too.
        raises: Whether an answer may raise a limit that the user has given.
        adapts: Whether the headroom of buckets adapts: to attempts that are sent late, and to refusals of a bucket that
            was nearly empty.

    Attributes:
        guesses: The limits that no answer has confirmed.
        notices: What the user should know, for the log; the reader empties it.
    """

    def __init__(
        self,
        ledger: Ledger,
        report: Callable[[Change | Quota], None] | None = None,
        *,
        raises: bool = False,
        adapts: bool = False,
    ) -> None:
        self._ledger, self._accounts = ledger, ledger.accounts
        self._report = report or (lambda _: None)
        self._shared = report is not None  # whether other processes make the same changes
        self._raises, self._adapts = raises, adapts
        self._tracked = 0  # the number of accounts that have a tracker, or need none
        self.guesses = Guesses(ledger)
        self.notices: list[str] = []
        self._inferred: dict[str, Refill] = {}  # by unit, about quotas of a period that none of the known ones has
        self._doubted: dict[int, set[int]] = {}  # of windows, the starts of those with refusals
        self._shown: dict[int, float] = {}  # what was left of each quota, by the last headers
        self._shown_for: Reservation | None = None
        self.track_new()

    def track_new(self) -> None:
        """Track the accounts that the ledger has got since."""
        for i, account in enumerate(self._accounts[self._tracked :], self._tracked):
            m = account.meter
            if isinstance(m, Bucket) and m.quota.rule not in OWN_RULES:
                account.tracker = QuotaTracker(m, partial(self._change, i), adapts=self._adapts)
        self._tracked = len(self._accounts)

    def _change(self, index: int, now_ns: int, what: What, value: float) -> None:
        """Make a change, here and in the other processes."""
        change = Change(index, what, value)
        self._ledger.apply(now_ns, change)
        self._report(change)

    def sent_late(self, late_s: float) -> None:
        """Raise adaptive headrooms: an attempt was sent ``late_s`` after its grant.

        While it was on its way, a full bucket of the provider did not refill, and the ledger's did.
        """
        for account in self._accounts:
            if account.tracker is not None:
                account.tracker.raise_headroom(late_s)

    def granted(self, now_ns: int, reservation: Reservation) -> None:
        """Take the notes of an attempt that is sent now."""
        notes: list[Note | None] = []
        for account, amount in zip(self._accounts, reservation.amounts, strict=True):
            tracker = account.tracker
            notes.append(tracker.granted(now_ns, amount, account.spent) if tracker is not None and amount else None)
        reservation.notes = notes

    def granted_by_store(self, now_ns: int, reservation: Reservation) -> None:
        """Take the notes of an attempt whose charge the shared ledger has counted."""
        notes: list[Note | None] = []
        for account, amount in zip(self._accounts, reservation.amounts, strict=False):
            tracker = account.tracker
            if tracker is not None and amount:
                tracker.climb(now_ns, amount)
            notes.append(tracker.note(account.spent) if tracker is not None and amount else None)
        reservation.notes = notes

    def notes_of_now(self) -> list[Note | None]:
        """The notes of an attempt without a charge that is sent now."""
        accounts = self._accounts
        return [one.tracker.note(one.spent) if one.tracker is not None else None for one in accounts]

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
            if index is not None and (whole.reset_s or 0) > LONGER_PERIOD * self._accounts[index].meter.quota.period_s:
                continue  # it is about a longer period
            limited = self._take_limit(now_ns, index, reading, sent_ns)
            changed += limited
            if index is None:
                continue
            if whole.remaining is not None:
                self._shown[index] = whole.remaining
            account = self._accounts[index]
            tracker, m = account.tracker, account.meter
            above = reading.limit is not None and self._in_period(index, reading.limit) > m.quota.amount
            if isinstance(m, Window) and reading.remaining is not None and reading.remaining < m.level(now_ns):
                self._change(index, now_ns, What.SEEN, reading.remaining)
            if tracker is None or note is None:
                continue
            partly = share < 1  # the provider refills faster than the part that is used
            if tracker.read(now_ns, sent_ns, note, reading, above=above, lower_only=partly):
                since = max(tracker.charged - note.charged, 0.0)
                self._spread(now_ns, index, max(m.quota.amount - (reading.remaining or 0.0), 0.0) + since)
            elif (limited or refilled) and not above:
                tracker.take_level(now_ns, sent_ns, note, reading)
            tracker.look_above(now_ns, account.spent, partial(self._ledger.open_before, index))
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
            return self._ledger.share_of(self._accounts[index].meter.quota)
        return 1.0 if unit == CONCURRENCY else self._ledger.usable

    def _usable_reading(self, index: int | None, reading: Reading, share: float) -> Reading:
        """What ``reading`` says about the ``share`` of the limit that is used; the rest of it stays with the provider.

        The provider's bucket and its used part lack the same amount, which takes the part longer to refill.
        """
        m = None if index is None else self._accounts[index].meter
        limit, remaining, reset_s = reading.limit, reading.remaining, reading.reset_s
        size = limit if limit is not None or m is None else m.quota.amount / share
        if m is not None and m.bursts and reset_s is not None and size is not None:
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
        tracker = self._accounts[index].tracker
        stated = reading.period_s is not None and reading.basis is Basis.STATED
        if tracker is None or stated or tracker.meter.quota.rule is Rule.SLIDING:
            return False  # it has stated its period, or the user the rule, by which its resets have another meaning
        period_s, spread = tracker.refill.period_s(reading), not tracker.meter.bursts
        bucket, quota, account = period_s is not None, tracker.meter.quota, self._accounts[index]
        if not bucket and note is not None:
            known = quota.amount if account.given == math.inf else account.given
            charged_since = partial(tracker.charged_since, note)
            period_s = tracker.refill.renewal_s(sent_ns, reading, known, quota.period_s, charged_since)
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
                self._adopt(now_ns, index, min(self._in_period(index, limit), account.given))
            else:
                account.given *= period_s / quota.period_s
                self._ledger.adopt(now_ns, index, min(limit, account.given), period_s)
                self._accounts[index].source = LEARNED
        if changed:
            tracker.changed(now_ns)
        return changed

    def _in_period(self, index: int, limit: float) -> float:
        """A ``limit`` of an answer, as an amount per period of the quota at ``index``."""
        tracker = self._accounts[index].tracker
        if tracker is None or tracker.period_s is None:
            return limit
        return limit * tracker.meter.quota.period_s / tracker.period_s

    def charge_kept(self, reservation: Reservation) -> None:
        """Count the charge of a refused attempt: it stays, but the provider has not admitted it."""
        for account, amount in zip(self._accounts, reservation.amounts, strict=False):
            if account.tracker is not None:
                account.tracker.refused_amount += amount

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
        before = self._accounts[index].meter.quota.amount if index is not None else 0.0
        source = self._accounts[index].source if index is not None else LEARNED
        changed = self._take_limit(now_ns, index, refusal, sent_ns)
        if index is not None:
            m = self._accounts[index].meter
            if isinstance(m, Slots):
                if (fewer := self.guesses.refused(now_ns, sent_ns, index, m.used, before, source)) < m.quota.amount:
                    self._adopt(now_ns, index, fewer, self._accounts[index].source)
            elif refusal.limit is None and (guess := self.guesses.open.get(index)) is not None:
                self._fall_back(now_ns, index, guess, sent_ns)
            elif refusal.limit is None and isinstance(m, Window):
                self._doubt_window(now_ns, index, m)
            tracker, note = self._accounts[index].tracker, self._note(reservation, index)
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
            self._accounts[index].tracker = QuotaTracker(spread, partial(self._change, index), adapts=self._adapts)

    def _index(self, unit: str | None, period_s: float | None) -> int | None:
        """The index of the one quota on ``unit`` and period; ``None`` for none or several.

        A quota whose period was learned is that of any other period: what answers say of its period is wrong.
        """
        meters = self._ledger.meters
        on_unit = [i for i, m in enumerate(meters) if m.quota.unit == unit and m.quota.rule not in OWN_RULES]
        found = [i for i in on_unit if period_s in (None, meters[i].quota.period_s)]
        if not found:
            found = [i for i in on_unit if (tracker := self._accounts[i].tracker) is not None and tracker.period_s]
        return found[0] if len(found) == 1 else None

    def _is_new(self, unit: str, period_s: float | None) -> bool:
        """Whether a quota that an answer names is to be added."""
        quotas = [m.quota for m in self._ledger.meters if m.quota.rule not in OWN_RULES]
        units = {quota.unit for quota in quotas if period_s in (None, quota.period_s)}
        split = unit == TOKENS and INPUT_TOKENS in units  # the quotas count input and output separately
        named = re.fullmatch(r"[a-z_][a-z0-9_]{0,40}", unit) is not None
        return named and unit not in units and not split and len(self._accounts) < UNITS_MAX

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
        open_meters = [(i, self._accounts[i].meter) for i in self.guesses.open]
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
            index = len(self._accounts) - 1
            if slots:
                self.guesses.found_slots(index)
            self._report(quota)
            return [index]
        account = self._accounts[index]
        tracker = account.tracker
        if tracker is not None and sent_ns < tracker.limit_as_of_ns:
            return []
        limit = self._in_period(index, limit)
        if limit > account.given and not self._raises:
            self._stated_above(index, limit)
            limit = account.given
        before = account.meter.quota.amount
        lowered = self.guesses.is_lowered(index) and isinstance(answer, Refusal)
        if not lowered:
            self.guesses.confirm(index)
        if isinstance(answer, Refusal) and limit < before and account.meter.quota.rule is not Rule.SLOTS:
            self.guesses.lowered(now_ns, index, before)
        if limit == before:
            if account.source.kind is not SourceKind.GIVEN:
                account.source = LEARNED
            return []
        self._adopt(now_ns, index, limit)
        if tracker is not None:
            tracker.limit_as_of_ns = sent_ns
        return [index]

    def _adopt(self, now_ns: int, index: int, limit: float, source: Source = LEARNED) -> None:
        account = self._accounts[index]
        self._change(index, now_ns, What.ADOPT, limit)
        account.source = source
        if account.tracker is not None:
            account.tracker.changed(now_ns)

    def _stated_above(self, index: int, limit: float) -> None:
        """Note that the provider allows more than the user has given; the given limit holds."""
        limit /= self._usable_share(index, None)
        if self._accounts[index].stated is None:
            self.notices.append(
                f"the provider states a limit of {limit:,.0f} {self._ledger.units[index]}, and"
                f" {str(self._ledger.whole(index))!r} was given: the given limit holds; learn='up' would take the higher one"
            )
        self._accounts[index].stated = limit

    def served(self, now_ns: int, reservation: Reservation, true: list[float]) -> None:
        """Raise guessed limits that bind, after an attempt that the provider has served at the cost ``true``."""
        for index, amount, gain in self.guesses.served(now_ns, reservation, true):
            account = self._accounts[index]
            m, tracker, source = account.meter, account.tracker, account.source
            guess, slots = self.guesses.open[index], m.quota.rule is Rule.SLOTS
            if not guess.warned and not slots:
                guess.warned = True
                self.notices.append(
                    self.about_guess(index) + "; the provider serves more, so it is raised step by step"
                )
            if amount == guess.most:
                source = guess.source
                if not slots or amount == m.quota.amount:  # else it has yet to hold
                    self.guesses.confirm(index)
            self._adopt(now_ns, index, amount, source)
            if gain and tracker is not None and tracker.meter.bursts:
                tracker.gain(now_ns, gain)

    def _fall_back(self, now_ns: int, index: int, guess: Guess, sent_ns: int) -> None:
        """Replace a limit that was raised too far by what was served before the attempt that was refused."""
        if self.guesses.is_lowered(index):
            if guess.amount:
                self._adopt(now_ns, index, guess.amount / RETEST_STEP)
                self.guesses.lowered(now_ns, index, guess.most)
            return
        self.guesses.confirm(index)
        tracker = self._accounts[index].tracker
        if guess.amount and tracker is not None and tracker.meter.bursts:
            limit = tracker.least_limit(guess.since_ns, sent_ns)
            if 0 < limit < tracker.meter.quota.amount:
                self._adopt(now_ns, index, 2 * limit, self._accounts[index].source)
                tracker.fall_back(now_ns, limit)

    def outgrown(self, now_ns: int, true: list[float]) -> None:
        """Raise limits, up to the given ones, that a served attempt has exceeded by far.

        The debt of the attempt would stop the pool for many periods.
        """
        for index, amount in enumerate(true):
            account = self._accounts[index]
            limit = min(amount * self._usable_share(index, None), account.given)
            if limit > DEBT_MAX * account.meter.most:
                self._adopt(now_ns, index, limit, account.source)

    def learned_elsewhere(self, now_ns: int, index: int, before: float) -> None:
        """Note that another process has changed the limit at ``index`` from ``before``, unless this one has raised it so far."""
        guess = self.guesses.open.get(index)
        account, m = self._accounts[index], self._accounts[index].meter
        if guess is None or guess.amount != m.quota.amount:
            if self.guesses.is_lowered(index):
                self.guesses.changed_elsewhere(now_ns, index, before)
            elif m.quota.amount < before:  # the process that saw the refusal may end
                self.guesses.lowered(now_ns, index, before)
            else:
                self.guesses.confirm(index)
            account.source = LEARNED

    def stalled(self, now_ns: int, amounts: list[float]) -> None:
        """Add a notice, once for each guess, if a guess makes a request with ``amounts`` wait longer than a minute."""
        index = self.guesses.stalled(now_ns, amounts)
        if index is not None:
            self.notices.append(self.about_guess(index) + "; requests wait for it")

    def about_guess(self, index: int) -> str:
        """A sentence about a guessed limit: its source, and what the user can do."""
        account = self._accounts[index]
        name, source = account.name, account.source
        # A published limit is that of the tier that was named, or of the only one.
        tier = "name the tier of the account (tier=...), " if source.kind is SourceKind.ASSUMED else ""
        return (
            f"the limit {name!r} is {source}, and no answer has confirmed it: {tier}give the limits, or measure them with"
            " `paceline check`"
        )

    def _spread(self, now_ns: int, index: int, lack: float = 0.0) -> None:
        """Spread the quota at ``index``, which lacks at least ``lack``, evenly, which is safe under every rule: it is not a bucket."""
        tracker = self._accounts[index].tracker
        if tracker is None or not tracker.meter.bursts:
            return
        m = tracker.meter = self._ledger.spread(now_ns, index)
        self._report(Change(index, What.SPREAD))
        missing = lack - max(m.full_at_ns - now_ns, 0) / m.ns_per_unit
        if missing > 0:
            m.charge(now_ns, missing)
            self._report(Change(index, What.SHIFT, math.ceil(missing * m.ns_per_unit)))
        tracker.changed(now_ns)


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
