"""The evidence: the last attempts of a pool in one unit, when each went, with how many others in flight, and what became of it.

Nothing is decided here.
"""

from __future__ import annotations

from collections import deque

from paceline.core.quota import NS

LOG_N = 256
"""So many attempts are remembered, by all beliefs. With 128, a counter that holds 100 is out of sight before its second period ends, and
is paced as a rate: twice the refusals in "100 in 15 s". What is older may be from before a change at the provider."""

FIRST_NS, LONGEST_NS, SHORTEST_NS = NS, 2 * NS, NS // 20
"""A provider refuses before it works, so an attempt that was not refused within twice the slowest refusal is admitted. This is that time
before the first refusal, and its bounds: the network delays an attempt, too, and an overloaded provider must not stop the learning."""


class Attempt:
    """One attempt.

    Attributes:
        number: The attempts until then, with this one.
        sent_ns: When it was sent.
        amount: Its cost.
        rate: The rate at which it went, per second.
        before: What was admitted before it, as far as that is known now.
        most: The others in flight, at most. An attempt that will be refused holds no place.
        least: The others in flight, at least. One that was answered may have ended before this one came.
        admitted: Whether it was admitted; ``None``: that is not known yet.
        counts: Whether its outcome is evidence: it was sent, and no other reason explains it.
        stated_ns: The wait that its refusal states; 0 for none.
    """

    __slots__ = ("admitted", "amount", "before", "counts", "least", "most", "number", "rate", "sent_ns", "stated_ns")

    def __init__(self, number: int, sent_ns: int, amount: float, rate: float, before: float, others: int) -> None:
        self.number, self.sent_ns, self.amount, self.rate, self.before = number, sent_ns, amount, rate, before
        self.most = self.least = others
        self.admitted: bool | None = None
        self.counts, self.stated_ns = True, 0


class Evidence:
    """The last attempts.

    Attributes:
        log: The attempts, the oldest first.
        pending: The last attempts, since the oldest one whose outcome is not known.
        sent_count: How many there were.
        sent: What they cost.
        lost: The cost of the attempts that were not admitted.
        in_flight: How many are in flight.
        slowest_ns: The time from an attempt to its refusal, of the slowest one. It fades. It is 0 before the first refusal.
    """

    __slots__ = ("in_flight", "log", "lost", "pending", "sent", "sent_count", "slowest_ns")

    def __init__(self) -> None:
        self.log: deque[Attempt] = deque()
        self.pending: deque[Attempt] = deque()
        self.sent_count = self.in_flight = self.slowest_ns = 0
        self.sent = self.lost = 0.0

    @property
    def mean(self) -> float:
        """The mean cost of an attempt."""
        return self.sent / self.sent_count if self.sent_count else 1.0

    @property
    def admitted(self) -> float:
        """What was sent, and not refused so far."""
        return self.sent - self.lost

    @property
    def verdict_ns(self) -> int:
        """After this time, an attempt that was not refused is admitted."""
        return min(max(2 * self.slowest_ns, SHORTEST_NS), LONGEST_NS) if self.slowest_ns else FIRST_NS

    def add(self, now_ns: int, amount: float, rate: float) -> Attempt:
        """Note an attempt that is sent now."""
        self.judge(now_ns)
        attempt = Attempt(self.sent_count + 1, now_ns, amount, rate, self.admitted, self.in_flight)
        self.sent_count, self.sent, self.in_flight = attempt.number, self.sent + amount, self.in_flight + 1
        self.log.append(attempt)
        self.pending.append(attempt)
        if len(self.log) > LOG_N and self.log[0] is not self.pending[0]:
            self.log.popleft()
        return attempt

    def answered(self, now_ns: int, attempt: Attempt) -> None:
        """Note an answer that is no refusal."""
        self.in_flight -= 1
        if attempt.admitted is None:
            attempt.admitted = True
        for other in reversed(self.pending):
            if now_ns - other.sent_ns >= self.verdict_ns // 2:  # it came to the provider before this answer left it
                break
            other.least -= other is not attempt

    def refused(self, now_ns: int, attempt: Attempt, *, counts: bool = True) -> None:
        """Note a refusal. Without ``counts`` it has another reason, or the attempt was never sent."""
        self.in_flight -= 1
        self.lost += attempt.amount
        attempt.admitted, attempt.counts = False, counts
        self.slowest_ns = max(self.slowest_ns - self.slowest_ns // 100, now_ns - attempt.sent_ns)
        for other in reversed(self.pending):
            if other.number <= attempt.number:
                break
            other.most -= 1
            other.least -= 1
            other.before -= attempt.amount

    def judge(self, now_ns: int) -> None:
        """Take the attempts for admitted that were not refused in time."""
        until_ns, pending = now_ns - self.verdict_ns, self.pending
        while pending and (pending[0].admitted is not None or pending[0].sent_ns < until_ns):
            attempt = pending.popleft()
            if attempt.admitted is None:
                attempt.admitted = True

    def known(self, now_ns: int) -> list[Attempt]:
        """The attempts whose outcome is known, and is evidence."""
        self.judge(now_ns)
        return [one for one in self.log if one.admitted is not None and one.counts]
