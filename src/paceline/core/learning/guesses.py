"""Guesses: limits that may be too low, so that they are tested upward.

No answer has confirmed them, or a refusal has lowered them.

An unconfirmed limit is a published or an assumed one: neither the user nor an answer has stated it. It must neither
turn a request away nor stall a run, so one that binds is raised with the attempts that were served. A published one is
raised only where its period is long (20 requests a day), by 1, 2, 4, … of the last cost, or where a larger request was
served; the rate of an assumed one also doubles, again and again. A stated limit ends that, and so does a refusal.

A limit that a refusal has lowered may rise again, and where no headers say so, only a test shows it: after a time it is
raised step by step to what it was before. A refusal that states it again lets the next test wait longer.

Slots are raised by one at a time. A refusal lowers them, also a known number of them: others may hold some.
"""

from __future__ import annotations

from collections import deque
from math import inf

from paceline.core.ledger import Ledger
from paceline.core.meters import Slots
from paceline.core.quota import NS, Rule
from paceline.core.results import LEARNED, Reservation, Source, SourceKind
from paceline.core.unstated.in_flight import FULL_MAX_N

STALL_NS = 60 * NS
"""The user is told of a guess that makes a request wait longer."""

SHARE = 1 / 8
"""An assumed rate doubles when this share of its amount has been served since the last time, and it still binds."""

SLOTS_MAX = 512
"""The most slots that a number which a refusal has named is raised to."""

RETEST_NS, RETEST_TIMES = 300 * NS, 12
"""When a lowered limit is tested: after this time, or its period if that is longer. Each further refusal doubles the
time, up to so many times the first."""

RETEST_STEP, RETEST_EACH_NS = 1.25, 60 * NS
"""By how much a test raises a limit, and how long one step lasts, unless the period is longer."""


class Guess:
    """How a limit is tested upward.

    Attributes:
        most: The amount at which the test ends; infinite for an unconfirmed limit. For one that a refusal has lowered
            it is what it was before, and for slots that a refusal has named ``SLOTS_MAX``.
        source: The source of that amount.
        wait_ns: Of a lowered limit, the time from a refusal to the test.
        test_ns: Of a lowered limit, when it is raised next.
        amount: The amount that it was raised to; 0 before.
        step: By how much it was raised last, where the quota would stall; 0 before.
        rounds: Slots are raised by one each time that so many times their number was served. Each refusal after the
            first one doubles it, up to ``FULL_MAX_N``.
        refused_ns: Of slots, when the last refusal came that counted.
        served: What has been served since it was raised last.
        since_ns: When the first served attempt was sent; 0 before.
        warned: Whether the user has been told.
    """

    def __init__(self, most: float = inf, source: Source = LEARNED) -> None:
        self.most, self.source = most, source
        self.wait_ns = self.test_ns = 0
        self.step = self.served = self.amount = 0.0
        self.since_ns = self.refused_ns = 0
        self.rounds = 1
        self.warned = self.is_bounded

    @property
    def is_bounded(self) -> bool:
        """Whether the test ends at a known amount, because a refusal has lowered or named the limit."""
        return self.most < inf


class Guesses:
    """The limits of a ledger that may be too low.

    Args:
        ledger: The ledger.
        notices: Takes what the user should know.

    Attributes:
        tested: These limits, by the index of the quota.
    """

    def __init__(self, ledger: Ledger, notices: deque[str]) -> None:
        self._ledger, self._notices = ledger, notices
        kinds = (SourceKind.ASSUMED, SourceKind.PUBLISHED)
        self.tested = {i: Guess() for i, one in enumerate(ledger.entries) if one.source.kind in kinds}

    def end(self, index: int) -> None:
        """Raise the limit at ``index`` no more.

        An answer has stated it, a refusal has disproved it, or its test has ended.
        """
        self.tested.pop(index, None)

    def new_test(self, index: int) -> Guess | None:
        """A test of the slots at ``index``, if they are lowered: up to their present number; ``None`` for no slots."""
        entry = self._ledger.entries[index]
        return Guess(entry.meter.quota.amount, entry.source) if isinstance(entry.meter, Slots) else None

    def lowered(self, now_ns: int, index: int, before: float) -> None:
        """Test the limit at ``index`` after a time: a refusal has lowered it from ``before``.

        After each further refusal it takes twice as long.
        """
        entry, guess = self._ledger.entries[index], self.tested.get(index)
        if guess is None or not guess.is_bounded:
            guess = self.tested[index] = Guess(before, entry.source)
        else:
            guess.rounds = min(2 * guess.rounds, FULL_MAX_N)
        first_ns = max(RETEST_NS, round(entry.meter.quota.period_s * NS))
        guess.wait_ns = min(max(2 * guess.wait_ns, first_ns), RETEST_TIMES * first_ns)
        guess.amount, guess.served, guess.test_ns = 0.0, 0.0, now_ns + guess.wait_ns

    def learned_elsewhere(self, now_ns: int, index: int, before: float) -> None:
        """Note that another process has changed the limit at ``index`` from ``before``.

        If this one has raised it so far, nothing changes.
        """
        guess, entry = self.tested.get(index), self._ledger.entries[index]
        amount = entry.meter.quota.amount
        if guess is not None and guess.amount == amount:
            return
        if amount < before:  # the process that saw the refusal may end
            self.lowered(now_ns, index, before)
        elif guess is not None and guess.is_bounded:  # as many processes as there are test it as often as one
            guess.amount, guess.served, guess.test_ns = amount, 0.0, now_ns + self._step_ns(index)
        else:
            self.end(index)
        entry.source = LEARNED

    def slots_refused(self, now_ns: int, sent_ns: int, index: int, test: Guess) -> float:
        """The number of slots at ``index`` after the refusal of an attempt that was sent at ``sent_ns``.

        Args:
            now_ns: The present.
            sent_ns: When it was sent. Attempts that were in flight at a refusal count once with it.
            index: The quota.
            test: Their test, if this is the first refusal: up to the number before it, which may state another one.
        """
        m = self._ledger.entries[index].meter
        assert isinstance(m, Slots)
        guess = self.tested.setdefault(index, test)
        if sent_ns < guess.refused_ns:  # it says nothing new, and its stated number is no more than it was
            return min(test.most, m.quota.amount)
        if guess.refused_ns:
            guess.rounds = min(2 * guess.rounds, FULL_MAX_N)
        guess.refused_ns, guess.served = now_ns, 0.0
        others = m.used  # in use
        return max(min(others, m.quota.amount) if guess.is_bounded else others * 3 // 4, 1.0)

    def found_slots(self, index: int) -> None:
        """Raise the slots at ``index`` by one at a time.

        A refusal has named their number, which a bad minute may have lowered.
        """
        self.tested[index] = Guess(SLOTS_MAX)

    def stalled(self, now_ns: int, amounts: list[float]) -> None:
        """Add a notice, once for each guess, if a guess makes a request with ``amounts`` wait longer than a minute."""
        for index, guess in self.tested.items():
            m, amount = self._ledger.entries[index].meter, amounts[index]
            if amount and not guess.warned and m.quota.rule is not Rule.SLOTS:
                wait_ns = m.earliest(now_ns, min(amount, m.most)) - now_ns
                if wait_ns > STALL_NS:
                    self._warn(index, guess, "requests wait for it")
                    return

    def _warn(self, index: int, guess: Guess, effect: str) -> None:
        """Tell the user of an unconfirmed limit, with its source and the remedy."""
        guess.warned = True
        entry = self._ledger.entries[index]
        name, source = entry.name, entry.source
        # A published limit belongs to the tier that was named, or to the only tier.
        tier = "name the tier of the account (tier=...), " if source.kind is SourceKind.ASSUMED else ""
        self._notices.append(
            f"the limit {name!r} is {source}, and no answer has confirmed it: {tier}set the limits, or ask the provider"
            f" with `paceline check`; {effect}"
        )

    def served(
        self, now_ns: int, reservation: Reservation, true: list[float]
    ) -> list[tuple[int, float, Source, float]]:
        """The limits that rise after an attempt that the provider has served at the cost ``true``.

        Of each: the index of the quota, the new amount, its source, and the gain of the level. Slots whose test has
        ended are among them, with their present amount: it has held.
        """
        raises = []
        binding = self._binding(now_ns, self._ledger.amounts(reservation.cost))
        for index, guess in list(self.tested.items()):
            amount = true[index] if index < len(true) else 0.0
            guess.served += amount
            guess.since_ns = guess.since_ns or reservation.granted_ns
            entry = self._ledger.entries[index]
            m, slots = entry.meter, entry.meter.quota.rule is Rule.SLOTS
            if isinstance(m, Slots):
                amount_now, gain = self._slots(m, guess), 0.0
            else:
                amount_now, gain = self._raised(now_ns, index, guess, amount, binds=index in binding)
            amount_now = min(amount_now, guess.most)
            # Slots are at the end of their test when the former number has held as long as a step lasts.
            held = slots and m.quota.amount == guess.most and guess.served >= guess.rounds * guess.most
            if amount_now <= m.quota.amount and not held:
                continue
            guess.served, guess.amount = 0.0, amount_now
            if not guess.warned and not slots:
                self._warn(index, guess, "the provider serves more, so paceline raises it step by step")
            ends = amount_now == guess.most
            if ends and (held or not slots):  # other slots have yet to hold
                self.end(index)
            raises.append((index, amount_now, guess.source if ends else entry.source, gain))
        return raises

    def _binding(self, now_ns: int, amounts: list[float]) -> set[int]:
        """The quotas that a request waits for: the ones that it waits for longest, and all with a long period.

        Two quotas of a day may bind together, and no further attempt would be served to raise the second one.
        """
        meters = self._ledger.meters
        waits = [m.earliest(now_ns, min(a, m.most)) if a else now_ns for m, a in zip(meters, amounts, strict=True)]
        latest = max(waits)
        return {i for i, at_ns in enumerate(waits) if at_ns == latest or (meters[i].quota.is_long and at_ns > now_ns)}

    def _step_ns(self, index: int) -> int:
        return max(RETEST_EACH_NS, round(self._ledger.entries[index].meter.quota.period_s * NS))

    def _raised(self, now_ns: int, index: int, guess: Guess, amount: float, *, binds: bool) -> tuple[float, float]:
        """The amount of the quota at ``index`` from now on, and what is added to its level."""
        entry = self._ledger.entries[index]
        m, limit = entry.meter, entry.meter.quota.amount
        if amount * entry.share > m.most:  # it went alone, and was served
            return limit * amount * entry.share / m.most, 0.0
        if not binds or now_ns < guess.test_ns or m.earliest(now_ns, amount) <= now_ns:
            return limit, 0.0
        if guess.is_bounded:
            guess.test_ns = now_ns + self._step_ns(index)
            return limit * RETEST_STEP, 0.0
        if m.quota.is_long:
            guess.step = max(2 * guess.step, amount)
            return limit + guess.step, guess.step
        assumed = entry.source.kind is SourceKind.ASSUMED
        return (2 * limit if assumed and guess.served >= SHARE * limit else limit), 0.0

    @staticmethod
    def _slots(m: Slots, guess: Guess) -> float:
        """The number of slots from now on."""
        limit = m.quota.amount
        binds = m.used + 1 >= limit  # the served one is not counted any more
        return limit + 1 if binds and guess.served >= guess.rounds * limit else limit
