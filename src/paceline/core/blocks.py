"""What a store has granted to this process and nobody has spent yet.

A block is charged in the books when it is granted. Usually it is exactly what the next request costs and is spent at
once. Where a store cannot be asked for every request, a process takes a *lease*: a larger block, to be spent within a
short time. The books then keep that time's refill unused on top of the headroom: whatever is spent in any interval was
charged in that interval or at most that time before, so bursts stay within the quota with any number of leases.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core.bucket import Bucket, Meter
from paceline.core.ledger import Reservation
from paceline.core.message import Mark, Settled
from paceline.core.quota import NS, Cost
from paceline.core.spaced import Spaced
from paceline.core.window import Slots, Window

LEASE_PART = 8
"""A lease lasts no longer than this part of what a bucket holds, in seconds of its rate."""

SPENT_MIN_NS = NS // 100
"""Spending is measured over no less than this."""

LEASE_MIN_NS = NS // 20
"""Shorter than this, a lease saves nothing: the store is asked for each request."""


class Drawn(Reservation):
    """A reservation that was spent from a block."""

    __slots__ = ("block",)

    def __init__(self, block: Block, cost: Cost, amounts: list[float], now_ns: int, expires_ns: int) -> None:
        super().__init__(cost, amounts, [], now_ns, expires_ns)
        self.block = block


class Block:
    """Amounts that the store has charged at ``marks``, and what is left of them until ``expires_ns``."""

    __slots__ = ("_actual", "_charged", "amounts", "expires_ns", "granted_ns", "left", "low", "marks", "probe", "taken")

    def __init__(
        self, amounts: list[float], marks: list[Mark], now_ns: int, slack_ns: int = 0, *, probe: bool = False
    ) -> None:
        self.amounts = amounts
        self.left = list(amounts)
        self.low = False  # less than half is left of something
        self.marks = marks
        self.granted_ns = now_ns
        self.expires_ns = now_ns + slack_ns
        self.probe = probe
        self.taken = 0  # how many requests have gone with it
        self._charged: list[float] | None = None  # of its requests that were answered since it was last told
        self._actual: list[float] = []

    def take(self, amounts: list[float]) -> bool:
        """Spend ``amounts``, all or none."""
        left = self.left
        width = len(left)
        if len(amounts) > width:  # a quota that became known since was not asked for
            amounts = amounts[:width]
        for i, amount in enumerate(amounts):
            if amount > left[i]:
                self.low = True
                return False
        whole = self.amounts
        for i, amount in enumerate(amounts):
            left[i] = rest = left[i] - amount
            if rest + rest < whole[i]:
                self.low = True
        self.taken += 1
        return True

    def answered(self, amounts: list[float], actual: list[float]) -> bool:
        """A request that took ``amounts`` cost ``actual``; whether there was nothing to tell before."""
        if self._charged is None:
            self._charged, self._actual = amounts[: len(self.left)], actual[: len(self.left)]
            return True
        for i, amount in enumerate(amounts[: len(self.left)]):
            self._charged[i] += amount
            self._actual[i] += actual[i]
        return False

    def news(self) -> Settled | None:
        """What its answered requests cost in all, since this was last asked."""
        if self._charged is None:
            return None
        settled = Settled(self._charged, self.marks, list(self._actual), probe=self.probe)
        self._charged, self.probe = None, False
        return settled

    def rest(self) -> Settled | None:
        """Give back what is left."""
        left, self.left = self.left, [0.0] * len(self.left)
        if not any(left):
            return None
        unused = self.probe and left == self.amounts
        return Settled(left, self.marks, [0.0] * len(left), answered=False, probe=unused)


def lease_ns(meters: Sequence[Meter], wanted_ns: int) -> int:
    """How long a lease may last under these quotas; 0 where there can be none."""
    for m in meters:
        if isinstance(m, Spaced):
            return 0
        if isinstance(m, Bucket):
            holds_ns = min(m.capacity, m.quota.burst) * m.ns_per_unit - m.headroom_s * NS
            wanted_ns = min(wanted_ns, int(holds_ns) // LEASE_PART)
    return wanted_ns if wanted_ns >= LEASE_MIN_NS else 0


def lease_amounts(
    now_ns: int, meters: Sequence[Meter], last: Block | None, waiting: list[list[float]], for_ns: int, peers: int
) -> list[float]:
    """The lease to ask for.

    Spending goes on as fast as it did from the ``last`` one, or twice as fast, and those who wait come on top; but no
    more than this process's part, and never less than the first of those who wait.
    """
    head = waiting[0] if waiting else [0.0] * len(meters)
    demand = [sum(column) for column in zip(*waiting, strict=True)] if waiting else list(head)
    if last is not None:
        times = 2 * for_ns / max(now_ns - last.granted_ns, SPENT_MIN_NS)
        for i, (whole, left) in enumerate(zip(last.amounts, last.left, strict=True)):
            demand[i] += times * (whole - left)
    amounts = []
    for m, least, wanted in zip(meters, head, demand, strict=True):
        if isinstance(m, Bucket):
            part = for_ns / m.ns_per_unit / peers
        elif isinstance(m, Window | Slots):
            part = m.level(now_ns) / (2 * peers)
        amounts.append(max(least, min(wanted, part)))
    return amounts
