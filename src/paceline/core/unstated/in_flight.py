"""The most attempts in flight, where neither the user nor an answer states it.

It is found from refusals that only their number explains.

A bound on the number in flight leaves one trace that no rate leaves: every refused attempt had more others in flight
than every admitted one. :class:`InFlightBound` compares these numbers. There is no bound until three refusals show that
trace, and one admitted attempt with as many others in flight as a refused one is proof against it. A bound that was
found grows by one while it is full, and falls with a refusal.

What counts as in flight
    An attempt that will be refused holds no place at the provider. When an attempt is refused, the later attempts whose
    outcome is not known had one less in flight than was counted. One that was answered may have ended before or after
    an attempt that was on its way at that time. So of each attempt two numbers are kept. A refused attempt counts with
    the larger one, and an admitted attempt with the smaller one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from math import inf

from paceline.core.unstated.chance import RECENT_N
from paceline.core.unstated.delays import RefusalDelay
from paceline.core.unstated.rate import STRIKES, MeasuredRate, RateNote

FULL_N, FULL_MAX_N = 4, 120
"""A bound is tested after ``FULL_N`` attempts were admitted that filled it, or after as many as it is, if that is more.
The number doubles with each refusal, up to ``FULL_MAX_N``. A test costs one refusal, so that in the long run one
attempt in 120 is refused."""

ROW_MAX = 4
"""The bound explains so many refusals in a row, and no more. It falls with each of them, so another reason is likelier
then."""


class InFlightNote:
    """What is kept of an attempt until its outcome.

    Attributes:
        number: How many attempts were sent until then, with this one.
        sent_ns: When it was sent.
        most: How many others were in flight, at most.
        least: How many others were in flight, at least.
        is_known: Whether it is known if it was admitted.
        answered_count: How many attempts had been answered when it was sent.
        is_behind: Whether the server may have been at work on attempts that had timed out.
    """

    __slots__ = ("answered_count", "is_behind", "is_known", "least", "most", "number", "sent_ns")

    def __init__(self, number: int, sent_ns: int, others: int, answered_count: int) -> None:
        self.number, self.sent_ns, self.answered_count = number, sent_ns, answered_count
        self.most = self.least = others
        self.is_known = self.is_behind = False


class Flight:
    """The attempts in flight, and how many others each of them had.

    Attributes:
        count: How many attempts there were.
        answered_count: How many of them were answered.
        in_flight: How many are in flight.
        pending: The attempts since the oldest one that is neither refused nor admitted: of 2 s at most.
        refusal_delay: After which time an attempt is admitted.
        lasts_ns: How long an attempt is in flight until its answer, on average of about the last ``RECENT_N``; 0 before
            the first answer.
    """

    def __init__(self) -> None:
        self.count = self.answered_count = self.in_flight = self.lasts_ns = 0
        self.pending: deque[InFlightNote] = deque()
        self.refusal_delay = RefusalDelay()

    def sent(self, now_ns: int) -> InFlightNote:
        """Count an attempt that is sent now."""
        self.count += 1
        note = InFlightNote(self.count, now_ns, self.in_flight, self.answered_count)
        self.in_flight += 1
        self.pending.append(note)
        return note

    def lost(self, note: InFlightNote) -> None:
        """Take back an attempt: it was not sent after all, or was refused.

        So the later ones had one less in flight, too.
        """
        self.in_flight -= 1
        note.is_known = True
        for other in reversed(self.pending):
            if other.number <= note.number:
                break
            other.most -= 1
            other.least -= 1

    def ended(self, now_ns: int, *, answered: bool) -> None:
        """Count the end of an admitted attempt: its answer, or its time-out."""
        self.in_flight -= 1
        self.answered_count += answered
        for other in reversed(self.pending):
            if now_ns - other.sent_ns >= self.refusal_delay.slowest_ns:  # the way there and back
                break
            other.least -= 1  # it may have come to the provider after this attempt had ended

    def lasted(self, took_ns: int) -> None:
        """Count how long an attempt was in flight until its answer, after :meth:`ended`."""
        self.lasts_ns += (took_ns - self.lasts_ns) // min(self.answered_count, RECENT_N)

    @property
    def refuses_soon(self) -> bool:
        """Whether refusals come ten times sooner than answers, as far as is known.

        Else many answers come on the way there and back. Then each refused attempt may have had more others than every
        admitted one, also where servers refuse by chance.
        """
        return not self.lasts_ns or 10 * self.refusal_delay.slowest_ns <= self.lasts_ns

    def judged(self, now_ns: int) -> Iterator[InFlightNote]:
        """The attempts whose outcome is known now, as they have not been refused in time."""
        late_ns = now_ns - self.refusal_delay.verdict_ns
        while self.pending and (self.pending[0].is_known or self.pending[0].sent_ns < late_ns):
            yield self.pending.popleft()


class Admitted:
    """The attempts that were admitted, and the most others that one of them had in flight, lately.

    Attributes:
        count: How many there were.
        highest: The most others, of the last ones, up to ``RECENT_N``.
        before: The same of the ``RECENT_N`` before these.
    """

    def __init__(self) -> None:
        self.count = self.highest = self.before = 0

    @property
    def most(self) -> int:
        """The most others of all of these."""
        return max(self.highest, self.before)

    def add(self, *, renews: bool) -> None:
        """Count one; forget the oldest ones in time, if that ``renews``."""
        self.count += 1
        if renews and self.count % RECENT_N == 0:
            self.before, self.highest = self.highest, 0

    def forget(self) -> None:
        """Forget what they had in flight: it says nothing any more."""
        self.highest = self.before = 0


class InFlightBound:
    """A bound on the attempts in flight, found from outcomes.

    Attributes:
        flight: The attempts in flight.
        size: The most of them; infinite while no bound is known.
        admitted: The attempts that were admitted; what they had in flight counts since the last change.
        border: The least others that an attempt had in flight and was refused; infinite for none.
        witnesses: How many refusals only the number in flight explains.
        needed: How many of them it takes to set a bound.
        between: Whether an attempt was admitted since the last of them. One empty bucket, too, refuses several attempts
            in a row, so that only the first of them counts.
        full_count: How many attempts were admitted that filled the bound, since it was last changed.
        full_needed: How many of them it takes to test a larger one.
        step: By how much it grows next.
        cut_count: How many attempts had been sent when a refusal last changed it.
        is_of_rate: Whether refusals for rate may show it. Refusals of full servers do not count from then on.
        row: How many refusals in a row have lowered it: no attempt that filled it was admitted between them.
    """

    def __init__(self) -> None:
        self.flight, self.admitted = Flight(), Admitted()
        self.size = self.border = inf
        self.witnesses, self.between, self.cut_count, self.needed = 0, True, 0, STRIKES
        self.full_count, self.full_needed, self.step, self.row = 0, FULL_N, 1, 0
        self.is_of_rate = False

    def sent(self, now_ns: int) -> InFlightNote:
        """Count an attempt that is sent now."""
        self._judge(now_ns)
        return self.flight.sent(now_ns)

    def ended(self, now_ns: int, note: InFlightNote, *, answered: bool) -> None:
        """Count the end of an attempt that was not refused: its answer, or its time-out."""
        self._admit(note)  # before the answer changes what it had
        self.flight.ended(now_ns, answered=answered)
        if answered:
            self.flight.lasted(now_ns - note.sent_ns)

    def refused(self, now_ns: int, note: InFlightNote) -> bool:
        """Count a refusal; whether the known bound explains it. The bound is lowered then."""
        self.lost(now_ns, note)
        if not self.explains(note):
            return False
        if note.number <= self.cut_count:
            return True  # it was in flight when the bound was lowered
        self.row += 1
        self.full_needed = min(2 * self.full_needed, FULL_MAX_N)
        # With itself, one more than `most` were in flight, and that was too many.
        self._set(min(note.most, self.size), note.most)
        return True

    def lost(self, now_ns: int, note: InFlightNote) -> None:
        """Count a refusal that says nothing about the number in flight."""
        self._judge(now_ns)
        self.flight.lost(note)
        self.flight.refusal_delay.add(now_ns - note.sent_ns)

    def explains(self, note: InFlightNote) -> bool:
        """Whether the known bound explains the refusal of an attempt."""
        if self.size == inf or not note.most or self.row >= ROW_MAX:
            return False
        return note.number <= self.cut_count or self.may_explain(note)

    def may_explain(self, note: InFlightNote) -> bool:
        """Whether a refused attempt had more others in flight than every one that was lately admitted."""
        return note.most > self.admitted.most

    def add_witness(self, note: InFlightNote) -> bool:
        """Count a refusal that may show a bound; whether it is the last one that it takes to set it.

        The rate may have been lowered for it, too: only with the third such refusal the number in flight is likelier.

        Args:
            note: Of the attempt, after :meth:`refused`.
        """
        if note.most <= self.admitted.most:
            self._refute()
            return False
        if self.between:
            self.witnesses, self.between = self.witnesses + 1, False
        self.border = min(self.border, note.most)
        if self.witnesses < self.needed:
            return False
        self.full_needed, self.row = FULL_N, 0
        self._set(self.border, self.border)
        return True

    def named(self, now_ns: int, note: InFlightNote) -> None:
        """Count a refusal that names the number in flight as its reason: it sets the bound at once."""
        if not self.refused(now_ns, note) and note.most and note.number > self.cut_count:
            self.full_needed, self.row = FULL_N, 0
            self._set(note.most, note.most)

    def refused_for_rate(self) -> None:
        """Note that a refusal for rate may show the bound. Full servers refuse by chance, then."""
        if not self.is_of_rate:
            self.is_of_rate, self.needed = True, STRIKES

    @property
    def counts_full(self) -> bool:
        """Whether a refusal of full servers says something about the number in flight."""
        return self.flight.refuses_soon and not self.is_of_rate

    def refused_by_full(self, now_ns: int, note: InFlightNote) -> bool:
        """Count a refusal of full servers, which refuse by chance, too; whether the number in flight is the reason.

        It says nothing about that number where :attr:`counts_full` is false.
        """
        if not self.counts_full:
            self.lost(now_ns, note)
            return False
        if self.refused(now_ns, note):
            return True
        self._doubt()
        return self.add_witness(note)

    def _doubt(self) -> None:
        """Forget a bound if it does not explain refusals of full servers.

        One of them may have overtaken a test of the bound, so it takes two. The next bound needs twice the evidence.
        """
        if self.size < inf == self.border:
            self.needed *= 2
            self.forget()

    def forget(self) -> None:
        """Bound nothing until refusals show a bound again: they have come by chance."""
        if self.size < inf:
            self._set(inf, inf)

    def _judge(self, now_ns: int) -> None:
        """Count the attempts as admitted that have not been refused in time."""
        for note in self.flight.judged(now_ns):
            self._admit(note)

    def _admit(self, note: InFlightNote) -> None:
        """Count an attempt as admitted, unless its outcome is known."""
        if note.is_known:
            return
        note.is_known = self.between = True
        self.admitted.add(renews=not self.witnesses)
        if note.least >= self.border:
            self._refute()
        if note.number > self.cut_count:
            self.admitted.highest = max(self.admitted.highest, note.least)
            if note.most + 1 >= self.size:
                self.row, self.full_count = 0, self.full_count + 1
                self._grow()

    def _refute(self) -> None:
        """Forget what refusals have shown: an attempt with as many in flight was admitted."""
        self.border, self.witnesses = inf, 0

    def _grow(self) -> None:
        """Raise a bound that was full for long enough: soon up to the border, and later by one beyond it, as a test."""
        is_below = self.size < self.border
        if self.full_count >= (self.size if is_below else max(self.size, self.full_needed)):
            self.size = min(self.size + self.step, self.border) if is_below else self.size + self.step
            self.step = 1 if self.size == self.border else 2 * self.step
            self.full_count = 0

    def _set(self, size: float, border: float) -> None:
        """Change the bound after a refusal. Outcomes of the attempts before say nothing about it."""
        self.size, self.border, self.witnesses = size, border, 0
        self.cut_count, self.full_count, self.step = self.flight.count, 0, 1
        self.admitted.forget()


def blame(
    now_ns: int,
    rate: MeasuredRate,
    rate_note: RateNote,
    bound: InFlightBound,
    bound_note: InFlightNote,
    asked_ns: int | None = None,
) -> bool:
    """Learn from a refusal that no stated limit explains: it is the number in flight, or the rate.

    Args:
        now_ns: The present.
        rate: The rate of the unit that the refusal names, or of requests.
        rate_note: Of the attempt.
        bound: The bound on the number in flight.
        bound_note: Of the attempt.
        asked_ns: The wait that the refusal states.

    Returns:
        Whether the number in flight explains it.
    """
    if rate.chance.share:
        bound.forget()  # it was found from such refusals
    if bound.refused(now_ns, bound_note):
        rate.explained(now_ns, rate_note)
        return True
    only = not bound.may_explain(bound_note)
    is_bound = rate.refused(now_ns, rate_note, asked_ns, only=only) and bound.add_witness(bound_note)
    if is_bound:
        rate.reopen(now_ns)
    return is_bound
