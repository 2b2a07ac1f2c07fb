"""The arithmetic of one quota under each rule.

Every meter computes when a cost fits and what is left; it charges a cost, and corrects a charge when the true
cost is known. :func:`new_meter` chooses the class. ``Held`` and ``Spread`` are buckets with a further rule. Answers
that state when a quota restarts make it ``Restarting``. The meters of unstated limits are in ``measured``.

Headroom, not a safety factor
    Two grants a second apart can reach the server closer together. A bucket therefore keeps an amount unused
    that does not grow with its use: the refill of ``headroom_s``. That absorbs the jitter at the full rate; a factor
    below 1 would lower the rate permanently. How much is needed can be learned (:mod:`paceline.core.learning`). A
    window is guarded by that time at both ends, and a spread quota lengthens its period by a quarter of it.

Opening gently
    At the start it is unknown whether the provider's bucket is full, how large it is, and how wrong the
    estimates are. A gentle bucket grants a small burst first and widens it by the cost of the answered
    attempts, like TCP's slow start. Nothing is lost: the part that is not granted at once can be granted
    a second later.

Exact refunds
    A refund arrives late. To add it back in full would grant an amount that the provider never had: with the
    lower cost, the bucket would have been full earlier, and its refill from then on would have been lost. The
    level after a charge that is lowered by ``r`` rises by ``min(r, lack)``, where ``lack`` is the least that
    the bucket lacked from full at any instant since the charge. So a bucket remembers the low points of
    what it lacked (only those that no later one undercuts), and the refund is exact.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import reduce
from math import ceil
from operator import add, sub
from typing import ClassVar, assert_never

from paceline.core.quota import FAR_NS, MONTH, NS, Quota, Rule, ns_per_unit
from paceline.core.results import QuotaError

# Half, because waits are added to FAR_NS and subtracted from it before the comparison.
UNKNOWN_NS = FAR_NS // 2
"""An instant beyond this was computed from ``FAR_NS``, so it is unknown."""

# Both are 2 s for a minute. The part matters for periods of 1 to 10 min only, because longer ones open whole.
SMALL_BURST_S, SMALL_PERIODS = 2.0, 1 / 30
"""The first burst of a gentle bucket: seconds of its rate, or a part of its period."""

# The rate pays for the burst: 30 parts of 31 go evenly, and 1 part goes at once.
SPREAD_BURST = 1 / 31
"""The burst of a spread quota, as a part of its amount."""

CEILING_MIN = 0.01
"""The least learned ceiling, as a share of the rate of the quota: below it, too few answers come to correct it."""

# Not 0: a request that needs all of the provider's bucket would be refused if it came a moment early.
FULL_WAIT_NS = NS // 20
"""A cost that needs a full bucket goes so much later than the bucket is full, at most."""

# With true costs of 20 to 100% of the reserved ones, 1 to 30 s after the grant, 16 of them grant 0.996 of the requests
# that an endless list grants, 8 of them 0.993, and 4 of them 0.98 (10 min at 600k tokens/min).
LOW_POINTS_MAX = 16
"""How many low points a bucket remembers. Of more, the two that lacked nearly the same are merged, which can only
shrink a refund: they stay evenly apart while the bucket empties."""


class Meter(ABC):
    """One quota and its use. What a rule has no use for does nothing.

    Attributes:
        refills: Whether it refills continuously: a bucket, or a spread quota.
        bursts: Whether it is counted as a bucket: it is neither spread nor a counter, which may grant much at once,
            too.
        holds: Whether it counts what is in flight: :meth:`release` changes it.
        restarts_by_answers: Whether it restarts at instants that answers state.
        quota: The quota.
        headroom_s: The part that stays unused, in seconds of refill.
        most: The largest cost that fits when the quota is unused.
    """

    __slots__ = ("headroom_s", "most", "quota")

    refills: ClassVar[bool] = False
    bursts: ClassVar[bool] = False
    holds: ClassVar[bool] = False
    restarts_by_answers: ClassVar[bool] = False

    quota: Quota
    headroom_s: float
    most: float

    @property
    def is_spread_bucket(self) -> bool:
        """Whether the rule is ``bucket``, and answers have shown that the quota is none: it is spread."""
        return self.quota.rule is Rule.BUCKET and not self.bursts

    @property
    def size(self) -> float:
        """What it holds at once, as far as is known."""
        return self.quota.burst

    @property
    def is_known(self) -> bool:
        """Whether there is an amount to show."""
        return True

    @abstractmethod
    def earliest(self, now_ns: int, cost: float, ahead: float = 0.0, slack_ns: int = 0) -> int:
        """The first instant at which ``cost`` fits if nothing is released before.

        An instant in the past means that it fits now, and ``FAR_NS`` that only a release can make it fit.

        Args:
            now_ns: The present.
            cost: At most ``most``.
            ahead: The cost of the requests that go first.
            slack_ns: How much later the grant may be used: the headroom is larger by as much refill.
        """

    @abstractmethod
    def charge(self, now_ns: int, cost: float) -> int:
        """Charge ``cost``; return the mark of this charge, for :meth:`correct`.

        In buckets the mark is the instant, made unique; in a window its start; 0 in slots, and where nothing was
        charged.
        """

    def correct(self, now_ns: int, mark: int, charged: float, actual: float) -> None:
        """Turn a charge of ``charged`` into one of ``actual``: an exact refund, or debt."""

    def unsent(self, now_ns: int, mark: int, charged: float) -> None:
        """The attempt that was charged ``charged``, with this mark, was never sent."""
        self.correct(now_ns, mark, charged, 0.0)

    def answered(self, now_ns: int, mark: int, cost: float) -> None:
        """The attempt with this mark has an answer that is no refusal.

        ``cost``: the larger of its charge and its true cost.

        A gentle bucket widens its burst by the cost.
        """

    def lost(self, now_ns: int, mark: int) -> None:
        """Nothing was heard of the attempt with this mark within its time-to-live; its charge stays."""

    def release(self, now_ns: int, mark: int, cost: float) -> int:  # noqa: ARG002
        """The attempt that was charged ``cost``, with this mark, is over: slots become free, a held cost is charged.

        Returns:
            The mark of the charge from now on, for :meth:`correct`.
        """
        return mark

    @abstractmethod
    def level(self, now_ns: int) -> float:
        """What is left, headroom included; negative in debt."""

    def lack(self, now_ns: int) -> float:
        """What it lacks from full, without what is held."""
        return self.quota.amount - self.level(now_ns)

    def full_ns(self, now_ns: int) -> int | None:
        """When it is full without further requests: as it restarts, if it does; ``None``: that is unknown."""
        restart_ns = self.restart_ns(now_ns)
        full_ns = self.earliest(now_ns, self.quota.amount) if restart_ns is None else restart_ns
        return None if full_ns == FAR_NS else full_ns

    def restart_ns(self, now_ns: int) -> int | None:  # noqa: ARG002
        """When its present window ends; ``None``: it has none."""
        return None

    def become(self, now_ns: int, quota: Quota, ceiling: float = 1.0) -> None:  # noqa: ARG002
        """Run at ``quota``, at the share ``ceiling`` of its rate, from now on; the use stays.

        What has no rate has no ceiling.
        """
        self.quota = quota
        self.most = quota.amount

    def give(self, now_ns: int, quota: Quota) -> None:
        """Be ``quota``, which the user gives in place of this one, from now on; the use stays."""
        self.become(now_ns, quota)

    @property
    def _period_ns(self) -> int:
        return ceil(self.quota.period_s * NS)

    def shift(self, now_ns: int, by_ns: int) -> None:
        """Move the level by so much refill.

        Positive: less is left, because others use the key, too. Negative: more is left.
        """

    def cap_burst(self, amount: float) -> None:
        """Learn that it holds only ``amount`` at once; its charges, and the wait of a cost above that, stay."""

    def seen(self, now_ns: int, remaining: float) -> None:
        """Take the smaller ``remaining`` of the provider: others use the key, too."""

    def move(self, now_ns: int, mark: int, amount: float) -> int:  # noqa: ARG002
        """Count one charge of ``amount`` as made now, because its attempt goes now; return its mark.

        Buckets do nothing: what they refilled too much is :meth:`surplus_ns`.
        """
        return mark

    def surplus_ns(self, now_ns: int, amount: float) -> int:  # noqa: ARG002
        """By how much the level is too high: charges of ``amount`` come now to a provider whose bucket stayed full."""
        return 0


def small_burst_s(quota: Quota) -> float:
    """The first burst of ``quota``, in seconds of its rate: 2 s for a minute. One with a long period opens whole."""
    return max(SMALL_BURST_S, SMALL_PERIODS * quota.period_s)


class LowPoints:
    """When a bucket lacked the least, since each of its charges that a refund may still be about.

    Attributes:
        marks: When the lack from full was at a low point, ascending.
        lacks: What the bucket lacked from full then, in nanoseconds of refill, ascending.
        latest: The mark of the latest charge.
    """

    __slots__ = ("lacks", "latest", "marks")

    def __init__(self, latest: int = 0) -> None:
        self.marks: list[int] = []
        self.lacks: list[int] = []
        self.latest = latest

    def lower(self, mark: int, lack: int, refund: int) -> int:
        """Lower the low points after ``mark`` by ``refund``; return the least lack since ``mark``, at most ``lack``.

        With the lower charge, every later low point would have been lower, too; by no more than the first of them, at
        which the bucket would have become full.
        """
        marks, lacks = self.marks, self.lacks
        since = bisect_right(marks, mark)
        if since == len(lacks):
            return lack
        first = lacks[since]
        # At 0 the bucket was full: nothing that it has lacked since then is due to this charge.
        if first:
            by_ns = min(refund, first)
            lacks[since:] = [then - by_ns for then in lacks[since:]]
            while since > 0 and lacks[since - 1] >= lacks[since]:
                since -= 1  # undercut: keep both lists ascending
                del marks[since], lacks[since]
        return min(lack, first)


class Bucket(Meter):
    """A continuously refilled quota, kept as the instant at which it will be full (as in GCRA).

    Attributes:
        full_at_ns: When it will be full if nothing more is charged.
        full_wait_ns: How much later than full a cost goes that needs all of it, at most; see :meth:`earliest`.
        reach_ns: How far ahead of now a charge may push ``full_at_ns``: the burst less the headroom.
        open_reach_ns: The same without a learned ``burst_cap`` and after opening.
        ns_per_unit: Nanoseconds of refill per unit, at the learned rate.
        burst_cap: The amount it holds at once: infinite (the burst), or less, learned from answers.
        ceiling: The learned share of the rate of the quota, at most 1.
        opened: How much may be granted at once so far, while it opens gently; then infinite.
        low: Its low points.
    """

    __slots__ = (
        "burst_cap", "ceiling", "full_at_ns", "full_wait_ns", "low", "ns_per_unit", "open_reach_ns", "opened",
        "reach_ns",
    )  # fmt: skip

    refills = True
    bursts = True
    held_ns = 0
    """The refill of what is held for attempts in flight, in nanoseconds; see :class:`Held`."""

    def __init__(self, quota: Quota, now_ns: int, headroom_s: float, *, gentle: bool = False) -> None:
        self.headroom_s = headroom_s
        self.full_at_ns = now_ns - FULL_WAIT_NS  # nothing was charged before, so all of it may go at once
        self.burst_cap = math.inf
        self.ceiling = 1.0
        # With true costs 28% above their estimates, 500 workers met 28 refusals at a bucket of 400k tokens that opened
        # whole. A quota of a day opens whole all the same: two seconds of its rate would stall a run.
        self.opened = small_burst_s(quota) * quota.rate if gentle and not quota.is_long else math.inf
        self.low = LowPoints()
        self.configure(quota)

    @property
    def size(self) -> float:
        return min(self.burst_cap, self.quota.burst)

    def configure(self, quota: Quota) -> None:
        """Take ``quota``, and compute what depends on it, on the headroom and on the ceiling; ``full_at_ns`` stays."""
        self.quota = quota
        self.most = quota.burst
        self.ns_per_unit = ns_per_unit(quota) / self.ceiling
        self.open_reach_ns = self._reach_of(quota.burst)
        # Without a headroom nothing has to stay unused, so there is nothing to wait for beyond a full bucket.
        self.full_wait_ns = min(FULL_WAIT_NS, math.floor(self.headroom_s * NS))
        self.widen()
        assert 0 < self.ceiling <= 1
        assert 0 <= self.reach_ns <= self.open_reach_ns

    def keep_unused(self, headroom_s: float) -> None:
        """Leave the refill of ``headroom_s`` unused from now on; the level stays."""
        self.headroom_s = headroom_s
        self.configure(self.quota)

    def _reach_of(self, burst: float) -> int:
        """``reach_ns`` of a bucket that holds ``burst``."""
        burst_ns = burst * self.ns_per_unit
        # A burst smaller than the headroom would leave nothing to grant: keep half of it.
        return math.floor(burst_ns - min(self.headroom_s * NS, burst_ns / 2))

    def widen(self) -> None:
        """Compute ``reach_ns`` from ``burst_cap`` and ``opened``."""
        self.reach_ns = self.open_reach_ns
        if self.burst_cap < self.quota.burst:
            self.reach_ns = self._reach_of(self.burst_cap)
        if self.opened < math.inf:
            self.reach_ns = min(self.reach_ns, math.floor(self.opened * self.ns_per_unit))

    def cap_burst(self, amount: float) -> None:
        self.burst_cap = max(amount, 0.0)
        self.widen()

    def shift(self, now_ns: int, by_ns: int) -> None:
        if by_ns > 0:
            before_ns = self.full_at_ns
            self.charge(now_ns, 0.0)  # records the present lack as a low point: a refund is worth no more
            self.full_at_ns = before_ns  # the level is restored
        else:
            # The charges before were too high as well, so the bucket lacked less at each low point.
            self.low.lacks = [max(lack + by_ns, 0) for lack in self.low.lacks]
        self.full_at_ns += by_ns
        self.not_granted(by_ns / self.ns_per_unit)

    def not_granted(self, amount: float) -> None:
        """Move the opening burst with a level that was moved by ``amount``: this pool has granted nothing for it.

        Positive: others use the key, too. Negative: the charges were too high.
        """
        if self.opened < math.inf:
            # Never below the first burst, which a new pool grants, too.
            self.opened = max(self.opened + amount, small_burst_s(self.quota) * self.quota.rate)
            self.widen()

    def surplus_ns(self, now_ns: int, amount: float) -> int:
        return max(now_ns + ceil(amount * self.ns_per_unit) - self.full_at_ns, 0)

    def become(self, now_ns: int, quota: Quota, ceiling: float = 1.0) -> None:
        """See :meth:`Meter.become`. A larger bucket fills from its present level, a smaller one spills."""
        level = Bucket.level(self, now_ns)  # what is held is not charged yet
        former, before = self.quota, self.ns_per_unit
        shrunk = max(former.burst - quota.burst, 0.0)
        self.charge(now_ns, 0.0)  # records the present lack as a low point; the level is restored below
        self.ceiling = min(max(ceiling, CEILING_MIN), 1.0)
        self.configure(quota)
        self.full_at_ns = now_ns + math.ceil((quota.burst - min(level, quota.burst)) * self.ns_per_unit)
        # The lacks are distances from full. If the bucket shrinks, full comes nearer, so we subtract the difference.
        # If it grows, we don't know how far it was from the new full, so they stay.
        # WEAK: after growth they may be too small.
        self.low.lacks = [max(math.floor((lack / before - shrunk) * self.ns_per_unit), 0) for lack in self.low.lacks]
        # The opening burst is counted from full. If the limit grows, full is as much farther away than before.
        # A ceiling changes the speed, and not what the bucket holds, so the opening burst stays.
        if quota is not former:
            self.not_granted(max(quota.amount - former.amount, 0.0))

    def give(self, now_ns: int, quota: Quota) -> None:
        """See :meth:`Meter.give`. It lacks what it lacked: at most all that a smaller one holds, and a debt."""
        lack = Bucket.lack(self, now_ns)
        debt = max(lack - self.quota.burst, 0.0)
        # This keeps the level. A limit of the user's own is counted by what was used, so we restore the lack.
        self.become(now_ns, quota)
        lack = min(lack - debt, quota.burst) + debt
        self.shift(now_ns, round((lack - Bucket.lack(self, now_ns)) * self.ns_per_unit))

    def earliest(self, now_ns: int, cost: float, ahead: float = 0.0, slack_ns: int = 0) -> int:
        """See :meth:`Meter.earliest`. There are three cases.

        - A cost up to what is granted at once goes when the bucket has that much.
        - A larger cost up to the burst goes when the bucket is full, or at most ``full_wait_ns`` later. A wait for the
          whole headroom would delay every such request.
        - A cost above the burst goes when the bucket is full and the rest of the cost, with ``slack_ns``, has been
          refilled.
        """
        cost_ns = ceil(cost * self.ns_per_unit) + slack_ns  # rounded up, against over-admission
        need_ns = cost_ns - self.reach_ns
        if need_ns > 0:  # when the bucket is full, or later
            over_ns = max(cost_ns - self.open_reach_ns, 0)
            need_ns = min(over_ns, self.full_wait_ns) if cost <= self.quota.burst else over_ns
        if ahead:
            # A full bucket has gained nothing since it was full, so the refill for `ahead` begins now.
            return max(self.full_at_ns, now_ns) + ceil(ahead * self.ns_per_unit) + need_ns
        return self.full_at_ns + need_ns

    def charge(self, now_ns: int, cost: float) -> int:
        full_at_ns = self.full_at_ns
        # Here and below an `if` stands for max(): this runs for each grant, and a call costs more.
        if full_at_ns < now_ns:
            full_at_ns = now_ns
        lack = full_at_ns - now_ns
        self.full_at_ns = full_at_ns + ceil(cost * self.ns_per_unit)
        low = self.low
        mark = now_ns if now_ns > low.latest else low.latest + 1  # the instant, made unique
        low.latest, marks, lacks = mark, low.marks, low.lacks  # remember the present lack as a low point
        if not lack and len(lacks) == 1:  # of a full bucket, as mostly: the same in one step
            marks[0], lacks[0] = mark, lack
            return mark
        # A refund is worth the least lack since its charge. A point before this one that lacked more is never that.
        while lacks and lacks[-1] >= lack:
            del marks[-1], lacks[-1]
        marks.append(mark)
        lacks.append(lack)
        # WEAK: of two merged points the smaller lack stays, so a refund of a charge between them may be too small.
        if len(lacks) > LOW_POINTS_MAX:
            gaps = list(map(sub, lacks[1:], lacks))
            i = gaps.index(min(gaps))
            del marks[i], lacks[i + 1]  # the later mark keeps the smaller lack
        return mark

    def correct(self, now_ns: int, mark: int, charged: float, actual: float) -> None:
        lack = self.full_at_ns - now_ns
        # Both are rounded as in charge(), so that a whole refund takes back exactly what was charged.
        refund = ceil(charged * self.ns_per_unit) - ceil(actual * self.ns_per_unit)
        # From full at the earliest: a full bucket has saved nothing up for a debt. The low points stay as they are, so
        # that a refund of another charge may be too small, and never too large.
        if refund < 0:  # a debt
            self.full_at_ns = now_ns + max(lack, 0) - refund
            return
        # The bucket is full. With the lower cost it would have been full earlier, and the refill since then would have
        # been lost, so there is nothing to give back.
        if refund == 0 or lack <= 0:
            return
        # The latest charge, as mostly, has no low points after it.
        if mark != self.low.latest:
            lack = self.low.lower(mark, lack, refund)
        if refund > lack:
            refund = lack
        self.full_at_ns -= refund

    def answered(self, now_ns: int, mark: int, cost: float) -> None:  # noqa: ARG002
        opened = self.opened
        if opened < math.inf:
            # At least two of them, also where a burst holds less than one.
            self.opened = opened = opened + cost if opened > cost else 2 * cost
            if opened >= self.quota.burst:
                self.opened = math.inf
            self.widen()

    def level(self, now_ns: int) -> float:
        return self.quota.burst - Bucket.lack(self, now_ns)

    def lack(self, now_ns: int) -> float:
        return max(self.full_at_ns - now_ns, 0) / self.ns_per_unit

    def full_ns(self, now_ns: int) -> int | None:  # noqa: ARG002
        return self.full_at_ns


class Held(Bucket):
    """A quota that the provider charges when it has produced the output: the estimate is held until then.

    Were it charged at admission, the bucket would refill while the provider's is still full, and grant the same amount
    twice. A cost that is held longer than one period is charged then: long answers do not slow the pool down.

    It opens at once: what is held is not refilled, so that a small first burst would let the first requests go only one
    after the other, by the length of their answers. The quotas that are charged at admission open gently beside it.

    Attributes:
        held: The cost of each attempt in flight, by its mark, the oldest first.
        held_amount: Their sum.
        charged_early: The mark of the charge of each attempt in flight that was held longer than one period, by the
            attempt's mark.
    """

    __slots__ = ("charged_early", "held", "held_amount")

    holds = True

    def __init__(self, quota: Quota, now_ns: int, headroom_s: float) -> None:
        self.held: dict[int, float] = {}
        self.charged_early: dict[int, int] = {}
        self.held_amount = 0.0
        super().__init__(quota, now_ns, headroom_s)

    @property
    def held_ns(self) -> int:  # type: ignore[override]
        return ceil(self.held_amount * self.ns_per_unit)

    def earliest(self, now_ns: int, cost: float, ahead: float = 0.0, slack_ns: int = 0) -> int:
        self._charge_old(now_ns)
        at_ns = super().earliest(now_ns, cost, ahead, slack_ns)
        if not self.held:
            return at_ns
        held_ns = self.held_ns
        if held_ns + ceil((cost + ahead) * self.ns_per_unit) + slack_ns > self.reach_ns:
            return next(iter(self.held)) + self._period_ns  # or when an attempt in flight ends
        # What is held will be charged, so the cost must fit beside it.
        return at_ns + held_ns

    def charge(self, now_ns: int, cost: float) -> int:
        # There is nothing to hold. If the attempt costs something after all, that is a debt.
        if not cost:
            return super().charge(now_ns, cost)
        # From the counter of the charges: a mark is the key of one attempt, also if several go at one instant.
        mark = self.low.latest = max(self.low.latest + 1, now_ns)
        self.held[mark] = cost
        self.held_amount += cost
        return mark

    def release(self, now_ns: int, mark: int, cost: float) -> int:
        if self.held.pop(mark, None) is None:
            # Charged early, or without a cost: charge() has charged that at once, under this mark.
            return self.charged_early.pop(mark, mark)
        # Set to 0 when nothing is held, because subtracted floats would leave a rest.
        self.held_amount = self.held_amount - cost if self.held else 0.0
        assert self.held or not self.held_amount
        return super().charge(now_ns, cost)

    def level(self, now_ns: int) -> float:
        return super().level(now_ns) - self.held_amount

    def surplus_ns(self, now_ns: int, amount: float) -> int:  # noqa: ARG002
        return 0  # what is in flight is held, and not refilled

    def _charge_old(self, now_ns: int) -> None:
        while self.held and (mark := next(iter(self.held))) + self._period_ns <= now_ns:
            self.charged_early[mark] = self.release(now_ns, mark, self.held[mark])


TINY = 1e-9
"""Amounts that differ by less are equal: it is the error of sums of floats."""


class Log:
    """The charges of the last period.

    Attributes:
        period_ns: The period.
        slice_ns: A charge counts at the end of a slice of so much time, which it shares with those after it; 0: at its
            instant.
        ends: When the charges leave the period, less that: ascending.
        amounts: What was charged until each of them.
        used: Their sum.
    """

    __slots__ = ("amounts", "ends", "period_ns", "slice_ns", "used")

    def __init__(self) -> None:
        self.period_ns = self.slice_ns = 0
        self.ends: list[int] = []
        self.amounts: list[float] = []
        self.used = 0.0

    def forget(self, now_ns: int) -> None:
        """Drop the charges before the last period."""
        gone = bisect_right(self.ends, now_ns - self.period_ns)
        if gone:
            del self.ends[:gone], self.amounts[:gone]
            # Added anew, as in the Redis script: subtracting would carry the error of each sum on. sum() rounds
            # differently since Python 3.12.
            self.used = reduce(add, self.amounts, 0.0)

    def charge(self, now_ns: int, cost: float) -> None:
        """Count ``cost`` now."""
        self.forget(now_ns)
        if not self.ends or self.ends[-1] < now_ns:
            self.ends.append(now_ns + self.slice_ns)
            self.amounts.append(0.0)
        self.amounts[-1] += cost
        self.used += cost

    def insert(self, end_ns: int, amount: float) -> None:
        """Count a charge of another time."""
        i = bisect_left(self.ends, end_ns)
        if i == len(self.ends) or self.ends[i] != end_ns:
            self.ends.insert(i, end_ns)
            self.amounts.insert(i, 0.0)
        self.amounts[i] += amount
        self.used += amount

    def correct(self, mark: int, by: float, late_ns: int) -> None:
        """Add ``by`` to the charge at the instant ``mark``, down to 0, if it counts at most ``late_ns`` later."""
        i = bisect_left(self.ends, mark)
        if i < len(self.ends) and self.ends[i] - late_ns <= mark:
            # WEAK: an entry that insert() has put between the mark and its slice is lowered in its place. It may hold
            # less, so it is lowered down to 0 at most, and the refund is too small.
            change = max(by, -self.amounts[i])
            self.amounts[i] += change
            self.used += change

    def room_ns(self, over: float) -> int | None:
        """When so much of it has left the period that ``over`` fits as well; ``None``: that is more than all."""
        for end_ns, amount in zip(self.ends, self.amounts, strict=True):
            over -= amount
            if over <= TINY:
                return end_ns + self.period_ns
        return None


# They cost the rate a 512th, 0.2%, and a log has about as many entries at most.
SLICES = 512
"""Into how many slices of time a spread quota divides its last period."""


class Spread(Bucket):
    """A sliding window, or a window with an unknown start: spread evenly, and never above the amount in any period.

    A bucket of burst b and rate r admits at most ``b + r x period`` in any period, so ``r = (amount - b) / period``
    is safe under every rule. What it lacks is what this bucket lacks; its level is what the last period leaves of the
    amount. A cost above b goes when the bucket is full. A log of the charges of the last period,
    in slices, keeps the sum of large costs within the amount. The period is lengthened by a quarter of the
    headroom: requests from the two ends of a period can arrive closer together by as much.

    Attributes:
        log: The charges of the lengthened period.
    """

    __slots__ = ("log",)

    bursts = False

    def __init__(self, quota: Quota, now_ns: int, headroom_s: float) -> None:
        self.log = Log()
        super().__init__(quota, now_ns, headroom_s)

    def configure(self, quota: Quota) -> None:
        self.quota = quota
        self.most = quota.amount
        # At most by a quarter of itself: with a headroom of 4 s, a quota of one second would go at half its rate.
        period_ns = math.ceil((quota.period_s + min(self.headroom_s, quota.period_s) / 4) * NS)
        self.log.period_ns, self.log.slice_ns = period_ns, period_ns // SLICES
        burst = min(SPREAD_BURST * quota.amount, quota.burst)
        # The log counts a charge until the end of its slice. At a rate for the period and a slice, small costs don't
        # have to wait for the log.
        self.ns_per_unit = (period_ns + period_ns / SLICES) / (quota.amount - burst) / self.ceiling
        # Only Bucket.earliest() and widen() read the other reaches of a bucket, and neither runs here.
        self.reach_ns = math.floor(burst * self.ns_per_unit)

    def earliest(self, now_ns: int, cost: float, ahead: float = 0.0, slack_ns: int = 0) -> int:
        from_ns = max(self.full_at_ns, now_ns) + ceil(ahead * self.ns_per_unit) if ahead else self.full_at_ns
        evenly_ns = from_ns + min(ceil(cost * self.ns_per_unit) + slack_ns - self.reach_ns, 0)
        log = self.log
        log.forget(now_ns)
        over = log.used + ahead + cost - self.quota.amount
        if over <= TINY:
            return evenly_ns
        # The even rate bounds small costs. Only the log knows when a large one has room within the period.
        # None: with `ahead` it is more than the log has. Then one period is a lower bound.
        room_ns = log.room_ns(over)
        return max(evenly_ns, now_ns + log.period_ns if room_ns is None else room_ns)

    def charge(self, now_ns: int, cost: float) -> int:
        mark = super().charge(now_ns, cost)
        self.log.charge(now_ns, cost)
        return mark

    def correct(self, now_ns: int, mark: int, charged: float, actual: float) -> None:
        super().correct(now_ns, mark, charged, actual)
        if not mark:  # nothing was charged
            self.log.charge(now_ns, actual)
            return
        # No level depends on it, but the last digit of a sum does: the script forgets here, too.
        self.log.forget(now_ns)
        self.log.correct(mark, actual - charged, self.log.slice_ns)

    def level(self, now_ns: int) -> float:
        self.log.forget(now_ns)
        return self.quota.amount - self.log.used

    def full_ns(self, now_ns: int) -> int | None:
        # Not full_at_ns: what the bucket has refilled stays in the log for a period.
        return Meter.full_ns(self, now_ns)

    def become(self, now_ns: int, quota: Quota, ceiling: float = 1.0) -> None:
        owed = max(self.full_at_ns - now_ns, 0) / self.ns_per_unit
        self.ceiling = min(max(ceiling, CEILING_MIN), 1.0)
        self.configure(quota)
        self.full_at_ns = now_ns + math.ceil(owed * self.ns_per_unit)
        # They were counted at the former rate. Without them a refund is worth what is lacking now, at most.
        self.low = LowPoints(self.low.latest)

    def take_log(self, other: Spread) -> None:
        """Take the charges and the debt of another meter of the same quota."""
        self.full_at_ns, self.log, self.low = other.full_at_ns, other.log, other.low

    def cap_burst(self, amount: float) -> None:
        """Its burst is small already."""

    def answered(self, now_ns: int, mark: int, cost: float) -> None:
        """It does not open gently."""

    def not_granted(self, amount: float) -> None:
        """Nor is there a burst to move; what may go of a window so far is not its level."""


UNEXPLAINED = 0.25
"""How much of a quota others may have used when the first answer after a restart comes."""

OPENING_NS = 2 * NS
"""How long after the first charge of a window the others wait for an answer that names the window: a refusal comes at
once."""


class Named(Enum):
    """Which restart an answer names."""

    SAME = "same"  # the one that the answers before have named
    NEXT = "next"  # the one after it
    EARLIER = "earlier"  # the one before it
    LATE = "late"  # one whose instant has passed: the clocks differ
    NONE = "none"  # no restart: the instant moves with each answer


class Restarting(Spread):
    """A quota whose restarts answers state: the whole amount goes at once after each of them.

    A small burst goes after the latest instant of a restart, and the rest when an answer names the next restart, or
    after ``OPENING_NS``. The log of the last period goes on: the quota can be spread at any time. It is spread while
    its ceiling is below 1.

    Attributes:
        stop_ns: The latest instant of the next restart.
        since_ns: When the present window was entered; 0 for the first one.
        counted: What is used of the present window.
        opened: How much of the present window may go so far. Infinite when an answer has named its end; of the first
            one, as of the bucket before.
        named: Whether an answer has named the next restart.
        open_ns: When the whole amount may go without such an answer; ``FAR_NS`` before the first charge. In the first
            window, when one more attempt may go: its answers may all have been faults, which open nothing.
    """

    __slots__ = ("counted", "named", "open_ns", "since_ns", "stop_ns")

    restarts_by_answers = True

    def __init__(self, quota: Quota, now_ns: int, headroom_s: float, stop_ns: int, opened: float) -> None:
        super().__init__(quota, now_ns, headroom_s)
        self.counted, self.since_ns, self.stop_ns = 0.0, 0, stop_ns
        self.named, self.open_ns = True, now_ns + OPENING_NS
        self.opened = opened

    def roll(self, now_ns: int) -> None:
        """Enter the window of ``now_ns``, if the present one has ended by what is known."""
        if now_ns < self.stop_ns:
            return
        # Also when several periods have passed: nothing was charged in them, so no mark tells their starts apart.
        self._enter(self.stop_ns)
        # Perhaps nothing restarts at this instant. Then it has cost this burst and no more.
        self.named, self.opened = False, small_burst_s(self.quota) * self.quota.rate
        self.stop_ns = _after(now_ns, self.stop_ns, self._period_ns)

    def become(self, now_ns: int, quota: Quota, ceiling: float = 1.0) -> None:
        period_s = self.quota.period_s
        super().become(now_ns, quota, ceiling)
        if quota.period_s != period_s and not self.named:
            self.stop_ns = _after(now_ns, self.since_ns, self._period_ns)

    def _enter(self, since_ns: int) -> None:
        self.since_ns = since_ns
        self.counted, self.opened, self.open_ns = 0.0, math.inf, FAR_NS

    def stated(
        self, sent_ns: int, named: Named, stop_ns: int, least: float, most: float, *, whole: bool = False
    ) -> None:
        """Take the restart that the answer to an attempt has named, which was sent at ``sent_ns``.

        Args:
            sent_ns: When it was sent.
            named: Which restart it has named.
            stop_ns: The latest instant of the restart.
            least: What is used at least of the window that ends then.
            most: What is used of it at most.
            whole: Whether all of it may go at once.
        """
        if named is Named.EARLIER or (named is Named.SAME and not self.named and sent_ns < self.since_ns):
            return  # it is about the window before
        if named is Named.NEXT and self.named:  # the restart has come earlier than was known
            self._enter(sent_ns)
        # The first window is named from the start. It opens with its answers, as the bucket before it did, unless all
        # of it may go.
        elif whole or not self.named:
            self.named, self.opened = True, math.inf
        self.stop_ns = stop_ns
        self.counted = min(max(self.counted, least), most)

    def passed(self, now_ns: int, stop_ns: int, most_s: float) -> None:
        """Take a restart that an answer has named, before now: the next one follows after ``most_s`` at most."""
        self.roll(now_ns)
        if not self.named:
            self.stop_ns = _after(now_ns, stop_ns, ceil(min(most_s, self.quota.period_s) * NS))

    def lacks_more(self, now_ns: int, lack: float) -> bool:
        """Whether the quota lacks far more than was charged since it should have restarted: nothing has restarted."""
        self.roll(now_ns)
        return not self.named and lack - self.counted > UNEXPLAINED * self.quota.amount

    def use_up(self) -> None:
        """Grant nothing more of the present window."""
        self.counted = max(self.counted, self.quota.amount)

    def earliest(self, now_ns: int, cost: float, ahead: float = 0.0, slack_ns: int = 0) -> int:
        if self.ceiling < 1:
            return super().earliest(now_ns, cost, ahead, slack_ns)
        self.roll(now_ns)
        amount, total = self.quota.amount, ahead + cost
        if self.counted + total > amount + TINY:
            later = total - max(amount - self.counted, 0.0)  # what does not go in this window
            return self.stop_ns + (max(ceil(later / amount - TINY), 1) - 1) * self._period_ns
        # The first cost of a window goes, however large: only the time since it, or its answer, lets the others go.
        if self.counted and self.counted + total > self.opened and now_ns < self.open_ns:
            return self.open_ns
        return now_ns

    def charge(self, now_ns: int, cost: float) -> int:
        self.roll(now_ns)
        self.counted += cost
        # In the first window each charge sets the instant anew: its answers may all be faults, which open nothing.
        if not self.since_ns or (not self.named and self.open_ns == FAR_NS):
            self.open_ns = now_ns + OPENING_NS
        return super().charge(now_ns, cost)

    def correct(self, now_ns: int, mark: int, charged: float, actual: float) -> None:
        super().correct(now_ns, mark, charged, actual)
        self.roll(now_ns)
        # An attempt of an earlier window was counted there.
        if mark == 0 or mark >= self.since_ns:
            self.counted = max(self.counted + actual - charged, 0.0)

    def answered(self, now_ns: int, mark: int, cost: float) -> None:  # noqa: ARG002
        self.opened += 2 * cost  # twice as many as were answered: what is not used before the restart is lost

    def level(self, now_ns: int) -> float:
        self.roll(now_ns)
        return self.quota.amount - self.counted

    def lack(self, now_ns: int) -> float:
        self.roll(now_ns)
        return self.counted

    def restart_ns(self, now_ns: int) -> int | None:
        self.roll(now_ns)
        return self.stop_ns


def _after(now_ns: int, restart_ns: int, period_ns: int) -> int:
    """The first restart after now of those that are whole periods from ``restart_ns``."""
    return restart_ns + ((now_ns - restart_ns) // period_ns + 1) * period_ns


# They take 5 MB.
EXACT_LOG_MAX = 65_536
"""How many instants an exact quota remembers; beyond it, two neighbours count as charged at the later one."""


class Exact(Meter):
    """The amount within any trailing period, of a quota that answers do not state: a log of the charges.

    A charge leaves the period after the period and the headroom, at most a twentieth of the period: a provider that
    counts arrivals sees the first one late, if its connection was cold, and the one of a period later at once.

    Attributes:
        log: The charges.
    """

    __slots__ = ("log",)

    def __init__(self, quota: Quota, headroom_s: float = 0.0) -> None:
        self.headroom_s = headroom_s
        self.log = Log()
        self.become(0, quota)

    def become(self, now_ns: int, quota: Quota, ceiling: float = 1.0) -> None:
        super().become(now_ns, quota, ceiling)
        self.log.period_ns = ceil((quota.period_s + min(self.headroom_s, quota.period_s / 20)) * NS)

    def earliest(self, now_ns: int, cost: float, ahead: float = 0.0, slack_ns: int = 0) -> int:  # noqa: ARG002
        log, amount, total = self.log, self.quota.amount, ahead + cost
        log.forget(now_ns)
        periods = max(ceil(total / amount - TINY) - 1, 0)  # the whole amount goes in each of them
        over = log.used + total - (periods + 1) * amount
        room_ns = log.room_ns(over) if over > TINY else None
        return (now_ns if room_ns is None else room_ns) + periods * log.period_ns

    def charge(self, now_ns: int, cost: float) -> int:
        log = self.log
        log.charge(now_ns, cost)
        if len(log.ends) > EXACT_LOG_MAX:
            odd = len(log.ends) % 2  # the oldest stays alone, the latest is the later one of its pair
            pairs = zip(log.amounts[odd::2], log.amounts[odd + 1 :: 2], strict=True)
            log.amounts = log.amounts[:odd] + [a + b for a, b in pairs]
            log.ends = log.ends[:odd] + log.ends[odd + 1 :: 2]
        return log.ends[-1]

    def correct(self, now_ns: int, mark: int, charged: float, actual: float) -> None:
        self.log.forget(now_ns)
        if not mark:  # nothing was charged
            self.charge(now_ns, actual)
        elif mark > now_ns - self.log.period_ns:
            # However much later it counts now: charge() may have joined it with the one after it.
            self.log.correct(mark, actual - charged, FAR_NS)

    def move(self, now_ns: int, mark: int, amount: float) -> int:
        self.correct(now_ns, mark, amount, 0.0)
        return self.charge(now_ns, amount)

    def arrived(self, now_ns: int, mark: int, amount: float) -> int:
        """The provider may have counted the charge of ``amount`` with this mark as late as now; return its new mark.

        It leaves the period one period after now, or as it would have, whichever is later: the headroom is for what is
        on its way.
        """
        # Counted from the grant, a batch that came 1.5 s late met 7 refusals, and a loop that went on up to 4 s later
        # made 9 starts in a minute of 7.
        at_ns = now_ns - (self.log.period_ns - self._period_ns)
        if mark <= now_ns - self.log.period_ns or at_ns <= mark:
            return mark
        self.correct(now_ns, mark, amount, 0.0)
        self.log.insert(at_ns, amount)
        return at_ns

    def level(self, now_ns: int) -> float:
        self.log.forget(now_ns)
        return self.quota.amount - self.log.used


def window_starts(anchor: str | None, now_ns: int) -> tuple[int, ...] | None:
    """The midnights of yesterday, today and the two days after in the time zone ``anchor``, in seconds since the epoch.

    For the anchor ``month`` the starts of the last month, this one and the two after; ``None`` for other anchors. A
    midnight that the clocks skip is the instant at which they skip it; of one that they show twice it is the first.
    """
    if anchor in (None, "utc"):
        return None
    if anchor == MONTH:
        now = datetime.fromtimestamp(now_ns / NS, UTC)
        months = [now.year * 12 + now.month - 1 + after for after in (-1, 0, 1, 2)]
        return tuple(int(datetime(month // 12, month % 12 + 1, 1, tzinfo=UTC).timestamp()) for month in months)
    # Imported here, because only the quotas with a time zone need it.
    from zoneinfo import ZoneInfo

    local = datetime.fromtimestamp(now_ns / NS, ZoneInfo(str(anchor)))
    # Midnights are found by dates, because a day has 23 to 25 hours.
    today = datetime(local.year, local.month, local.day, tzinfo=local.tzinfo)
    # More than today's, for a Redis script: by its own clock, it may still be yesterday there, or be tomorrow already.
    return tuple(int((today + timedelta(days=days)).timestamp()) for days in (-1, 0, 1, 2))


CLOCK_NS = NS // 10
"""Clocks that differ by less are taken for equal."""


class Window(Meter):
    """A counter that restarts at known instants, with the headroom as a guard against clock error at both edges.

    Attributes:
        start_ns: When the present window began.
        stop_ns: When it ends.
        used: What is used of it.
        ahead_ns: How far the store's clock, by which it restarts, is ahead of the clock of its caller.
    """

    __slots__ = ("ahead_ns", "period_ns", "start_ns", "stop_ns", "used")

    def __init__(self, quota: Quota, headroom_s: float) -> None:
        self.quota = quota
        self.most = quota.amount
        # A guard of 1 s at both edges would leave nothing of a window of 2 s.
        self.headroom_s = min(headroom_s, quota.period_s / 20)
        self.used = 0.0
        self.start_ns = self.stop_ns = self.ahead_ns = 0
        # Whole microseconds, as in the Redis script: nanoseconds since 1970 do not fit into its floats.
        self.period_ns = max(round(quota.period_s * 1e6), 1) * 1_000

    def roll(self, now_ns: int) -> None:
        """Enter the window of ``now_ns`` if it is a later one: a clock that is set back restarts no earlier one."""
        # If the clock is set back by more than a period, it restarts, because it would wait for the clock otherwise.
        if self.start_ns - self.period_ns <= now_ns < self.stop_ns:
            return
        at_ns = now_ns + self.ahead_ns
        days = window_starts(self.quota.anchor, at_ns)
        if days is None:
            self.start_ns = now_ns - at_ns % self.period_ns
            self.stop_ns = self.start_ns + self.period_ns
        else:
            # Today's midnight and tomorrow's.
            self.start_ns, self.stop_ns = (day * NS - self.ahead_ns for day in days[1:3])
        assert self.start_ns < self.stop_ns
        self.used = 0.0

    def restart_in(self, now_ns: int, left_ns: int) -> None:
        """Take from the store when it restarts next: its clock need not be the caller's."""
        self.roll(now_ns)
        ahead_ns = self.stop_ns - now_ns - left_ns
        if abs(ahead_ns) > CLOCK_NS:  # less is the way of the reply
            half_ns = self.period_ns // 2
            # Between minus and plus half a period: all restarts are alike, so the nearest one is meant.
            self.ahead_ns = (self.ahead_ns + ahead_ns + half_ns) % self.period_ns - half_ns
            self.stop_ns = now_ns + left_ns
            # A month can last longer than its 30 days, and a day than its 24 hours. The window has begun all the same.
            self.start_ns = min(self.stop_ns - self.period_ns, now_ns)

    def earliest(self, now_ns: int, cost: float, ahead: float = 0.0, slack_ns: int = 0) -> int:
        self.roll(now_ns)
        guard_ns, amount = math.ceil(self.headroom_s * NS), self.quota.amount
        # A grant may be used as late as this, and would then count in the next window.
        closed = now_ns >= self.stop_ns - guard_ns - slack_ns
        # WEAK: sums of floats have no tolerance here, nor in the Redis script. Of 0.3 USD, the third cost of 0.1 waits
        # for the next window.
        if closed or self.used + ahead + cost > amount:
            later = ahead + cost - (0.0 if closed else max(amount - self.used, 0.0))  # what does not go in this window
            periods = max(math.ceil(later / amount - TINY), 1)
            return self.stop_ns + (periods - 1) * self.period_ns + guard_ns
        return max(self.start_ns + guard_ns, now_ns)

    def charge(self, now_ns: int, cost: float) -> int:
        self.roll(now_ns)
        self.used += cost
        return self.start_ns

    def correct(self, now_ns: int, mark: int, charged: float, actual: float) -> None:
        self.roll(now_ns)
        if mark in (0, self.start_ns):  # of this window; 0: nothing was charged
            self.used = max(self.used + actual - charged, 0.0)

    def seen(self, now_ns: int, remaining: float) -> None:
        self.roll(now_ns)
        self.used = max(self.used, self.quota.amount - remaining)

    def level(self, now_ns: int) -> float:
        self.roll(now_ns)
        return self.quota.amount - self.used

    def lack(self, now_ns: int) -> float:  # noqa: ARG002
        return self.used

    def restart_ns(self, now_ns: int) -> int | None:
        self.roll(now_ns)
        return self.stop_ns


class Slots(Meter):
    """A bound on the requests in flight. The cost of one does not change."""

    __slots__ = ("used",)

    holds = True

    def __init__(self, quota: Quota) -> None:
        self.quota = quota
        self.most = quota.amount
        self.headroom_s = 0.0
        self.used = 0.0

    def earliest(self, now_ns: int, cost: float, ahead: float = 0.0, slack_ns: int = 0) -> int:  # noqa: ARG002
        return now_ns if self.used + ahead + cost <= self.quota.amount else FAR_NS

    def charge(self, now_ns: int, cost: float) -> int:  # noqa: ARG002
        self.used += cost
        return 0

    def release(self, now_ns: int, mark: int, cost: float) -> int:  # noqa: ARG002
        # An attempt that was charged elsewhere ends here, too, and frees no slot that is free already.
        self.used = max(self.used - cost, 0.0)
        return mark

    def level(self, now_ns: int) -> float:  # noqa: ARG002
        return self.quota.amount - self.used


def new_meter(quota: Quota, now_ns: int, headroom_s: float, *, gentle: bool = False, held: bool = False) -> Meter:
    """The meter of ``quota``, with nothing used.

    Args:
        quota: The quota.
        now_ns: The present.
        headroom_s: The part that stays unused, in seconds of refill.
        gentle: Whether a bucket opens slowly, unless it is held.
        held: Whether the provider charges a bucket at the end of an attempt.
    """
    if quota.rule is Rule.SLOTS:
        return Slots(quota)
    if quota.rule is Rule.EXACT:
        return Exact(quota, headroom_s)
    if quota.rule is Rule.EVEN:
        # Only the limiter counts it, so that nothing arrives late, and nothing has to stay unused.
        return Bucket(quota, now_ns, 0.0)
    if quota.rule is Rule.BUCKET:
        return Held(quota, now_ns, headroom_s) if held else Bucket(quota, now_ns, headroom_s, gentle=gentle)
    if quota.rule is Rule.WINDOW and quota.anchor is not None:
        return Window(quota, headroom_s)
    if quota.rule is Rule.WINDOW or quota.rule is Rule.SLIDING:
        return Spread(quota, now_ns, headroom_s)
    if quota.rule is Rule.MEASURED:  # pragma: no branch  (there is no other rule)
        raise QuotaError(f"{quota}: what is measured cannot be given: write a bucket, a window or slots")
    assert_never(quota.rule)  # pragma: no cover
