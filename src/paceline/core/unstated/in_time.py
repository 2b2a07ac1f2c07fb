"""The most attempts in flight that a server answers in time, where neither the user nor an answer states it.

A server of one's own queues the attempts that it cannot work on. If more are in flight than it has slots, the others
wait, until their callers give up and the work on them is lost. Two signs show that: attempts time out although fewer
were answered in their time than were in flight, or the server refuses because its queue is full. There is no bound
before such a sign, so a host without a limit is not slowed down.

The size
    By Little's law, the number of attempts at work is the answers per second, times the time that an answer takes.
    While too many are in flight, the answers per second are the most that the server can give. While few are, an answer
    takes as long as its work. After a sign only half as many are in flight, and the product is the size.

A test
    More are in flight for a round. Their answers per second, times the time of an answer before, are the size from then
    on. So it grows only while the answers per second grow.
"""

from __future__ import annotations

from math import ceil, inf, sqrt

from paceline.core.quota import FAR_NS
from paceline.core.unstated.chance import LASTS_NS
from paceline.core.unstated.in_flight import FULL_MAX_N, FULL_N, Flight, InFlightNote
from paceline.core.unstated.rate import STRIKES

LESS = 2
"""So many times fewer are in flight after a sign than were answered within the time-out. By Little's law answers take
half of the time-out then. A time-out counts as evidence if fewer were answered than were in flight, divided by the root
of this: hosts at which a third times out by itself answer more."""

MORE = 1.5
"""So many times more are in flight in a test. Answers that take half of the time-out then take three quarters of it. If
they take longer, fewer more are in flight, so that they take no more than that. The test has shown more than noise if
the answers per second rose by more than the root of this: half of the way, as a ratio."""


class TimeOuts:
    """The evidence of attempts that have timed out.

    Attributes:
        weight: How much there is.
        first: How many were answered in the time of the first of them.
        until_ns: Until when they say nothing, because an attempt that was alone has timed out, too.
        lasts_ns: How long that is the next time.
    """

    def __init__(self) -> None:
        self.weight, self.first, self.until_ns, self.lasts_ns = 0.0, 0, 0, LASTS_NS

    def add(self, answered: int, in_flight: float) -> bool:
        """Count one, with the mean number in flight at its beginning and its end; whether there is enough of them."""
        self.first = self.first if self.weight else answered
        self.weight = max(self.weight + 1 - sqrt(LESS) * answered / in_flight, 0.0)
        return self.weight >= STRIKES

    def refute(self, now_ns: int) -> None:
        """Heed none for a while."""
        self.until_ns, self.lasts_ns = now_ns + self.lasts_ns, 2 * self.lasts_ns


class Round:
    """The attempts of a round, as far as they filled the bound.

    Attributes:
        cut_count: How many attempts had been sent when it began.
        sum_ns: The sum of their times in flight.
        count: How many of them were answered.
    """

    def __init__(self, cut_count: int = 0) -> None:
        self.cut_count, self.sum_ns, self.count = cut_count, 0, 0


class InTimeBound:
    """A bound on the attempts in flight, found from time-outs and from full queues.

    Args:
        flight: Counts the attempts in flight.

    Attributes:
        size: The most attempts in flight; infinite while no bound is known.
        usual: The size beside tests.
        most: The size in the present test, or what was in flight at the last sign.
        full: How many have filled the queue of the server; infinite if none have.
        is_new: Whether there was no round since the last sign.
        last_ns: The time of the last answer.
        rate: The answers per nanosecond, lately; from a sign to the end of the first round, at that sign.
        time_outs: The evidence of the attempts that have timed out.
        timed_out_ns: The time after which callers give up; 0 before a sign by time-outs.
        busy_ns: When the server will have worked on all that has timed out: it may not know of that. 0 for nothing.
        sign_count: How many attempts had been sent at the last sign.
        round: The present round.
        took_ns: The mean time of an answer before the present test.
        rest: How many rounds pass before the next test.
    """

    def __init__(self, flight: Flight) -> None:
        self._flight, self.time_outs, self.round = flight, TimeOuts(), Round()
        self.size = self.usual = self.most = self.full = inf
        self.is_new, self.rest, self.rate, self.took_ns = False, 1, 0.0, 0.0
        self.busy_ns = self.sign_count = self.last_ns = self.timed_out_ns = 0

    def earliest_ns(self, now_ns: int, ahead: float) -> int:
        """When an attempt may go after ``ahead`` others; ``FAR_NS``: when one in flight ends."""
        in_flight = ceil(self._flight.in_flight + ahead)
        if self.size == inf or not in_flight:
            return now_ns
        if 0 < self.busy_ns <= now_ns:  # until then others were slowed down
            self.busy_ns = 0
            self._resize(self.size)
        if in_flight >= self.size:
            return FAR_NS
        # The server works on what has timed out one after the other. The last of its places is free at `busy_ns`, and
        # each one before that by an answer earlier.
        return max(self.busy_ns - round((self.size - in_flight - 1) / (self.rate or inf)), now_ns)

    def answered(self, now_ns: int, note: InFlightNote) -> None:
        """Count an answer."""
        took_ns = max(now_ns - note.sent_ns, 1)
        self.last_ns = took_ns
        if note.number > self.sign_count:
            self.busy_ns = 0  # what came before it has left
        if not (self.is_new and (self.timed_out_ns or note.number > self.round.cut_count)):
            answered = self._flight.answered_count - note.answered_count
            if LESS**2 * answered >= note.most:  # else too few were answered meanwhile, and chance decides
                self.rate = max(answered / took_ns, self.rate if self.is_new else 0.0)
        if self._fills(note):
            self.round.sum_ns, self.round.count = self.round.sum_ns + took_ns, self.round.count + 1
            rounds = self.rest if self.size == self.usual and not self.is_new else 1
            if self.round.count >= rounds * max(self.size, FULL_N):
                self._end_round(self.round.sum_ns / self.round.count)

    def timed_out(self, now_ns: int, note: InFlightNote) -> bool:
        """Count an attempt whose caller has given up; whether the number in flight was the reason, or may be."""
        took_ns, answered = max(now_ns - note.sent_ns, 1), self._flight.answered_count - note.answered_count
        # One that is behind what has timed out has waited for it, and says nothing of the present size.
        if self.size == inf or (note.number > self.sign_count and not note.is_behind):
            # Without its time, a round that times out by half would seem as quick as its answers.
            self.round.sum_ns += took_ns if self._fills(note) else 0
            if not note.most:
                self._refute(now_ns)
            # If the last answer was quick, the server is down, or this request is a long one.
            if not note.most or self.last_ns < took_ns // LESS or now_ns < self.time_outs.until_ns:
                return False
            if not self.time_outs.add(answered, 1 + (note.most + self._flight.in_flight) / 2):
                return self.time_outs.weight > 0
            self._begin(self.time_outs.first / took_ns, self.time_outs.first / LESS, note.most)
        elif not self.timed_out_ns and answered / LESS < self.usual:  # so far only a full queue has shown it
            self.usual = max(answered // LESS, 1)
            self._resize(self.usual)
        self.timed_out_ns = took_ns
        if self.rate:
            self.busy_ns = max(self.busy_ns, now_ns) + round(1 / self.rate)
        return True

    def refused(self, note: InFlightNote) -> None:
        """Count a refusal because the queue of the server is full."""
        # A full queue refuses many at a time. Those that were sent before the size changed count once with the first.
        if not note.most or note.number <= self.round.cut_count:
            return
        self.full = note.most
        if self.size > self.usual:  # in a test
            self._settle(self.usual)
        else:
            self._begin(self.rate, note.most / LESS, note.most)

    def _fills(self, note: InFlightNote) -> bool:
        """Whether an attempt counts in this round."""
        # With fewer in flight an answer may be quicker, and so says nothing of this size.
        return self.size <= note.most + 1 and note.number > self.round.cut_count

    def _begin(self, rate: float, size: float, most: float) -> None:
        """After a sign that at ``rate``, with ``most`` others in flight, some only wait: go on with ``size``."""
        self.is_new, self.rest, self.sign_count = True, 1, self._flight.count
        self.rate, self.most, self.usual, self.time_outs.weight = rate, most, max(round(size), 1), 0.0
        self._resize(self.usual)

    def _end_round(self, mean_ns: float) -> None:
        """Decide at the end of a round, in which an answer took ``mean_ns``."""
        if self.size > self.usual:
            if self._settle(self.size / mean_ns * self.took_ns):
                self._test(mean_ns)
        elif self.is_new:
            self._settle(self.rate * mean_ns)
        else:
            self._test(mean_ns)

    def _settle(self, useful: float) -> bool:
        """Let ``useful`` be the size, as far as attempts have shown; whether it is more than noise.

        A bound of 1.01 would let two go, and what two show would be compared with one: so it is rounded.
        """
        useful = min(max(round(useful), self.usual), self.most)
        is_more = useful > sqrt(self.size * self.usual)
        self.rest = 1 if is_more or self.is_new else min(2 * self.rest, FULL_MAX_N // FULL_N)
        self.is_new, self.usual = False, useful
        self._resize(useful)
        return is_more

    def _test(self, mean_ns: float) -> None:
        """Test more, as far as answers, which take ``mean_ns``, cannot come near the time-out; else one more."""
        more = MORE * min((self.timed_out_ns or inf) / (LESS * mean_ns), 1.0)
        self.took_ns, self.most = mean_ns, max(min(ceil(self.usual * more), self.full), self.usual + 1)
        self._resize(self.most)

    def _resize(self, size: float) -> None:
        """Begin a round with ``size``."""
        self.size, self.round = size, Round(self._flight.count)

    def _refute(self, now_ns: int) -> None:
        """Bound nothing for a while: an attempt that was alone has timed out."""
        if self.size < inf:
            self.time_outs.refute(now_ns)
            self.timed_out_ns, self.busy_ns, self.is_new = 0, 0, False
            self.usual = inf
            self._resize(inf)
