"""Whether full servers refuse for a rate, or a share of the attempts by chance.

Chance refuses the same share at any speed, so that a refused attempt is best tried again at once. A rate admits the
same number at any speed: then such retries are refused, up to the share that
:class:`~paceline.pacing.retry.RetryBudget` allows. So where nearly that share is refused, the next attempts go at the
speed at which the last ones were admitted. If many of them are still refused, chance is the reason.
"""

from __future__ import annotations

from math import log

from paceline.core.quota import NS

SHARE, MORE, ALARM = 0.55, 0.75, 8.0
"""A rate may be the reason if ``MORE`` of the attempts are refused rather than ``SHARE``, by a likelihood ratio of ``e
** ALARM``: 30 in a row, or three of four in a hundred. Servers that refuse half of the attempts by chance do not look
so."""

LEAST_NS, LEAST_N = NS, 4
"""The rate is known after this time, in which so many attempts were admitted."""

STILL_N, STILL = 5, 0.35
"""Chance is the reason if so many attempts, and more than this share, are refused at that rate."""

LASTS_NS = 600 * NS
"""How long the answer holds: a rate goes on, and an outage ends. Each further one holds twice as long."""


class Shedding:
    """What the refusals of a pool for want of capacity have shown.

    Attributes:
        sent: How many attempts there were.
        lost: How many attempts were refused so.
        last: The number of the last one.
        over: The evidence for a rate: the logarithm of its likelihood ratio.
        since_ns: Since when there is evidence.
        admitted: How many attempts had been admitted by then.
        is_rate: Whether a rate is the reason.
        until_ns: Until when the last answer holds.
        lasts_ns: How long the next one holds.
        tried: The number of the last attempt before it was found.
        tried_lost: How many attempts were refused since.
    """

    __slots__ = (
        "admitted", "is_rate", "last", "lasts_ns", "lost", "over", "sent", "since_ns", "tried", "tried_lost",
        "until_ns",
    )  # fmt: skip

    def __init__(self) -> None:
        self.sent = self.lost = self.last = self.since_ns = self.admitted = self.until_ns = self.tried = (
            self.tried_lost
        ) = 0
        self.over, self.is_rate, self.lasts_ns = 0.0, False, LASTS_NS

    def refused(self, now_ns: int, number: int) -> float:
        """Count the refusal of an attempt, and the attempts before that one as admitted.

        Returns:
            The rate that it shows, per second, if it is the first one to show a rate; else 0.
        """
        self.lost += 1
        if self.is_rate and now_ns < self.until_ns:
            if number > self.tried:
                self.tried_lost += 1
                if self.tried_lost >= STILL_N and self.tried_lost > STILL * (number - self.tried):
                    self.end(now_ns)
            return 0.0
        self.is_rate = False
        between, self.last = max(number - self.last - 1, 0), max(self.last, number)
        self.over -= between * log((1 - SHARE) / (1 - MORE))
        admitted = self.last - self.lost
        if self.over <= 0:
            self.over, self.since_ns, self.admitted = 0.0, now_ns, admitted
        self.over += log(MORE / SHARE)
        self.admitted = min(self.admitted, admitted)  # refusals come in any order
        since_ns, since = now_ns - self.since_ns, admitted - self.admitted
        if self.over < ALARM or now_ns < self.until_ns or since_ns < LEAST_NS or since < LEAST_N:
            return 0.0
        self.is_rate, self.tried, self.tried_lost = True, self.sent, 0
        self.over, self.until_ns = 0.0, now_ns + self.lasts_ns
        self.lasts_ns *= 2
        return since / since_ns * NS

    def end(self, now_ns: int) -> None:
        """Take chance for the reason."""
        self.is_rate, self.until_ns = False, now_ns + self.lasts_ns
