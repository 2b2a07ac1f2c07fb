"""The table of what to do after an attempt failed."""

from __future__ import annotations

import pytest
from core_worlds import T0
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.progress import Alone, Progress, Row, pause_s
from paceline.core.quota import NS
from paceline.core.results import Refusal, RefusalKind, RefusalScope, SettingsError
from paceline.pacing.breaker import Breaker, BreakerPolicy, is_server_fault
from paceline.pacing.retry import Again, Failures, GiveUp, RetryBudget, RetryPolicy

RATE, GROWTH, CAPACITY = RefusalKind.RATE, RefusalKind.GROWTH, RefusalKind.CAPACITY
EVEN = 0.5  # this luck leaves a pause as it is


def after(policy, refusal, luck=EVEN, *, failed=1, row=1, in_vain=0, **facts):
    """The decision after so many failures of one kind, and so many refusals of the pool in a row.

    ``in_vain``: how many were by full servers, and none was admitted meanwhile.
    """
    about_rate = refusal is not None and refusal.kind.about_rate and refusal.scope is RefusalScope.POOL
    of_pool = about_rate or in_vain
    failures = Failures(of_pool=failed, in_vain=in_vain) if of_pool else Failures(own=failed)
    return policy.after(failures, refusal, Row(row, **facts) if of_pool else None, luck)


@pytest.mark.parametrize(
    ("refusal", "number", "luck", "expected"),
    [
        (Refusal(RATE), 1, EVEN, Again(1, pool_wide=True)),
        (Refusal(RATE), 2, 0.0, Again(1.5, pool_wide=True)),
        (Refusal(RATE), 2, 1.0, Again(2.5, pool_wide=True)),
        (Refusal(RATE), 3, EVEN, Again(4, pool_wide=True, behind=True)),
        (Refusal(RATE), 999, EVEN, Again(60, pool_wide=True, behind=True)),
        (Refusal(RATE, retry_after_s=7), 1, 0.0, Again(7, pool_wide=True)),
        (Refusal(RATE, retry_after_s=7), 1, 1.0, Again(7.25, pool_wide=True)),
        (Refusal(RATE, retry_after_s=0.1), 1, 1.0, Again(0.125, pool_wide=True)),
        (Refusal(RATE, retry_after_s=0.1), 2, 0.0, Again(2, pool_wide=True)),
        (Refusal(RATE, retry_after_s=0), 5, EVEN, Again(16, pool_wide=True, behind=True)),
        (Refusal(RATE, retry_after_s=60, sooner_s=0.2), 1, 0.0, Again(0.2, pool_wide=True)),
        (Refusal(RATE, retry_after_s=60, sooner_s=0.2), 2, 0.0, Again(60, pool_wide=True)),
        (Refusal(RATE, scope=RefusalScope.REQUEST), 1, EVEN, Again(1, pool_wide=False)),
        (Refusal(RATE, retry_after_s=7, scope=RefusalScope.MODE), 1, 0.0, Again(7, pool_wide=False)),
        (Refusal(RATE, retry_after_s=301, scope=RefusalScope.MODE), 1, 0.0, GiveUp("the provider asks to wait 301 s")),
        (Refusal(GROWTH, retry_after_s=2), 1, 0.0, Again(2, pool_wide=True)),
        (Refusal(CAPACITY, retry_after_s=2), 1, 0.0, Again(2, pool_wide=False)),
        (None, 1, EVEN, Again(1, pool_wide=False)),
        (None, 3, EVEN, Again(4, pool_wide=False)),
        (None, 6, EVEN, GiveUp("6 attempts made")),
        (Refusal(CAPACITY), 6, EVEN, GiveUp("6 attempts made")),
        (Refusal(RefusalKind.MONEY), 1, EVEN, GiveUp("waiting cannot help")),
        (Refusal(RefusalKind.NEVER_FITS), 1, EVEN, GiveUp("waiting cannot help")),
    ],
)
def test_table(refusal, number, luck, expected):
    assert after(RetryPolicy(), refusal, luck, failed=number, row=number) == expected


@pytest.mark.parametrize("failed", [1, 2, 3, 9])
@pytest.mark.parametrize(
    ("said", "first_s", "in_vain_s"),
    [({"retry_after_s": 60, "sooner_s": 0.2}, 0.2, 60), ({"retry_after_s": 0.2}, 0.2, 2)],
)
def test_only_a_refused_probe_refutes_a_stated_wait(failed, said, first_s, in_vain_s):
    refusal = Refusal(RATE, **said)
    for row, waits_s in [(1, first_s), (2, max(in_vain_s, 2 ** min(failed - 1, 2)))]:
        assert after(RetryPolicy(), refusal, 0.0, failed=failed, row=row).pause_s == waits_s


class TestLongWaits:
    DAY = Refusal(RATE, retry_after_s=86_400.0)

    def test_probes_test_one_and_a_refused_probe_confirms_it(self):
        assert after(RetryPolicy(), self.DAY, 0.0) == Again(15, pool_wide=True)
        confirmed = GiveUp("the provider asks to wait 86,400 s", stop_s=86_400)
        assert after(RetryPolicy(), self.DAY, 0.0, is_test=True) == confirmed

    def test_whoever_has_time_goes_on_with_probes(self):
        patient = RetryPolicy(max_retry_after_s=1e6)
        assert after(patient, self.DAY, 0.0, is_test=True, test_s=270.0) == Again(270, pool_wide=True)

    def test_that_of_a_named_quota_is_believed(self):
        day = Refusal(RATE, retry_after_s=80_000.0, period_s=86_400.0)
        assert after(RetryPolicy(), day) == GiveUp("the provider asks to wait 80,000 s", stop_s=80_000)
        assert after(RetryPolicy(max_retry_after_s=1e6), day, 0.0) == Again(80_000, pool_wide=True)

    def test_one_within_the_policy_is_tested_too(self):
        assert after(RetryPolicy(), Refusal(RATE, retry_after_s=200.0), 0.0) == Again(15, pool_wide=True)
        assert after(RetryPolicy(), Refusal(RATE, retry_after_s=20.0), 0.0) == Again(20, pool_wide=True)


class TestEnds:
    def test_refusals_of_the_pool_end_nothing_while_it_admits_others(self):
        for number in (6, 60, 600):
            assert isinstance(after(RetryPolicy(), Refusal(RATE), failed=number, admitted=5), Again)

    def test_a_request_that_is_refused_while_others_go_is_given_up(self):
        policy = RetryPolicy()
        assert isinstance(after(policy, Refusal(RATE), failed=6, admitted=119), Again)
        assert isinstance(after(policy, Refusal(RATE), failed=5, admitted=1_000), Again)
        ends = after(policy, Refusal(RATE), failed=6, admitted=120)
        assert ends == GiveUp("6 attempts made, while 120 others of the pool were admitted", pause_s=4)

    def test_a_pool_that_admits_nothing_stops(self):
        policy = RetryPolicy()
        assert isinstance(after(policy, Refusal(RATE), row=8, lasted_s=599.0), Again)
        assert isinstance(after(policy, Refusal(RATE), row=7, lasted_s=6_000.0), Again)
        stop = GiveUp("the provider has admitted nothing for 600 s", stop_s=600)
        assert after(policy, Refusal(RATE), row=8, lasted_s=600.0) == stop
        assert isinstance(after(policy, Refusal(RATE), row=8, lasted_s=600.0, longest_s=200.0), Again)

    def test_bounds_that_the_user_sets(self):
        policy = RetryPolicy(max_refused=3)
        assert isinstance(after(policy, Refusal(RATE), failed=2), Again)
        assert after(policy, Refusal(RATE), failed=3) == GiveUp("3 attempts made", pause_s=4)
        for refusal in (Refusal(RATE), Refusal(CAPACITY), None):
            assert after(RetryPolicy(max_attempts=1), refusal).reason == "1 attempt made"
        for bad in ({"max_attempts": 0}, {"max_refused": 0}):
            with pytest.raises(SettingsError, match=f"{next(iter(bad))} is 0"):
                RetryPolicy(**bad)


@given(
    failed=st.integers(1, 9),
    row=st.integers(1, 9),
    asked_s=st.none() | st.floats(0, 60),
    luck=st.floats(0, 1, exclude_max=True),
    kind=st.sampled_from([*RefusalKind, None]),
)
def test_what_the_provider_asks_for_is_a_minimum(failed, row, asked_s, luck, kind):
    refusal = Refusal(kind, retry_after_s=asked_s) if kind else None
    decision = after(RetryPolicy(), refusal, luck, failed=failed, row=row)
    if isinstance(decision, Again):
        assert decision.delay_s >= (asked_s or 0.0 if kind else 0.0)
        assert decision.pool_wide == (kind in (RATE, GROWTH))
    else:
        assert kind not in (RATE, GROWTH)


class TestProgress:
    def test_a_slow_refusal_counts_at_once(self):
        now_ns = T0 + 9 * NS
        row = Progress().row(now_ns, now_ns - NS, Refusal(RATE), [now_ns - NS * 3 // 2])
        assert row.admitted == 0

    def test_a_wait_of_nothing_is_none(self):
        assert pause_s(Refusal(RATE, retry_after_s=0), Row(1), first_s=5.0) == 5.0

    def test_attempts_in_flight_together_count_once_and_an_admitted_one_ends_the_row(self):
        progress, refusal = Progress(), Refusal(RATE, retry_after_s=5.0)
        for late_ns in range(5):
            progress.refuse(T0 + NS + late_ns, T0, refusal)
        assert progress.row(T0 + 2 * NS, T0, refusal) == Row(1, 1.0, refused=6)
        assert progress.row(T0 + 3 * NS, T0 + 2 * NS, refusal) == Row(2, 2.0, refused=6)
        progress.refuse(T0 + 3 * NS, T0 + 2 * NS, Refusal(RATE))
        assert progress.row(T0 + 4 * NS, T0 + 4 * NS, refusal) == Row(3, 3.0, refused=7)
        progress.admit(T0 + 6 * NS, T0)
        assert progress.row(T0 + 9 * NS, T0 + 9 * NS, Refusal(RATE)) == Row(1, 0.0, 5.0, 7, 1)

    def test_an_attempt_that_was_not_refused_in_time_is_admitted_without_an_answer(self):
        """One that was sent with the refused one: of a rate it came first, of full servers it shows chance."""
        for kind, sent_ns, number in ((RATE, T0, 2), (RATE, T0 + NS // 2, 1), (CAPACITY, T0 - 1, 2), (CAPACITY, T0, 1)):
            progress, refusal = Progress(), Refusal(kind)
            progress.refuse(T0 + NS // 2, T0, refusal)
            again = T0 + 3 * NS // 2, T0 + NS, refusal, [sent_ns, T0 + NS]
            assert (progress.row(*again).number, progress.row(*again).admitted) == (number, 1)
            progress.refuse(*again)
            assert progress.row(T0 + 2 * NS, T0 + 2 * NS, refusal).number == number + 1

    def test_refusals_for_capacity_are_a_row_of_their_own_and_others_are_none(self):
        progress = Progress()
        progress.refuse(T0, T0, Refusal(RATE))
        assert progress.row(T0, T0, Refusal(CAPACITY)) == Row(1)
        for other in (Refusal(RATE, scope=RefusalScope.MODE), Refusal(RefusalKind.MONEY)):
            progress.refuse(T0, T0, other)
            assert progress.row(T0, T0, other) is None


class TestFullServers:
    def test_they_use_up_nothing_of_a_request_while_others_are_served(self):
        failures, counted = Failures(), []
        for admitted in (5, 6, 8, 8, 8, 9, 9):
            failures.count(Row(1, admitted=admitted), Refusal(CAPACITY))
            counted.append(failures.in_vain)
        assert counted == [1, 1, 1, 2, 3, 1, 2]
        failures.count(Row(9, admitted=9), Refusal(RATE))
        failures.count(None)
        assert (failures.own, failures.in_vain, failures.of_pool, failures.admitted) == (1, 2, 8, 5)

    def test_the_pause_grows_only_while_none_is_served(self):
        policy, full = RetryPolicy(), Refusal(CAPACITY)
        assert after(policy, full, in_vain=1, failed=9, row=4) == Again(1, pool_wide=False)
        assert after(policy, full, in_vain=4, failed=9) == Again(8, pool_wide=False)
        assert after(policy, full, in_vain=6, failed=9) == GiveUp("6 attempts made")

    def test_a_request_that_chance_cannot_explain_is_given_up(self):
        half = {"refused": 1_000, "admitted": 1_000}
        assert isinstance(after(RetryPolicy(), Refusal(CAPACITY), in_vain=1, failed=19, **half), Again)
        ends = after(RetryPolicy(), Refusal(CAPACITY), in_vain=1, failed=20, **half)
        assert ends == GiveUp("20 attempts made, while 1,000 others of the pool were admitted")
        assert after(RetryPolicy(max_attempts=1), Refusal(CAPACITY), in_vain=1).reason == "1 attempt made"


class TestAlone:
    """Refusals of one request, while the pool admits others."""

    def test_the_first_refusal_shows_nothing_of_its_request(self):
        alone = Alone()
        assert alone.judged(Refusal(RATE), Row(1, refused=1, admitted=999)) == Refusal(RATE)

    def test_the_others_since_the_last_refusal_are_the_measure(self):
        alone = Alone()
        alone.judged(Refusal(RATE), Row(1, refused=5, admitted=100))
        assert alone.judged(Refusal(RATE), Row(1, refused=6, admitted=104)).chance == 1 / 5
        assert alone.judged(Refusal(RATE), Row(1, refused=8.2, admitted=105)).chance == pytest.approx(1 / 5 * 3 / 4)

    def test_those_on_their_way_at_the_last_one_show_nothing(self):
        alone = Alone()
        alone.judged(Refusal(RATE), Row(1, refused=1, admitted=10, pending=40))
        assert alone.judged(Refusal(RATE), Row(1, refused=2, admitted=50)).chance == 1
        assert alone.judged(Refusal(RATE), Row(2, refused=3, admitted=49)).chance == 1

    def test_a_row_of_another_pool_counts_at_least_its_own_refusal(self):
        alone = Alone()
        alone.judged(Refusal(RATE), Row(1, refused=50, admitted=10))
        assert alone.judged(Refusal(RATE), Row(1, refused=1, admitted=13)).chance == 1 / 4

    def test_what_chance_does_not_explain_is_about_the_request_and_takes_those_before_back(self):
        alone, row = Alone(), Row(1, refused=1, admitted=0)
        for admitted in (0, 0, 19):
            judged = alone.judged(Refusal(RATE), row := row._replace(refused=row.refused + 1, admitted=admitted))
            assert judged.scope is RefusalScope.POOL
        judged = alone.judged(Refusal(RATE), row := row._replace(refused=row.refused + 1, admitted=38))
        assert (judged.scope, judged.retracts, alone.count) == (RefusalScope.REQUEST, 3, 1)
        judged = alone.judged(Refusal(RATE), row)
        assert (judged.scope, judged.retracts, alone.count) == (RefusalScope.REQUEST, 0, 2)

    @staticmethod
    def refused(policy, admitted, *, refusal=None):
        """The decisions about a request that is refused when so many others have been admitted."""
        failures, refused = Failures(), 0.0
        for n in admitted:
            judged = failures.count(row := Row(1, refused=refused + 1, admitted=n), refusal or Refusal(RATE))
            refused += judged.chance if judged.scope is RefusalScope.POOL else 0.0
            yield policy.after(failures, judged, row, EVEN)

    def test_it_waits_by_itself_and_the_pool_does_not(self):
        found = list(self.refused(RetryPolicy(), (0, 19, 38, 40, 45)))
        assert [again.pool_wide for again in found] == [True, True, False, False, False]
        assert [again.delay_s for again in found[2:]] == [1, 2, 4]
        assert not any(again.behind for again in found[2:])

    def test_a_stated_wait_is_kept_if_it_is_believed(self):
        for asked_s, kept_s in ((30, 30.125), (86_400, 1)):
            *_, again = self.refused(RetryPolicy(), (0, 19, 38), refusal=Refusal(RATE, retry_after_s=asked_s))
            assert again == Again(kept_s, pool_wide=False)

    def test_it_ends_with_an_error(self):
        *_, ends = self.refused(RetryPolicy(), (0, 19, 38, 57, 76, 121))
        assert ends == GiveUp("6 attempts made, while 121 others of the pool were admitted")
        *_, again, ends = self.refused(RetryPolicy(), (0, 19, 38, 57, 76, 85))
        assert isinstance(again, Again)
        assert ends == GiveUp("6 attempts made, while 85 others of the pool were admitted")

    def test_it_ends_where_no_other_is_admitted_any_more(self):
        *found, ends = self.refused(RetryPolicy(), (0, 19, 38, 38, 38, 38, 38, 38))
        assert all(isinstance(again, Again) for again in found)
        assert ends == GiveUp("6 attempts made")

    def test_it_ends_where_the_user_bounds_the_refusals(self):
        *_, ends = self.refused(RetryPolicy(max_refused=3), (0, 19, 38))
        assert ends == GiveUp("3 attempts made")


class TestBudget:
    def spent(self, budget, now_ns, admitted):
        """The seconds that a retry waits which is spent now, until it looks again at the latest."""
        return budget.wait_s(now_ns, admitted, budget.spend(now_ns, admitted))

    def test_a_few_at_once_then_one_a_second(self):
        budget = RetryBudget(T0)
        assert [self.spent(budget, T0, 0) for _ in range(102)] == [0] * 100 + [1, 2]
        assert self.spent(budget, T0 + 3 * NS, 0) == 0

    def test_each_admitted_attempt_earns_three(self):
        budget = RetryBudget(T0)
        for _ in range(100):
            budget.spend(T0, 7)
        assert [self.spent(budget, T0, 9) > 0 for _ in range(8)] == [False] * 6 + [True] * 2

    def test_it_saves_up_to_a_bound(self):
        budget = RetryBudget(T0)
        assert [self.spent(budget, T0 + 3_600 * NS, 9_999) > 0 for _ in range(102)] == [False] * 100 + [True] * 2

    def test_a_retry_in_advance_waits_until_it_is_earned(self):
        """At ten admitted in a second it is earned 31 times as fast as at none. Until then it looks again after five seconds at most."""
        budget, second = RetryBudget(T0), 0
        for second in range(1, 61):
            budget.spend(T0 + second * NS, 10 * second)
        *_, due = (budget.spend(T0 + second * NS, 10 * second) for _ in range(400))
        for further in range(20):
            now_ns, admitted = T0 + (second + further) * NS, 10 * (second + further)
            wait_s = budget.wait_s(now_ns, admitted, due)
            assert wait_s == pytest.approx(min(max(301 / 31 - further, 0), 5), rel=0.15)

    def test_a_success_shortens_the_wait_of_those_that_were_spent_before_it(self):
        budget = RetryBudget(T0)
        *_, due = (budget.spend(T0, 0) for _ in range(160))
        assert budget.wait_s(T0, 0, due) == 5
        assert budget.wait_s(T0 + 5 * NS, 0, due) == 5  # 60 retries in debt would take a minute
        assert 0 < budget.wait_s(T0 + 6 * NS, 10, due) < 5
        assert budget.wait_s(T0 + 6 * NS, 18, due) == 0


class TestBreaker:
    def test_it_opens_after_some_in_a_row_and_each_failed_probe_doubles_the_pause(self):
        breaker, now_ns = Breaker(BreakerPolicy(failures=3, pause_s=10)), T0
        assert [breaker.failed(T0, T0) for _ in range(3)] == [False, False, True]
        assert not breaker.failed(T0 + NS // 2, T0)  # it was on its way
        for open_s in (1, 2, 4, 8, 10, 10):
            assert breaker.open_until_ns == now_ns + open_s * NS
            now_ns = breaker.open_until_ns
            assert breaker.failed(now_ns, now_ns)
        breaker.succeeded()
        assert [breaker.failed(now_ns, now_ns) for _ in range(3)] == [False, False, True]
        assert breaker.open_until_ns == now_ns + NS

    def test_full_servers_fail_when_none_was_served_for_a_second(self):
        full = Refusal(CAPACITY)
        assert is_server_fault(529, full, Row(9, lasted_s=0.9, admitted=1)) is None
        assert is_server_fault(529, full, Row(2, lasted_s=1.0, admitted=1)) is True
        assert is_server_fault(529, full, Row(2)) is True  # none was ever served
        assert is_server_fault(503, Refusal(RATE), Row(9, lasted_s=9.0)) is False
        assert [is_server_fault(status, None, None) for status in (200, 429, 500)] == [False, False, True]

    def test_one_success_closes_it(self):
        breaker = Breaker(BreakerPolicy(failures=2))
        for _ in range(5):
            assert not breaker.failed(T0, T0)
            breaker.succeeded()
        assert (breaker.in_row, breaker.open_until_ns) == (0, 0)

    @pytest.mark.parametrize(
        "bad", [{"failures": 0}, {"pause_s": -1}, {"pause_s": float("inf")}, {"pause_s": float("nan")}]
    )
    def test_bounds_that_bound_nothing(self, bad):
        with pytest.raises(SettingsError, match=r"1 or more|0 or more, and finite"):
            BreakerPolicy(**bad)


@pytest.mark.parametrize(("failed", "row", "behind"), [(2, 1, False), (3, 1, True), (1, 2, True)])
def test_where_a_rate_is_measured_nothing_pauses_and_a_refused_request_goes_behind(failed, row, behind):
    again = after(RetryPolicy(), Refusal(RefusalKind.RATE, retry_after_s=5.0), failed=failed, row=row, is_paced=True)
    assert again == Again(0.0, pool_wide=True, behind=behind)
