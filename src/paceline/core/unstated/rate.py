"""What a provider admits of one unit per second, measured from outcomes alone.

This is for a limit that neither the user nor an answer states. The caller reports each attempt and each refusal, and
:class:`MeasuredRate` computes when the next attempt may go.

The measurement
    At the instant of a refusal the quota of the provider is empty. The amount that was admitted between two such
    instants is the amount that the provider has refilled. This holds for a bucket of any size, and for any attempts in
    between. An attempt is admitted if it is not refused within a short time: no answer is needed, because a provider
    refuses before it works.

Nothing admitted
    If nothing is admitted, the rate is below one attempt in the time since the last empty instant. One attempt goes
    after as long a time again, then after twice that time, and so on. So the waits double without a count of the
    attempts. A blocked time is measured as a whole, from the end of the last one to its own end. For a counter that
    restarts this is right, too: the rate before the blocked time would be far too high.

Its parts
    ``cycle``: the course of the rate between two refusals. ``chance``: the share that is refused at any rate.
    ``delays``: how long refusals take to come, and how much of a stated wait is needed.
"""

from __future__ import annotations

from enum import Enum
from math import inf, log
from typing import Final, NamedTuple

from paceline.core.quota import NS
from paceline.core.unstated.chance import CHECK_SHARE, EARLY_N, ENDED, EVIDENCE_N, RARE, SHARE_MAX, Chance
from paceline.core.unstated.cycle import BELOW, CYCLE_S, Cycle
from paceline.core.unstated.delays import VERDICT_MIN_NS, VERDICT_NS, RefusalDelay, StatedWaits

START = 10.0
"""An unknown rate begins with so many attempts per second, and doubles each second until the first refusal. Then 5,000
requests to a provider without a limit take an eighth longer, and one that holds a single attempt refuses about five in
the first second."""

FELL = 0.85
"""A test that is refused shows a lower rate only if it measures less than this share of the known one. It also measures
less if attempts before it went below the known rate: a provider without a burst doesn't keep what they left. In a
process alone, a test upward that measures so little counts as a refusal at the measured rate."""

LEAN_NS = round(CYCLE_S * NS)
"""Where several processes measure the same rate, each goes towards their mean within a short cycle. What one process
gains the others lose, so that all get the same in the end."""

STRIKES = 3
"""So many refusals show what one or two may show by accident: that nothing is admitted, if all attempts since the rate
changed were refused, or that the number in flight is the reason."""

WAIT_S = STRIKES * CYCLE_S
"""The longest wait while nothing is admitted, or the time of ``STRIKES`` attempts at the known rate, if that is longer.
The end of the blocked time is found that late."""

STATED_MAX_S = 60.0
"""In a longer stated wait a probe goes after 15 s, and then each after twice the time. A day that is true costs 14
refusals, and a day that is not costs 15 s. While no rate is known, no wait is longer: a provider that admits nothing
for ten minutes is given up soon after that."""

ALIKE = 0.7
"""Two blocked times in a row show a counter that restarts, if one has measured at least this share of the other's rate.
What a counter admits around its restart, and the time of a probe, make them differ. WEAK: two outages may look so, too,
and a rate that rises later is found later: such jobs took a tenth longer. A counter that admits nothing after a refusal
would tell them apart, but where any minute is the window, some is admitted, and a quarter more was refused."""

TESTED_MIN_S = 2.0
"""A shorter stated wait is not tested: the gain would be less than the refusal costs."""

LATE_NS = NS // 500
"""An attempt waited for the rate if it goes at most so much, and half of its own time, after the instant at which it
may. Timers are late by a millisecond or two."""

FASTEST = 1e6
"""The rate rises no further than to so many attempts per second: no process sends them faster."""


class RatePhase(Enum):
    """How the rate changes with time."""

    OFF = "off"  # it limits nothing: a limit is stated elsewhere
    OPENING = "opening"  # it doubles each second: there is no measured rate
    RISING = "rising"  # it rises to the measured rate
    TESTING = "testing"  # it rises above the measured rate
    BLOCKED = "blocked"  # nothing is admitted, and one attempt goes at a time, the probe
    ASKING = "asking"  # eight attempts go at once: a limit admits next to none of them, chance refuses its share
    CHECKING = "checking"  # it stays below the measured rate: a limit refuses nothing there, chance does
    TRYING = "trying"  # as checking, after asking has shown a limit: one with a small burst hides chance


DOUBTS: Final = frozenset({RatePhase.ASKING, RatePhase.CHECKING, RatePhase.TRYING})
"""The phases in which it is not known whether chance refuses attempts."""


class RateNote(NamedTuple):
    """What is kept of an attempt until its outcome.

    Attributes:
        sent_ns: When it was sent.
        amount: What it costs.
        total: What was sent until then, with this attempt.
        number: How many attempts were sent until then, with this one.
        rate: The rate at which it was sent, per second.
    """

    sent_ns: int
    amount: float
    total: float
    number: int
    rate: float


class Mark(NamedTuple):
    """An instant, and the amount that was admitted until then."""

    at_ns: int
    admitted: float

    def later(self, by_ns: int) -> Mark:
        """The same amount ``by_ns`` later."""
        return Mark(self.at_ns + by_ns, self.admitted)


class Common(NamedTuple):
    """The mean rate of all processes that measure it, per second; 0 for one process alone.

    It was known at ``at_ns``.
    """

    at_ns: int
    rate: float


class Tally:
    """What was sent and what was lost: in all, and since the last cut, the instant when an outcome changed the rate.

    Attributes:
        total: The amount of all attempts.
        lost: The amount of the attempts that were not admitted.
        count: How many attempts there were.
        cut_count: How many attempts there were at the last cut.
        recent_lost: How many later attempts were not admitted.
        recent_refused: How many of these were refused for the rate, or by chance. The others were not sent, or were
            refused for another reason.
        blamed: How many refusals the rate was blamed for, since it opened.
    """

    def __init__(self) -> None:
        self.total = self.lost = 0.0
        self.count = self.cut_count = self.recent_lost = self.recent_refused = self.blamed = 0

    @property
    def admitted(self) -> float:
        """The amount of the attempts that were sent, and not refused so far."""
        return self.total - self.lost

    @property
    def mean(self) -> float:
        """The mean cost of an attempt."""
        return self.total / self.count if self.count else 1.0

    @property
    def recent(self) -> int:
        """How many attempts there were since the cut."""
        return self.count - self.cut_count

    @property
    def recent_share(self) -> float:
        """The share of the tried ones that was refused, by Laplace's rule."""
        return (self.recent_refused + 1) / (self.recent_tried + 2)

    @property
    def recent_tried(self) -> int:
        """How many of them were admitted, or refused for the rate or by chance."""
        return self.recent - self.recent_lost + self.recent_refused

    def sent(self, now_ns: int, amount: float, rate: float) -> RateNote:
        """Count an attempt that is sent now, at ``rate``; return its note."""
        self.total += amount
        self.count += 1
        return RateNote(now_ns, amount, self.total, self.count, rate)

    def has(self, note: RateNote) -> bool:
        """Whether an attempt was sent since the cut."""
        return note.number > self.cut_count

    def lose(self, note: RateNote) -> None:
        """Count an attempt as not admitted."""
        self.lost += note.amount
        self.recent_lost += self.has(note)

    def lost_all_to(self, note: RateNote) -> bool:
        """Whether no attempt from the cut to this one, which is lost, was admitted."""
        return note.number - self.cut_count <= self.recent_lost

    def cut(self) -> None:
        """Begin to count again: the outcomes of the attempts before say nothing about what follows."""
        self.cut_count, self.recent_lost, self.recent_refused = self.count, 0, 0


class Block:
    """The times in which nothing is admitted, so that one attempt goes at a time, the probe.

    Attributes:
        end: When the last one ended, and what was admitted until then; at first, the beginning.
        before: How many attempts were admitted from there to the beginning of the measurement.
        found: The rate that the last one measured; 0 before.
        until_ns: When the present one has ended, if the next probe is admitted: the middle of the last wait.
        probe: The attempt that goes alone, until its outcome is known.
        stated_waits: Which share of the waits that refusals state is kept.
    """

    def __init__(self, now_ns: int) -> None:
        self.end, self.until_ns, self.found = Mark(now_ns, 0.0), now_ns, 0.0
        self.before = 0.0
        self.probe: RateNote | None = None
        self.stated_waits = StatedWaits()

    def measure(self, admitted: float, mean: float) -> float:
        """The rate from the end of the last one to the end of this one, with attempts of the cost ``mean``."""
        return max(admitted - self.end.admitted + self.before * mean, mean) / seconds(self.end.at_ns, self.until_ns)

    def over(self, admitted: float, found: float) -> float:
        """End this one: its probe is admitted.

        Args:
            admitted: What was admitted before the probe.
            found: The rate that was measured.

        Returns:
            The time since the last one, if that has measured about the same rate: a counter restarts, and an outage
            would have left less. Else 0.
        """
        since_s = seconds(self.end.at_ns, self.until_ns)
        is_same = min(found, self.found) >= ALIKE * max(found, self.found)
        self.end, self.before, self.found = Mark(self.until_ns, admitted), 0.0, found
        self.stated_waits.admitted()
        return since_s if is_same else 0.0


class MeasuredRate:
    """What a provider admits of one unit per second, found from outcomes.

    The time between two attempts is the cost of the first one at the present rate, so that nothing goes in a burst. An
    unknown provider may hold one attempt at once.

    Attributes:
        phase: How the rate changes with time.
        rate: The present rate, per second, above 0; infinite in the phase ``OFF``.
        cycle: The measured rate, and the course of the rate about it.
        common: The mean rate of all processes that measure it.
        next_at_ns: When the next attempt may go.
        last_ns: When the last attempt was sent, or an outcome changed the rate, if that was later.
        tally: What was sent and lost.
        empty: The last instant at which the quota of the provider was empty; at first, the beginning.
        test: When the present test began.
        block: The blocked times.
        refusal_delay: After which time an attempt is admitted.
        chance: The share of the attempts that is refused by chance.
    """

    def __init__(self, now_ns: int, *, stated: bool = False) -> None:
        """Begin at ``now_ns``.

        Args:
            now_ns: The present.
            stated: Whether another limit holds, and this one is off until :meth:`refused` is called.
        """
        self.phase = RatePhase.OFF if stated else RatePhase.OPENING
        self.rate = inf if stated else START
        self.cycle = Cycle()
        self.next_at_ns = self.last_ns = now_ns
        self.tally, self.block = Tally(), Block(now_ns)
        self.empty = self.test = Mark(now_ns, 0.0)
        self.common = Common(now_ns, 0.0)
        self.refusal_delay = RefusalDelay()
        self.chance = Chance()

    def earliest_ns(self, now_ns: int) -> int:
        """When the next attempt may go; while a probe is in flight, when to ask again."""
        self._pass(now_ns)
        probe = self.block.probe
        return self.next_at_ns if probe is None else probe.sent_ns + self.refusal_delay.verdict_ns

    def sent(self, now_ns: int, amount: float) -> RateNote:
        """Count an attempt that is sent now, of an ``amount`` above 0; return its note."""
        self._pass(now_ns)
        if not self.tally.count and self.phase is RatePhase.OPENING:
            # START counts attempts. The first one shows what an attempt costs in this unit.
            self.rate = START * amount
        self._grow(now_ns, amount)
        self.next_at_ns = max(self.next_at_ns, now_ns) + round(amount / self.rate * NS)
        note = self.tally.sent(now_ns, amount, self.rate)
        if self.phase is RatePhase.BLOCKED:
            self.block.probe = note
        elif self.phase in DOUBTS:
            self._go_on(now_ns)
        return note

    def unsent(self, note: RateNote) -> None:
        """Take back an attempt that was not sent after all."""
        self._lose(note)
        # A cut has set the next instant anew, and in a test at once it is not spaced by the rate.
        if self.tally.has(note) and self.phase is not RatePhase.ASKING:
            self.next_at_ns -= round(note.amount / note.rate * NS)

    def answered(self, now_ns: int, note: RateNote) -> None:
        """Count an answer that is no refusal. It ends a blocked time; else it says nothing new."""
        probe = self.block.probe
        if probe is not None and note.number == probe.number:
            self._unblock(now_ns, probe)

    def explained(self, now_ns: int, note: RateNote) -> None:
        """Count a refusal that another reason than the rate explains."""
        self.refusal_delay.add(now_ns - note.sent_ns)
        self._lose(note)

    def reopen(self, now_ns: int) -> None:
        """Open again, at the present rate or the measured one.

        Another reason than the rate explains the last refusals. A rate that is off, or open, stays so.
        """
        if self.phase in (RatePhase.OFF, RatePhase.OPENING):
            return
        self._make_up(now_ns)
        self.phase = RatePhase.OPENING
        self._go_at(now_ns, max(self.rate, self.cycle.top))
        self.cycle, self.chance, self.next_at_ns, self.tally.blamed = Cycle(), Chance(), now_ns, 0

    def retract(self, now_ns: int, number: int) -> None:
        """Take back so many refusals: they were about their request. Without any other one the rate opens again."""
        self.tally.blamed = max(self.tally.blamed - number, 0)
        if number and not self.tally.blamed:
            self.reopen(now_ns)

    def count_before(self, since_ns: int, attempts: float) -> None:
        """Count so many attempts from ``since_ns`` until the beginning as admitted.

        The first blocked time is measured together with them.
        """
        self.block.end, self.block.before = Mark(since_ns, 0.0), attempts

    def refused_before(self, sent_ns: int) -> None:
        """Count the refusal of an attempt that was sent before the beginning, and counted as admitted."""
        if sent_ns >= self.block.end.at_ns:
            self.block.before -= 1

    @property
    def told(self) -> float:
        """What other processes are told of this rate: if it is not known, their own mean, which changes nothing."""
        if self.phase is RatePhase.BLOCKED:
            return self.rate
        return self.cycle.top or self.common.rate

    def lean(self, now_ns: int, mean: float) -> None:
        """Go towards the ``mean`` of all processes that measure this rate.

        A process that has sent nothing begins with it.
        """
        passed_ns, self.common = now_ns - self.common.at_ns, Common(now_ns, mean)
        if mean and not self.tally.count and self.phase is RatePhase.OPENING:
            self.expect(now_ns, mean)
        elif mean and self.cycle.top:
            self.cycle.top += (mean - self.cycle.top) * min(passed_ns / LEAN_NS, 1.0)
            if self.phase in (RatePhase.RISING, RatePhase.TESTING):
                self.rate = self.cycle.rate
                self.next_at_ns = min(self.next_at_ns, self.last_ns + round(self.tally.mean / self.rate * NS))

    def expect(self, now_ns: int, rate: float) -> None:
        """Go on with ``rate`` as the measured one, unless nothing is admitted now, or the rate is doubted."""
        if self.phase in (RatePhase.OFF, RatePhase.OPENING, RatePhase.RISING, RatePhase.TESTING):
            self.phase = RatePhase.RISING
            self._begin_cycle(now_ns, rate, lengthen=False)

    def hold(self) -> None:
        """Stay at the measured rate: in a forecast there is no refusal, which would end a test."""
        self.cycle.steady, self.cycle.progress = inf, 1.0

    def refused(self, now_ns: int, note: RateNote, asked_ns: int | None = None, *, only: bool = True) -> bool:
        """Learn from a refusal that nothing else explains.

        Args:
            now_ns: The present.
            note: Of the attempt.
            asked_ns: The wait that the refusal states.
            only: Whether the rate and chance are the only reasons that are left. If the number in flight is one, too,
                the refusal ends a row of early ones.

        Returns:
            Whether it is evidence for a bound on the number in flight, too. It is none if it comes by chance, ends a
            test of a higher rate, or if its attempt was sent before the last change of the rate.
        """
        again = self.phase is RatePhase.BLOCKED
        self.explained(now_ns, note)
        self.tally.blamed += 1
        if not self.tally.has(note):
            return False
        self.tally.recent_refused += 1
        between = self.chance.count(note.number, counts=self.phase is RatePhase.RISING)
        if self.phase not in (RatePhase.BLOCKED, RatePhase.CHECKING) and self.chance.takes(between):
            return False
        is_test = self.phase is RatePhase.TESTING
        if self.phase in DOUBTS:
            self._doubted(now_ns, note)
        else:
            self._find(now_ns, note, only=only)
        if asked_ns is not None:
            self._obey(now_ns, note, asked_ns, again=again)
        return not is_test

    def _lose(self, note: RateNote) -> None:
        """Count an attempt as not admitted."""
        self.tally.lose(note)
        if self.tally.has(note):
            self.block.probe = None

    def _ask(self, now_ns: int) -> None:
        """Ask again at once, several times."""
        self.phase = RatePhase.ASKING
        self.chance.begin_asking(self.cycle.top)
        self._go_at(now_ns, self.cycle.top)
        self.next_at_ns = now_ns
        self.chance.since_ns = now_ns

    def _check(self, now_ns: int, phase: RatePhase = RatePhase.CHECKING) -> None:
        """Go slower than any limit needs, to see whether a share of the attempts is refused there."""
        self._make_up(now_ns)
        self.phase = phase
        # Before a share is known, a limit may have been measured half too high.
        part = 1 / 2 if phase is RatePhase.TRYING else CHECK_SHARE
        self._go_at(now_ns, self.cycle.top * (1 - self.chance.share) * part)
        self.chance.since_ns = now_ns

    def _go_on(self, now_ns: int) -> None:
        """After an attempt in one of :data:`DOUBTS`: wait for the outcomes, or end a check that refused nothing."""
        if self.phase is RatePhase.ASKING:
            # So many at once need new connections, and come later than single ones.
            verdict_ns = max(self.refusal_delay.verdict_ns, VERDICT_NS)
            self.next_at_ns = now_ns + (verdict_ns if self.tally.recent >= EVIDENCE_N else 0)
            return
        # A slow test ends when chance should have refused three: a limit that was measured more than twice too high
        # refuses some of it, too, but fewer.
        enough = (STRIKES if self.phase is RatePhase.TRYING else ENDED) / (self.chance.share or self.chance.usual)
        if self.tally.recent_tried >= enough and self.tally.recent - self.tally.recent_lost > 1:  # not this one alone
            self._end_check(now_ns)

    def _doubted(self, now_ns: int, note: RateNote) -> None:
        """Take a refusal in one of :data:`DOUBTS`."""
        refused = self.tally.recent_refused
        if self.phase is RatePhase.ASKING:
            if self._is_limit:
                self._find_limit(now_ns)
        elif not self.tally.lost_all_to(note):  # something was admitted
            if refused >= STRIKES:  # enough to know the share; if it turns out larger, there is another check
                self._end_check(now_ns)
        elif refused >= max(STRIKES, -RARE / log(min(self.chance.share or self.chance.usual, SHARE_MAX))):
            self.chance.share = 0.0
            self._find_none(now_ns, note)

    def _end_check(self, now_ns: int) -> None:
        """Let the share be what was refused in a check. After a slow test, fewer than three refusals show none."""
        refused = self.tally.recent_refused
        if self.phase is RatePhase.TRYING and refused >= STRIKES:
            self._accept(now_ns)
            return
        is_known = self.phase is RatePhase.CHECKING and refused > 0
        self.chance.share = min(self.tally.recent_share, SHARE_MAX) if is_known else 0.0
        self._uphold(now_ns)

    @property
    def _refilled(self) -> float:
        """How many attempts a limit at the measured rate admits of the test so far."""
        return 1 + seconds(self.chance.since_ns, self.last_ns) * self.cycle.top / self.tally.mean

    @property
    def _is_limit(self) -> bool:
        """Whether a limit at the measured rate explains the test, if no more of it is refused."""
        return EVIDENCE_N - self.tally.recent_lost <= self._refilled

    def _end_asking(self, now_ns: int) -> None:
        """Decide what explains a test; where a stated limit has made it slow, that may need a check.

        Where chance is likelier, but not enough, the next refusal is reason for another test.
        """
        admitted, refused = EVIDENCE_N - self.tally.recent_lost, self.tally.recent_refused
        likelier = 0.0 if self._is_limit else self.chance.explains(admitted, refused, self._refilled)
        if likelier > RARE:
            self._accept(now_ns)
        elif self._is_limit or self.last_ns - self.chance.since_ns <= VERDICT_NS:
            self._find_limit(now_ns)
            if likelier > 0:
                self.chance.asked, self.chance.early = 0.0, EARLY_N - 1
        else:
            self._check(now_ns)

    @property
    def _is_alone(self) -> bool:
        """Whether no other process measures the rate: others take what a slow test leaves, or a test upward lacks."""
        return not self.common.rate

    def _find_limit(self, now_ns: int) -> None:
        """End a test that shows a limit. If its burst is small, it may hide chance, and a slow test follows.

        None follows the first test, where most limits show, or where it would take more attempts than a test at once.
        """
        if self._is_alone and self.chance.again and STRIKES / self.chance.usual <= EVIDENCE_N:
            self._check(now_ns, RatePhase.TRYING)
        else:
            self._uphold(now_ns)

    def _uphold(self, now_ns: int) -> None:
        """End a test or a check: go on at the measured rate."""
        self._make_up(now_ns)
        self.phase = RatePhase.RISING
        self._begin_cycle(now_ns, self.cycle.top, lengthen=False)

    def _make_up(self, now_ns: int) -> None:
        """At the end of a doubt, leave out of the measurements what was left unused of the measured rate."""
        if self.phase not in DOUBTS:
            return
        used = (self.tally.recent - self.tally.recent_lost) * self.tally.mean
        used_ns = round(used / self.cycle.top * NS)
        self._skip(max(now_ns - self.chance.since_ns - used_ns, 0))

    def _accept(self, now_ns: int) -> None:
        """Take the refusals for chance, and open again: speed is not their reason.

        One request that is refused for its own sake looks so, too. So the share is no more than the test has shown.
        """
        self._make_up(now_ns)
        self.chance.share = min(self.chance.usual, self.tally.recent_share, SHARE_MAX)
        self.chance.asked = 0.0
        self.phase = RatePhase.OPENING
        top, self.cycle = self.cycle.top, Cycle()
        self._go_at(now_ns, max(START * self.tally.mean, top))
        self.empty = self.test = Mark(now_ns, self.tally.admitted)

    def _find(self, now_ns: int, note: RateNote, *, only: bool) -> None:
        """Take a refusal. It sets the rate from now on."""
        admitted = note.total - self.tally.lost  # before this attempt
        if self.phase is RatePhase.OFF:
            self.phase = RatePhase.OPENING
            self.empty = Mark(note.sent_ns, admitted)
            self._go_at(now_ns, START * self.tally.mean)
        elif not self.tally.lost_all_to(note):
            self._weigh(now_ns, note, admitted, only=only)
        elif self.tally.recent_refused >= STRIKES or self.phase is RatePhase.BLOCKED:
            self._find_none(now_ns, note)

    def _weigh(self, now_ns: int, note: RateNote, admitted: float, *, only: bool) -> None:
        """Measure the rate, and ask again at once after a refusal that the last measurement does not explain."""
        is_early, before = self.phase is RatePhase.RISING, self.cycle.top
        self._measure(now_ns, note, admitted)
        is_early = is_early or (self._is_alone and self.cycle.top < FELL * before)
        if self.chance.share:
            self._check(now_ns)
        elif self.chance.is_due(self.cycle.top, early=is_early and only):
            self._ask(now_ns)

    def _find_none(self, now_ns: int, note: RateNote) -> None:
        """Wait: nothing is admitted."""
        wait_s = max((note.sent_ns - self.empty.at_ns) / NS, self.tally.mean / self.rate, VERDICT_MIN_NS / NS)
        wait_s /= 1 - BELOW  # as at the beginning of a cycle, so that a bucket refills
        known = max(self.cycle.top, self.common.rate)
        longest_s = max(WAIT_S, STRIKES * self.tally.mean / known) if known else STATED_MAX_S
        self._block(now_ns, min(wait_s, longest_s))

    def _measure(self, now_ns: int, note: RateNote, admitted: float) -> None:
        """Measure the rate: from what was admitted since the last empty instant, and in a test since its beginning."""
        span_s, since = seconds(self.empty.at_ns, note.sent_ns), max(admitted - self.empty.admitted, 0.0)
        # Nothing was left at the first refusal, and at this one less than one attempt: both are refill, with what went.
        found = (since + self.tally.mean) / span_s / (1 - self.chance.share)
        opening, late = self.phase is RatePhase.OPENING, self.phase is RatePhase.TESTING
        if opening:  # it has doubled within a second, and a burst has admitted the rest
            found = min(found, note.rate / 2)
        elif late:
            tested = (admitted - self.test.admitted) / seconds(self.test.at_ns, note.sent_ns)
            found = max(found, tested / (1 - self.chance.share))
            if found > FELL * self.cycle.top:
                found = max(found, self.cycle.top)
        if opening or since >= EVIDENCE_N * self.tally.mean:
            self.empty = Mark(note.sent_ns, admitted)
        self.phase = RatePhase.RISING
        self.cycle.span_s = span_s
        # No more than the rate of this attempt, which was refused.
        self._begin_cycle(now_ns, min(found, note.rate), lengthen=late)

    def _obey(self, now_ns: int, note: RateNote, asked_ns: int, *, again: bool) -> None:
        """Wait as a refusal states, if that is longer than the rate makes wait."""
        wait_s = asked_ns / NS
        own_s = (self.next_at_ns - now_ns) / NS + 2 * self.tally.mean / max(self.rate, self.cycle.top)
        if wait_s * self.block.stated_waits.share <= own_s:
            return
        if wait_s > STATED_MAX_S:
            wait_s = min(wait_s, max(WAIT_S, seconds(self.empty.at_ns, note.sent_ns)))
        elif wait_s > TESTED_MIN_S:
            wait_s = self.block.stated_waits.kept_s(wait_s, again=again)
        self._block(now_ns, wait_s)

    def _block(self, now_ns: int, wait_s: float) -> None:
        """Send the probe after ``wait_s``, and nothing before."""
        self._make_up(now_ns)
        self.phase = RatePhase.BLOCKED
        self._go_at(now_ns, self.tally.mean / wait_s)
        # When it ends within the wait stays unknown. The middle is wrong by half of the wait at most.
        self.block.until_ns = (now_ns + self.next_at_ns) // 2

    def _pass(self, now_ns: int) -> None:
        """End the blocked time, if the probe has not been refused in time, and a test."""
        asked = self.phase is RatePhase.ASKING and self.tally.recent >= EVIDENCE_N
        if asked and now_ns >= self.next_at_ns:
            self._end_asking(now_ns)
        probe = self.block.probe
        if probe is not None and now_ns >= probe.sent_ns + self.refusal_delay.verdict_ns:
            self._unblock(now_ns, probe)

    def _unblock(self, now_ns: int, probe: RateNote) -> None:
        """Measure the rate from the end of the last blocked time to the end of this one: ``probe`` is admitted."""
        admitted, mean = self.tally.admitted - probe.amount, self.tally.mean
        found = self.block.measure(admitted, mean) / (1 - self.chance.share)
        last = self.block.found
        self.cycle.period_s = self.block.over(admitted, found)
        if self.cycle.period_s:
            found = max(found, last)  # a late probe measures less
        found = max(found, self.common.rate)  # other processes may have had all of it
        self.empty = Mark(probe.sent_ns, admitted)
        self.phase = RatePhase.RISING
        self._begin_cycle(probe.sent_ns, found, lengthen=True)
        self.next_at_ns = max(self.next_at_ns, now_ns)

    def _begin_cycle(self, now_ns: int, found: float, *, lengthen: bool) -> None:
        """Begin a cycle at the rate that was ``found``; see :meth:`Cycle.begin`."""
        self.cycle.begin(found, lengthen=lengthen)
        self._go_at(now_ns, self.cycle.rate)

    def _go_at(self, now_ns: int, rate: float) -> None:
        """Go on at ``rate``, as an outcome has shown. The outcomes of the attempts before say nothing about it."""
        self.rate, self.block.probe = rate, None
        self.tally.cut()
        self.last_ns, self.next_at_ns = now_ns, now_ns + round(self.tally.mean / rate * NS)

    def _grow(self, now_ns: int, amount: float) -> None:
        """Raise the rate for the time that an attempt of ``amount`` has waited for it.

        A time without demand counts for nothing; in a doubt :meth:`_make_up` leaves it out.
        """
        waited_ns, self.last_ns = now_ns - self.last_ns, now_ns
        if self.phase in DOUBTS:
            return
        # An earlier attempt that was not sent may have set the next one back to before the last one.
        idle_ns = min(now_ns - self.next_at_ns, waited_ns)
        if idle_ns > LATE_NS + amount / self.rate / 2 * NS:
            self._skip(idle_ns)
        elif self.rate < FASTEST * amount:
            self._rise(now_ns, waited_ns / NS)

    def _rise(self, now_ns: int, waited_s: float) -> None:
        """Raise the rate for ``waited_s``, as the phase has it."""
        if self.phase is RatePhase.OPENING:
            # Once for each attempt at most: at a slow rate, one that has waited 10 s would raise it a thousandfold.
            self.rate *= 2 ** min(waited_s, 1.0)
        elif self.phase in (RatePhase.RISING, RatePhase.TESTING):
            if self.cycle.advance(waited_s, self.tally.mean):
                self.phase = RatePhase.TESTING
                self.test = Mark(now_ns, self.tally.admitted)
            self.rate = self.cycle.rate

    def _skip(self, idle_ns: int) -> None:
        """Leave a time without demand out of all measurements: less was admitted in it than the provider had."""
        self.empty, self.test = self.empty.later(idle_ns), self.test.later(idle_ns)
        self.block.end, self.block.until_ns = self.block.end.later(idle_ns), self.block.until_ns + idle_ns


def seconds(from_ns: int, to_ns: int) -> float:
    """The time between two instants, above 0."""
    return max(to_ns - from_ns, 1) / NS
