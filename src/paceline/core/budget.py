"""A pool of money of the user's own: what is spent stays within the budget and one request.

What a request costs is known when its answer is over, so each reserves the most that it can cost. While that fits what
is left, requests go as in any pool. One whose most does not fit, or is not known, takes the one slot of ``ALONE`` in
its place, as long as anything is left: all others in flight are covered, so what is spent exceeds the budget by that
one at most. It needs no rule of its own in a store: the slot is a quota beside the dollars.
"""

from __future__ import annotations

from typing import Final

from paceline.core.capacity import PENDING
from paceline.core.pool import Pool
from paceline.core.queue import LaneSpec, Waiter
from paceline.core.quota import FAR_NS, NS, REQUESTS, USD, Cost, Quota, Rule
from paceline.core.results import Decision, Outcome, Reservation

ALONE: Final = "alone"
"""The unit of the slot. Its quota is not the user's, and is not shown."""

THE_SLOT: Final = Quota(ALONE, 1.0, 0.0, rule=Rule.SLOTS)

LEAST_USD: Final = 1e-9
"""What must be left for a request that goes alone: less than the price of any token, and more than the noise of
sums."""

CLOCK_NS: Final = 5 * NS
"""How long a request waits for a budget that refills (``1 usd/hour``), or for the answer of its store, where nothing is
in flight."""

# Not a sum of expected costs: with max_tokens=64000, a hundred parallel requests spent 114 of 1 USD by it.
_ALONE: Final[Cost] = {REQUESTS: 1, USD: LEAST_USD, ALONE: 1}


class BudgetWaiter(Waiter):
    """A request that waits for a budget.

    Args:
        most_usd: What it costs at most; ``None``: that is not known.
        lane: Its class of work.
        deadline_ns: The latest instant of a grant, or ``None``.
    """

    __slots__ = ("covered",)

    def __init__(self, most_usd: float | None, lane: LaneSpec, deadline_ns: int | None) -> None:
        self.covered: Cost | None = None if most_usd is None else {REQUESTS: 1, USD: most_usd}
        super().__init__(self.covered or _ALONE, lane, deadline_ns)


class BudgetPool(Pool):
    """The pool of a budget; its waiters are of the class :class:`BudgetWaiter`."""

    def submit(self, now_ns: int, waiter: Waiter) -> Outcome:
        """See :meth:`Pool.submit`."""
        self._choose(now_ns, waiter)
        return super().submit(now_ns, waiter)

    def pump(self, now_ns: int) -> list[Waiter]:
        """See :meth:`Pool.pump`; the last settlement in flight may have left nothing for those that wait."""
        done = super().pump(now_ns)
        # The last settlement in flight may have left nothing. By an old reply none is refused for it.
        if self.queue.length and self.capacity.is_current(now_ns):
            hopeless = self._hopeless(now_ns)
            if hopeless:
                self._set_wake(now_ns)
                return done + hopeless
        return done

    def _reserve(self, now_ns: int, waiter: Waiter) -> Decision:
        """Reserve the most that ``waiter`` costs, or else the slot."""
        assert isinstance(waiter, BudgetWaiter)
        if waiter.covered is not None:
            self._ask_for(waiter, waiter.covered)
            decision = super()._reserve(now_ns, waiter)
            if isinstance(decision, Reservation):
                return decision
        self._ask_for(waiter, _ALONE)
        decision = super()._reserve(now_ns, waiter)
        # The message to the store carries the cost, so it must be what may fit.
        if decision is PENDING:
            self._choose(now_ns, waiter)
        return decision

    def _choose(self, now_ns: int, waiter: Waiter) -> None:
        """Let ``waiter`` ask for what may fit by what is known."""
        assert isinstance(waiter, BudgetWaiter)
        cost, ledger = waiter.covered, self.capacity.ledger
        if cost is not None:
            amounts = ledger.amounts(cost)
            if ledger.never(amounts) is not None or ledger.earliest(now_ns, amounts)[0] > now_ns:
                cost = None
        self._ask_for(waiter, cost or _ALONE)

    def _ask_for(self, waiter: Waiter, cost: Cost) -> None:
        waiter.cost, waiter.amounts = cost, self.capacity.ledger.amounts(cost)

    def _is_late(self, now_ns: int, waiter: Waiter, at_ns: int) -> bool:
        """Whether nothing in flight can give back what ``waiter`` waits for, and its next refill is far."""
        until_ns = now_ns + CLOCK_NS
        if waiter.deadline_ns is not None and waiter.deadline_ns < until_ns:
            until_ns = waiter.deadline_ns
        # While something is in flight, its settlement may give back what is missing.
        return until_ns < at_ns != FAR_NS and self.capacity.settled and not self.capacity.ledger.in_flight
