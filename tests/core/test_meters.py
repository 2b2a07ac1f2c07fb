"""Each meter alone, to the nanosecond: what it holds, when a cost fits, and what a correction changes."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime

import pytest
from core_worlds import T0, quota

from paceline.core import meters
from paceline.core.meters import SLICES, Bucket, Exact, Held, Slots, Spread, Window, new_meter, window_starts
from paceline.core.quota import FAR_NS, MONTH, NS, Quota, Rule

RULES = ["even", "exact", "sliding", "window", "window utc"]
FINE = Quota("units", 60e9)
"""A unit takes a nanosecond."""


def bucket(text: str = "60 units/min", headroom_s: float = 0.0, **options) -> Bucket:
    return Bucket(quota(text), T0, headroom_s, **options)


def after_s(seconds: float) -> int:
    return T0 + round(seconds * NS)


def lack_s(m: Bucket, now_ns: int = T0) -> float:
    return (m.full_at_ns - now_ns) / NS


@pytest.fixture
def m():
    return bucket()


class TestNew:
    @pytest.mark.parametrize("rule", ["", *RULES])
    def test_nothing_is_used(self, rule):
        m = new_meter(quota(f"60 units/min {rule}"), T0, 0.0)
        assert getattr(m, "used", 0.0) == 0
        assert (m.level(T0), m.most) == (60, 60)
        assert m.earliest(T0, 60) <= T0

    @pytest.mark.parametrize("text", ["60 units/min", *(f"60 units/min {rule}" for rule in RULES), "60 concurrency"])
    def test_it_lacks_what_is_charged(self, text):
        m = new_meter(quota(text), T0, 0.0)
        m.charge(T0, 1.0)
        assert m.lack(T0) == pytest.approx(1.0)

    def test_a_burst_below_the_refill_of_a_nanosecond_grants_nothing_at_once(self):
        assert Bucket(Quota("units", 1e12, 1.0, burst=1e-6), T0, 0.0).reach_ns == 0

    def test_a_gentle_bucket_opens_with_a_thirtieth_of_a_longer_period(self):
        assert bucket("600 units/5min", gentle=True).opened == 20

    @pytest.mark.parametrize("text", ["60 units/min exact", "60 units/min window utc", "60 concurrency"])
    def test_only_a_full_bucket_has_a_surplus_by_what_is_unsent(self, text):
        assert new_meter(quota(text), T0, 0.0).surplus_ns(T0, 5.0) == 0

    @pytest.mark.parametrize(("held", "opened"), [(False, 20), (True, math.inf)])
    def test_a_bucket_is_open_unless_it_is_gentle_and_charged_at_admission(self, held, opened):
        assert new_meter(quota("600 units/min"), T0, 0.0, held=held).opened == math.inf
        assert new_meter(quota("600 units/min"), T0, 0.0, held=held, gentle=True).opened == opened
        assert type(new_meter(quota("600 units/min"), T0, 0.0, held=held)) is (Held if held else Bucket)

    def test_slots_have_no_marks(self):
        m = Slots(quota("3 concurrency"))
        assert [m.charge(T0, 1) for _ in range(4)] == [0] * 4
        assert (m.level(T0), m.earliest(T0, 1)) == (-1, FAR_NS)


@pytest.mark.parametrize("kind", [Bucket, Held, Spread])
def test_marks_are_instants_made_unique(kind):
    m = kind(quota("60 units/min"), T0, 0.0)
    assert [m.charge(T0 + ns, 1) for ns in (0, 0, -NS, NS, 2 * NS)] == [T0, T0 + 1, T0 + 2, T0 + NS, T0 + 2 * NS]
    assert kind(quota("60 units/min"), 0, 0.0).charge(1, 1) == 1


class TestEarliest:
    def test_a_burst_below_the_headroom_keeps_half_of_itself(self):
        m = bucket("60 units/min burst 4", headroom_s=3.0)
        assert m.reach_ns == 2 * NS
        assert max(m.earliest(T0, cost) for cost in (2, 3, 4)) <= T0  # nothing was charged before
        m.charge(T0, 4)
        assert [m.earliest(T0, cost) for cost in (1, 2, 3)] == [after_s(3), after_s(4), after_s(4.05)]

    def test_the_whole_burst_fits_though_its_parts_are_rounded(self):
        m = bucket("7 units/min burst 3")
        assert math.ceil(3 * m.ns_per_unit) - m.reach_ns == 1
        assert m.earliest(T0, 3) <= T0

    def test_slack_is_refill_that_stays_unused(self, m):
        m.charge(T0, 60)
        earliest = m.earliest(T0, 10), m.earliest(T0, 10, slack_ns=NS), m.earliest(T0, 10, 5)
        assert earliest == (after_s(10), after_s(11), after_s(15))

    def test_of_a_capped_bucket(self, m):
        m.cap_burst(0.5)
        m.charge(T0, 1)
        assert (m.earliest(T0, 0.5), m.earliest(T0, 0.25)) == (after_s(1), after_s(0.75))
        m.cap_burst(-3)
        assert (m.burst_cap, m.earliest(T0, 0.25)) == (0, after_s(1))


class TestRate:
    def test_a_ceiling_slows_the_refill_and_leaves_the_level(self, m):
        m.charge(T0, 30)
        m.become(T0, m.quota, 0.5)
        assert (m.level(T0), m.level(after_s(10)), m.ns_per_unit) == (30, 35, 2e9)
        assert m.earliest(T0, 40) == after_s(20)

    @pytest.mark.parametrize("text", ["60 units/min", "60 units/min sliding"])
    def test_a_ceiling_has_bounds(self, text):
        m = new_meter(quota(text), T0, 0.0)
        seen = []
        for ceiling in (0.5, 1.5, 0.001):
            m.become(T0, m.quota, ceiling)
            seen.append(m.ceiling)
        assert seen == [0.5, 1.0, 0.01]
        m.become(T0, m.quota.with_amount(30))
        assert m.ceiling == 1

    def test_a_smaller_bucket_lacked_less_by_what_it_has_shrunk(self, m):
        early = m.charge(T0, 50)
        m.charge(after_s(10), 10)  # 40 were missing
        m.become(after_s(10), m.quota.with_amount(30))
        assert m.low.lacks == [0, 20 * NS, 40 * NS]  # 10 and 20 of 30
        assert m.level(after_s(10)) == 10
        m.correct(after_s(10), early, 50, 0)
        assert m.level(after_s(10)) == 20  # the 10 of the least lack

    def test_a_larger_bucket_is_taken_to_have_lacked_the_same(self, m):
        m.charge(T0, 50)
        m.charge(after_s(10), 10)
        m.become(after_s(10), m.quota.with_amount(120))
        assert m.low.lacks == [0, 20 * NS, 25 * NS]  # 40 and 50 of 120, at two a second
        assert m.level(after_s(10)) == 10


def test_a_bucket_that_has_long_been_full_refills_for_those_ahead_from_now_on(m):
    assert m.earliest(after_s(100), 30, ahead=90) == after_s(160)


class TestOpening:
    def gentle(self) -> Bucket:
        return bucket("600 units/min", gentle=True)

    def test_each_answer_widens_it_by_its_cost_or_to_twice_its_cost(self):
        m, seen = self.gentle(), []
        for cost in (5, 25, 60, 150):
            m.answered(T0, 0, cost)
            seen.append((m.opened, m.reach_ns))
        assert seen == [(25, 2.5 * NS), (50, 5 * NS), (120, 12 * NS), (300, 30 * NS)]
        m.answered(T0, 0, 300)
        assert (m.opened, m.reach_ns) == (math.inf, 60 * NS)  # the whole burst

    def test_it_opens_up_to_its_headroom(self):
        m = bucket("600 units/min", headroom_s=1.0, gentle=True)
        m.answered(T0, 0, 297)
        assert (m.opened, m.reach_ns) == (594, 59 * NS)

    def test_a_capped_bucket_opens_up_to_its_cap(self):
        m = self.gentle()
        m.cap_burst(30)
        seen = []
        for _ in range(3):
            m.answered(T0, 0, 5)
            seen.append(m.reach_ns)
        assert seen == [2.5 * NS, 3 * NS, 3 * NS]

    def test_use_by_others_is_no_grant_and_the_burst_never_falls_below_the_first(self):
        m = self.gentle()
        m.shift(T0, 3 * NS)
        assert m.opened == 50
        m.shift(T0, -NS)
        assert m.opened == 40
        m.shift(T0, -100 * NS)
        assert m.opened == 20

    def test_a_limit_that_grew_is_open_by_as_much_more_and_one_that_fell_as_before(self):
        m = self.gentle()
        m.become(T0, m.quota.with_amount(1_200))
        assert m.opened == 620
        m = self.gentle()
        m.become(T0, m.quota.with_amount(300))
        assert (m.opened, m.reach_ns) == (20, 4 * NS)


class TestLowPoints:
    def test_the_two_nearest_of_too_many_are_merged_and_the_later_mark_keeps_the_smaller_lack(self):
        m, costs = bucket("60 units/min burst 1k"), [10] * 5 + [3] + [10] * 11
        marks = [m.charge(T0, cost) for cost in costs[:16]]
        lacks = [sum(costs[:i]) * NS for i in range(17)]
        assert (m.low.marks, m.low.lacks) == (marks, lacks[:16])
        marks.append(m.charge(T0, costs[16]))
        assert (m.low.marks, m.low.lacks) == (marks[:5] + marks[6:], lacks[:6] + lacks[7:])

    def test_one_that_a_later_one_undercuts_is_dropped(self, m):
        marks = [m.charge(after_s(second), 10) for second in (0, 2, 4, 29)]
        assert (m.low.marks, m.low.lacks) == (marks[:1] + marks[3:], [0, NS])

    def test_a_refund_above_the_least_lack_is_worth_that_lack(self):
        m = bucket("60 units/min burst 200")
        marks = [m.charge(after_s(second), cost) for second, cost in ((0, 50), (40, 30), (50, 20))]
        m.correct(after_s(50), marks[0], 50, 0)
        assert (m.low.marks, m.low.lacks, lack_s(m, after_s(50))) == (marks[1:], [0, 20 * NS], 40)

    def test_a_refund_when_the_bucket_is_full_again_changes_none(self):
        m = bucket("60 units/min burst 200")
        marks = [m.charge(after_s(second), cost) for second, cost in ((0, 50), (40, 30), (50, 20))]
        m.correct(after_s(100), marks[0], 50, 0)
        m.correct(after_s(100), marks[2], 20, 70)
        assert (m.low.lacks, lack_s(m, after_s(100))) == ([0, 10 * NS, 30 * NS], 50)
        m.correct(after_s(100), marks[1], 30, 0)
        assert lack_s(m, after_s(100)) == 20  # that of the last charge alone

    def test_a_mark_that_the_bucket_has_not_made_is_the_latest(self, m):
        """A store that has lost its ledger gets the marks of the old one."""
        m.charge(T0, 10)
        m.correct(T0, after_s(1_000), 10, 4)
        assert (lack_s(m), m.low.lacks) == (4, [0])


class TestCorrect:
    def test_nothing_changes_what_has_been_full_for_long(self, m):
        mark = m.charge(T0, 10)
        for true in (10, 5):
            m.correct(after_s(20), mark, 10, true)
            assert m.full_at_ns == after_s(10)
        m.correct(after_s(20), mark, 10, 13)  # debt is charged now
        assert m.full_at_ns == after_s(23)

    def test_to_the_nanosecond(self):
        m = Bucket(FINE, T0, 0.0)
        mark = m.charge(T0, 5)
        m.correct(T0, mark, 5, 4)
        assert m.full_at_ns == T0 + 4
        m.correct(T0 + 3, mark, 4, 0)  # a nanosecond is missing
        assert m.full_at_ns == T0 + 3
        m.correct(T0 + 3, mark, 0, 1)
        assert m.full_at_ns == T0 + 4


class TestShift:
    def test_a_nanosecond_that_others_have_spent_is_not_refunded(self, m):
        mark = m.charge(T0, 10)
        m.shift(after_s(10), 1)
        m.correct(after_s(10), mark, 10, 0)
        assert m.full_at_ns == after_s(10) + 1

    @pytest.mark.parametrize(("by_s", "low_s", "lacks_s", "then_s"), [(3, 2, 17, 15), (7, 0, 13, 13)])
    def test_charges_that_were_too_high_lower_the_low_points_and_none_below_a_full_bucket(
        self, by_s, low_s, lacks_s, then_s
    ):
        m = bucket()
        early, _ = m.charge(T0, 10), m.charge(after_s(5), 10)
        m.shift(after_s(5), -by_s * NS)
        assert (m.low.lacks, lack_s(m)) == ([0, low_s * NS], lacks_s)
        m.correct(after_s(5), early, 10, 0)
        assert lack_s(m) == then_s

    def test_what_arrives_now_is_in_the_surplus_to_the_nanosecond(self, m):
        m.charge(T0, 10)
        assert (m.surplus_ns(T0 + 1, 10), m.surplus_ns(T0 + 1, 4)) == (1, 0)


@pytest.mark.parametrize("rule", ["exact", "sliding"])
def test_sums_of_floats_do_not_make_the_last_cost_wait(rule):
    m = new_meter(quota(f"0.3 usd/min {rule}"), T0, 0.0)
    m.charge(T0, 0.1)
    m.charge(T0, 0.1)
    assert m.level(T0) < 0.1
    assert m.earliest(T0, 0.1) <= max(T0, getattr(m, "full_at_ns", T0))


def test_sums_of_floats_make_no_further_window():
    m = Window(quota("0.3 usd/min window utc"), 0.0)
    m.charge(T0, 0.3)
    assert 0.1 + 0.2 > 0.3
    assert m.earliest(T0, 0.1, 0.2) == after_s(60)


class TestHeld:
    def test_what_is_held_is_rounded_up(self):
        m = Held(quota("7 units/min"), T0, 0.0)
        m.charge(T0, 1)
        assert m.held_ns == 8_571_428_572
        assert m.earliest(T0, 5) - T0 == 8_571_428_572 + 42_857_142_858 - 60 * NS - meters.FULL_WAIT_NS

    def test_where_nothing_is_held_the_whole_amount_goes_as_of_a_bucket(self):
        assert Held(quota("60 units/min"), T0, 1.0).earliest(T0, 60) == bucket(headroom_s=1.0).earliest(T0, 60)

    def test_nothing_stays_held_of_amounts_whose_sum_is_rounded(self):
        m = Held(quota("60 units/min"), T0, 0.0)
        marks = [m.charge(T0, amount) for amount in (0.1, 0.2, 0.3)]
        for mark, amount in zip(marks, (0.1, 0.2, 0.3), strict=True):
            m.release(T0, mark, amount)
        assert m.held_amount == 0


class TestSpread:
    """62 a minute: a burst of 2, and the other 60 evenly; a slice of time more, because a slice counts at its end."""

    UNIT_NS = 1_001_953_125
    SLICE_NS = 60 * NS // SLICES

    def spread(self, text: str = "62 units/min sliding", headroom_s: float = 0.0) -> Spread:
        return Spread(quota(text), T0, headroom_s)

    @pytest.fixture
    def m(self):
        return self.spread()

    def test_it_is_full_when_its_last_charge_leaves_the_period(self, m):
        m.charge(T0, 1)
        assert m.full_at_ns < after_s(2)
        assert m.full_ns(T0) == after_s(60) + self.SLICE_NS

    def test_its_rate_and_its_burst(self, m):
        assert (m.ns_per_unit, m.reach_ns, m.log.period_ns) == (self.UNIT_NS, 2 * self.UNIT_NS, 60 * NS)
        assert self.spread("62 units/min burst 1 sliding").reach_ns == math.floor(60 * NS * (1 + 1 / SLICES) / 61)

    @pytest.mark.parametrize(
        ("text", "headroom_s", "period_s"),
        [("62 units/min sliding", 1.0, 60.25), ("62 units/min sliding", 8.0, 62), ("62 units/s sliding", 8.0, 1.25)],
    )
    def test_a_quarter_of_the_headroom_lengthens_the_period_by_a_quarter_at_most(self, text, headroom_s, period_s):
        assert self.spread(text, headroom_s).log.period_ns == period_s * NS

    def test_a_small_cost_goes_ahead_of_the_even_rate_and_a_large_one_when_it_is_full(self, m):
        assert [m.earliest(T0, cost) - T0 + meters.FULL_WAIT_NS for cost in (1, 2, 10)] == [-self.UNIT_NS, 0, 0]
        assert m.earliest(T0, 1, slack_ns=5) - T0 + meters.FULL_WAIT_NS == 5 - self.UNIT_NS
        m.charge(T0, 10)
        assert [m.earliest(T0, cost) - T0 for cost in (1, 2, 10)] == [9 * self.UNIT_NS, *[10 * self.UNIT_NS] * 2]

    def test_those_that_go_first_are_spread_from_now(self, m):
        m.charge(T0, 10)
        assert m.earliest(after_s(30), 1) - T0 == (10 - 1) * self.UNIT_NS
        assert m.earliest(T0, 1, 3) - T0 == (10 + 3 - 1) * self.UNIT_NS
        assert m.earliest(after_s(30), 1, 3) - after_s(30) == (3 - 1) * self.UNIT_NS

    def test_what_is_above_one_whole_period_waits_for_a_period_or_longer(self, m):
        assert (m.earliest(T0, 60, 10), m.earliest(T0, 60, 100)) == (after_s(60), T0 + 100 * self.UNIT_NS)

    def test_a_slice_ends_after_a_part_of_the_period(self, m):
        for ns in (0, self.SLICE_NS, self.SLICE_NS + 1):
            m.charge(T0 + ns, 1)
        assert (m.log.ends, m.log.amounts) == ([T0 + self.SLICE_NS, T0 + 2 * self.SLICE_NS + 1], [2, 1])

    @pytest.mark.parametrize("at_ns", [T0, T0 + 230])  # a float of the second instant is another instant
    def test_a_correction_within_the_period(self, m, at_ns):
        mark = m.charge(at_ns, 10)
        m.correct(at_ns, mark, 10, 4)
        assert (m.log.used, m.log.amounts, m.full_at_ns) == (4, [4], at_ns + 4 * self.UNIT_NS)
        assert m.level(at_ns + 61 * NS) == 62

    def test_what_was_not_charged_and_is_used_leaves_less_of_the_period(self, m):
        m.correct(T0, 0, 0, 40)
        assert (m.level(T0), m.log.ends) == (22, [T0 + self.SLICE_NS])
        assert m.earliest(T0, 30) == T0 + self.SLICE_NS + 60 * NS

    def test_another_rate_leaves_the_debt(self, m):
        m.charge(T0, 30)
        m.become(T0, m.quota, 0.5)
        assert (m.full_at_ns - T0, m.ns_per_unit) == (60 * self.UNIT_NS, 2 * self.UNIT_NS)
        m.become(T0, m.quota.with_amount(124))
        assert (m.full_at_ns - T0, m.ns_per_unit) == (15 * self.UNIT_NS, self.UNIT_NS / 2)


class TestExact:
    @pytest.fixture
    def m(self):
        return Exact(quota("7 units/min exact"))

    def test_those_that_go_first_take_whole_periods(self, m):
        m.charge(after_s(-90), 7)  # it has left the period
        assert [m.earliest(T0, 1, ahead) for ahead in (6, 7, 13, 14)] == [T0, after_s(60), after_s(60), after_s(120)]

    def test_of_an_even_number_each_pair_counts_at_the_later_instant(self, monkeypatch):
        monkeypatch.setattr(meters, "EXACT_LOG_MAX", 3)
        m = Exact(quota("70 units/min exact"))
        marks = [m.charge(after_s(second), second + 1) for second in range(4)]
        assert (m.log.amounts, m.log.ends) == ([3, 7], [after_s(1), after_s(3)])
        m.correct(after_s(4), marks[2], 3, 1)
        assert (m.log.amounts, m.log.used) == ([3, 5], 8)

    def test_a_correction_after_the_period_changes_no_other_charge(self, m):
        mark = m.charge(T0, 5)
        m.charge(after_s(30), 1)
        m.correct(after_s(60), mark, 5, 0)
        assert m.log.amounts == [1]

    def test_what_is_counted_at_an_instant_of_the_log_joins_it(self, m):
        for end_ns in (5, 3, 5, 3):
            m.log.insert(end_ns, 1.0)
        assert (m.log.ends, m.log.amounts, m.log.used) == ([3, 5], [2, 2], 4)

    def test_a_mark_that_it_has_not_made_changes_nothing(self, m):
        m.correct(T0, T0, 5, 0)
        assert (m.log.used, m.log.amounts) == (0, [])

    def test_the_end_of_an_attempt_changes_nothing_where_none_is_held(self, m):
        mark = m.charge(T0, 3)
        assert (m.release(after_s(1), mark, 3), m.log.used) == (mark, 3)


def seconds_of(*days: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(datetime(*day, tzinfo=UTC).timestamp()) for day in days)


class TestRestarts:
    """Yesterday's, today's and the next two; a store without time zones gets all four."""

    @pytest.fixture(autouse=True, params=["UTC", "America/New_York"] if hasattr(time, "tzset") else ["its own"])
    def _zone_of_the_machine(self, request, monkeypatch):
        if not hasattr(time, "tzset"):  # on Windows
            yield
            return
        monkeypatch.setenv("TZ", request.param)
        time.tzset()
        yield
        monkeypatch.undo()
        time.tzset()

    @staticmethod
    def at(*day: int) -> int:
        return seconds_of(day)[0] * NS + 789_012_345

    @pytest.mark.parametrize("anchor", [None, "utc"])
    def test_periods_since_midnight_utc_need_none(self, anchor):
        assert window_starts(anchor, T0) is None

    @pytest.mark.parametrize(
        ("anchor", "now", "starts"),
        [
            (MONTH, (2027, 1, 1, 0, 0), ((2026, 12, 1), (2027, 1, 1), (2027, 2, 1), (2027, 3, 1))),
            (MONTH, (2027, 11, 30, 23, 59), ((2027, 10, 1), (2027, 11, 1), (2027, 12, 1), (2028, 1, 1))),
            ("Europe/Berlin", (2027, 1, 15, 12, 34, 56), ((2027, 1, 13, 23), (2027, 1, 14, 23), (2027, 1, 15, 23), (2027, 1, 16, 23))),
            ("Europe/Berlin", (2027, 3, 28, 12), ((2027, 3, 26, 23), (2027, 3, 27, 23), (2027, 3, 28, 22), (2027, 3, 29, 22))),
            # At 1:00 the clocks go back to 0:00: the day begins at the first of its two midnights.
            ("America/Havana", (2027, 11, 7, 5, 30), ((2027, 11, 6, 4), (2027, 11, 7, 4), (2027, 11, 8, 5), (2027, 11, 9, 5))),
        ],
    )  # fmt: skip
    def test_months_and_midnights(self, anchor, now, starts):
        assert window_starts(anchor, self.at(*now)) == seconds_of(*starts)


class TestWindow:
    """10 a minute; T0 is a full minute."""

    def window(self, text: str = "10 units/min window utc", headroom_s: float = 1.0) -> Window:
        return Window(quota(text), headroom_s)

    @pytest.fixture
    def m(self):
        return self.window()

    def test_the_shortest_period(self):
        assert Window(Quota("units", 10, 1e-6, rule=Rule.WINDOW, anchor="utc"), 0.0).period_ns == 1_000

    @pytest.mark.parametrize(("back_ns", "level"), [(1, 6), (60 * NS, 6), (60 * NS + 1, 10)])
    def test_a_clock_set_back_by_a_period_at_most_restarts_nothing(self, m, back_ns, level):
        m.charge(T0, 4)
        assert m.level(T0 - back_ns) == level
        assert m.restart_ns(after_s(61)) == after_s(120)

    def test_a_grant_that_may_be_used_later_is_made_before_the_end(self, m):
        assert m.earliest(after_s(59) - 1, 1) == after_s(59) - 1
        assert m.earliest(after_s(58) + 1, 1, slack_ns=NS) == after_s(61)
        assert m.earliest(after_s(58) - 1, 1, slack_ns=NS) == after_s(58) - 1

    @pytest.mark.parametrize(
        ("used", "at_s", "cost", "ahead", "fits_s"),
        [
            (0, 59, 4, 6, 61), (0, 59, 5, 6, 121), (0, 59, 5, 15, 121), (0, 59, 5, 16, 181),  # closed: nothing of it goes
            (4, 5, 5, 1, 5), (4, 5, 5, 6, 61), (4, 5, 5, 11, 61), (4, 5, 5, 12, 121), (10, 5, 4, 6, 61), (10, 5, 5, 6, 121),
            (13, 5, 5, 6, 121),
        ],
    )  # fmt: skip
    def test_those_that_go_first_fill_whole_windows(self, m, used, at_s, cost, ahead, fits_s):
        m.charge(T0, used)
        assert m.earliest(after_s(at_s), cost, ahead) == after_s(fits_s)

    def test_another_clock_moves_its_restarts(self, m):
        m.charge(T0, 4)
        m.restart_in(T0 + 77, 25 * NS)
        assert (m.start_ns, m.stop_ns, m.ahead_ns) == (after_s(-35) + 77, after_s(25) + 77, -25 * NS - 77)
        assert m.level(T0 + 77) == 6
        assert m.level(after_s(25) + 77) == 10
        assert (m.start_ns, m.stop_ns) == (after_s(25) + 77, after_s(85) + 77)
        assert isinstance(m.start_ns, int)

    @pytest.mark.parametrize(("left_ns", "ahead_ns"), [(59_900_000_000, 0), (59_899_999_999, 100_000_001)])
    def test_a_tenth_of_a_second_is_no_other_clock(self, m, left_ns, ahead_ns):
        m.restart_in(T0, left_ns)
        assert (m.ahead_ns, m.stop_ns) == (ahead_ns, after_s(60) - ahead_ns)

    def test_another_clock_moves_midnights_too(self):
        m = self.window("10 units/day window Europe/Berlin")
        midnights_ns = [second * NS for second in seconds_of((2027, 1, 15, 23), (2027, 1, 16, 23))]
        m.restart_in(midnights_ns[0] - 100 * NS, 10 * NS)
        assert (m.stop_ns, m.ahead_ns) == (midnights_ns[0] - 90 * NS, 90 * NS)
        m.roll(midnights_ns[0] - 90 * NS)
        assert (m.start_ns, m.stop_ns) == tuple(midnight_ns - 90 * NS for midnight_ns in midnights_ns)
