"""The table of what to do after an attempt failed."""

from __future__ import annotations

import pytest
from core_worlds import T0
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.quota import NS
from paceline.core.results import QuotaError, Refusal, RefusalKind, RefusalScope
from paceline.pacing.breaker import Breaker, BreakerPolicy
from paceline.pacing.retry import Again, GiveUp, RetryBudget, RetryPolicy

RATE, GROWTH, CAPACITY = RefusalKind.RATE, RefusalKind.GROWTH, RefusalKind.CAPACITY
EVEN = 0.5  # this luck leaves a pause as it is


@pytest.mark.parametrize(
    ("refusal", "attempt", "luck", "expected"),
    [
        (Refusal(RATE), 1, EVEN, Again(1, pool_wide=True)),
        (Refusal(RATE), 3, EVEN, Again(4, pool_wide=True)),
        (Refusal(RATE), 2, 0.0, Again(1.5, pool_wide=True)),
        (Refusal(RATE), 2, 1.0, Again(2.5, pool_wide=True)),
        (Refusal(RATE, retry_after_s=7), 1, 0.0, Again(7, pool_wide=True)),
        (Refusal(RATE, retry_after_s=7), 1, 1.0, Again(7.25, pool_wide=True)),
        (Refusal(RATE, retry_after_s=0.1), 1, 1.0, Again(0.125, pool_wide=True)),
        (Refusal(RATE, retry_after_s=0), 5, EVEN, Again(16, pool_wide=True)),
        (Refusal(RATE, scope=RefusalScope.REQUEST), 1, EVEN, Again(1, pool_wide=False)),
        (Refusal(RATE, retry_after_s=7, scope=RefusalScope.MODE), 1, 0.0, Again(7, pool_wide=False)),
        (Refusal(GROWTH, retry_after_s=2), 1, 0.0, Again(2, pool_wide=True)),
        (Refusal(CAPACITY, retry_after_s=2), 1, 0.0, Again(2, pool_wide=False)),
        (None, 1, EVEN, Again(1, pool_wide=False)),
        (Refusal(RATE), 6, EVEN, GiveUp("6 attempts made")),
        (Refusal(RATE, retry_after_s=301), 1, EVEN, GiveUp("the provider asks to wait 301 s", 301)),
        (Refusal(RefusalKind.MONEY), 1, EVEN, GiveUp("waiting cannot help")),
        (Refusal(RefusalKind.NEVER_FITS), 1, EVEN, GiveUp("waiting cannot help")),
    ],
)
def test_table(refusal, attempt, luck, expected):
    assert RetryPolicy().after(attempt, 0.0, refusal, luck) == expected


def test_pauses_grow_to_a_bound():
    policy = RetryPolicy(max_attempts=2_000, backoff_max_s=30)
    assert policy.after(5, 0.0, Refusal(RATE), EVEN) == Again(16, pool_wide=True)
    assert policy.after(999, 0.0, Refusal(RATE), EVEN) == Again(30, pool_wide=True)


def test_no_attempt_starts_after_the_last_moment():
    policy = RetryPolicy(max_elapsed_s=10)
    assert isinstance(policy.after(1, 9.0, Refusal(RATE), EVEN), Again)
    assert policy.after(1, 9.1, Refusal(RATE), EVEN) == GiveUp("9 s spent on it")


def test_one_attempt_is_the_least():
    assert RetryPolicy(max_attempts=1).after(1, 0, Refusal(RATE), EVEN) == GiveUp("1 attempts made")
    with pytest.raises(QuotaError, match="max_attempts is 0"):
        RetryPolicy(max_attempts=0)


@given(
    attempt=st.integers(1, 5),
    elapsed_s=st.floats(0, 1_000),
    asked_s=st.none() | st.floats(0, 1_000),
    luck=st.floats(0, 1, exclude_max=True),
    kind=st.sampled_from([*RefusalKind, None]),
)
def test_what_the_provider_asks_for_is_a_minimum(attempt, elapsed_s, asked_s, luck, kind):
    policy = RetryPolicy()
    decision = policy.after(attempt, elapsed_s, Refusal(kind, retry_after_s=asked_s) if kind else None, luck)
    if isinstance(decision, Again):
        assert decision.delay_s >= (asked_s or 0.0 if kind else 0.0)
        assert elapsed_s + decision.delay_s <= policy.max_elapsed_s
        assert decision.pool_wide == (kind in (RATE, GROWTH))


class TestBudget:
    def test_a_few_at_once_then_one_a_second(self):
        budget = RetryBudget(T0)
        assert [budget.spend(T0) for _ in range(22)] == [0] * 20 + [1, 2]
        assert budget.spend(T0 + 3 * NS) == 0

    def test_first_attempts_earn_a_share_of_one(self):
        budget = RetryBudget(T0)
        for _ in range(20):
            budget.spend(T0)
        for _ in range(10):
            budget.earn()
        assert [round(budget.spend(T0), 6) for _ in range(3)] == [0, 0, 1]

    def test_it_saves_up_to_a_bound(self):
        budget = RetryBudget(T0)
        for _ in range(1_000):
            budget.earn()
        assert [budget.spend(T0 + 3_600 * NS) for _ in range(21)] == [0] * 20 + [1]


class TestBreaker:
    def test_it_opens_after_some_in_a_row_and_each_failed_probe_doubles_the_pause(self):
        breaker, now_ns = Breaker(BreakerPolicy(failures=3, pause_s=10)), T0
        assert [breaker.failed(T0, T0) for _ in range(3)] == [False, False, True]
        assert not breaker.failed(T0 + NS // 2, T0)  # it was on its way
        for pause_s in (1, 2, 4, 8, 10, 10):
            assert breaker.open_until_ns == now_ns + pause_s * NS
            now_ns = breaker.open_until_ns
            assert breaker.failed(now_ns, now_ns)
        breaker.succeeded()
        assert [breaker.failed(now_ns, now_ns) for _ in range(3)] == [False, False, True]
        assert breaker.open_until_ns == now_ns + NS

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
        with pytest.raises(QuotaError, match="failures must be 1 or more"):
            BreakerPolicy(**bad)
