"""Late corrections against a log that forgets nothing: refunds never create capacity, and are worth their amount."""

from __future__ import annotations

from fractions import Fraction

import pytest
from core_worlds import T0, Log, gaps_ns, grant, grant_when_due, quota
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from paceline.core import meters
from paceline.core.ledger import Ledger
from paceline.core.meters import Bucket
from paceline.core.quota import FAR_NS, NS
from paceline.core.results import NeverFits, Reservation, WaitUntil

TTL_S = 300


class SharedLedger(RuleBasedStateMachine):
    """A ledger, and beside it one log for each quota, where every charge has its true cost from its first instant."""

    LIMITS = ("60 requests/min burst 90", "6k tokens/min burst 3k")  # 1 s and 10 ms for one unit: all sums are exact
    SLACK_NS = 0  # for each operation

    @initialize(headroom_s=st.sampled_from([0.0, 1.0]), gentle=st.booleans())
    def start(self, headroom_s, gentle):
        self.now_ns = T0
        limits = [quota(text) for text in self.LIMITS]
        self.ledger = Ledger(limits, T0, headroom_s=headroom_s, ttl_s=TTL_S, gentle=gentle)
        self.logs = [Log(limit) for limit in limits]
        self.open, self.closed = [], []
        self.exact = True  # until a correction was not worth its full amount, or an amount changed
        self.operations = 0

    @rule(gap_ns=st.one_of(st.integers(0, 120).map(lambda s: s * NS), st.integers(0, NS)))
    def advance(self, gap_ns):
        self.now_ns += gap_ns

    @rule()
    def advance_until_full(self):
        self.now_ns = max(self.now_ns, *(m.full_at_ns for m in self.ledger.meters))

    @rule(requests=st.integers(0, 120), tokens=st.integers(0, 4_000), patient=st.booleans())
    def reserve(self, requests, tokens, patient):
        cost = {"requests": requests, "tokens": tokens}
        amounts, most = list(cost.values()), [one.refused_above for one in self.ledger.entries]
        if any(m.quota.burst < amount <= own for m, amount, own in zip(self.ledger.meters, amounts, most, strict=True)):
            return  # above an answer's limit: it goes alone, and the provider decides
        decision = self.ledger.reserve(self.now_ns, cost)
        if patient and isinstance(decision, WaitUntil):
            assert decision.at_ns > self.now_ns
            self.now_ns = decision.at_ns
            decision = self.ledger.reserve(self.now_ns, cost)
            assert isinstance(decision, Reservation)
        if isinstance(decision, Reservation):
            self.operations += 1
            charges = [log.charge(self.now_ns, c) for log, c in zip(self.logs, cost.values(), strict=True)]
            self.open.append((decision, charges, self.now_ns))
        most = [max(m.quota.burst, own) for m, own in zip(self.ledger.meters, most, strict=True)]
        assert isinstance(decision, NeverFits) == (requests > most[0] or tokens > most[1])

    @precondition(lambda self: self.open)
    @rule(data=st.data(), requests=st.integers(0, 120), tokens=st.integers(0, 4_000), same=st.booleans())
    def settle(self, data, requests, tokens, same):
        handle = self.take(data)
        reservation = handle[0]
        true = list(reservation.amounts) if same else [requests, tokens]
        self.ledger.settle(self.now_ns, reservation, {"requests": true[0], "tokens": true[1]})
        self.correct(handle, true)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), known=st.booleans())
    def settle_one_unit_or_as_reserved(self, data, known):
        handle = self.take(data)
        self.ledger.settle(self.now_ns, handle[0], {"input_tokens": 7, "output_tokens": 5} if known else None)
        self.correct(handle, [handle[0].amounts[0], 12 if known else handle[0].amounts[1]])

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def cancel(self, data):
        handle = self.take(data)
        self.ledger.cancel(self.now_ns, handle[0])
        self.correct(handle, [0, 0])

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def refuse(self, data):
        self.ledger.close(self.now_ns, self.take(data)[0])

    @precondition(lambda self: self.closed)
    @rule(data=st.data(), tokens=st.integers(0, 4_000), how=st.integers(0, 2))
    def close_again(self, data, tokens, how):
        reservation = data.draw(st.sampled_from(self.closed))
        if how == 0:
            self.ledger.settle(self.now_ns, reservation, {"tokens": tokens})
        elif how == 1:
            self.ledger.cancel(self.now_ns, reservation)
        else:
            self.ledger.close(self.now_ns, reservation)

    @rule()
    def expire(self):
        late = [handle for handle in self.open if handle[2] + TTL_S * NS <= self.now_ns]
        assert self.ledger.lose_old(self.now_ns) == len(late)
        self.open = [handle for handle in self.open if handle not in late]
        self.closed += [handle[0] for handle in late]
        oldest = min((handle[2] for handle in self.open), default=None)
        assert self.ledger.next_loss_ns == (FAR_NS if oldest is None else oldest + TTL_S * NS)

    @rule(index=st.integers(0, 1), factor=st.sampled_from([0.5, 2.0]))
    def adopt(self, index, factor):
        amount = self.ledger.entries[index].meter.quota.amount * factor
        if not 600 <= amount * (1 if index else 20) <= 100_000 or amount < 30:
            return
        self.operations += 1
        self.ledger.adopt(self.now_ns, index, amount)
        self.logs[index].adopt(self.now_ns, self.ledger.entries[index].meter.quota)
        self.exact = False

    @rule(pause_s=st.integers(0, 20))
    def pause(self, pause_s):
        self.ledger.pause.begin(self.now_ns + pause_s * NS)

    def take(self, data):
        handle = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        self.closed.append(handle[0])
        return handle

    def correct(self, handle, true):
        """The log learns the true cost at the instant of the reservation."""
        reservation, charges, _ = handle
        self.operations += 1
        for log, charge, reserved, cost in zip(self.logs, charges, reservation.amounts, true, strict=True):
            before = log.used(self.now_ns)
            charge.cost = Fraction(cost)
            if log.used(self.now_ns) - before != Fraction(cost) - Fraction(reserved):
                self.exact = False

    @invariant()
    def never_more_than_the_provider_would_have(self):
        for m, log in zip(self.ledger.meters, self.logs, strict=True):
            used_ns = max(m.full_at_ns - self.now_ns, 0)
            slack_ns = self.SLACK_NS * self.operations
            assert used_ns + slack_ns >= log.used_ns(self.now_ns)
            assert m.level(self.now_ns) <= m.quota.burst
            if self.exact:  # no correction met a full bucket: every one was worth its full amount
                assert used_ns - slack_ns <= log.used_ns(self.now_ns)

    @invariant()
    def what_is_charged_and_open_adds_up(self):
        assert self.ledger.in_flight == len(self.open)
        assert [one.spent for one in self.ledger.entries] == [log.total for log in self.logs]


class OddLedger(SharedLedger):
    """Rates at which no unit takes a whole number of nanoseconds."""

    LIMITS = ("70.3 requests/min burst 90", "7001 tokens/min burst 3k")
    SLACK_NS = 1


TestBooks = SharedLedger.TestCase
TestOddBooks = OddLedger.TestCase
TestBooks.settings = TestOddBooks.settings = settings(stateful_step_count=50)


@pytest.mark.soak
class TestBooksForLong(TestBooks):
    settings = settings(max_examples=2_000, stateful_step_count=50)


@pytest.mark.soak
class TestOddBooksForLong(TestOddBooks):
    settings = TestBooksForLong.settings


def one_bucket(text: str) -> Ledger:
    return Ledger([quota(text)], T0, headroom_s=0.0)


steps = st.tuples(
    st.sampled_from([0, 1, NS, 5 * NS, 10 * NS, 30 * NS]),
    st.one_of(st.integers(1, 40), st.tuples(st.integers(0, 15), st.sampled_from([0, 0, 1, 5, 20]))),
)


@given(history=st.lists(steps, min_size=20, max_size=40))
def test_refunds_in_any_order_are_exact_while_the_low_points_suffice(history):
    bucket, log, now_ns, attempts = Bucket(quota("60 units/min"), T0, 0.0), Log(quota("60 units/min")), T0, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(meters, "LOW_POINTS_MAX", 40)
        for gap_ns, step in history:
            now_ns += gap_ns
            if isinstance(step, int):
                attempts.append((bucket.charge(now_ns, step), step, log.charge(now_ns, step)))
            elif attempts:
                mark, cost, charge = attempts.pop(step[0] % len(attempts))
                true = min(cost, step[1])
                bucket.correct(now_ns, mark, cost, true)
                charge.cost = Fraction(true)
            assert max(bucket.full_at_ns - now_ns, 0) == log.used_ns(now_ns)


def test_a_cost_held_longer_than_a_period_is_refunded_from_the_instant_of_its_charge():
    ledger = Ledger([quota("60 units/min burst 100")], T0, headroom_s=0.0, charged_after=["units"])
    slow = grant(ledger, T0, units=80)
    ledger.earliest(T0 + 60 * NS, [1.0])  # one period after the grant it is charged
    ledger.settle(T0 + 140 * NS, grant(ledger, T0 + 140 * NS, units=40), None)  # full again just before
    ledger.settle(T0 + 140 * NS, slow, {"units": 0})
    assert ledger.entries[0].meter.level(T0 + 140 * NS) == 60


@pytest.mark.parametrize("end", ["settled", "refused", "lost"])
def test_no_trace_stays_of_a_cost_held_longer_than_a_period(end):
    ledger = Ledger([quota("60 units/min burst 100")], T0, headroom_s=0.0, charged_after=["units"], ttl_s=100)
    slow = grant(ledger, T0, units=80)
    ledger.earliest(T0 + 60 * NS, [1.0])
    if end == "settled":
        ledger.settle(T0 + 70 * NS, slow, None)
    elif end == "refused":
        ledger.close(T0 + 70 * NS, slow)
    else:
        ledger.lose_old(T0 + 100 * NS)
    assert (ledger.entries[0].meter.held, ledger.entries[0].meter.charged_early) == ({}, {})


operations = st.lists(st.tuples(gaps_ns, st.integers(1, 40), st.integers(0, 30), st.integers(0, 40)), max_size=60)


@pytest.mark.parametrize("points", [2, 3, 64])
@given(script=operations)
def test_forgetting_low_points_only_shrinks_refunds(points, script):
    limit, fits = quota("60 units/min burst 100"), meters.LOW_POINTS_MAX
    few, many, log, now_ns, open_ones = one_bucket(str(limit)), one_bucket(str(limit)), Log(limit), T0, []
    for gap_ns, cost, which, true in script:
        meters.LOW_POINTS_MAX = points
        try:  # both are asked at the instant that suits the stricter one
            now_ns, forgetful = grant_when_due(few, now_ns + gap_ns % (60 * NS), {"units": cost})
        finally:
            meters.LOW_POINTS_MAX = fits
        open_ones.append((forgetful, grant(many, now_ns, units=cost), log.charge(now_ns, cost)))
        if which < len(open_ones):
            a, b, charge = open_ones.pop(which)
            charge.cost = min(Fraction(true), charge.cost)
            few.settle(now_ns, a, {"units": float(charge.cost)})
            many.settle(now_ns, b, {"units": float(charge.cost)})
        assert few.meters[0].full_at_ns - now_ns >= log.used_ns(now_ns)
        assert few.meters[0].full_at_ns >= many.meters[0].full_at_ns
