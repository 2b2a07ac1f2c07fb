"""The share of the attempts that a provider refuses by chance, at any rate.

A refusal at the measured rate, or below it, has one of two reasons: the provider has become slower, or it refuses a
share of the attempts by chance. They are told apart by asking again at once, several times. A limit has nothing left
for such attempts, also one that other clients use up. Chance refuses no more of them than of others. If a
stated limit lets none go at once, slower attempts follow instead, as a check: a limit refuses none of these. They also
follow a second test that shows a limit: a limit with a small burst refuses nearly all that go at once, and so do a
limit and chance together. What chance refuses is no measurement from then on, unless more is refused than by chance.

Full servers refuse by chance, too, or for a rate: :class:`Shedding` asks that where the refusals say so.
"""

from __future__ import annotations

from math import log

from paceline.core.quota import NS

EVIDENCE_N = 8
"""A measurement goes on over further refusals until so many attempts were admitted. Its error is one attempt at each
end. As many go at once in a test for chance: a limit admits one or two of them. Where half are refused by chance, one
test in three does not show it, and most of these are made again soon."""

EARLY_N = 2
"""A test comes after so many refusals in a row at the measured rate or below, with admitted attempts in between. A
single one is often about its request alone, or the measured rate was too high. A refusal above the measured rate, or
one that the number in flight may explain, ends the row."""

RARE = 3.0
"""Chance must explain a test better than a limit by a likelihood ratio of ``e ** RARE``, because it is rare. With 2,
hosts that count tokens, and so refuse large requests first, are taken for it more often. With 4, a host that refuses
half of all requests may be missed until its rate has spiralled down. In a check, a row of refusals that chance shows
once in ``e ** RARE`` times means that nothing is admitted."""

CHECK_SHARE = 0.8
"""A share is checked at this part of the rate that a limit admits: it refuses nothing there. A limit that falls step by
step has lost less during the check."""

RECENT_N = 50
"""A share is counted over the last 50 to 100 attempts, and the largest number in flight that was admitted is looked for
in as many. An older one may be from before a change at the provider. While there are witnesses it is kept, so that all
of them are compared with the same attempts."""

SHARE_MAX = 0.75
"""No larger share is taken for chance. It would be an outage, or a rate."""

MORE, ALARM = 0.25, 8.0
"""Refusals are more than chance if they are ``e ** ALARM`` times as likely where a quarter of the other attempts is
refused, too."""

ENDED = 10.0
"""Chance has ended, if it would have refused so many attempts while none was refused: it would do so in one of 20,000
such times."""

SHARE = 0.55
"""Of :class:`Shedding`, as all that follow: full servers may refuse for a rate if ``SHARE_MAX`` of the attempts are
refused rather than ``SHARE``, by a likelihood ratio of ``e ** ALARM``: 30 in a row, or three of four in a hundred.
Servers that refuse half of the attempts by chance do not look so. The rate is known when half of ``EVIDENCE_N``
attempts were admitted, in a second at least, and then as many again."""

LASTS_NS = 600 * NS
"""How long the answer holds: a rate goes on, and an outage ends. Each further one holds twice as long."""


class Chance:
    """The share of the attempts that is refused by chance, at any rate.

    Attributes:
        share: The share; 0 for none.
        asked: The measured rate at which the last test began, per second, if it has shown a limit and made chance no
            likelier; else 0.
        again: Whether the test before that one has shown a limit, too.
        since_ns: When the last test or check began.
        seen: Over how many attempts refusals were counted, lately.
        lost: How many of them were refused.
        last: The number of the last attempt that was refused.
        early: How many refusals in a row came at the measured rate or below, or in a test upward that measured much
            less.
        weight: The evidence for a larger share.
    """

    def __init__(self) -> None:
        self.share = self.asked = self.seen = self.lost = self.weight = 0.0
        self.last = self.early = self.since_ns = 0
        self.again = False

    def is_due(self, rate: float, *, early: bool) -> bool:
        """Whether to test at a measured ``rate`` after a refusal that was ``early``, or not.

        Near the rate of the last test that has shown a limit there is no other: within a factor of two.
        """
        self.early = self.early + 1 if early else 0
        return self.early >= EARLY_N and not self.asked / 2 < rate < 2 * self.asked

    def begin_asking(self, rate: float) -> None:
        """Begin a test at a measured ``rate``."""
        self.again, self.asked, self.early = self.asked > 0, rate, 0

    def explains(self, admitted: int, refused: int, refilled: float) -> float:
        """How much likelier chance makes the outcome of a test than a limit that had ``refilled`` attempts for it.

        It is the logarithm of the likelihood ratio. The limit had fewer than ``admitted``. A share above the half is
        taken for the half: at the beginning a few refusals make it too large.
        """
        usual, limit = min(self.usual, 1 / 2), refilled / (admitted + refused)
        return admitted * log((1 - usual) / limit) + refused * log(usual / (1 - limit))

    def count(self, number: int, *, counts: bool) -> int:
        """Count a refusal, and as admitted the attempts since the last refusal; return how many these are.

        Without ``counts`` all of them are left out of the share.
        """
        between, self.last = max(number - self.last - 1, 0), max(self.last, number)
        if counts:
            self.seen, self.lost = self.seen + between + 1, self.lost + 1
        if self.seen > 2 * RECENT_N:
            self.seen, self.lost = self.seen / 2, self.lost / 2
        return between

    @property
    def usual(self) -> float:
        """The share of the attempts that was refused lately at the measured rate, where a limit refuses few."""
        return (self.lost + 1) / (self.seen + 2)

    def takes(self, between: int) -> bool:
        """Whether a refusal after so many admitted attempts is one of the share: it goes on, and is not exceeded."""
        if not self.share or between * self.share > ENDED:
            self.share = self.weight = 0.0
            return False
        more = self.share + (1 - self.share) * MORE
        self.weight = evidence(self.weight, between, self.share, more)
        if self.weight < ALARM:
            return True
        self.weight = 0.0
        return False


def evidence(before: float, between: int, share: float, more: float) -> float:
    """The evidence that ``more`` of the attempts is refused than a ``share``, as the logarithm of a likelihood ratio.

    It begins again at every instant at which there is none.

    Args:
        before: The evidence until the last refusal.
        between: How many attempts were admitted between that and this one.
        share: The share.
        more: The larger share.
    """
    return max(before - between * log((1 - share) / (1 - more)), 0.0) + log(more / share)


class Shedding:
    """What the refusals of a pool for want of capacity have shown: full servers refuse for a rate, or by chance.

    Chance refuses the same share at any speed, so that a refused attempt is best tried again at once. A rate admits the
    same number at any speed: then such retries are refused, up to the share that
    :class:`~paceline.pacing.retry.RetryBudget` allows. So where nearly that share is refused, and about the same number
    is admitted in two times that follow each other, the next attempts go at the speed at which these were admitted.
    After an outage, and in a burst, that number differs. The measured rate finds out if chance is the reason. If
    nothing is admitted at it any more, others use the servers, too, and it is no rate.

    Attributes:
        sent: How many attempts there were.
        lost: How many attempts were refused so.
        last: The number of the last one.
        weight: The evidence for a rate.
        since_ns: When the present time began in which admitted attempts are counted.
        admitted: How many attempts had been admitted by then.
        found: How many were admitted per second in the time before; 0 for none.
        is_rate: Whether a rate is the reason.
        until_ns: Until when the last answer holds.
        lasts_ns: How long the next one holds.
    """

    def __init__(self) -> None:
        self.sent = self.lost = self.last = self.since_ns = self.admitted = self.until_ns = 0
        self.weight, self.found, self.is_rate, self.lasts_ns = 0.0, 0.0, False, LASTS_NS

    def refused(self, now_ns: int, number: int) -> float:
        """Count the refusal of an attempt, and the attempts before that one as admitted.

        Returns:
            The rate that it shows, per second, if it is the first one to show a rate; else 0.
        """
        self.lost += 1
        if self.is_rate and now_ns < self.until_ns:
            return 0.0
        self.is_rate = False
        between, self.last = max(number - self.last - 1, 0), max(self.last, number)
        self.weight, admitted = evidence(self.weight, between, SHARE, SHARE_MAX), self.last - self.lost
        # Exactly this value: the evidence before was down to 0, and has begun again with this refusal.
        if self.weight == evidence(0.0, 0, SHARE, SHARE_MAX):
            self.since_ns, self.admitted, self.found = now_ns, admitted, 0.0
        self.admitted = min(self.admitted, admitted)  # refusals come in any order
        since_ns, since = now_ns - self.since_ns, admitted - self.admitted
        if since_ns < NS or since < EVIDENCE_N / 2:
            return 0.0
        before, self.found = self.found, since / since_ns * NS
        self.since_ns, self.admitted = now_ns, admitted
        if self.weight < ALARM or now_ns < self.until_ns or not before / 2 < self.found < 2 * before:
            return 0.0
        self.is_rate, self.weight, self.until_ns = True, 0.0, now_ns + self.lasts_ns
        self.lasts_ns *= 2
        return (before + self.found) / 2

    def end(self, now_ns: int, *, by_chance: bool) -> None:
        """Take chance for the reason; without ``by_chance``, none: the rate has not stayed the same."""
        self.lasts_ns = self.lasts_ns if by_chance else self.lasts_ns // 2
        self.is_rate, self.until_ns = False, now_ns + self.lasts_ns * by_chance
