"""The grants of the store that this process has not spent yet.

A *grant* is charged in the shared ledger when it is made. Usually it covers exactly the next request and is spent at
once. Under a load that is too high for one exchange per request, a process asks for a *lease*: a larger grant, to be
spent within a short time, the slack. The shared ledger keeps the refill of that time unused, on top of the headroom:
what is spent in an interval was charged in it or at most the slack before it, so bursts stay within the quota with any
number of leases. A grant for one request is a lease without slack.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from paceline.core.entry import Entry
from paceline.core.ledger import Ledger
from paceline.core.queue import Queue
from paceline.core.quota import NS
from paceline.core.results import Reservation
from paceline.shared.messages import Mark, Settled
from paceline.shared.meters import of

HEADS_MAX, WAITING_SEEN = 64, 1_000
"""How many requests a message asks for at most, and how many waiting requests a lease covers at most."""

SPENT_MIN_NS = NS // 100
"""The shortest time over which spending is measured."""

# Leases for every process cost 692 calls/s with 100 processes at 30,000 requests/min, and 1,994 with 1,000. Leases
# above this rate only cost 957 and 1,009.
AUTO_LEASE_RATE, AUTO_LEASE_S = 200.0, 1.0
"""Without ``lease_s``, a process takes leases of this many seconds above this many requests a second."""

MANY = 8
"""With fewer requests in a lease, the next lease is taken only when a request waits."""

LEASE_MIN_NS = NS // 20
"""A shorter lease saves nothing: the store is asked for each request."""


class Lease:
    """Amounts that the store has charged at ``marks``, and what is left of them until ``expires_ns``."""

    __slots__ = (
        "_ended", "_half", "amounts", "expires_ns", "granted_ns", "left", "low", "marks", "probe", "taken",
    )  # fmt: skip

    def __init__(
        self, amounts: list[float], marks: list[Mark], now_ns: int, slack_ns: int = 0, *, probe: bool = False
    ) -> None:
        self.amounts = amounts
        self.left = list(amounts)
        self.low = False  # less than half of a quota is left
        self._half = [amount / 2 for amount in amounts]
        self.marks = marks
        self.granted_ns = now_ns
        self.expires_ns = now_ns + slack_ns
        self.probe = probe
        self.taken = 0  # requests
        # Of the requests that ended since the last news: the charges, and the true costs.
        self._ended: tuple[list[float], list[float]] | None = None

    def take(self, amounts: list[float]) -> bool:
        """Spend ``amounts``, all or none; a quota that became known meanwhile may be missing here or in ``amounts``."""
        low, rest = self.low, []
        for left, amount, half in zip(self.left, amounts, self._half, strict=False):
            left -= amount  # noqa: PLW2901
            if left < half:
                if left < 0:
                    # What is left is too little for a request that waits, so the next lease is due.
                    self.low = True
                    return False
                low = True
            rest.append(left)
        if len(rest) < len(self.left):
            rest += self.left[len(rest) :]
        self.left, self.low = rest, low
        self.taken += 1
        return True

    def answered(self, amounts: list[float], actual: list[float]) -> bool:
        """Add a request that took ``amounts`` and cost ``actual``; whether it is the first one since the last news."""
        if first := self._ended is None:
            self._ended = [0.0] * len(self.left), [0.0] * len(self.left)
        charged, used = self._ended
        # A quota may have become known since the lease was granted, or since the request was.
        for i in range(min(len(amounts), len(charged))):
            charged[i] += amounts[i]
            used[i] += actual[i]
        return first

    def news(self) -> Settled:
        """The charges and true costs of the requests that ended since the last call; there are some."""
        assert self._ended is not None
        charged, actual = self._ended
        settled = Settled(charged, self.marks, list[float | None](actual), probe=self.probe)
        # The store is told of the probe once: a second time would end the pause after the next one.
        self._ended, self.probe = None, False
        return settled

    def rest(self) -> Settled | None:
        """Give back what is left."""
        left, self.left = self.left, [0.0] * len(self.left)
        if not any(left):
            return None
        # Whether the probe itself comes back unsent, so that another process may send one.
        unused = self.probe and left == self.amounts
        return Settled(left, self.marks, [0.0] * len(left), answered=False, probe=unused)


class LeasedReservation(Reservation):
    """A reservation whose amounts come from ``lease``. ``None``: only measured limits bind it, which the store does not count."""

    __slots__ = ("lease",)
    lease: Lease | None


class Leases:
    """The leases of one process, and the size of the next one.

    Attributes:
        leases: The leases that are not given back, the oldest first; without those for one request that are spent.
        slack_ns: How long a lease may last now; 0: a grant for each request.
        told: The lease that was :attr:`low` when the next one was asked for.
    """

    def __init__(self, now_ns: int, lease_s: float | None) -> None:
        self.leases: list[Lease] = []
        self.slack_ns = 0
        self.told: Lease | None = None
        self._lease_s = lease_s
        self._taken, self._since_ns = 0, now_ns  # requests of all leases, since the last measurement of the rate
        self._rate = 0.0

    def take(self, amounts: list[float]) -> Lease | None:
        """Spend ``amounts`` from one of the leases and return it."""
        for lease in self.leases:
            if lease.take(amounts):
                self._taken += 1
                if not (self.slack_ns or any(lease.left)):  # nothing is left of a grant for one request
                    self.leases.remove(lease)
                return lease
        return None

    @property
    def low(self) -> bool:
        """Whether less than half of the newest lease is left, and ``MANY`` requests have used it."""
        return bool(self.slack_ns and self.leases) and self.leases[-1].low and self.leases[-1].taken >= MANY

    def give_back(self, now_ns: int, *, everything: bool = False) -> list[Settled]:
        """Give back expired leases, and all but the two newest; or ``everything``."""
        # Two, because the next lease is granted while requests still spend the one before it.
        kept = [] if everything else [lease for lease in self.leases[-2:] if lease.expires_ns > now_ns]
        gone = [lease for lease in self.leases if lease not in kept]
        self.leases = kept
        return [rest for lease in gone if (rest := lease.rest()) is not None]

    def in_use(self, index: int) -> float:
        """What is left of the quota at ``index`` in all leases: other processes cannot use it."""
        return sum(lease.left[index] for lease in self.leases if index < len(lease.left))

    def set_slack(self, now_ns: int, entries: Sequence[Entry]) -> None:
        """Set :attr:`slack_ns` for these quotas, from ``lease_s`` or from the measured load."""
        passed_ns = now_ns - self._since_ns
        # Over a second at least, or a burst would look like a load.
        if passed_ns >= NS:
            self._rate = self._taken / passed_ns * NS
            self._taken, self._since_ns = 0, now_ns
        auto_s = AUTO_LEASE_S if self._rate >= AUTO_LEASE_RATE else 0.0
        wanted_ns = round((auto_s if self._lease_s is None else self._lease_s) * NS)
        # Each quota may shorten it. One that can't lend ends all leases.
        for entry in entries if wanted_ns else ():
            wanted_ns = of(entry.meter).lease_ns(entry.meter, now_ns, wanted_ns)
        self.slack_ns = wanted_ns if wanted_ns >= LEASE_MIN_NS else 0

    def wants(self, now_ns: int, ledger: Ledger, queue: Queue, peers: int) -> list[list[float]]:
        """The charges to ask for: the next requests in the queue that should fit, and at least one; or one lease."""
        self.set_slack(now_ns, ledger.entries)
        if self.slack_ns:
            waiting = [waiter.amounts for waiter in queue.peek(WAITING_SEEN)]
            return self._next_lease(now_ns, ledger.entries, waiting, peers)
        wants, total = list[list[float]](), [0.0] * len(ledger.entries)
        # Most often few of them fit, so the order is computed one by one. Where nothing is counted, one goes for all.
        for waiter in islice(queue.in_order(), HEADS_MAX if ledger.entries else 1):
            wants.append(waiter.amounts)
            total = [a + b for a, b in zip(total, waiter.amounts, strict=True)]
            if ledger.earliest(now_ns, total)[0] > now_ns:
                break
        return wants

    def _next_lease(
        self, now_ns: int, entries: Sequence[Entry], waiting: list[list[float]], peers: int
    ) -> list[list[float]]:
        """The lease to ask for, if any: twice what was spent from the last one in the same time, and the ``waiting`` requests.

        It has at most this process's part of the quota, and at least the first of ``waiting``.
        """
        if not waiting and not self.low:
            return []
        head = waiting[0] if waiting else [0.0] * len(entries)
        demand = [sum(column) for column in zip(*waiting, strict=True)] if waiting else list(head)
        if self.leases:
            last = self.leases[-1]
            times = 2 * self.slack_ns / max(now_ns - last.granted_ns, SPENT_MIN_NS)
            for i, (whole, left) in enumerate(zip(last.amounts, last.left, strict=True)):
                demand[i] += times * (whole - left)
        amounts = []
        for entry, least, wanted in zip(entries, head, demand, strict=True):
            part = of(entry.meter).lease_amount(entry.meter, now_ns, self.slack_ns, peers)
            amounts.append(max(least, min(wanted, part)))
        return [amounts] if any(amounts) else []
