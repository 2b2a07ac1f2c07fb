"""What the core's tests share: instants, strategies, and a plain bucket that forgets nothing."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import strategies as st

from grids import some
from paceline.core.ledger import Ledger
from paceline.core.quota import NS, Cost, Quota
from paceline.core.results import Reservation, WaitUntil

T0 = 1_800_000_000 * NS
"""A Friday morning in 2027, UTC."""

# One unit takes a whole number of nanoseconds to come back, so that every sum is exact.
EXACT = [
    "60 requests/min",
    "6k tokens/min burst 3k",
    "500 requests/s burst 40",
    "8 starts/hour",
    "100 images/s burst 7",
]
ODD = ["7 requests/min", "1234567 tokens/hour burst 54321", "3.7 starts/s burst 11", "13 usd/day"]
AMOUNTS = pytest.mark.long("the same rule with other amounts")
BUCKETS = some([*EXACT, *ODD], EXACT[1], EXACT[4], ODD[1], ODD[2], mark=AMOUNTS)
"""For ``pytest.mark.parametrize``: buckets that fill in whole nanoseconds, and those that do not."""

gaps_ns = st.one_of(
    st.just(0), st.integers(1, 3), st.integers(0, NS), st.integers(0, 90 * NS), st.integers(0, 86_400 * NS)
)


def quota(text: str) -> Quota:
    return Quota.parse(text)


def grant(ledger: Ledger, now_ns: int, **cost: float) -> Reservation:
    """Reserve now; fail the test if it has to wait."""
    decision = ledger.reserve(now_ns, cost)
    assert isinstance(decision, Reservation), decision
    return decision


def wait_ns(ledger: Ledger, now_ns: int, cost: Cost) -> int:
    """The announced instant; ``now_ns`` when it fits already. Nothing is charged."""
    at_ns, _ = ledger.earliest(now_ns, ledger.amounts(cost))
    return max(at_ns, now_ns)


def grant_when_due(ledger: Ledger, now_ns: int, cost: Cost) -> tuple[int, Reservation]:
    """Reserve now, or at the announced instant."""
    decision = ledger.reserve(now_ns, cost)
    if isinstance(decision, WaitUntil):
        now_ns = decision.at_ns
        decision = ledger.reserve(now_ns, cost)
    assert isinstance(decision, Reservation), decision
    return now_ns, decision


def state_of(ledger: Ledger, now_ns: int) -> tuple[object, ...]:
    """Everything that a decision which grants nothing must leave alone."""
    return (
        [m.level(now_ns) for m in ledger.meters],
        [one.spent for one in ledger.entries],
        ledger.in_flight,
        ledger.pause.until_ns,
    )


class Charge:
    """One entry of a log; its cost becomes the true one when that is known."""

    def __init__(self, at_ns: int, cost: float) -> None:
        self.at_ns = at_ns
        self.cost = Fraction(cost)


class Log:
    """A provider's bucket that forgets nothing: every charge at its instant with its true cost, replayed exactly."""

    def __init__(self, limit: Quota) -> None:
        self.entries: list[tuple[int, Charge | Quota]] = []  # in the order in which they happened
        self.first = self.limit = limit

    def charge(self, now_ns: int, cost: float) -> Charge:
        charge = Charge(now_ns, cost)
        self.entries.append((now_ns, charge))
        return charge

    def adopt(self, now_ns: int, limit: Quota) -> None:
        """Another limit: a larger bucket fills from where it stands, a smaller one spills."""
        self.entries.append((now_ns, limit))
        self.limit = limit

    @property
    def total(self) -> Fraction:
        return sum((entry.cost for _, entry in self.entries if isinstance(entry, Charge)), Fraction(0))

    def used(self, now_ns: int) -> Fraction:
        """What is missing from a full bucket."""
        limit, used, last_ns = self.first, Fraction(0), 0
        for at_ns, entry in [*self.entries, (now_ns, Charge(now_ns, 0))]:
            used, last_ns = max(used - rate_of(limit) * (at_ns - last_ns), Fraction(0)), at_ns
            if isinstance(entry, Charge):
                used += entry.cost
            else:
                used = max(used + Fraction(entry.burst) - Fraction(limit.burst), Fraction(0))
                limit = entry
        return used

    def used_ns(self, now_ns: int) -> Fraction:
        """The same as the time that it takes to come back."""
        return self.used(now_ns) / rate_of(self.limit)


def rate_of(limit: Quota) -> Fraction:
    """Units per nanosecond."""
    return Fraction(limit.amount) / (Fraction(limit.period_s) * NS)
