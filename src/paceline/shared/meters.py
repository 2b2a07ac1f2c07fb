"""What sharing needs of the meter of each rule: its state as plain values, a part of it, use by other processes."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from functools import reduce
from math import ceil, floor, inf
from operator import add, attrgetter
from types import MappingProxyType
from typing import Any, ClassVar, Final, Generic, TypeVar

from paceline.core.meters import TINY, Bucket, Held, LowPoints, Meter, Slots, Spread, Window
from paceline.core.quota import NS, Quota, Rule
from paceline.core.unstated.measured import FoundMeter, InFlightMeter, RateMeter
from paceline.shared.messages import SHARED_PART, Left

PARTS = 8
"""The use of a spread quota is reported by so many parts of its last period."""

LEASE_PART = 8
"""A lease lasts at most as long as the refill of one part in so many of a bucket."""

FOUND = "measured_"
"""The unit of the slots that stand for a measured limit in the store begins so."""

# Not infinity, which no quota may be.
BOUNDLESS = 1e15
"""More slots than any sum of measured limits."""

OTHERS_SPEED = 4
"""How many times the rate of a quota other processes are taken to have spent between the snapshot and the loss of the
store: a burst is granted in a short time, but not often."""

M = TypeVar("M", bound=Meter)
B = TypeVar("B", bound=Bucket)
C = TypeVar("C", bound=Bucket)


class Sharing(Generic[M]):
    """What sharing needs of a meter. The methods here are right for a counter.

    ``Exact`` has no such class: a pool with a quota that no provider counts is kept in one process (``PoolMaker.pool``).

    Attributes:
        use: The attributes of a meter with its use, by their names in a dump.
        learned: The attributes that answers change, in the same way.
        charged: Whether a process that was alone reports its use as charges.
    """

    use: ClassVar[Mapping[str, str]] = MappingProxyType({"used": "used"})
    learned: ClassVar[Mapping[str, str]] = MappingProxyType({})
    charged: ClassVar[bool] = True

    def __init__(self) -> None:
        self._state = {**self.use, **self.learned}
        self._values = attrgetter(*self._state.values(), "quota")  # of one name alone it would return no tuple

    def told(self, m: M) -> Quota:
        """The quota that a store has for ``m``."""
        return m.quota

    def dump(self, m: M) -> dict[str, Any]:
        """The state of ``m`` as plain values, instants in nanoseconds."""
        # Not strict: the quota at the end of the values is no part of the state.
        return dict(zip(self._state, self._values(m), strict=False))

    def load(self, m: M, state: dict[str, Any]) -> None:
        """Set a new meter to the state that :meth:`dump` returned."""
        for key, name in self._state.items():
            _take(m, name, state[key])

    def standing(self, m: M, now_ns: int) -> tuple[int, float, float]:
        """The ``lack_ns``, ``used`` and ``opened`` of :class:`~paceline.shared.messages.Standing`."""
        raise NotImplementedError

    def stand(self, m: M, now_ns: int, lack_ns: int, used: float, opened: float) -> None:
        """Set ``m`` to what :meth:`standing` returned elsewhere."""
        raise NotImplementedError

    def taught(self, m: M) -> tuple[float, float]:  # noqa: ARG002
        """The ``burst_cap`` and the ``ceiling`` of :class:`~paceline.shared.messages.LearnedState`."""
        return inf, 1.0

    def teach(self, m: M, quota: Quota, burst_cap: float, ceiling: float) -> None:  # noqa: ARG002
        """Set the quota of ``m``, with the learned burst and ceiling; its use stays."""
        m.quota, m.most = quota, quota.amount

    def turn(self, m: M, by_ns: int) -> None:
        """Move the instants of ``m`` that move with a step of the clock."""

    def alone(self, m: M, now_ns: int, share: float, held: float, as_of_ns: int, asked_ns: int) -> Meter:  # noqa: ARG002
        """A meter for one process while the store is lost: ``share`` of ``m``, less what others may have spent meanwhile.

        ``held``: what the process holds of it. ``as_of_ns``, ``asked_ns``: the last reply, and the message without one.
        """
        part = self.part(m, now_ns, share)
        # What others may have been granted since the last reply is taken as spent, or it would be spent twice.
        spent = OTHERS_SPEED * part.quota.rate * (asked_ns - as_of_ns) / NS
        # They got no more than there was, and nothing of the headroom.
        left = part.level(asked_ns) - part.headroom_s * part.quota.rate
        of(part).absorb(part, asked_ns, [max(min(spent, left), 0.0)])
        return part

    def part(self, m: M, now_ns: int, share: float) -> Meter:  # noqa: ARG002
        """A meter with ``share`` of the quota and of the use of ``m``; a cost that fits into ``m`` still fits, later."""
        return m

    def recalled(self, m: M, now_ns: int) -> Left:
        """What ``m`` lacks, for :attr:`Message.recalled <paceline.shared.messages.Message.recalled>`."""
        return [m.quota.amount - m.level(now_ns)]

    def recall(self, m: M, now_ns: int, left: Left) -> None:
        """Let a new meter lack what :meth:`recalled` returned in a process, where its quota was maybe spread."""
        self.absorb(m, now_ns, left)

    def remember(self, m: M, now_ns: int, left: Left) -> None:
        """Let ``m`` lack no less than what :meth:`recalled` returned in a process."""
        _, used, _ = self.standing(m, now_ns)
        more = _sum(left) - used
        if more > 0:
            self.absorb(m, now_ns, [more])

    def left(self, m: M, reported: M, now_ns: int) -> Left:
        """The use of ``m`` that ``reported`` does not have."""
        parts = zip(self.recalled(m, now_ns), self.recalled(reported, now_ns), strict=True)
        return [max(a - b, 0.0) for a, b in parts]

    def at_once(self, m: M, left: Left) -> float:  # noqa: ARG002
        """What ``m`` would lack after charges of ``left`` in the eighths of the last period, the latest first."""
        return _sum(left)

    def absorb(self, m: M, now_ns: int, left: Left) -> None:
        """Charge ``m`` with the use of another meter; it was not granted by ``m``."""
        amount = self.at_once(m, left)
        if amount:
            m.charge(now_ns, amount)

    def spend(self, m: M, since_ns: int, now_ns: int, spent_ns: float) -> None:
        """Charge a bucket with ``spent_ns`` of its refill, which other processes may have spent evenly since ``since_ns``."""

    def unspend(self, m: M, since_ns: int, now_ns: int, spent_ns: float) -> None:
        """Give back what :meth:`spend` has charged since ``since_ns`` for a process that has not spent it."""

    def beyond(self, m: M, left: Left, presumed_ns: float) -> tuple[Left, float]:  # noqa: ARG002
        """``left`` without the ``presumed_ns`` that :meth:`spend` has charged to a bucket for the same process.

        Also how much of ``presumed_ns`` that was.
        """
        return left, 0.0

    def lease_ns(self, m: M, now_ns: int, wanted_ns: int) -> int:  # noqa: ARG002
        """How long a lease may last, ``wanted_ns`` at most."""
        return wanted_ns

    def lease_amount(self, m: M, now_ns: int, lasts_ns: int, peers: int) -> float:  # noqa: ARG002
        """How much a lease of this duration may have, for one of ``peers``."""
        return m.level(now_ns) / (2 * peers)


class SlotsSharing(Sharing[Slots]):
    """Each process reports the slots that it holds."""

    charged = False

    def alone(self, m: Slots, now_ns: int, share: float, held: float, as_of_ns: int, asked_ns: int) -> Meter:  # noqa: ARG002
        """The slots that the process holds, and of the free ones its share of them, up to its share of all."""
        # With all of it, as in mode fail_open, what others hold is left out of account.
        free = max(m.quota.amount - (held if share == 1 else max(m.used, held)), 0.0)
        times = min(share / SHARED_PART, 1.0)
        part = Slots(m.quota)
        # Slots are whole: seven eighths of one are none, and a share that has just begun to wane still counts in full.
        part.used = m.quota.amount - floor(max(min(free * times, m.quota.amount * times - held), 0.0) + 0.1)
        return part

    def standing(self, m: Slots, now_ns: int) -> tuple[int, float, float]:  # noqa: ARG002
        return 0, m.used, inf

    def stand(self, m: Slots, now_ns: int, lack_ns: int, used: float, opened: float) -> None:  # noqa: ARG002
        m.used = used

    def remember(self, m: Slots, now_ns: int, left: Left) -> None:
        """Nothing: each message reports what its process holds."""


class FoundSharing(Sharing[FoundMeter[Any]]):
    """Each process measures a limit by itself, and reports what it has found as slots that it holds.

    So the store knows the sum, which bounds nothing. What is measured goes on while the store is lost.
    """

    charged = False

    def told(self, m: FoundMeter[Any]) -> Quota:
        return Quota(FOUND + m.quota.unit, BOUNDLESS, 0.0, rule=Rule.SLOTS)

    def recalled(self, m: FoundMeter[Any], now_ns: int) -> Left:  # noqa: ARG002
        return []

    def lease_amount(self, m: FoundMeter[Any], now_ns: int, lasts_ns: int, peers: int) -> float:  # noqa: ARG002
        return inf


class WindowSharing(Sharing[Window]):
    """A window restarts at the instant that the store says."""

    use = MappingProxyType({"used": "used", "start": "start_ns", "stop": "stop_ns"})

    def standing(self, m: Window, now_ns: int) -> tuple[int, float, float]:
        m.roll(now_ns)
        return max(m.stop_ns - now_ns, 0), m.used, inf

    def stand(self, m: Window, now_ns: int, lack_ns: int, used: float, opened: float) -> None:  # noqa: ARG002
        # 0: no process has told the store when its days begin, so it restarts by the clock of this one.
        if lack_ns:
            m.restart_in(now_ns, lack_ns)
        m.roll(now_ns)
        m.used = used

    def part(self, m: Window, now_ns: int, share: float) -> Meter:  # noqa: ARG002
        part = copy(m)
        part.quota, part.used = _part_of(m.quota, share), m.used * share
        return part

    def lease_ns(self, m: Window, now_ns: int, wanted_ns: int) -> int:
        # A lease that outlasts the window grants nothing, so it ends within.
        m.roll(now_ns)
        grants_ns = max(m.stop_ns - ceil(m.headroom_s * NS) - now_ns, 0)
        return min(wanted_ns, grants_ns // 2)


class BucketSharing(Sharing[B]):
    """A bucket is the instant at which it will be full."""

    use = MappingProxyType(
        {"full_at": "full_at_ns", "sequence": "low.latest", "low_marks": "low.marks", "low_lacks": "low.lacks"}
    )
    learned = MappingProxyType({"burst_cap": "burst_cap", "ceiling": "ceiling", "opened": "opened"})

    def load(self, m: B, state: dict[str, Any]) -> None:
        super().load(m, state)
        m.configure(m.quota)

    def standing(self, m: B, now_ns: int) -> tuple[int, float, float]:
        return max(m.full_at_ns - now_ns, 0), 0.0, m.opened

    def stand(self, m: B, now_ns: int, lack_ns: int, used: float, opened: float) -> None:  # noqa: ARG002
        m.full_at_ns = now_ns + lack_ns
        # The low points are unknown here. The store has them, and refunds by them.
        m.low = LowPoints(m.low.latest)
        # Of a store that has just lost that the quota is spread, `opened` says nothing.
        if opened != m.opened and m.bursts:
            m.opened = opened
            m.widen()

    def taught(self, m: B) -> tuple[float, float]:
        return m.burst_cap, m.ceiling

    def teach(self, m: B, quota: Quota, burst_cap: float, ceiling: float) -> None:
        m.burst_cap, m.ceiling = burst_cap, ceiling
        m.configure(quota)

    def turn(self, m: B, by_ns: int) -> None:
        m.full_at_ns += by_ns
        m.low.latest += by_ns
        m.low.marks = [mark + by_ns for mark in m.low.marks]

    def part(self, m: B, now_ns: int, share: float) -> Meter:
        return self._part(m, Bucket(_part_of(m.quota, share), now_ns, m.headroom_s), share)

    def _part(self, m: B, part: C, share: float) -> C:
        part.full_at_ns, part.burst_cap, part.ceiling = m.full_at_ns, m.burst_cap * share, m.ceiling
        part.configure(part.quota)
        part.most = m.most
        return part

    def recalled(self, m: B, now_ns: int) -> Left:
        return [m.lack(now_ns)]

    def recall(self, m: B, now_ns: int, left: Left) -> None:
        amount = self.at_once(m, left)
        if not amount:
            return
        # An opening bucket refills evenly from there.
        self.stand(m, now_ns, round(amount * m.ns_per_unit), 0.0, max(m.opened, amount))

    def remember(self, m: B, now_ns: int, left: Left) -> None:
        more = self.at_once(m, left) - m.lack(now_ns)
        if more > 0:
            self.absorb(m, now_ns, [more])

    def at_once(self, m: B, left: Left) -> float:
        # From the oldest eighth on: what it lacks refills for an eighth of the period before the next one is charged.
        lack_ns = 0.0
        for amount in reversed(left):
            lack_ns = max(lack_ns - m.quota.period_s * NS / PARTS, 0.0) + amount * m.ns_per_unit
        return lack_ns / m.ns_per_unit

    def absorb(self, m: B, now_ns: int, left: Left) -> None:
        amount = self.at_once(m, left)
        if amount:
            m.charge(now_ns, amount)
            m.not_granted(amount)

    def spend(self, m: B, since_ns: int, now_ns: int, spent_ns: float) -> None:
        refilled_ns = max(m.full_at_ns, now_ns) - max(m.full_at_ns, since_ns)  # a full bucket is not refilled
        lack_ns = max(spent_ns - refilled_ns, 0)
        if lack_ns > 0:
            m.charge(now_ns, lack_ns / m.ns_per_unit)
            m.not_granted(lack_ns / m.ns_per_unit)
        if isinstance(m, Spread) and spent_ns > lack_ns:  # the last period counts what was refilled, too
            m.log.charge(now_ns, (spent_ns - lack_ns) / m.ns_per_unit)

    def unspend(self, m: B, since_ns: int, now_ns: int, spent_ns: float) -> None:
        before_ns = m.full_at_ns
        m.correct(now_ns, since_ns, spent_ns / m.ns_per_unit, 0.0)
        m.not_granted((m.full_at_ns - before_ns) / m.ns_per_unit)

    def beyond(self, m: B, left: Left, presumed_ns: float) -> tuple[Left, float]:
        total = _sum(left)
        if not presumed_ns or not total:
            return left, 0.0
        paid = presumed_ns / m.ns_per_unit
        times = max(total - paid, 0.0) / total
        return [part * times for part in left], presumed_ns * min(total / paid, 1.0)

    def lease_ns(self, m: B, now_ns: int, wanted_ns: int) -> int:  # noqa: ARG002
        # A lease that lasts keeps as much refill unused in the store. A small bucket would have little left to grant.
        size_ns = m.size * m.ns_per_unit - m.headroom_s * NS
        # Below 0 if the headroom is larger than the bucket: set_slack() takes that for no lease.
        return min(wanted_ns, int(size_ns) // LEASE_PART)

    def lease_amount(self, m: B, now_ns: int, lasts_ns: int, peers: int) -> float:  # noqa: ARG002
        return lasts_ns / m.ns_per_unit / peers


class SpreadSharing(BucketSharing[Spread]):
    """A spread quota has a log of its last period, too, which processes report by eighths."""

    use = MappingProxyType(BucketSharing.use | {name: f"log.{name}" for name in ("ends", "amounts", "used")})

    def standing(self, m: Spread, now_ns: int) -> tuple[int, float, float]:
        m.log.forget(now_ns)
        return max(m.full_at_ns - now_ns, 0), m.log.used, m.opened

    def stand(self, m: Spread, now_ns: int, lack_ns: int, used: float, opened: float) -> None:
        """See :meth:`Sharing.stand`; an increase of the use counts as charged now."""
        log = m.log
        log.forget(now_ns)
        more = used - log.used
        if more > 0:
            log.insert(now_ns, more)
        # Refunds are taken from the oldest charges, to be safe: the later ones count for longer.
        while more < 0 and log.amounts:
            back = min(log.amounts[0], -more)
            more += back
            log.amounts[0] -= back
            if log.amounts[0] <= TINY:
                del log.ends[0], log.amounts[0]
        # The store's sum, to the last digit. What was taken off above adds up to nearly that.
        log.used = used
        super().stand(m, now_ns, lack_ns, used, opened)

    def turn(self, m: Spread, by_ns: int) -> None:
        super().turn(m, by_ns)
        m.log.ends = [end_ns + by_ns for end_ns in m.log.ends]

    def part(self, m: Spread, now_ns: int, share: float) -> Meter:
        part = self._part(m, Spread(_part_of(m.quota, share), now_ns, m.headroom_s), share)
        part.log.ends, part.log.amounts = list(m.log.ends), [amount * share for amount in m.log.amounts]
        part.log.used = _sum(part.log.amounts)
        return part

    def recalled(self, m: Spread, now_ns: int) -> Left:
        """The charges of each eighth of the last period, the latest first."""
        log = m.log
        log.forget(now_ns)
        parts = [0.0] * PARTS
        for end_ns, amount in zip(log.ends, log.amounts, strict=True):
            # The present slice ends after now, and belongs to the latest eighth.
            parts[min(max(now_ns - end_ns, 0) * PARTS // log.period_ns, PARTS - 1)] += amount
        return parts

    def recall(self, m: Spread, now_ns: int, left: Left) -> None:
        self.absorb(m, now_ns, left)

    def remember(self, m: Spread, now_ns: int, left: Left) -> None:
        Sharing.remember(self, m, now_ns, left)

    def absorb(self, m: Spread, now_ns: int, left: Left) -> None:
        """Add the charges of other processes, by eighths of the last period; the level stays."""
        log = m.log
        log.forget(now_ns)
        for part, amount in enumerate(left[:PARTS]):
            if amount > 0:
                log.insert(now_ns - part * (log.period_ns // PARTS), amount)
        log.used = _sum(log.amounts)

    def lease_ns(self, m: Spread, now_ns: int, wanted_ns: int) -> int:  # noqa: ARG002
        """No lease: it has no burst to lend."""
        return 0


_SHARING: Final[Mapping[type[Meter], Sharing[Any]]] = MappingProxyType(
    {
        Bucket: BucketSharing[Bucket](),
        Held: BucketSharing[Held](),
        Spread: SpreadSharing(),
        Window: WindowSharing(),
        Slots: SlotsSharing(),
        RateMeter: FoundSharing(),
        InFlightMeter: FoundSharing(),
    }
)


def of(m: Meter) -> Sharing[Any]:
    """What sharing needs of ``m``."""
    return _SHARING[type(m)]


def replaced(now_ns: int, before: Meter, after: Meter) -> Meter:
    """The meter that replaces ``before``, with its use; refunds of earlier charges stay guarded.

    A bucket takes as long to be full as before, at its whole rate: a learned ceiling does not stay. One that opens gently
    refills evenly from there.
    """
    # A bucket and a spread quota have the instant of full and the low points in common; only spread ones have a log.
    if before.refills is after.refills:
        for key in of(before).use.keys() & of(after).use.keys():
            name = of(before).use[key]
            _take(after, name, attrgetter(name)(before))
    if isinstance(before, Bucket) and isinstance(after, Bucket):
        if before.ceiling < 1:
            after.full_at_ns = now_ns + ceil(max(before.full_at_ns - now_ns, 0) * before.ceiling)
            after.low.lacks = [floor(lack * before.ceiling) for lack in before.low.lacks]
        if after.opened < inf:
            after.opened = max(after.opened, (after.full_at_ns - now_ns) / after.ns_per_unit)
            after.widen()
    return after


def _part_of(quota: Quota, share: float) -> Quota:
    return replace(quota, amount=quota.amount * share, burst=quota.burst * share)


def _take(m: Meter, name: str, value: Any) -> None:
    """Set the attribute ``name`` of ``m``, or of one of its parts; a list is copied."""
    part, _, last = name.rpartition(".")
    holder = getattr(m, part) if part else m
    setattr(holder, last, list(value) if isinstance(getattr(holder, last), list) else value)


def _sum(amounts: list[float]) -> float:
    """Add from left to right, as every store does: sum() rounds differently in newer versions of Python."""
    return reduce(add, amounts, 0.0)
