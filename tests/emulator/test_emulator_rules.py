"""The four rules: what they may admit, and whether what they say about waiting is true."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.emulator.rules import BucketRule, CountingRule, SlidingRule, SlotsRule, WindowRule

arrivals = st.lists(st.tuples(st.floats(0, 30), st.integers(1, 60)), min_size=1, max_size=80)


def admitted(rule: CountingRule, steps) -> list[tuple[float, float]]:
    now, taken = 0.0, []
    for gap, cost in steps:
        now += gap
        if rule.fits(now, cost):
            rule.charge(now, cost)
            taken.append((now, cost))
    return taken


@given(arrivals, st.integers(60, 200), st.one_of(st.just(0.0), st.floats(0.5, 20)))
def test_bucket_admits_burst_plus_rate_and_overshoots_a_quantum_by_less_than_one_request(steps, limit, quantum_s):
    bucket = BucketRule(limit, 60, 0.0, quantum_s=quantum_s)
    taken = admitted(bucket, steps)
    for i, (start, _) in enumerate(taken):
        total, largest = 0.0, 0.0
        for end, cost in taken[i:]:
            total, largest = total + cost, max(largest, cost)
            over = max(bucket.burst, largest) if quantum_s else 0.0
            assert total <= over + bucket.burst + limit / 60 * (end - start) + 1e-3


@given(arrivals, st.integers(60, 200))
def test_sliding_is_exact_in_every_trailing_period(steps, limit):
    rule, taken, now = SlidingRule(limit, 60, 0.0), [], 0.0
    for gap, cost in steps:
        now += gap
        recent = sum(c for at, c in taken if at + 60 > now)
        assert rule.fits(now, cost) == (recent + cost <= limit)
        if rule.fits(now, cost):
            rule.charge(now, cost)
            taken.append((now, cost))


@given(arrivals, st.integers(60, 200), st.integers(0, 59))
def test_window_counts_every_window_by_itself(steps, limit, offset):
    windows: dict[int, float] = {}
    for at, cost in admitted(WindowRule(limit, 60, 0.0, offset_s=offset), steps):
        number = math.floor((at - offset) / 60)
        windows[number] = windows.get(number, 0) + cost
    assert all(total <= limit for total in windows.values())


def make_rule(name: str) -> CountingRule:
    return {
        "bucket": BucketRule(60, 60, 0.0),
        "quantised": BucketRule(60, 60, 0.0, quantum_s=6),
        "window": WindowRule(60, 60, 0.0, offset_s=17),
        "sliding": SlidingRule(60, 60, 0.0),
    }[name]


@pytest.mark.parametrize("name", ["bucket", "quantised", "window", "sliding"])
@given(arrivals, st.integers(1, 60))
def test_wait_is_true_to_the_moment(name, steps, cost):
    rule = make_rule(name)
    admitted(rule, steps)
    now = sum(gap for gap, _ in steps)
    wait = rule.wait(now, cost)
    if wait > 0.01:
        assert not rule.fits(now + wait - 0.005, cost)
    assert rule.fits(now + wait + 1e-5, cost)


@pytest.mark.parametrize(
    ("limit", "period", "used", "requested", "wait"),
    [(3, 60, 3, 1, 20.0), (200, 86_400, 200, 1, 432.0), (40_000, 60, 34_514, 6_665, 1.7685), (6_000, 60, 6_030, 2_320, 23.5)],
)  # fmt: skip
def test_bucket_waits_as_captured_refusals_say(limit, period, used, requested, wait):
    bucket = BucketRule(limit, period, 0.0)
    bucket.charge(0.0, used)
    assert bucket.wait(0.0, requested) == pytest.approx(wait)
    assert bucket.reset(0.0) == pytest.approx(used * period / limit)


def test_cost_above_the_limit_never_fits():
    for name in ("bucket", "quantised", "window", "sliding"):
        assert make_rule(name).wait(0.0, 61) == math.inf
        assert not make_rule(name).fits(0.0, 61)
    assert SlotsRule(2).wait(0.0, 3) == math.inf


def test_give_back_never_exceeds_the_burst():
    bucket = BucketRule(60, 60, 0.0)
    bucket.charge(0.0, 10)
    bucket.give_back(5.0, 10, 0.0)
    assert bucket.remaining(5.0) == 60


def test_give_back_after_the_window_is_lost():
    window = WindowRule(60, 60, 0.0)
    window.charge(0.0, 50)
    window.give_back(1.0, 20, 0.0)
    assert window.remaining(1.0) == 30
    window.charge(61.0, 10)
    window.give_back(62.0, 20, 0.0)
    assert window.remaining(62.0) == 50
    window.give_back(62.0, -5, 0.0)  # used more than was held: counts now
    assert window.remaining(62.0) == 45


def test_sliding_give_back_goes_to_its_own_entry():
    rule = SlidingRule(60, 60, 0.0)
    rule.charge(0.0, 30)
    rule.charge(30.0, 30)
    rule.give_back(31.0, 10, 0.0)
    assert rule.remaining(31.0) == 10
    assert rule.remaining(60.0) == 30
    rule.give_back(61.0, 10, 0.0)  # it has left already
    assert rule.remaining(61.0) == 30
    assert rule.remaining(90.0) == 60


def test_sliding_log_stays_as_long_as_its_period():
    rule = SlidingRule(1e9, 60, 0.0)
    for step in range(20_000):
        rule.charge(step * 0.1, 1)
    assert len(rule._times) < 2_500
    assert rule.remaining(2_000.0) == pytest.approx(1e9 - 600, abs=1)


@pytest.mark.parametrize("name", ["bucket", "window", "sliding"])
def test_other_users_take_their_share(name):
    rule = make_rule(name)
    rule.share_with(0.0, 0.5)
    rule.charge(0.0, 60)
    if name == "bucket":
        assert rule.remaining(30.0) == pytest.approx(15)
        assert rule.wait(30.0, 30) == pytest.approx(15)  # the server does not know about the future
    elif name == "window":
        assert rule.remaining(16.0) == pytest.approx(-8)
        assert rule.remaining(17.0) == pytest.approx(60)
        assert rule.remaining(47.0) == pytest.approx(45)
    else:
        assert rule.remaining(30.0) == pytest.approx(-15)
        assert rule.remaining(120.0) == pytest.approx(30)


@pytest.mark.parametrize("name", ["bucket", "window", "sliding"])
def test_lower_limit_spills_and_higher_limit_gives_room(name):
    rule = make_rule(name)
    rule.charge(0.0, 10)
    rule.set_limit(0.0, 30)
    assert rule.remaining(0.0) == (30 if name == "bucket" else 20)
    assert not rule.fits(0.0, 31)
    rule.set_limit(0.0, 100)
    assert rule.limit == 100
    assert rule.fits(100.0, 90)
