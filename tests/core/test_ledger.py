"""The quotas of a pool together: what is reserved, what binds, and what a settlement, a loss and a pause leave."""

from __future__ import annotations

import pytest
from core_worlds import T0, grant, quota

from paceline.core.ledger import DEBT_MAX, Ledger, merged
from paceline.core.local import LocalCapacity
from paceline.core.meters import Bucket
from paceline.core.pause import PROBE_NS
from paceline.core.quota import NS, Quota, parse_quotas
from paceline.core.results import COOL_DOWN, LEARNED, NeverFits, Reservation, Source, SourceKind, WaitUntil


def ledger_of(*texts: str, **options) -> Ledger:
    return Ledger([quota(text) for text in texts], T0, **{"headroom_s": 0.0, **options})


def levels(ledger: Ledger, now_ns: int = T0) -> list[float]:
    return [m.level(now_ns) for m in ledger.meters]


@pytest.fixture
def ledger():
    return ledger_of("60 requests/min")


def test_without_quotas_all_goes_at_once():
    ledger = Ledger([], T0)
    assert ledger.earliest(T0, []) == (0, -1)
    reservation = grant(ledger, T0, tokens=5)
    assert ledger.settle(T0, reservation, {"tokens": 3}) == []
    assert (ledger.seconds_of([]), reservation.oversized) == (1, False)


class TestReserve:
    def test_of_two_quotas_that_bind_until_the_same_instant_the_first_is_named(self):
        ledger = ledger_of("60 requests/min", "600 tokens/min")
        grant(ledger, T0, requests=60, tokens=600)
        assert ledger.reserve(T0, {"tokens": 10}) == WaitUntil(T0 + NS, "60 requests/min")
        assert ledger.earliest(T0, [1, 10]) == (T0 + NS, 0)
        assert ledger.earliest(T0, [1, 11])[1] == 1

    def test_a_pause_binds_beside_a_quota_that_fits_at_its_end(self, ledger):
        grant(ledger, T0, requests=60)
        ledger.pause.begin(T0 + NS)
        assert ledger.earliest(T0, [1]) == (T0 + NS, -1)
        assert ledger.reserve(T0, {}) == WaitUntil(T0 + NS, COOL_DOWN)

    def test_a_request_of_the_whole_quota_is_not_larger_than_it(self):
        ledger = ledger_of("100 tokens/min", usable=0.5)
        assert not grant(ledger, T0, tokens=50).oversized
        assert grant(ledger, T0 + 60 * NS, tokens=51).oversized

    @pytest.mark.parametrize(("cost", "reserved"), [(50, 50), (51, 50), (100, 50)])
    def test_a_request_above_the_usable_part_reserves_that_part(self, cost, reserved):
        assert grant(ledger_of("100 tokens/min", usable=0.5), T0, tokens=cost).amounts == [reserved]

    def test_a_request_above_the_given_limit_is_refused_with_its_cost(self):
        ledger = ledger_of("100 tokens/min", usable=0.5)
        assert ledger.reserve(T0, {"tokens": 101}) == ledger.never([101.0]) == NeverFits("tokens", 101, 100)
        assert ledger.reserve(T0, {"tokens": 101}).quota == ledger.never([101.0]).quota == "50 tokens/min"
        assert (ledger.fitting([101.0]), ledger.fitting([100.0])) == ([101], [50])

    @pytest.mark.parametrize(("rounding_ns", "granted"), [(1, True), (2, False)])
    def test_grants_of_earlier_instants_do_not_count_as_rounding(self, rounding_ns, granted):
        ledger = Ledger([Quota("units", 60e9, burst=100)], T0, headroom_s=0.0)  # a nanosecond for a unit
        for ns in range(10):
            grant(ledger, T0 + ns, units=1)
        grant(ledger, T0 + 1_000, units=100 + rounding_ns - 10)
        assert isinstance(ledger.reserve(T0 + 1_000, {"units": 10}), Reservation) == granted

    @pytest.mark.parametrize(
        ("grants", "over_ns", "granted"), [(1, 1, True), (1, 2, False), (3, 3, True), (3, 4, False)]
    )
    def test_a_nanosecond_for_each_grant_of_this_instant(self, grants, over_ns, granted):
        ledger = Ledger([Quota("units", 60e9, burst=100)], T0, headroom_s=0.0)
        for _ in range(grants):
            grant(ledger, T0, units=10)
        assert isinstance(ledger.reserve(T0, {"units": 100 - 10 * grants + over_ns}), Reservation) == granted

    @pytest.mark.parametrize("rule", ["exact", "window utc"])
    def test_a_wait_for_a_quota_that_does_not_refill_is_no_rounding(self, rule):
        ledger, end_ns = ledger_of(f"2 units/min {rule}"), T0 + 60 * NS
        for now_ns in (T0, end_ns - 1):
            grant(ledger, now_ns, units=1)
        assert ledger.reserve(end_ns - 1, {"units": 1}) == WaitUntil(end_ns, ledger.names[0])

    def test_the_scarcest_quota_measures_a_request_in_seconds(self):
        ledger = ledger_of("60 requests/min", "600 tokens/min", "5 concurrency")
        assert ledger.seconds_of([1, 50, 1]) == 5
        assert ledger.seconds_of([7, 50, 1]) == 7
        assert ledger_of("5 concurrency").seconds_of([1]) == 1
        assert ledger_of("600 requests/s", "5 concurrency").seconds_of([6, 1]) == 0.01
        assert ledger_of("600 requests/s").seconds_of([0]) == 0


class TestSettle:
    def test_it_returns_the_true_amounts(self):
        ledger = ledger_of("60 requests/min", "600 tokens/min")
        reservations = [grant(ledger, T0, tokens=50) for _ in range(3)]
        assert ledger.settle(T0, reservations[0], None) == [1, 50]
        assert ledger.settle(T0, reservations[1], {"tokens": 20}) == [1, 20]
        assert ledger.settle(T0, reservations[2], {"input_tokens": 3, "requests": 2}) == [2, 3]
        assert ledger.settled_amounts(reservations[2], {"input_tokens": 3}) == [1, 3]
        assert ledger.settle(T0, reservations[2], {"tokens": 500}) == [1, 50]  # it is closed
        assert [one.spent for one in ledger.entries] == [4, 73]

    @pytest.mark.parametrize("held", [(), ("units",)])
    @pytest.mark.parametrize(("rule", "later"), [("", 100), ("even", 100), ("exact", 30), ("window utc", 100)])
    def test_a_unit_that_was_not_reserved_is_charged_when_it_is_reported(self, rule, later, held):
        ledger = ledger_of("60 requests/min", f"100 units/min {rule}", charged_after=held)
        ledger.settle(T0 + NS, grant(ledger, T0), {"units": 70})
        assert (levels(ledger, T0 + NS), levels(ledger, T0 + 60 * NS)) == ([60, 30], [60, later])

    def test_a_request_larger_than_a_quota_is_charged_four_quotas_at_most(self):
        ledger = ledger_of("100 tokens/min", "60 requests/min", sources=[LEARNED, LEARNED])
        large = grant(ledger, T0, tokens=1_000)
        assert ledger.settle(T0, large, None) == [DEBT_MAX * 100, 1]
        assert levels(ledger) == [-300, 59]
        assert ledger.settle(T0, large, {"tokens": 5}) == [100, 1]  # it is closed

    def test_of_a_unit_that_the_true_cost_leaves_out_one_quota_is_charged(self):
        ledger = ledger_of("100 images/min", sources=[LEARNED])
        assert ledger.settle(T0, grant(ledger, T0, images=400), {"requests": 1}) == [100]

    def test_of_two_quotas_for_one_unit_the_smaller_bounds_the_debt(self):
        for texts in (["100 tokens/min", "50 tokens/hour"], ["50 tokens/min", "100 tokens/hour"]):
            ledger = ledger_of(*texts, sources=[LEARNED, LEARNED])
            assert ledger.settle(T0, grant(ledger, T0, tokens=1_000), None) == [200, 200]

    @pytest.mark.parametrize(
        "attempts", [[(400, None), (0, {"tokens": 1_000})], [(10, {"tokens": 1_000})]], ids=["no true cost", "a debt"]
    )
    def test_no_limit_is_raised_by_one_without_a_true_cost_or_a_debt_alone(self, attempts):
        capacity = LocalCapacity(ledger_of("100 tokens/min", sources=[LEARNED]), learns=True)
        granted = [grant(capacity.ledger, T0, tokens=tokens) for tokens, _ in attempts]
        for reservation, (_, actual) in zip(granted, attempts, strict=True):
            capacity.learning.granted(T0, reservation)
            capacity.settle(T0, reservation, actual)
        assert capacity.ledger.names == ["100 tokens/min"]

    def test_those_that_were_granted_before_a_quota_was_added_end_without_it_and_hold_slots(self):
        ledger = ledger_of("60 requests/min", charged_after=["units"])
        ends = [ledger.settle, ledger.cancel, ledger.close]
        early = [grant(ledger, T0) for _ in ends]
        ledger.add_quota(T0, quota("9 tokens/min"), LEARNED)
        ledger.add_quota(T0, quota("5 concurrency"), LEARNED)
        ledger.add_quota(T0, quota("9 units/min"), LEARNED)
        assert levels(ledger) == [57, 9, 2, 9]
        assert [ledger.in_use(index) for index in range(4)] == [3, 0, 3, 0]
        for end, reservation in zip(ends, early, strict=True):
            end(T0, reservation, *([None] if end == ledger.settle else []))
        assert (levels(ledger), ledger.in_flight, ledger.in_use(0)) == ([58, 9, 5, 9], 0, 0)

    def test_what_was_charged_elsewhere_has_no_marks(self):
        ledger = ledger_of("3 concurrency", "60 requests/min")
        ledger.entries[0].meter.used = 2.0
        reservation = Reservation({}, [1.0, 1.0], [], T0, T0 + NS)
        ledger.keep_open(reservation)
        assert ledger.owns(reservation)
        assert ledger.close(T0, reservation)
        assert levels(ledger) == [2, 60]
        assert not ledger.owns(reservation)
        assert not ledger.close(T0, reservation)

    @pytest.mark.parametrize(
        ("cost", "actual", "charged"),
        [
            ({"tokens": 5}, {"pages": 3}, {"tokens": 5, "requests": 1}),
            ({"pages": 5}, {"pages": 3}, {"tokens": 0, "requests": 1, "pages": 3}),
            ({"tokens": 5}, None, {"tokens": 5, "requests": 1}),
            ({"tokens": 5}, {"output_tokens": 3}, {"tokens": 3, "requests": 1}),
        ],
    )
    def test_the_true_cost_names_units_of_the_quotas_and_of_the_cost(self, cost, actual, charged):
        assert ledger_of("60 requests/min", "600 tokens/min").true_cost(cost, actual) == charged


@pytest.mark.parametrize(
    ("cost", "actual", "tokens"),
    [
        ({"tokens": 50}, {"requests": 1}, 50),
        ({"tokens": 50}, {"tokens": 7, "input_tokens": 9}, 7),
        ({"tokens": 50}, {"input_tokens": 9}, 9),
        ({"tokens": 50}, {"output_tokens": 4}, 4),
        ({"tokens": 50, "input_tokens": 3}, {"output_tokens": 4}, 7),
        ({"tokens": 50, "output_tokens": 3}, {"input_tokens": 9}, 12),
    ],
)
def test_a_true_part_of_the_tokens_replaces_their_sum(cost, actual, tokens):
    assert merged(cost, actual) == cost | actual | {"tokens": tokens}


@pytest.mark.parametrize(
    ("used", "tokens"),
    [
        ({"output_tokens": 5}, 15),
        ({"input_tokens": 4}, 34),
        ({"input_tokens": 4, "output_tokens": 5}, 9),
        ({"tokens": 7}, 7),
        ({"images": 2}, 80),
    ],
)
@pytest.mark.parametrize("others", [[], ["100 input_tokens/min"], ["100 input_tokens/min", "90 output_tokens/min"]])
def test_the_sum_is_of_what_is_charged_now(used, tokens, others):
    ledger = ledger_of("100 tokens/min", *others)
    reservation = grant(ledger, T0, input_tokens=50, output_tokens=30)
    ledger.adjust(T0, reservation, {"input_tokens": 20})
    ledger.adjust(T0, reservation, {"input_tokens": 10})
    now = {"input_tokens": 10, "output_tokens": 30}
    assert ledger.settle(T0, reservation, used) == [tokens, *((now | used)[quota.split()[1][:-4]] for quota in others)]
    assert levels(ledger)[0] == pytest.approx(100 - tokens)


class TestLoss:
    def test_a_quarter_of_an_hour_by_default(self, ledger):
        assert ledger.loss_check_ns == T0 + 900 * NS
        grant(ledger, T0 + NS)
        assert ledger.next_loss_ns == T0 + 901 * NS

    def test_no_one_is_looked_for_before_the_next_can_be_lost(self):
        ledger = ledger_of("60 requests/min", ttl_s=10)
        for second in (2, 5):
            grant(ledger, T0 + second * NS)
        assert [ledger.lose_old(T0 + second * NS) for second in (11, 12)] == [0, 1]
        assert ledger.loss_check_ns == T0 + 15 * NS
        assert ledger.lose_old(T0 + 15 * NS) == 1
        assert ledger.loss_check_ns == T0 + 25 * NS


class TestPause:
    def test_one_that_is_over_is_not_lifted_and_its_probe_goes(self, ledger):
        ledger.pause.begin(T0)
        ledger.pause.lift(T0, T0)
        grant(ledger, T0)
        assert ledger.reserve(T0, {}) == WaitUntil(T0 + PROBE_NS, COOL_DOWN)


class TestLimits:
    @pytest.mark.parametrize(
        ("text", "used", "levels"),
        [
            ("60 units/min", 50, {120: 10, 30: 10, 5: 5}),  # a larger bucket fills up, and a smaller one spills
            ("7 units/min exact", 5, {5: 0, 6: 1, 14: 9}),
            ("10 units/day window utc", 8, {20: 12, 5: -3}),
            ("100 units/min sliding", 90, {200: 110, 50: -40}),
            ("3 units slots", 3, {2: -1, 9: 6}),
        ],
    )
    def test_what_is_used_stays_used_of_another_amount(self, text, used, levels):
        ledger = ledger_of(text)
        grant(ledger, T0, units=used)
        found = {}
        for amount in levels:
            ledger.adopt(T0, 0, amount)
            found[amount] = ledger.meters[0].level(T0)
        assert (found, ledger.meters[0].most) == (levels, amount)

    def test_a_given_limit_that_is_raised_elsewhere_refuses_less(self):
        ledger = ledger_of("100 tokens/min", usable=0.5)
        ledger.adopt(T0, 0, 40)
        assert ([one.given for one in ledger.entries], [one.refused_above for one in ledger.entries]) == ([50], [100])
        ledger.adopt(T0, 0, 80)
        assert ([one.given for one in ledger.entries], [one.refused_above for one in ledger.entries]) == ([80], [160])
        assert (ledger.names, ledger.entries[0].share) == (["80 tokens/min"], 0.5)

    def test_slots_are_whole(self):
        ledger = ledger_of("10 concurrency", usable=0.5)
        assert (ledger.names, ledger.entries[0].share) == (["10 concurrency"], 1.0)

    @pytest.mark.parametrize(("source", "opened"), [(LEARNED, 10), (Source(SourceKind.GIVEN), 20)])
    def test_a_quota_that_an_answer_adds_opens_with_half_a_burst(self, source, opened):
        ledger = ledger_of("60 requests/min", gentle=True)
        ledger.add_quota(T0, quota("600 tokens/min"), source)
        assert (ledger.entries[1].meter.opened, ledger.entries[1].meter.reach_ns) == (opened, opened * NS // 10)


class TestAdjust:
    """What is known of the true cost while an attempt is in flight."""

    def test_known_units_are_corrected_and_the_others_stay(self):
        ledger = ledger_of("60 input_tokens/min", "10 requests/min", "100 output_tokens/min")
        first = grant(ledger, T0, requests=1, input_tokens=50, output_tokens=30)
        grant(ledger, T0 + 30 * NS, requests=1, input_tokens=10, output_tokens=30)
        ledger.adjust(T0 + 30 * NS, first, {"input_tokens": 0, "output_tokens": 40})
        assert first.amounts == [0, 1, 40]
        # Of the input 20 were left to refill at the second attempt: no more of it is refunded.
        assert levels(ledger, T0 + 30 * NS) == pytest.approx([50, 9, 70 - 10])
        assert [account.spent for account in ledger.entries] == [10, 2, 70]
        assert ledger.in_flight == 2

    def test_an_attempt_that_is_over_is_not_corrected(self):
        ledger = ledger_of("100 input_tokens/min")
        reservation = grant(ledger, T0, input_tokens=50)
        ledger.settle(T0, reservation, None)
        ledger.adjust(T0, reservation, {"input_tokens": 10})
        assert (levels(ledger), reservation.amounts) == ([50], [50])

    def test_a_quota_that_was_added_since_is_not_charged(self):
        ledger = ledger_of("100 input_tokens/min")
        reservation = grant(ledger, T0, input_tokens=50)
        ledger.add_quota(T0, quota("100 output_tokens/min"))
        ledger.adjust(T0, reservation, {"input_tokens": 60, "output_tokens": 10})
        assert levels(ledger) == [40, 100]


def test_an_attempt_is_lost_with_the_quotas_that_it_was_charged_to():
    ledger = ledger_of("60 requests/min", ttl_s=10.0)
    grant(ledger, T0, requests=1)
    ledger.add_quota(T0, quota("100 images/min"))
    assert ledger.lose_old(T0 + 11 * NS) == 1
    assert ledger.in_flight == 0


def test_a_quota_that_is_spread_without_a_wait_lets_one_go_at_once():
    assert ledger_of("60 requests/min").spread(T0, 0, 0.0).earliest(T0, 1) == T0


def test_a_quota_that_is_spread_again_keeps_its_charges():
    ledger = ledger_of("60 requests/min sliding")
    grant(ledger, T0, requests=20)
    ledger.spread(T0, 0)
    assert levels(ledger) == [40]


def test_the_first_window_of_a_quota_that_restarts_has_opened_as_far_as_the_bucket():
    ledger = ledger_of("60 requests/min", gentle=True)
    opened = ledger.meters[0].opened
    assert opened < 60
    ledger.count_restarts(T0, 0, T0 + 10 * NS, 5.0)
    assert (ledger.meters[0].opened, ledger.meters[0].level(T0)) == (opened + 5, 55)


@pytest.mark.parametrize("stop_s", [10, -10])
def test_a_spread_quota_that_restarts_has_used_of_its_window_what_the_answer_says(stop_s):
    ledger = ledger_of("60 requests/min")
    grant(ledger, T0, requests=20)
    ledger.spread(T0, 0)
    ledger.count_restarts(T0, 0, T0 + stop_s * NS, 5.0)
    assert levels(ledger) == [55]


@pytest.mark.parametrize(
    ("then", "same", "level"),
    [
        ("1 usd/day window utc, 3 concurrency", True, 0.25),
        ("9 usd/day window utc, 1 concurrency", True, 8.25),
        ("9 usd/day window utc", False, 8.25),
        ("9 usd/hour", False, 9.0),
        ("60 usd/hour, 9 usd/day window utc, 3 concurrency", False, 60.0),
    ],
)
def test_what_was_used_of_the_users_own_quotas_stays_used(then, same, level):
    ledger, quotas = Ledger(parse_quotas("2 usd/day window utc, 3 concurrency"), T0, headroom_s=0.0), parse_quotas(then)
    granted = grant(ledger, T0, usd=1.0)
    ledger.settle(T0, granted, {"usd": 0.75})
    assert ledger.counts(quotas) is same
    if same:
        ledger.give(T0, quotas)
    else:
        before, ledger = ledger, Ledger(quotas, T0, headroom_s=0.0)
        ledger.use(T0, before.lacks(T0))
    assert (ledger.names, ledger.meters[0].level(T0)) == ([str(quota) for quota in quotas], level)
    assert [m.level(T0) for m in ledger.meters if m.holds] == [m.quota.amount for m in ledger.meters if m.holds]
    assert ledger.never([quotas[0].amount + 1, *[0.0] * (len(quotas) - 1)]) is not None


@pytest.mark.parametrize("rule", ["", " even", " sliding"])
@pytest.mark.parametrize(
    ("used", "then", "lack"), [(4, 20, 4), (10, 20, 10), (12, 20, 12), (12, 10, 12), (4, 5, 4), (8, 5, 5), (12, 5, 7)]
)
def test_what_was_used_of_a_limit_that_refills_stays_used(rule, used, then, lack):
    """Of a smaller one no more is used than it holds, beside a debt."""
    ledger = ledger_of(f"10 usd/hour{rule}")
    ledger.settle(T0, grant(ledger, T0, usd=0.1), {"usd": used})
    ledger.give(T0, parse_quotas(f"{then} usd/hour{rule}"))
    assert Bucket.lack(ledger.meters[0], T0) == pytest.approx(lack)
