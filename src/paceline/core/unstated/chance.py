"""The share of the attempts that a provider refuses by chance, at any rate.

A refusal that a limit cannot give contradicts the measured rate: a higher one was proven just before. Either the
provider has become slower, or it refuses a share of the attempts by chance. The attempts after it prove a rate again,
and then a check goes below that one. A limit refuses nothing there. If several attempts are refused in a check, such a
share of refusals is no measurement from then on. A larger share is one.
"""

from __future__ import annotations

from math import log
from typing import NamedTuple

from paceline.core.quota import NS

PROOF_N = 6
"""So many attempts that were admitted after a refusal prove the rate of all but one of them, for any burst. Fewer of
them would find chance sooner, and take a trailing minute for it, too."""

CHECK_SHARE = 0.8
"""A check goes at this share of a proven rate. A limit that falls step by step has lost less during the check."""

CHECK_N, CHECK_MAX_N, CHECK_S = 8, 64, 15.0
"""The first check takes so many attempts, and each one without a refusal doubles the next one, up to the second number.
One that would take more than so many seconds stays at the first number. Of 30 % the first check misses 6 %, and of 5 %
four together miss 0.2 %."""

CONFIRM_N, GAP_N, GAP = 3, 8, 4.0
"""So many refusals in one check confirm chance. The check ends if none comes for ``GAP_N`` attempts and ``GAP`` times
the mean number between two: where other clients share a quota, refusals come in a burst that is over sooner."""

SMALL_SHARE, BARRED_NS = 0.2, 30 * NS
"""A smaller share is forgotten when a limit is measured above it: other clients of the same quota cause such a share,
too. Then nothing is taken for chance for so long."""

COUNTED_N = 128
"""A share is counted over the last attempts, so many to twice as many."""

SHARE_MAX = 0.75
"""No larger share is taken for chance. It would be an outage."""

MORE, ALARM = 0.25, 8.0
"""Refusals are more than chance if they are ``e ** ALARM`` times as likely where a quarter of the other attempts is
refused, too."""

ENDED = 10.0
"""Chance has ended, if it would have refused so many attempts while none was refused: it would do so in one of 20,000
such times."""

ROW_MAX = 5
"""Nothing is admitted, if so many attempts in a row are refused while a rate is doubted."""


class Mark(NamedTuple):
    """An instant, and the amount that was admitted until then."""

    at_ns: int
    admitted: float


class Chance:
    """The share of the attempts that is refused by chance, at any rate.

    Attributes:
        share: The share; 0 for none.
        mark: A refusal: the quota of the provider was empty then, if it has one. What was admitted since proves a rate.
        sure: The least rate of the provider, as proven at ``mark``; 0 for none.
        length: How many attempts the next check takes.
        seen: Over how many attempts refusals were counted, lately.
        lost: How many of them were refused.
        last: The number of the last attempt that was refused.
        row: How many attempts in a row were refused.
        over: The evidence for a larger share: the logarithm of its likelihood ratio.
        barred_ns: Until then nothing is taken for chance.
        stated_rate: The rate of a stated limit, per second; 0 for none. It counts as proven until a check has upheld a
            lower one.
    """

    __slots__ = (
        "barred_ns",
        "last",
        "length",
        "lost",
        "mark",
        "over",
        "row",
        "seen",
        "share",
        "stated_rate",
        "sure",
    )

    def __init__(self, stated_rate: float = 0.0) -> None:
        self.stated_rate = stated_rate
        self.share = self.sure = self.seen = self.lost = self.over = 0.0
        self.mark: Mark | None = None
        self.length, self.last, self.row, self.barred_ns = CHECK_N, 0, 0, 0

    def contradicts(self, refusal: Mark, amount: float, mean: float) -> bool:
        """Whether the rate that was proven last is higher than a refusal leaves possible. It proves another rate from then on.

        Args:
            refusal: When it was sent, and what was admitted before.
            amount: Of its attempt.
            mean: The mean cost of an attempt.
        """
        if self.mark is None:
            self.mark = refusal
            return False
        sure, span_s = self.sure, seconds(self.mark.at_ns, refusal.at_ns)
        since = refusal.admitted - self.mark.admitted
        if since >= PROOF_N * mean:
            if self.length == CHECK_N:
                sure = max(sure, self.stated_rate)
            self.sure, self.mark = (since - mean) / span_s, refusal
        return since >= mean and (since + amount) / span_s < sure

    def doubt(self, refusal: Mark, number: int) -> None:
        """Forget the share: ``refusal`` contradicts what is known. ``number``: of the last attempt."""
        self.share = self.sure = self.over = 0.0
        self.seen += number - self.last
        self.mark, self.last, self.row = refusal, number, 0

    def bar(self, now_ns: int) -> None:
        """Take nothing for chance for a time: a limit refuses above a small share."""
        self.share, self.sure, self.mark, self.barred_ns = 0.0, 0.0, None, now_ns + BARRED_NS

    def count(self, number: int) -> None:
        """Count the refusal of an attempt, and the attempts before it as admitted."""
        between = max(number - self.last - 1, 0)
        self.row = 1 if between else self.row + 1
        self.seen, self.lost, self.last = self.seen + between + 1, self.lost + 1, max(self.last, number)
        if self.seen > 2 * COUNTED_N:
            self.seen, self.lost = self.seen / 2, self.lost / 2

    @property
    def usual(self) -> float:
        """The share of the attempts that was refused lately, at any rate."""
        return (self.lost + 1) / (self.seen + 2)

    def learn(self) -> None:
        """Let the share be what was refused lately."""
        self.share = min(self.usual, SHARE_MAX)

    def is_exceeded(self, number: int) -> bool:
        """Whether the refusal of an attempt shows a larger share, or that chance has ended."""
        between = max(number - self.last - 1, 0)
        if between * self.share > ENDED:
            self.share = self.over = 0.0
            return True
        more = self.share + (1 - self.share) * MORE
        self.over = max(self.over - between * log((1 - self.share) / (1 - more)), 0.0) + log(more / self.share)
        self.last = max(self.last, number)
        if self.over < ALARM:
            return False
        self.over = 0.0
        return True


def seconds(from_ns: int, to_ns: int) -> float:
    """The time between two instants, above 0."""
    return max(to_ns - from_ns, 1) / NS
