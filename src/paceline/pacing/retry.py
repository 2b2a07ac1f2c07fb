"""Retries: whether and when another attempt follows a failed one. Random numbers are arguments (``luck``)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import exp, inf, log

from paceline.core import progress
from paceline.core.allowance import is_believed
from paceline.core.checked import check, suggesting
from paceline.core.progress import FIRST_S, MOST_S, Alone, Row
from paceline.core.quota import NS
from paceline.core.results import Refusal, RefusalKind, RefusalScope, public

RETRIED = frozenset({RefusalKind.RATE, RefusalKind.GROWTH, RefusalKind.CAPACITY})
"""Refusals that may end with time."""


FAIR_REFUSED, FAIR_ADMITTED, FAIR_CHANCE = 6, 20, 1e-6
"""A request that was refused so many times, while so many times as many other attempts of the pool were admitted, is
refused because of the request itself. Where the pool is refused often, more refusals are needed, so that chance
explains them with this probability. Fewer others are enough, if those between its refusals leave no larger chance."""

FAIR_SHARE = 0.75
"""The largest share of refusals that is taken for chance."""

BEHIND = 3
"""A request that was refused so many times goes behind the others while the pool admits none, so that the next probe is
another request. Where a rate is measured, it does so at any time, and after one fewer in a row of the pool: it may be
refused for its own sake, and its refusals slow the others down.
Up to this number, the refusals of one request lengthen the pause of the pool as refusals in a row do."""

DEAD_PROBES, DEAD_TIMES = 8, 8
"""A pool stops after so many refusals in a row, if they have lasted so many times as long as the longest row before,
and twice ``max_retry_after_s``."""


@dataclass(frozen=True, slots=True)
class Again:
    """Try again, not before ``delay_s`` from now; ``pool_wide``: the whole pool waits as long.

    ``behind``: the request goes to the end of its lane.
    """

    delay_s: float
    pool_wide: bool
    behind: bool = False

    @property
    def pause_s(self) -> float:
        """How long the pool pauses."""
        return self.delay_s if self.pool_wide else 0.0


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Make no further attempt.

    Attributes:
        reason: Why not.
        stop_s: For how many seconds no other request of the pool can be served either; 0: that is not known.
        pause_s: How long the pool pauses: others may continue then.
    """

    reason: str
    stop_s: float = 0.0
    pause_s: float = 0.0


@dataclass(slots=True)
class Failures:
    """What the failed attempts at one request have in common.

    Attributes:
        own: How many were about the request itself: server faults, broken connections, its size or its mode.
        in_vain: How many were by full servers, or about the request alone, since other attempts of the pool were last
            admitted.
        of_pool: How many were refused for the rate of the pool, or by full servers. One of them says nothing of the
            request.
        admitted: How many attempts of the pool had been admitted at the first of these.
        alone: Whether those for the rate are about the request alone.
    """

    own: int = 0
    in_vain: int = 0
    of_pool: int = 0
    admitted: int = 0
    alone: Alone = field(default_factory=Alone)
    _admitted_last: int = 0  # the same at the last of those in vain

    def count(self, row: Row | None, refusal: Refusal | None = None) -> Refusal | None:
        """Count the last refusal of ``row``, or, without one, a failure of the request itself.

        Returns:
            The refusal, with the scope that those before show.
        """
        if row is None or refusal is None:
            self.own += 1
            return refusal
        # Others count from its first refusal on, or from the last one about an allowance, which is about all requests.
        if not self.of_pool or row.is_allowance:
            self.admitted = row.admitted
        self.of_pool += 1
        if row.is_allowance:  # that tells nothing of any request
            return refusal
        if refusal.kind is not RefusalKind.CAPACITY:
            refusal = self.alone.judged(refusal, row)
        if refusal.kind is RefusalKind.CAPACITY or refusal.scope is RefusalScope.REQUEST:
            self.in_vain = self.in_vain + 1 if row.admitted == self._admitted_last else 1
            self._admitted_last = row.admitted
        return refusal


@public
@suggesting
@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When paceline retries a failed request, and after which pause.

    A refusal for a rate uses no attempt: while the provider admits other requests, paceline retries.

    Attributes:
        max_attempts: How many attempts may fail by a server fault, a broken connection, or a refusal that doesn't
            concern the pool. Full servers, and refusals of this request alone, count while no other request of the
            pool is admitted. 1: no retry.
        max_refused: How many attempts may be refused for a rate; ``None``: any number, while the pool admits others.
        max_elapsed_s: No attempt starts later than this after the first, in seconds; ``None``: without a bound.
        backoff_s: The first pause when the provider names none, in seconds; it doubles with each failure, and with each
            refusal of the pool since an attempt was admitted.
        backoff_max_s: The longest such pause, in seconds.
        jitter: The random share of a pause, to either side.
        faults: Whether to retry server faults (5xx, 408, 409, 425, 499) and broken connections too. SDKs retry, and
            paceline paces every attempt. A bare HTTP client doesn't.
        max_retry_after_s: No retry if the provider asks for a longer pause (about a daily quota, for example), and a
            probe after 15 s (60 s, if such a wait was true before) was refused, too. The pool then stops: until the end
            of that pause it refuses further requests at once, and tries one after 10, 20, 40 minutes. It also stops
            when nothing was admitted for twice that time.

    Example:
        limiter = paceline.Limiter(quotas, retry=paceline.RetryPolicy(max_attempts=3, max_elapsed_s=120))
    """

    max_attempts: int = 6
    max_refused: int | None = None
    max_elapsed_s: float | None = None
    backoff_s: float = FIRST_S
    backoff_max_s: float = MOST_S
    jitter: float = 0.25
    max_retry_after_s: float = 300.0
    faults: bool = False

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        attempts, seconds = ("a whole number", 1, inf), ("seconds", 0, inf)
        check(
            self,
            max_attempts=attempts,
            max_refused=attempts,
            max_elapsed_s=seconds,
            backoff_s=seconds,
            backoff_max_s=seconds,
            jitter=("a share", 0, 1),
            max_retry_after_s=seconds,
        )

    def after(self, failures: Failures, refusal: Refusal | None, row: Row | None, luck: float) -> Again | GiveUp:
        """Decide after a failed attempt.

        Args:
            failures: The failed attempts, this one included.
            refusal: The refusal; ``None`` for a server fault (5xx) or a broken connection.
            row: The refusals of the pool in a row, this one included; ``None`` if it is about neither its rate nor the
                capacity of its provider.
            luck: A random number in [0, 1).
        """
        if refusal is not None and refusal.kind not in RETRIED:
            return GiveUp("waiting cannot help")
        asked_s = (refusal.retry_after_s or None) if refusal else None  # a wait of 0 would use up the attempts at once
        if refusal is not None and row is not None and (refusal.kind.about_rate or row.is_paced):
            if refusal.scope is RefusalScope.POOL:
                return self._after_pool(failures, refusal, row, luck)
            if failures.of_pool == self.max_refused:
                return GiveUp(_made(failures.of_pool))
            asked_s = asked_s if is_believed(refusal) else None
        return self._after_own(failures, row, asked_s, luck)

    def _after_own(self, failures: Failures, row: Row | None, asked_s: float | None, luck: float) -> Again | GiveUp:
        """Decide after a failure that is about this request, or the host; ``asked_s``: the wait that is asked for."""
        if asked_s is not None and asked_s > self.max_retry_after_s:
            return GiveUp(_asks(asked_s))
        number = failures.own + failures.in_vain
        if number >= self.max_attempts:
            return GiveUp(_made(number))
        if row is not None and (unfair := _unfair(failures, row)):
            return GiveUp(unfair)
        # Refusals of this request alone lengthen its wait, and use up no attempt. 2.0 ** 1024 would overflow.
        own_s = min(self.backoff_s * 2.0 ** min(max(number, failures.alone.count) - 1, 30), self.backoff_max_s)
        return Again(self._spread(asked_s or own_s, luck, stated=asked_s is not None), pool_wide=False)

    def _after_pool(self, failures: Failures, refusal: Refusal, row: Row, luck: float) -> Again | GiveUp:
        """Decide after a refusal for the rate of the pool."""
        asked_s = refusal.retry_after_s or 0.0
        dead_s = max(2 * self.max_retry_after_s, DEAD_TIMES * row.longest_s)
        if row.is_allowance and not row.holds:
            # Of an end that is not stated, the next test is known.
            return GiveUp(_asks(asked_s), stop_s=asked_s or row.test_s)
        if asked_s > self.max_retry_after_s and (is_believed(refusal) or row.is_test):
            return GiveUp(_asks(asked_s), stop_s=asked_s)
        if row.number >= DEAD_PROBES and row.lasted_s >= dead_s:
            return GiveUp(f"the provider has admitted nothing for {row.lasted_s:,.0f} s", stop_s=row.lasted_s)
        pause_s = progress.pause_s(refusal, row, self.backoff_s, self.backoff_max_s, min(failures.of_pool, BEHIND))
        pause_s = self._spread(pause_s, luck, stated=asked_s > 0 and not row.is_paced)
        if failures.of_pool == self.max_refused or self.max_attempts == 1:
            return GiveUp(_made(failures.of_pool), pause_s=pause_s)
        if unfair := _unfair(failures, row):
            return GiveUp(unfair, pause_s=pause_s)
        in_row = max(failures.of_pool, row.number + 1) if row.is_paced else min(failures.of_pool, row.number)
        return Again(pause_s, pool_wide=True, behind=in_row >= BEHIND)

    def _spread(self, pause_s: float, luck: float, *, stated: bool) -> float:
        """A pause with its random part, which comes on top of a stated one: the provider names a minimum."""
        if stated:  # a second spreads the requests enough, also after an hour
            return pause_s + self.jitter * luck * min(pause_s, 1.0)
        return pause_s * (1 + self.jitter * (2 * luck - 1))


def _unfair(failures: Failures, row: Row) -> str:
    """Why a request is given up that is refused again and again while others are admitted; empty: it is not."""
    refused, others = failures.of_pool, row.admitted - failures.admitted
    share = min(row.refused / (row.refused + row.admitted), FAIR_SHARE)
    enough = others >= FAIR_ADMITTED * refused or failures.alone.chance < FAIR_CHANCE
    # So many that ``share ** refused`` is at most ``FAIR_CHANCE``.
    if refused < max(FAIR_REFUSED, log(FAIR_CHANCE) / log(share)) or not enough:
        return ""
    return f"{_made(refused)}, while {others:,} others of the pool were admitted"


@lru_cache(maxsize=64)
def varied(policy: RetryPolicy, **changes: float) -> RetryPolicy:
    """``policy`` with other values, checked once, and not with each request."""
    return replace(policy, **changes)  # type: ignore[arg-type]


def _made(number: int) -> str:
    return f"{number} attempt{'s' if number > 1 else ''} made"


def _asks(asked_s: float) -> str:
    return f"the provider asks to wait {asked_s:,.0f} s"


class RetryBudget:
    """Bounds retries after faults and by full servers in proportion to success: further retries wait, spread out.

    Every admitted attempt earns ``EACH`` retries, and every second ``PER_S``. A retry spends one, in advance if none is
    left, and then waits until it is earned. So servers that refuse three attempts of four by chance are used in full,
    and a server that answers none gets one retry a second. Retries after a refusal for rate need no budget: they wait
    in the queue.
    """

    EACH = 3.0
    PER_S = 1.0
    # A bound, because all retries that were saved go at once when servers become full.
    MOST = 100.0
    RECENT_S = 5.0
    """The time to earn a retry is estimated from the successes of about so many seconds, and again after as long:
    success may begin or end meanwhile."""

    __slots__ = ("_admitted", "_earned", "_left", "_now_ns", "_recent")

    def __init__(self, now_ns: int) -> None:
        self._left, self._earned = self.MOST, 0.0
        self._now_ns, self._admitted = now_ns, 0
        self._recent = 0.0  # how many attempts were admitted in about the last RECENT_S seconds

    def spend(self, now_ns: int, admitted: int) -> float:
        """Spend one retry; return how many must be earned in all before it goes.

        ``admitted``: how many attempts of the pool were admitted so far.
        """
        self._earn(now_ns, admitted)
        self._left -= 1
        # If a retry was left, it is due at once. Otherwise the missing ones must be earned first.
        return self._earned + max(-self._left, 0.0)

    def wait_s(self, now_ns: int, admitted: int, due: float) -> float:
        """How many seconds pass until ``due`` retries are earned: a millisecond or more, and at most ``RECENT_S``.

        0: they are.
        """
        self._earn(now_ns, admitted)
        if due <= self._earned:
            return 0.0
        # ``_recent`` fades by 1/e in ``RECENT_S``: at a steady rate it is this rate times ``RECENT_S``.
        rate = self.PER_S + self.EACH * self._recent / self.RECENT_S
        # A millisecond or more: 0 would say that it is earned.
        return min(max((due - self._earned) / rate, 0.001), self.RECENT_S)

    def _earn(self, now_ns: int, admitted: int) -> None:
        """Earn retries by the time that has passed, and by what was admitted in it."""
        passed_s, new = max(now_ns - self._now_ns, 0) / NS, admitted - self._admitted
        self._now_ns, self._admitted = now_ns, admitted
        self._recent = self._recent * exp(-passed_s / self.RECENT_S) + new
        earned = passed_s * self.PER_S + new * self.EACH
        self._earned += earned
        self._left = min(self._left + earned, self.MOST)
