"""Sliding windows, and windows that restart nobody knows when: no trailing period ever holds more than the amount."""

from __future__ import annotations

import pytest
from core_worlds import T0, grant_when_due, quota
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.ledger import Ledger
from paceline.core.quota import NS

LIMITS = [
    "100 units/min sliding",
    "100 units/min window",
    "5k units/hour sliding",
    "10 units/s window",
    "3 units/min sliding",
]


def spread(text: str, headroom_s: float = 0.0) -> Ledger:
    return Ledger([quota(text)], T0, headroom_s=headroom_s)


def most_in_any_period(grants: list[tuple[int, float]], period_ns: int) -> float:
    """The largest sum in any half-open trailing period."""
    most, total, first = 0.0, 0.0, 0
    for at_ns, cost in grants:
        total += cost
        while grants[first][0] <= at_ns - period_ns:
            total -= grants[first][1]
            first += 1
        most = max(most, total)
    return most


idle_times = st.sampled_from([0, 0, 1, 30, 60, 150])  # in hundredths of the period
counts = st.sampled_from([1, 1, 1, 5, 60])
shares = st.integers(0, 100)  # in hundredths: of the amount for a cost, of what is reserved for a true cost
runs = st.lists(st.tuples(idle_times, shares, counts, shares, st.booleans()), max_size=20)


@pytest.mark.sample(3)
@pytest.mark.parametrize("text", LIMITS)
@given(runs=runs, headroom_s=st.sampled_from([0.0, 1.0]))
def test_no_trailing_period_holds_more_than_the_amount_also_with_refunds(text, runs, headroom_s):
    ledger, limit, now_ns, grants, open_ones = spread(text, headroom_s), quota(text), T0, [], []
    period_ns = round(limit.period_s * NS)
    for idle, share, count, true_share, settle in runs:
        now_ns += idle * period_ns // 100
        for _ in range(count):
            now_ns, reservation = grant_when_due(ledger, now_ns, {"units": max(limit.amount * share // 100, 1.0)})
            grants.append([now_ns, reservation.amounts[0]])
            open_ones.append((grants[-1], reservation, reservation.amounts[0] * true_share // 100))
        while settle and open_ones:  # the last first, so that the orders differ
            entry, reserved, true = open_ones.pop()
            ledger.settle(now_ns, reserved, {"units": true})
            entry[1] = true
        trailing = sum(cost for at_ns, cost in grants if at_ns > now_ns - period_ns)
        assert ledger.entries[0].meter.level(now_ns) <= limit.amount - trailing + 1e-6
    assert most_in_any_period(grants, period_ns) <= limit.amount + 1e-6


@pytest.mark.parametrize("share", [0.001, 0.01, 0.02])
def test_a_backlog_of_small_costs_runs_at_nine_tenths_of_the_rate_or_more(share):
    ledger, now_ns = spread("100k units/min sliding", 1.0), T0
    count = round(10 / share)
    for _ in range(count):
        now_ns, _ = grant_when_due(ledger, now_ns, {"units": 100_000 * share})
    assert count * share >= 0.9 * (now_ns - T0) / (60 * NS)
