"""The silence of a pool: its attempts get no answer, so that it sends one probe after another until an answer comes.

:class:`Silence` decides when a pool is silent. It begins a pause of the capacity (:mod:`paceline.core.pause`) for each
probe, and lifts its own pause when an answer comes.
"""

from __future__ import annotations

from collections import deque

from paceline.core.capacity import Capacity
from paceline.core.pause import PROBE_NS
from paceline.core.quota import FAR_NS, NS
from paceline.core.results import NO_ANSWER

SILENCE_NS, SILENT_MIN, USUAL_TIMES = NS, 5, 2
"""A pool is silent when no answer has come for so long, and so many attempts have taken longer than that and than so
many times the usual time to an answer. Then one attempt goes every ``PROBE_NS``."""

SILENT_MAX_NS = 30 * NS
"""A silent pool sends at full speed again after this time: its answers take longer than before."""


class Silence:
    """Whether the attempts of a pool get answers.

    It acts at once, because each request that is sent meanwhile may be refused later, and says so when a probe has no
    answer either.

    Args:
        capacity: The capacity of the pool.
        notices: Takes what is to be logged.
        watches: Whether the pool can be silent: its attempts go to one server.

    Attributes:
        since_ns: Since when the pool sends only probes; 0 while answers come.
        check_ns: When :meth:`check` must be called before the next grant.
        usual_ns: The usual time to an answer: the longest of the recent ones; 0 before the first one with a true cost.
    """

    def __init__(self, capacity: Capacity, notices: deque[str], *, watches: bool = True) -> None:
        self._capacity, self._notices, self._watches = capacity, notices, watches
        self._answered_ns = self.since_ns = self.usual_ns = 0
        self.check_ns = FAR_NS
        self._told = False  # of the present silence: a short one, which the first probe ends, is not worth a line

    def settled(self, now_ns: int, took_ns: int) -> None:
        """Count an answer with its true cost, which came after ``took_ns``."""
        usual_ns = self.usual_ns
        # It rises at once and falls by a 64th, because one quick answer doesn't make long ones unlikely.
        self.usual_ns = took_ns if took_ns > usual_ns else usual_ns - (usual_ns - took_ns >> 6)
        self._answered_ns, self.check_ns = now_ns, now_ns + SILENCE_NS if self._watches else FAR_NS
        if self.since_ns:
            self._end(now_ns)

    def answered(self, now_ns: int) -> None:
        """Count an answer that is a refusal, or that has begun."""
        self._answered_ns = now_ns
        if self.since_ns:
            self._end(now_ns)

    def check(self, now_ns: int) -> None:
        """Begin a silence, or the next probe of one, or end one that is too long."""
        quiet_ns = now_ns - self._answered_ns
        if self.since_ns:  # the last probe has no answer
            if not self._told:
                self._told = True
                self._notices.append(
                    f"no answer for {quiet_ns / NS:.1f} s, with {self._capacity.ledger.in_flight:,} requests in flight"
                    f" (the longest recent answer took {self.usual_ns / NS:.1f} s); sending one request every"
                    f" {PROBE_NS // NS} s until an answer comes"
                )
            if now_ns - self.since_ns < SILENT_MAX_NS:
                self._probe(now_ns)
            else:
                # Answers take longer than before. The next one with its true cost says how long.
                self.since_ns, self.check_ns = 0, FAR_NS
                self._notices.append(f"no answer for {quiet_ns / NS:.0f} s; sending at full speed again")
            return
        pause_ns = self._capacity.cool_down_ns(now_ns)
        # A pause has a probe of its own, which shows the same.
        self.check_ns = now_ns + pause_ns if pause_ns > 0 else self._silent_ns(now_ns)
        if self.check_ns <= now_ns:
            self.since_ns, self._told = now_ns, False
            self._probe(now_ns)
        assert self.check_ns > now_ns

    def _silent_ns(self, now_ns: int) -> int:
        """When the pool is silent, or may be, if no answer comes before."""
        # Not those that were sent long before the last answer: their permits may have been forgotten.
        since_ns = self._answered_ns - self.usual_ns
        sent_ns = sorted(
            one.granted_ns
            for one in self._capacity.ledger.open_reservations
            if one.granted_ns >= since_ns and not one.begun
        )
        if len(sent_ns) < SILENT_MIN:
            return now_ns + SILENCE_NS
        return sent_ns[SILENT_MIN - 1] + max(SILENCE_NS, USUAL_TIMES * self.usual_ns)

    def _probe(self, now_ns: int) -> None:
        """Begin a pause that ends now, so that one attempt goes as its probe.

        Look again when it should have been answered.
        """
        self._capacity.pause(now_ns, NO_ANSWER)
        self.check_ns = now_ns + PROBE_NS

    def _end(self, now_ns: int) -> None:
        """Send at full speed again: an answer has come."""
        self.since_ns = 0
        # If a longer pause of another reason has begun, it stays.
        if self._capacity.pause_reason == NO_ANSWER:
            self._capacity.lift(now_ns, now_ns + self._capacity.cool_down_ns(now_ns))
        # The network has held what is in flight, and the provider's buckets were full meanwhile.
        self._capacity.arrive(now_ns)
        if self._told:
            self._notices.append("answers come again")
