"""Costs that the provider charges when the answer is produced: held until then, and charged at the end of the attempt."""

from __future__ import annotations

import pytest
from core_worlds import T0, grant, quota, wait_ns

from paceline.core.ledger import Ledger
from paceline.core.local import LocalCapacity
from paceline.core.meters import Held
from paceline.core.pool import Pool
from paceline.core.queue import Waiter
from paceline.core.quota import NS
from paceline.core.results import Reading, Refusal, RefusalKind, Reservation, WaitUntil


def ledger_of(text: str = "60 units/min burst 100", **options) -> Ledger:
    return Ledger([quota(text)], T0, **{"headroom_s": 0.0, "charged_after": ["units"], **options})


def level(ledger: Ledger, after_s: float = 0.0) -> float:
    return ledger.entries[0].meter.level(T0 + round(after_s * NS))


@pytest.fixture
def ledger():
    return ledger_of()


def test_only_a_bucket_of_such_a_unit_holds():
    texts = ["60 units/min", "60 units/day window utc", "60 units/hour sliding", "60 tokens/min"]
    ledger = Ledger([quota(text) for text in texts], T0, charged_after=["units"])
    assert [isinstance(m, Held) for m in ledger.meters] == [True, False, False, False]


def test_what_is_held_is_not_refilled_before_the_attempt_ends(ledger):
    slow = grant(ledger, T0, units=80)
    assert [level(ledger, second) for second in (0, 30, 59)] == [20, 20, 20]
    ledger.settle(T0 + 30 * NS, slow, None)
    assert [level(ledger, second) for second in (30, 40, 110, 120)] == [20, 30, 100, 100]


def test_what_is_held_stays_where_it_is_while_it_is_not_sent():
    m = ledger_of().entries[0].meter
    m.charge(T0, 30)
    assert m.surplus_ns(T0 + 5 * NS, 30) == 0


def test_what_is_held_is_counted_once_where_an_answer_states_another_limit():
    levels = []
    for other in (0, 15):
        capacity = LocalCapacity(ledger_of(gentle=True), learns=True)
        first, _ = (learnt_grant(capacity, units) for units in (20, other))
        assert capacity.learning.readings.observe(T0 + NS, [Reading("units", 50, 45, 6.0, 60.0)], first)
        levels.append(level(capacity.ledger, 1))
    assert levels[0] - levels[1] == pytest.approx(15)


def learnt_grant(capacity: LocalCapacity, units: float) -> Reservation:
    reservation = grant(capacity.ledger, T0, units=units)
    capacity.learning.granted(T0, reservation)
    return reservation


def test_a_cost_fits_beside_what_is_held(ledger):
    first, _ = grant(ledger, T0, units=50), grant(ledger, T0, units=50)
    assert ledger.reserve(T0, {"units": 1}) == WaitUntil(T0 + 60 * NS, "60 units/min burst 100")  # or an end before
    ledger.settle(T0 + 10 * NS, first, None)
    assert ledger.reserve(T0 + 10 * NS, {"units": 1}) == WaitUntil(T0 + 11 * NS, "60 units/min burst 100")
    assert ledger.reserve(T0 + 11 * NS - 1, {"units": 1}) == WaitUntil(T0 + 11 * NS, "60 units/min burst 100")
    grant(ledger, T0 + 11 * NS, units=1)


def test_those_that_go_first_need_their_room(ledger):
    grant(ledger, T0, units=50)
    assert ledger.earliest(T0, [10.0], [40.0])[0] == T0
    assert ledger.earliest(T0, [10.0], [41.0])[0] == T0 + 60 * NS


@pytest.mark.parametrize(("true", "left"), [(20, 80), (0, 100), (80, 20), (130, -30)])
def test_the_true_cost_is_charged_at_the_end(ledger, true, left):
    attempt = grant(ledger, T0, units=80)
    ledger.settle(T0 + 30 * NS, attempt, {"units": true})
    assert level(ledger, 30) == left
    assert [one.spent for one in ledger.entries] == [true]


def test_an_attempt_that_was_never_sent_costs_nothing(ledger):
    attempt = grant(ledger, T0, units=80)
    grant(ledger, T0, units=10)
    ledger.cancel(T0 + NS, attempt)
    assert level(ledger, 1) == 90


def test_a_cost_held_for_one_period_is_charged_then(ledger):
    slow = grant(ledger, T0, units=80)
    assert wait_ns(ledger, T0 + 60 * NS - 1, {"units": 30}) == T0 + 60 * NS
    assert level(ledger, 60) == 20
    assert wait_ns(ledger, T0 + 60 * NS, {"units": 30}) == T0 + 70 * NS
    assert level(ledger, 70) == 30  # it refills from then on
    ledger.settle(T0 + 80 * NS, slow, {"units": 100})
    assert level(ledger, 80) == 20


def test_what_is_held_stays_held_when_the_limit_changes():
    ledger = ledger_of("60 units/min")
    grant(ledger, T0, units=20)
    ledger.adopt(T0, 0, 120)
    assert (ledger.names, level(ledger)) == (["120 units/min"], 40)  # it fills up from what it had
    assert level(ledger, 60) == 100


def test_a_refusal_does_not_lower_what_the_quota_holds_at_once():
    """What the answers in flight have produced explains it."""
    pool = Pool("openai/m", LocalCapacity(ledger_of("600 units/min burst 600"), learns=True))
    sent = [pool.try_grant(T0, Waiter({"units": 10})) for _ in range(3)]
    m = pool.ledger.entries[0].meter
    before = m.burst_cap
    pool.refuse(T0 + NS, sent[0], Refusal(RefusalKind.RATE, unit="units"), 0.0)
    assert m.burst_cap == before
