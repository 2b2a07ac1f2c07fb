"""The definition of a limit, and the promise: burst + rate x length in any interval, all units or none."""

from __future__ import annotations

from fractions import Fraction

import pytest
from core_worlds import AMOUNTS, BUCKETS, EXACT, ODD, T0, gaps_ns, grant_when_due, quota, rate_of, state_of
from hypothesis import given
from hypothesis import strategies as st

from grids import some
from paceline.core.ledger import Ledger
from paceline.core.quota import FAR_NS, NS, Quota
from paceline.core.results import NeverFits, Reservation, WaitUntil

SPACED = some(
    ["100 requests/min sliding", "900 tokens/hour window", "50 starts/s sliding", "7 requests/min sliding"],
    "100 requests/min sliding", "900 tokens/hour window", mark=AMOUNTS,
)  # fmt: skip
WINDOWS = ["100 requests/day window utc", "40 tokens/min window utc", "9 starts/day window Europe/Berlin"]
TOGETHER = [
    "60 requests/min, 6k tokens/min burst 3k",
    "7 requests/min, 900 tokens/hour window, 50 starts/day window utc",
]

shares = st.integers(1, 100)  # hundredths of the largest cost that fits
headrooms_s = st.sampled_from([0.0, 0.25, 1.0])


def ledger_of(text: str, headroom_s: float, *, gentle: bool = False) -> Ledger:
    return Ledger([quota(part) for part in text.split(",")], T0, headroom_s=headroom_s, gentle=gentle)


def cost_of(ledger: Ledger, share: int) -> dict[str, float]:
    return {m.quota.unit: max(int(m.most * share / 100), 1) for m in ledger.meters}


@pytest.mark.sample(5)
@pytest.mark.parametrize("text", [*BUCKETS, *SPACED, *WINDOWS, *TOGETHER])
@given(
    history=st.lists(st.tuples(gaps_ns, shares), max_size=12),
    share=shares,
    headroom_s=headrooms_s,
    gentle=st.booleans(),
)
def test_refused_a_nanosecond_before_the_announced_instant_and_granted_at_it(text, history, share, headroom_s, gentle):
    ledger, now_ns = ledger_of(text, headroom_s, gentle=gentle), T0
    for gap_ns, part in history:
        now_ns, _ = grant_when_due(ledger, now_ns + gap_ns, cost_of(ledger, part))
    cost = cost_of(ledger, share)
    decision = ledger.reserve(now_ns, cost)
    if isinstance(decision, Reservation):
        return
    before = state_of(ledger, now_ns)
    assert isinstance(decision, WaitUntil)
    assert now_ns < decision.at_ns < FAR_NS
    assert ledger.reserve(decision.at_ns - 1, cost) == decision
    assert state_of(ledger, now_ns)[1:] == before[1:]
    assert isinstance(ledger.reserve(decision.at_ns, cost), Reservation)


@pytest.mark.sample(2)
@pytest.mark.parametrize("text", BUCKETS)
@given(
    attempts=st.lists(st.tuples(gaps_ns, shares, st.booleans(), st.integers(0, 100)), max_size=40),
    headroom_s=headrooms_s,
    gentle=st.booleans(),
)
def test_true_cost_in_any_interval_stays_within_burst_and_rate(text, attempts, headroom_s, gentle):
    # Every attempt is settled at some later moment with its true cost, at most what it reserved.
    ledger, limit, now_ns = ledger_of(text, headroom_s, gentle=gentle), quota(text), T0
    grants, open_ones = [], []
    for gap_ns, share, late, true_share in attempts:
        now_ns, reservation = grant_when_due(ledger, now_ns + gap_ns, cost_of(ledger, share))
        true = reservation.amounts[0] * true_share // 100
        grants.append((now_ns, Fraction(true)))
        open_ones.append((reservation, true))
        for settled, cost in open_ones if late else []:
            ledger.settle(now_ns, settled, {limit.unit: cost})
        open_ones = [] if late else open_ones
    rate, slack = rate_of(limit), 0 if text in EXACT else len(grants)
    for i, (start_ns, _) in enumerate(grants):
        admitted = Fraction(0)
        for at_ns, cost in grants[i:]:
            admitted += cost
            assert admitted <= Fraction(limit.burst) + rate * (at_ns - start_ns + slack)


@pytest.mark.parametrize("text", EXACT)
@given(attempts=st.lists(st.tuples(gaps_ns, shares), max_size=30))
def test_a_bucket_keeps_its_headroom_unused(text, attempts):
    limit, now_ns = quota(text), T0
    headroom_s = min(0.05, limit.burst / limit.rate / 2)
    ledger = ledger_of(text, headroom_s)
    for gap_ns, share in attempts:
        cost = cost_of(ledger, share)
        now_ns, _ = grant_when_due(ledger, now_ns + gap_ns, cost)
        # A cost that leaves less than it waits that much longer instead.
        least = min(headroom_s * limit.rate, limit.burst - cost[limit.unit])
        assert ledger.entries[0].meter.level(now_ns) >= least - 1e-6


@pytest.mark.parametrize("text", ODD)
def test_parts_of_a_nanosecond_do_not_add_up_in_our_favour(text):
    ledger, limit, now_ns, count = ledger_of(text, 0.0), quota(text), T0, 10_000
    for _ in range(count):
        now_ns, _ = grant_when_due(ledger, now_ns, {limit.unit: 1})
    assert (count - Fraction(limit.burst)) / rate_of(limit) <= now_ns - T0 + Fraction(1, 1000)


def test_headroom_costs_no_speed():
    ledger, now_ns = ledger_of("600 requests/min", 1.0), T0
    for _ in range(6_000):
        now_ns, _ = grant_when_due(ledger, now_ns, {})
    assert 6_000 / ((now_ns - T0) / NS) >= 10.0  # the full rate, and the first burst on top


@pytest.mark.parametrize("text", TOGETHER)
@given(attempts=st.lists(st.tuples(gaps_ns, st.lists(st.integers(0, 120), min_size=3, max_size=3)), max_size=30))
def test_all_units_are_charged_or_none(text, attempts):
    ledger, now_ns = ledger_of(text, 0.25), T0
    for gap_ns, parts in attempts:
        now_ns += gap_ns
        cost = {m.quota.unit: m.most * part // 100 for m, part in zip(ledger.meters, parts, strict=False)}
        before = state_of(ledger, now_ns)
        decision = ledger.reserve(now_ns, cost)
        after = state_of(ledger, now_ns)
        if not isinstance(decision, Reservation):
            assert after == before
            mosts = {one.meter.quota.unit: one.refused_above for one in ledger.entries}
            assert isinstance(decision, NeverFits) == any(cost[unit] > most for unit, most in mosts.items())
            continue
        for m, old, new, amount in zip(ledger.meters, before[0], after[0], decision.amounts, strict=True):
            least = min(amount, old) if m.quota.rule == "window" else amount  # a spread one charges its burst at most
            assert old - new >= min(least, 1) * 0.999 - 1e-6 if amount else new == old
        assert after[2] == before[2] + 1


def test_units_that_a_cost_leaves_out():
    limits = ["9 requests/min", "9 tokens/min", "9 concurrency", "9 usd/day", "9 input_tokens/min"]
    ledger = Ledger([quota(text) for text in limits], T0)
    assert ledger.amounts({}) == [1, 0, 1, 0, 0]
    assert ledger.amounts({"input_tokens": 3, "output_tokens": 4}) == [1, 7, 1, 0, 3]
    assert ledger.amounts({"tokens": 5, "input_tokens": 3, "requests": 2, "usd": 0.5}) == [2, 5, 1, 0.5, 3]


@pytest.mark.parametrize(
    ("limits", "asked", "expected"),
    [
        (["9 requests/min", "900 input_tokens/min"], 100, 512),
        (["9 requests/min", "900 tokens/min"], 100, 450),  # half of the quota
        (["9 requests/min", "900 tokens/min"], 600, 300),  # with the input no more than it
        (["9 requests/min", "900 tokens/min"], 1_000, 0),
        (["900 tokens/min", "500 output_tokens/min burst 40"], 100, 20),
        (["900 tokens/min burst 30", "500 output_tokens/min"], 10, 15),
    ],
)
def test_an_expected_output_makes_no_request_too_large(limits, asked, expected):
    assert Ledger([quota(text) for text in limits], T0).expected_output(asked, 512) == expected


class TestOpeningGently:
    def opened(self, **options) -> Ledger:
        return Ledger([Quota("requests", 600, 60.0)], T0, headroom_s=1.0, **options)

    def at_once(self, ledger: Ledger, now_ns: int) -> list:
        granted = []
        while isinstance(decision := ledger.reserve(now_ns, {}), Reservation):
            granted.append(decision)
        return granted

    def test_a_small_burst_first(self):
        assert len(self.at_once(self.opened(gentle=True), T0)) == 20  # 2 s of 10/s
        assert len(self.at_once(self.opened(), T0)) == 590

    def test_answers_widen_it_and_refusals_do_not(self):
        ledger = self.opened(gentle=True)
        for reservation in self.at_once(ledger, T0):
            ledger.close(T0, reservation)
        assert self.at_once(ledger, T0) == []
        ledger = self.opened(gentle=True)
        for reservation in self.at_once(ledger, T0):
            ledger.settle(T0, reservation, None)
        assert len(self.at_once(ledger, T0)) == 20

    @given(gaps=st.lists(gaps_ns, max_size=20))
    def test_a_large_request_is_not_shut_out(self, gaps):
        ledger, now_ns = self.opened(gentle=True), T0
        for gap_ns in gaps:
            now_ns, _ = grant_when_due(ledger, now_ns + gap_ns, {"requests": 590})
