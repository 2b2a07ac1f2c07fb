"""A pool: who is granted, who waits, who is turned away, and what its status says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from core_pools import MONEY, RATE, ask, pool_of, pump_at_wake, use_up
from core_worlds import T0
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.capacity import PENDING
from paceline.core.pause import PROBE_NS
from paceline.core.pool import Pool
from paceline.core.queue import Estimate, LaneSpec, Waiter
from paceline.core.quota import FAR_NS, NS, parse_quotas
from paceline.core.results import (
    COOL_DOWN,
    STORE,
    Expired,
    NeverFits,
    Reading,
    Refusal,
    RefusalKind,
    RefusalScope,
    Replaced,
    Reservation,
    Source,
    SourceKind,
    Stopped,
    StoreLost,
    WaitUntil,
)
from paceline.core.stop import Stop
from paceline.pacing.status import report
from paceline.shared import exchange as shared
from paceline.shared.ledger import SharedLedger
from shared_pools import message_of, shared_pool


@pytest.fixture
def pool():
    return pool_of("60 requests/min")


class TestTheLine:
    def test_a_newcomer_never_overtakes(self):
        pool = pool_of("100 tokens/min")
        ask(pool, tokens=80)
        large, _ = ask(pool, tokens=90)
        small, outcome = ask(pool, tokens=1)  # it would fit now
        assert isinstance(outcome, WaitUntil)
        assert isinstance(pool.try_grant(T0, Waiter({"tokens": 1})), WaitUntil)
        now_ns, done = pump_at_wake(pool)
        assert done == [large]
        assert pump_at_wake(pool)[1] == [small]
        assert now_ns == T0 + 42 * NS

    def test_a_replaced_pool_turns_its_waiters_and_newcomers_away(self):
        pool = pool_of("100 tokens/min")
        _, granted = ask(pool, tokens=80)
        low, high = ask(pool, tokens=90)[0], ask(pool, lane=LaneSpec("high", priority=1), tokens=90)[0]
        pool.replace(T0)
        assert pool.pump(T0) == [high, low]  # in the order in which they come to the next pool
        assert low.outcome == high.outcome == Replaced() == ask(pool, tokens=1)[1]
        pool.settle(T0, granted, {"tokens": 50})
        assert pool.record.counts["settled"] == 1

    def test_a_higher_lane_that_fits_wakes_the_pool_earlier(self):
        pool = pool_of("100 tokens/min")
        ask(pool, tokens=100)
        ask(pool, tokens=100)
        assert pool.wake_ns == T0 + 60 * NS
        urgent, _ = ask(pool, lane=LaneSpec("urgent", priority=1), tokens=10)
        assert pump_at_wake(pool) == (T0 + 6 * NS, [urgent])

    def test_withdrawn_before_and_after_the_grant(self):
        pool = pool_of("60 requests/min burst 1")
        use_up(pool)
        first, second, third = (ask(pool)[0] for _ in range(3))
        pool.withdraw(T0, first)
        assert pump_at_wake(pool) == (T0 + NS, [second])
        pool.withdraw(T0 + NS, second)
        assert pool.record.counts["cancelled"] == 1
        assert pool.pump(T0 + NS) == [third]  # what it had is free again
        pool.withdraw(T0 + NS, second)
        assert pool.record.counts["cancelled"] == 1


def test_an_attempt_at_once_after_a_refusal_keeps_its_place():
    pool = pool_of("2 requests/min")
    first, second = Waiter({}), Waiter({})
    pool.refuse(T0, pool.try_grant(T0, first), RATE, 0.0)
    assert isinstance(pool.try_grant(T0, second), Reservation)
    first.returned = True
    assert isinstance(pool.try_grant(T0, first), WaitUntil)
    assert (first.number, second.number) == (1, 2)


def test_an_attempt_that_is_closed_is_closed_once():
    pool = pool_of("60 requests/min", "100 tokens/min")
    _, outcome = ask(pool, tokens=40)
    pool.settle(T0, outcome, {"tokens": 30})
    pool.settle(T0, outcome, {"tokens": 5})
    pool.refuse(T0, outcome, Refusal(RefusalKind.RATE, scope=RefusalScope.REQUEST), 0.0)
    pool.cancel(T0, outcome)
    assert [m.level(T0) for m in pool.ledger.meters] == [59, 70]
    assert pool.record.counts == {"granted": 1, "settled": 1, "refused_rate": 1}


class TestExpected:
    def test_it_counts_those_ahead_as_requests_of_the_same_cost(self):
        pool = pool_of("60 tokens/min")
        use_up(pool, cost={"tokens": 60})
        waiter = Waiter({"tokens": 5})
        assert pool.expected(T0, waiter) == T0 + 5 * NS
        for _ in range(3):
            ask(pool, tokens=1)
        assert pool.expected(T0, waiter) == T0 + 20 * NS
        assert pool.expected(T0, Waiter({"tokens": 5}, LaneSpec("urgent", priority=1))) == T0 + 5 * NS

    def test_there_is_none_where_no_wait_is_long_enough(self):
        assert pool_of("60 tokens/min").expected(T0, Waiter({"tokens": 61})) is None

    def test_a_stopped_pool_has_none_before_its_next_trial(self):
        pool = pool_of("1 requests/hour")
        pool.refuse(T0, ask(pool)[1], MONEY, 0.0)
        trial_ns = T0 + 600 * NS
        assert pool.expected(trial_ns - 1, Waiter({})) is None
        assert pool.expected(trial_ns, Waiter({})) == T0 + 3_600 * NS


class TestSentLater:
    """Attempts that were granted and are sent later: the provider has charged them only then."""

    def test_the_bucket_does_not_refill_beyond_their_charge(self):
        pool = pool_of("60 tokens/min", "60 units/min even", "100 pages/min sliding", "9 concurrency", learns=True)
        _, outcome = ask(pool, tokens=10, units=20, pages=5)
        before = [m.level(T0 + 8 * NS) for m in pool.ledger.meters]
        pool.capacity.no_refill_for_unsent(T0 + 8 * NS, [outcome])
        assert before == [58, 48, 95, 8]
        assert [m.level(T0 + 8 * NS) for m in pool.ledger.meters] == [50, 40, 95, 8]

    def test_an_exact_quota_counts_them_from_then_on(self):
        pool = pool_of("7 starts/min exact")
        outcomes = [ask(pool, starts=1)[1] for _ in range(3)]
        pool.settle(T0, outcomes[2], None)
        _, free = ask(pool, starts=0)
        pool.capacity.no_refill_for_unsent(T0 + 5 * NS, [*outcomes, free])  # the settled one was sent
        levels = [pool.ledger.entries[0].meter.level(T0 + second * NS) for second in (5, 60, 64, 65)]
        assert levels == [4, 5, 5, 7]

    def test_those_in_flight_count_as_sent_when_the_network_is_back(self):
        pool = pool_of("60 tokens/min", "60 requests/min", "9 concurrency", "7 starts/min exact")
        _, outcome = ask(pool, tokens=10, starts=1)
        ask(pool, tokens=20)
        pool.settle(T0, ask(pool, tokens=20)[1], None)
        pool.capacity.arrive(T0 + 15 * NS)
        # Of the tokens 30 are in flight and 35 not refilled; of the requests both in flight, and none else.
        assert [m.level(T0 + 15 * NS) for m in pool.ledger.meters] == [25, 58, 7, 6]
        assert outcome.open


class Store:
    """A pool of one process, and the ledger of its store."""

    def __init__(self, text: str) -> None:
        self.quotas, self.ledger = parse_quotas(text), SharedLedger()
        self.pool = shared_pool("p", self.quotas, T0, who="a", headroom_s=0.0, lease_s=0.0)

    def exchange(self, now_ns: int = T0) -> list[Waiter]:
        message = shared.ask(self.pool, now_ns)
        return shared.answer(self.pool, now_ns, self.ledger.apply(now_ns, message))

    def lose(self, now_ns: int = T0) -> list[Waiter]:
        assert shared.ask(self.pool, now_ns) is not None
        return shared.answer(self.pool, now_ns, "gone")

    def attempt(self, now_ns: int = T0) -> Waiter:
        waiter = Waiter({})
        waiter.outcome = self.pool.try_grant(now_ns, waiter)
        return waiter


class TestStore:
    def test_it_decides_about_attempts_at_once(self):
        store = Store("60 requests/min burst 2")
        first = [store.attempt() for _ in range(3)]
        assert [waiter.outcome for waiter in first] == [PENDING] * 3
        assert (store.pool.undecided, store.pool.wake_ns) == (tuple(first), None)
        for waiter in first:
            waiter.outcome = None
        assert store.exchange() == first
        assert all(isinstance(waiter.outcome, Reservation) for waiter in first[:2])
        assert first[2].outcome == WaitUntil(T0 + NS, "60 requests/min burst 2")
        assert (store.pool.undecided, store.pool.queue.length) == ((), 0)

    def test_those_that_the_message_did_not_carry_are_decided_by_the_next_one(self):
        store = Store("60 requests/min burst 1")
        carried = Waiter({})
        store.pool.try_grant(T0, carried)
        message, later = shared.ask(store.pool, T0), Waiter({})
        store.pool.try_grant(T0, later)
        assert shared.answer(store.pool, T0, store.ledger.apply(T0, message)) == [carried]
        assert store.pool.undecided == (later,)
        assert store.exchange() == [later]
        assert later.outcome == WaitUntil(T0 + NS, "60 requests/min burst 1")

    def test_one_that_it_did_not_grant_is_not_asked_for_at_once(self):
        store = Store("60 requests/min burst 1")
        first, _ = (ask(store.pool)[0] for _ in range(2))
        first.estimate = lambda: Estimate(first.cost)
        assert store.exchange() == [first]
        assert store.pool.capacity.exchange_ns == T0 + NS

    def test_an_attempt_at_once_is_not_granted_before_those_that_wait(self):
        store = Store("60 requests/min")
        ask(store.pool)
        assert store.attempt().outcome.quota == STORE
        assert store.pool.undecided == ()

    def test_who_withdraws_is_not_answered(self):
        store = Store("60 requests/min burst 1")
        waiters = [Waiter({}), Waiter({})]
        for waiter in waiters:
            store.pool.try_grant(T0, waiter)
        message = shared.ask(store.pool, T0)
        for waiter in waiters:
            store.pool.withdraw(T0, waiter)
        assert shared.answer(store.pool, T0, store.ledger.apply(T0, message)) == []
        assert [waiter.outcome for waiter in waiters] == [None, None]

    def test_a_probe_of_a_stop_that_it_does_not_grant_is_not_sent(self):
        store, now_ns = Store("60 requests/min burst 1"), T0 + 600 * NS
        first, probe, other, next_one = (Waiter({}) for _ in range(4))
        store.pool.try_grant(T0, first)
        store.exchange()
        store.pool.refuse(T0, first.outcome, MONEY, 0.0)
        store.exchange()
        process = shared_pool("p", store.quotas, T0, who="b", headroom_s=0.0, lease_s=0.0)
        process.try_grant(now_ns, other)
        shared.answer(process, now_ns, store.ledger.apply(now_ns, shared.ask(process, now_ns)))
        assert isinstance(other.outcome, Reservation)
        store.pool.try_grant(now_ns, probe)
        assert store.exchange(now_ns) == [probe]
        assert isinstance(probe.outcome, WaitUntil)
        store.pool.try_grant(now_ns + NS, next_one)
        store.exchange(now_ns + NS)
        assert isinstance(next_one.outcome, Reservation)

    def test_one_that_has_never_answered_turns_all_away(self):
        store = Store("60 requests/min")
        attempt, waiting = Waiter({}), Waiter({})
        store.pool.submit(T0, waiting)
        store.pool.try_grant(T0, attempt)
        assert store.lose() == [waiting]
        assert waiting.outcome == StoreLost("gone")
        assert store.pool.wake_ns is None

    def test_without_it_the_share_of_this_process_grants(self):
        store = Store("60 requests/min")
        ask(store.pool)
        store.exchange()
        attempts = [Waiter({}) for _ in range(60)]
        for waiter in attempts:
            store.pool.try_grant(T0, waiter)
        assert store.lose() == attempts
        granted = [waiter for waiter in attempts if isinstance(waiter.outcome, Reservation)]
        assert granted == attempts[:51]  # seven eighths of the 59 that are left
        assert {type(waiter.outcome) for waiter in attempts[51:]} == {WaitUntil}
        assert store.pool.record.counts["store_lost"] == 1
        store.lose(T0 + NS)
        assert store.pool.record.counts["store_lost"] == 1

    def test_without_it_those_that_wait_go_before_attempts_at_once(self):
        store = Store("60 requests/min")
        ask(store.pool)
        store.exchange()
        attempts = [Waiter({}) for _ in range(40)]
        for waiter in attempts:
            store.pool.try_grant(T0, waiter)
        waiting = [ask(store.pool)[0] for _ in range(20)]
        assert store.lose() == waiting + attempts
        granted = [waiter for waiter in waiting + attempts if isinstance(waiter.outcome, Reservation)]
        assert granted == waiting + attempts[:31]

    def test_what_it_granted_and_what_was_granted_without_it_is_closed_where_it_was_charged(self):
        store = Store("60 tokens/min, 9 concurrency")
        early, _ = ask(store.pool, tokens=20)
        store.exchange()
        alone, _ = ask(store.pool, tokens=30)
        assert store.lose() == [alone]
        share = store.pool.ledger
        # Of seven eighths of 40 tokens, and 8 slots.
        assert [m.level(T0) for m in share.meters] == [pytest.approx(5), 7]
        store.pool.settle(T0, alone.outcome, {"tokens": 10})
        assert [m.level(T0) for m in share.meters] == [pytest.approx(25), 8]
        store.pool.settle(T0, early.outcome, {"tokens": 5})  # the store refunds it; its slot is free
        assert [m.level(T0) for m in share.meters] == [pytest.approx(25), 9]

    @pytest.mark.parametrize("own", [False, True])
    def test_a_quota_that_another_process_has_counts_for_those_that_wait(self, own):
        """Not beside the user's own: there it is one that was taken back."""
        store, more = Store("60 requests/min burst 1"), [] if own else ["100 tokens/min"]
        store.pool.ledger.own = own
        quotas = parse_quotas("60 requests/min burst 1, 100 tokens/min")
        store.ledger.apply(T0, message_of("b", 1, quotas, versions=[-1, -1], headroom_s=0.0))
        first, second = (ask(store.pool, tokens=70)[0] for _ in range(2))
        assert second.amounts == [1]
        assert store.exchange() == [first]
        assert store.pool.ledger.names == ["60 requests/min burst 1", *more]
        assert second.amounts == ([1] if own else [1, 70])

    def test_a_request_that_waits_for_an_old_view_of_the_quotas_may_never_fit(self):
        store = Store("60 tokens/min burst 50")
        waiter, outcome = ask(store.pool, T0 + NS, tokens=51)
        assert isinstance(outcome, WaitUntil)
        assert store.exchange(T0 + NS) == [waiter]
        assert waiter.outcome == NeverFits("tokens", 51, 50)
        assert (store.pool.record.waits.total_ns, store.pool.queue.length) == (0, 0)

    def test_a_forked_child_has_none_of_the_waiters(self):
        store = Store("60 requests/min")
        store.pool.try_grant(T0, Waiter({}))
        store.pool.submit(T0, Waiter({}))
        store.pool.drain()
        assert (store.pool.queue.length, store.pool.undecided) == (0, ())


class TestDeadlines:
    def test_one_that_cannot_be_met_fails_at_once(self):
        pool = pool_of("60 requests/min burst 1")
        use_up(pool)
        _, outcome = ask(pool, deadline_ns=T0 + NS - 1)
        assert outcome == Expired(T0 + NS, "60 requests/min burst 1")
        assert (pool.queue.length, pool.record.counts["expired"]) == (0, 1)

    def test_who_expires_behind_a_large_one_hears_what_that_one_waits_for(self):
        pool = pool_of("60 tokens/min", "60 requests/min")
        ask(pool, tokens=50)
        ask(pool, tokens=55)
        small, _ = ask(pool, tokens=3, deadline_ns=T0 + 5 * NS)
        assert pump_at_wake(pool) == (T0 + 5 * NS, [small])
        assert small.outcome == Expired(T0 + 48 * NS, "60 tokens/min")  # alone it would fit at once

    def test_what_the_first_has_waited_for_is_named_also_when_it_may_go(self):
        pool = pool_of("60 requests/min burst 1")
        use_up(pool)
        ask(pool)
        assert [pool.binds(T0 + seconds * NS) for seconds in (0, 2)] == ["60 requests/min burst 1"] * 2

    def test_the_slot_of_a_lost_attempt_is_free_for_one_that_comes(self):
        pool = pool_of("1 concurrency", ttl_s=60.0)
        use_up(pool)
        assert isinstance(ask(pool, T0 + 61 * NS)[1], Reservation)

    def test_with_nothing_but_others_ahead_the_line_binds(self):
        pool = pool_of("60 tokens/min")
        ask(pool, tokens=50)
        ask(pool, tokens=55)
        assert pool.try_grant(T0, Waiter({"tokens": 3})) == WaitUntil(T0 - 7 * NS, "queue")

    def test_nobody_knows_when_a_slot_is_free(self):
        pool = pool_of("1 concurrency")
        use_up(pool)
        waiter, outcome = ask(pool, deadline_ns=T0 + NS)
        assert outcome == WaitUntil(FAR_NS, "1 concurrency")
        assert pump_at_wake(pool) == (T0 + NS, [waiter])
        assert isinstance(waiter.outcome, Expired)

    @given(waits_s=st.lists(st.integers(0, 40), min_size=1, max_size=25), settle_to=st.integers(0, 100))
    def test_everybody_is_granted_or_expired_in_time(self, waits_s, settle_to):
        pool = pool_of("60 tokens/min burst 20")
        waiters = [ask(pool, deadline_ns=T0 + wait * NS, tokens=1 + wait % 20) for wait in waits_s]
        left = {id(t) for t, outcome in waiters if isinstance(outcome, WaitUntil)}
        now_ns, done = T0, []
        while done or pool.wake_ns is not None:
            now_ns, done = (now_ns, pool.pump(now_ns)) if done else pump_at_wake(pool)
            for waiter in done:
                left.remove(id(waiter))
                assert waiter.deadline_ns >= now_ns
                if isinstance(waiter.outcome, Reservation):
                    actual = {"tokens": waiter.cost["tokens"] * settle_to // 100}
                    pool.settle(now_ns, waiter.outcome, actual, waiter)
                else:
                    assert waiter.deadline_ns == now_ns
        assert not left


class TestNeverFits:
    def test_it_is_said_at_once_with_and_without_a_line(self):
        pool = pool_of("100 tokens/min burst 50")
        assert ask(pool, tokens=51)[1] == NeverFits("tokens", 51, 50)
        ask(pool, tokens=50)
        ask(pool, tokens=50)
        assert ask(pool, tokens=51)[1] == NeverFits("tokens", 51, 50)
        assert pool.try_grant(T0, Waiter({"tokens": 51})) == NeverFits("tokens", 51, 50)
        assert pool.queue.length == 1

    def test_it_is_foreseen_without_a_line_as_is_a_deadline_that_cannot_be_met(self):
        pool = pool_of("60 tokens/min burst 50")
        assert pool.foresee(T0, Waiter({"tokens": 51})) == NeverFits("tokens", 51, 50)
        assert pool.foresee(T0, Waiter({"tokens": 50}, deadline_ns=T0)) is None
        ask(pool, tokens=50)
        assert pool.foresee(T0, Waiter({"tokens": 50})) is None
        assert pool.foresee(T0, Waiter({"tokens": 50}, deadline_ns=T0 + 50 * NS)) is None
        late = pool.foresee(T0, Waiter({"tokens": 50}, deadline_ns=T0 + 49 * NS))
        assert late == Expired(T0 + 50 * NS, "60 tokens/min burst 50")
        assert pool.queue.length == 0

    @pytest.mark.parametrize("kind", [SourceKind.PUBLISHED, SourceKind.ASSUMED, SourceKind.LEARNED])
    @pytest.mark.parametrize("text", ["100 tokens/min", "100 tokens/min sliding", "100 tokens/day window utc"])
    def test_a_request_above_a_limit_that_the_user_has_not_set_goes_alone(self, text, kind):
        pool = pool_of(text, learns=True, sources=[Source(kind)])
        one, _ = ask(pool, tokens=10)
        large, _ = ask(pool, tokens=1_000)
        done = one, large
        while large.outcome is None:
            _, done = pump_at_wake(pool)
        assert isinstance(large.outcome, Reservation)
        assert done == [large]


class TestEstimates:
    def test_tokens_are_compared_with_the_sum_of_input_and_output(self):
        pool = pool_of("60k tokens/min")
        _, reservation = ask(pool, input_tokens=100, output_tokens=50)
        pool.settle(T0, reservation, {"input_tokens": 80, "output_tokens": 20})
        assert pool.record.estimates == {"input_tokens": [100, 80], "output_tokens": [50, 20], "tokens": [150, 100]}

    def test_a_larger_charge_than_the_usage_is_no_error_of_the_estimate(self):
        pool = pool_of("60k tokens/min")
        waiter, reservation = ask(pool, tokens=100)
        waiter.reported = {"tokens": 30}
        pool.settle(T0, reservation, {"tokens": 90}, waiter)
        assert (pool.record.estimates, pool.ledger.entries[0].spent) == ({"tokens": [100, 30]}, 90)

    def test_an_assumed_size_is_compared_with_nothing(self):
        pool = pool_of("60k tokens/min")
        waiter, reservation = ask(pool, tokens=100)
        waiter.sized = False
        pool.settle(T0, reservation, {"tokens": 30}, waiter)
        assert not pool.record.estimates


def test_the_row_of_a_refusal_knows_the_other_attempts_in_flight(pool):
    earlier, late = use_up(pool), use_up(pool, T0 + 5 * NS)
    row = pool.row(T0 + 5 * NS, late[0], RATE)
    assert (row.number, row.admitted) == (1, len(earlier))


class TestStop:
    def test_an_attempt_from_before_the_stop_that_was_not_sent_is_no_probe(self, pool):
        early, refused = ask(pool)[1], ask(pool)[1]
        pool.refuse(T0 + NS, refused, MONEY, 0.0)
        assert isinstance(ask(pool, T0 + 602 * NS)[1], Reservation)  # the probe
        pool.cancel(T0 + 603 * NS, early)
        assert isinstance(ask(pool, T0 + 604 * NS)[1], Stopped)

    def test_attempts_in_flight_at_the_stop_do_not_double_it(self, pool):
        in_flight = [ask(pool)[1] for _ in range(5)]
        for reservation in in_flight:
            pool.refuse(T0 + NS, reservation, MONEY, 0.0)
        assert isinstance(ask(pool, T0 + 602 * NS)[1], Reservation)

    def test_a_stop_that_is_shorter_than_the_last_one_ends_in_time(self):
        stop, sent_ns = Stop(), T0
        for _ in range(3):
            stop.begin(sent_ns, sent_ns, "", 3_600.0)
            sent_ns = stop.outcome.probe_ns
            assert stop.for_newcomer(sent_ns) is None
        stop.begin(sent_ns + NS, sent_ns, "", 60.0)
        assert stop.outcome.probe_ns == sent_ns + 61 * NS

    def test_money_turns_everybody_away(self):
        pool = pool_of("60 requests/min burst 1")
        _, outcome = ask(pool)
        waiting = [ask(pool)[0] for _ in range(3)]
        pool.refuse(T0, outcome, MONEY, 0.0)
        stopped = Stopped("no money left (no_credit)", T0 + 600 * NS)
        assert pool.pump(T0) == waiting
        assert [t.outcome for t in waiting] == [stopped] * 3
        assert pool.wake_ns is None
        assert ask(pool, T0 + 100 * NS)[1] == stopped
        assert pool.try_grant(T0 + 100 * NS, Waiter({})) == stopped
        assert report(pool, T0)["stopped"] == "no money left (no_credit)"
        pool.resume()
        assert isinstance(ask(pool, T0 + 100 * NS)[1], Reservation)

    def test_one_request_is_tried_after_a_while_and_a_served_one_ends_the_stop(self, pool):
        early = [ask(pool)[1] for _ in range(2)]
        pool.refuse(T0, early[0], MONEY, 0.0)
        pool.settle(T0 + NS, early[1], {"requests": 1})  # it was sent before the stop
        assert pool.stopped is not None
        now_ns = T0
        for minutes in (10, 20, 40, 60, 60):
            assert isinstance(ask(pool, now_ns + minutes * 60 * NS - 1)[1], Stopped)
            now_ns += minutes * 60 * NS
            trial, other = ask(pool, now_ns)[1], pool.try_grant(now_ns, Waiter({}))
            assert isinstance(other, Stopped)
            pool.refuse(now_ns, trial, MONEY, 0.0)
        trial = ask(pool, now_ns + 3_600 * NS)[1]
        pool.settle(now_ns + 3_601 * NS, trial, {"requests": 1})
        assert pool.stopped is None

    def test_a_wait_longer_than_the_policy_allows_stops_the_pool_until_its_end(self, pool):
        long = Refusal(RefusalKind.RATE, code="rate_limit_exceeded", retry_after_s=900.0)
        pool.refuse(T0, ask(pool)[1], long, 0.0, stop_s=900.0, why="the provider asks to wait 900 s")
        reason, end_ns = "the provider asks to wait 900 s (rate_limit_exceeded)", T0 + 900 * NS
        assert ask(pool, T0 + 599 * NS)[1] == Stopped(reason, T0 + 600 * NS, end_ns)
        trial, other = ask(pool, T0 + 600 * NS)[1], pool.try_grant(T0 + 600 * NS, Waiter({}))
        assert other == Stopped(reason, T0 + 1_200 * NS, end_ns)  # of the next trial, should this one not return
        longer = replace(long, retry_after_s=9_000.0)
        pool.refuse(T0 + 601 * NS, trial, longer, 0.0, stop_s=9_000.0, why="the provider asks to wait 9,000 s")
        later = ask(pool, T0 + 1_801 * NS - 1)[1]
        assert (later.probe_ns, later.ends_ns) == (T0 + 1_801 * NS, T0 + 9_601 * NS)
        assert isinstance(ask(pool, T0 + 1_801 * NS)[1], Reservation)

    def test_after_the_stated_end_one_request_goes_and_the_others_wait_for_its_answer(self, pool):
        pool.refuse(T0, ask(pool)[1], Refusal(RefusalKind.RATE, retry_after_s=900.0), 0.0, stop_s=900.0)
        end_ns = T0 + 900 * NS
        probe, other = pool.try_grant(end_ns, Waiter({})), ask(pool, end_ns)[1]
        assert isinstance(probe, Reservation)
        assert isinstance(other, WaitUntil)
        assert pool.stopped is None

    def test_a_probe_that_is_refused_for_a_wait_within_the_policy_ends_it(self, pool):
        long = Refusal(RefusalKind.RATE, retry_after_s=20_000.0)
        pool.refuse(T0, ask(pool)[1], long, 0.0, stop_s=20_000.0)
        now_ns = T0 + 600 * NS
        pool.refuse(now_ns, ask(pool, now_ns)[1], replace(long, retry_after_s=3.0), 3.0)
        assert isinstance(ask(pool, now_ns)[1], WaitUntil)

    def test_who_waits_for_an_allowance_is_told_its_end(self):
        """The pause ends with the next test."""
        pool = pool_of("60 requests/min", waiting_max=1)
        pool.refuse(T0, ask(pool)[1], Refusal(RefusalKind.RATE, retry_after_s=9_000.0), 15.0)
        end_ns = T0 + 9_000 * NS
        assert pool.submit(T0, Waiter({}, deadline_ns=T0 + NS)).at_ns == end_ns
        assert pool.foresee(T0, Waiter({}, deadline_ns=T0 + NS)).at_ns == end_ns
        waiter, _ = ask(pool)
        assert pool.place(T0, waiter) == (0, end_ns, COOL_DOWN)
        assert ask(pool)[1].at_ns == end_ns  # the queue is full
        assert report(pool, T0)["cool_down_s"] == 9_000

    def test_the_one_request_may_wait_for_a_pause(self, pool):
        pool.refuse(T0, ask(pool)[1], MONEY, 0.0)
        pool.pump(T0)
        now_ns = T0 + 600 * NS
        pool.capacity.pause(now_ns + 5 * NS)
        trial, outcome = ask(pool, now_ns)
        assert outcome == WaitUntil(now_ns + 5 * NS, COOL_DOWN)
        assert isinstance(ask(pool, now_ns)[1], Stopped)
        assert pool.pump(now_ns) == []
        assert pump_at_wake(pool) == (now_ns + 5 * NS, [trial])
        pool.settle(now_ns + 6 * NS, trial.outcome, {"requests": 1})
        assert pool.stopped is None

    def test_who_withdraws_before_the_others_are_turned_away_ends_nothing(self):
        pool = pool_of("60 requests/min burst 1")
        _, outcome = ask(pool)
        waiter, _ = ask(pool)
        pool.refuse(T0, outcome, MONEY, 0.0)
        pool.withdraw(T0, waiter)
        assert pool.stopped.probe_ns == T0 + 600 * NS

    @pytest.mark.parametrize("end", ["tried", "never fits", "expires", "is late", "is withdrawn", "is cancelled"])
    def test_a_request_that_is_not_sent_is_no_probe(self, pool, end):
        pool.refuse(T0, ask(pool)[1], MONEY, 0.0)
        now_ns = T0 + 600 * NS
        if end != "is cancelled":
            pool.capacity.pause(now_ns + 5 * NS)
        if end == "tried":
            assert isinstance(pool.try_grant(now_ns, Waiter({})), WaitUntil)
        elif end == "never fits":
            assert isinstance(pool.submit(now_ns, Waiter({"requests": 61.0})), NeverFits)
        elif end == "expires":
            assert isinstance(pool.submit(now_ns, Waiter({}, deadline_ns=now_ns + NS)), Expired)
        elif end == "is late":
            late = Waiter({}, deadline_ns=now_ns + 5 * NS)
            assert isinstance(pool.submit(now_ns, late), WaitUntil)
            pool.capacity.pause(now_ns + 9 * NS)
            assert pool.pump(now_ns + 6 * NS) == [late]
        elif end == "is withdrawn":
            pool.withdraw(now_ns, ask(pool, now_ns)[0])
        else:
            pool.cancel(now_ns, ask(pool, now_ns)[1])
        later_ns = now_ns + 20 * NS
        assert isinstance(ask(pool, later_ns)[1], Reservation)
        assert isinstance(ask(pool, later_ns)[1], Stopped)  # that was the probe


class TestScope:
    @pytest.mark.parametrize("scope", [RefusalScope.REQUEST, RefusalScope.MODE])
    @pytest.mark.parametrize("kind", list(RefusalKind))
    def test_a_refusal_that_is_not_about_the_pool_changes_nothing_but_the_charge(self, kind, scope):
        pool = pool_of("60 requests/min", "100 tokens/min", learns=True)
        _, outcome = ask(pool, tokens=90)
        refusal = Refusal(kind, "fast mode", limit=1, retry_after_s=180, unit="tokens", scope=scope)
        pool.refuse(T0, outcome, refusal, 180.0)
        assert not outcome.open
        assert [m.level(T0) for m in pool.ledger.meters] == [59, 100]
        assert (pool.stopped, pool.progress.rate_rows.number, report(pool, T0)["cool_down_s"]) == (None, 0, 0)
        assert [m.quota.amount for m in pool.ledger.meters] == [60, 100]
        assert isinstance(ask(pool, tokens=90)[1], Reservation)


class TestCoolDown:
    def paused(self) -> tuple[Pool, list[Waiter]]:
        pool = pool_of("60 requests/min")
        _, outcome = ask(pool)
        pool.refuse(T0, outcome, RATE, 5.0)
        return pool, [ask(pool)[0] for _ in range(4)]

    def test_all_wait_then_one_probe_goes_then_the_others(self):
        pool, waiters = self.paused()
        assert (report(pool, T0)["cool_down_s"], report(pool, T0)["binds"]) == (5, COOL_DOWN)
        assert pump_at_wake(pool) == (T0 + 5 * NS, waiters[:1])
        later_ns = T0 + 5 * NS + NS // 10
        assert pool.pump(later_ns) == []
        pool.settle(later_ns, waiters[0].outcome, None)
        assert pool.pump(later_ns) == waiters[1:]

    def test_a_probe_that_does_not_answer_keeps_nobody_for_long(self):
        pool, waiters = self.paused()
        pump_at_wake(pool)
        assert pump_at_wake(pool) == (T0 + 5 * NS + PROBE_NS, waiters[1:])

    @pytest.mark.parametrize(
        ("said_s", "took_s", "probe_s"),
        [(0.2, 0.3, 0.6), (0.4, 0.0, 0.4), (0.05, 0.0, 0.1), (0.2, 9.0, 2.0), (5.0, 0.3, 2.0), (None, 0.3, 2.0)],
    )
    def test_the_probe_is_waited_for_as_long_as_refusals_take_and_no_less_than_they_say(self, said_s, took_s, probe_s):
        pool, now_ns = pool_of("60 requests/min"), T0 + round(took_s * NS)
        _, outcome = ask(pool)
        pool.refuse(now_ns, outcome, replace(RATE, retry_after_s=said_s), 5.0)
        waiters = [ask(pool)[0] for _ in range(3)]
        assert pump_at_wake(pool) == (now_ns + 5 * NS, waiters[:1])
        assert pump_at_wake(pool) == (now_ns + 5 * NS + round(probe_s * NS), waiters[1:])

    def test_full_servers_have_the_probe_waited_for_longer(self):
        pool = pool_of("60 requests/min")
        _, outcome = ask(pool)
        pool.refuse(T0 + NS, outcome, Refusal(RefusalKind.CAPACITY, retry_after_s=5.0), 5.0)
        waiters = [ask(pool)[0] for _ in range(3)]
        assert pump_at_wake(pool) == (T0 + 6 * NS, waiters[:1])
        assert pump_at_wake(pool) == (T0 + 6 * NS + PROBE_NS, waiters[1:])

    def test_a_probe_that_was_never_sent_lets_another_go(self):
        pool, waiters = self.paused()
        now_ns, _ = pump_at_wake(pool)
        pool.withdraw(now_ns, waiters[0])
        assert pool.pump(now_ns) == [waiters[1]]

    def test_a_refused_probe_keeps_the_others_no_longer_than_its_refusal_says(self):
        pool, waiters = self.paused()
        now_ns, _ = pump_at_wake(pool)
        now_ns += NS // 10
        pool.refuse(now_ns, waiters[0].outcome, RATE, 0.5)
        pool.pump(now_ns)
        now_ns, granted = pump_at_wake(pool)
        assert (now_ns, granted) == (T0 + 5 * NS + 6 * NS // 10, [waiters[1]])
        pool.refuse(now_ns, waiters[1].outcome, RATE, 0.0)  # a measured rate decides
        assert pool.pump(now_ns) == waiters[2:]

    def test_a_request_that_waits_is_estimated_again_when_it_comes_first(self):
        pool = pool_of("60 requests/min", "600 tokens/min")
        ask(pool, tokens=600)
        waiters = [ask(pool, tokens=100)[0] for _ in range(2)]
        for waiter in waiters:
            waiter.estimate = lambda: Estimate({"requests": 1.0, "tokens": 200.0})
        at_ns = pool.soonest(T0, waiters[0])[0]
        assert pool.pump(at_ns) == []
        assert pool.wake_ns == T0 + 20 * NS
        assert pool.pump(T0 + 20 * NS) == waiters[:1]
        assert waiters[0].outcome.cost == {"requests": 1.0, "tokens": 200.0}

    def test_one_that_counts_as_no_request_does_not_wait_for_a_quota_of_requests(self):
        pool = pool_of("60 requests/min burst 1", "600 tokens/min")
        pool.settle(T0, ask(pool)[1], {"requests": 5})
        pool.capacity.pause(T0 + NS)
        waiter, _ = ask(pool, requests=0, tokens=100)
        waiter.estimate = lambda: Estimate({"requests": 0, "tokens": 100})
        assert pool.pump(T0 + NS) == [waiter]

    def test_one_that_is_found_to_fit_never_is_turned_away(self):
        pool = pool_of("60 requests/min", "600 tokens/min")
        ask(pool, tokens=600)
        waiter, _ = ask(pool, tokens=100)
        waiter.estimate = lambda: Estimate({"requests": 1.0, "tokens": 601.0})
        assert pool.pump(T0 + 10 * NS) == [waiter]
        assert isinstance(waiter.outcome, NeverFits)


class TestLearning:
    def test_no_answer_raises_a_given_limit(self):
        pool = pool_of("600 tokens/min", learns=True)
        for second in range(3):
            now_ns = T0 + second * NS
            readings = [Reading("tokens", limit=60_000, remaining=59_990, reset_s=0.01)]
            pool.observe(now_ns, readings, ask(pool, now_ns, tokens=10)[1])
        assert pool.ledger.names == ["600 tokens/min"]
        assert report(pool, T0)["quotas"][0]["learned"] == {"stated_limit": 60_000}
        assert pool.ledger.entries[0].meter.level(T0 + 2 * NS) == 590  # nor its level
        assert len(pool.capacity.learning.notices) == 1
        _, outcome = ask(pool, T0 + 3 * NS, tokens=1)
        pool.observe(T0 + 3 * NS, [Reading("tokens", limit=60_000, remaining=200)], outcome)
        assert pool.ledger.entries[0].meter.level(T0 + 3 * NS) == pytest.approx(200, abs=5)  # others use the key, too

    @pytest.mark.parametrize("kind", [SourceKind.PUBLISHED, SourceKind.ASSUMED])
    def test_only_an_assumed_limit_asks_for_the_tier(self, kind):
        pool = pool_of("100 tokens/hour", learns=True, sources=[Source(kind)])
        for _ in range(2):
            ask(pool, tokens=100)
        [notice] = pool.capacity.learning.notices
        assert ("name the tier" in notice) == (kind is SourceKind.ASSUMED)
        assert "set the limits" in notice


def test_what_the_first_waiter_waits_for_is_named_where_slots_bind_later():
    pool = pool_of("2 concurrency", "6 requests/min exact")
    while isinstance(outcome := ask(pool)[1], Reservation):
        pool.settle(T0, outcome, {})
    waiters = [ask(pool)[0] for _ in range(4)]
    assert {pool.place(T0, one)[2] for one in waiters} == {"6 requests/min exact"}
    assert pool.place(T0, waiters[-1])[1] == FAR_NS


def test_a_waiter_behind_one_that_may_go_now_waits_for_the_slot_that_it_takes():
    pool = pool_of("1 concurrency")
    (_, running), _, (last, _) = (ask(pool) for _ in range(3))
    pool.settle(T0 + NS, running, {})
    assert pool.place(T0 + NS, last) == (1, FAR_NS, "1 concurrency")


def test_an_allowance_that_is_used_up_opens_at_the_heads_of_answers_and_one_by_one():
    pool = pool_of("100 requests/min")
    refusal = replace(RATE, retry_after_s=3_600.0, window="5h")
    _, granted = ask(pool)
    pool.refuse(T0, granted, refusal, 60.0)
    assert pool.opens_at_heads
    waiters = [ask(pool)[0] for _ in range(3)]
    assert (pool.shut.state, pool.shut.waiting, pool.shut.ends_ns) == ("shut", 3, T0 + 3_600 * NS)
    now_ns, [probe] = pump_at_wake(pool)
    assert pool.shut.state == "probing"
    pool.admitted(now_ns, probe.outcome)
    assert pool.shut.state == "opening"
    assert len(pool.pump(now_ns)) == 2
    pool.settle(now_ns, waiters[1].outcome, None)  # none waits
    assert pool.shut is None
    assert not pool.opens_at_heads


def test_an_allowance_is_open_at_the_head_of_an_answer_if_none_waits():
    pool = pool_of("100 requests/min")
    pool.refuse(T0, ask(pool)[1], replace(RATE, retry_after_s=3_600.0, window="5h"), 60.0)
    ask(pool)
    now_ns, [probe] = pump_at_wake(pool)
    pool.admitted(now_ns, probe.outcome)
    assert pool.shut is None


def test_a_stop_ends_at_the_head_of_the_answer_to_its_probe():
    pool = pool_of("100 requests/min")
    refusal = replace(RATE, retry_after_s=3_600.0, window="5h")
    pool.refuse(T0, ask(pool)[1], refusal, 60.0, 60.0)
    now_ns = T0 + 61 * NS
    _, probe = ask(pool, now_ns)
    assert pool.stopped is not None
    pool.admitted(now_ns, probe)
    assert pool.stopped is None


def test_a_short_pause_about_an_allowance_ends_with_the_answer_to_its_probe():
    """The head of the answer shows that the allowance is open. Two for each answer go after a long pause alone."""
    pool = pool_of("100 requests/min")
    pool.refuse(T0, ask(pool)[1], replace(RATE, retry_after_s=3_600.0), 15.0)
    for _ in range(9):
        ask(pool)
    now_ns, [probe] = pump_at_wake(pool)
    assert pool.opens_at_heads
    pool.admitted(now_ns, probe.outcome)
    assert not pool.opens_at_heads
    assert pool.pump(now_ns) == []
    pool.settle(now_ns, probe.outcome, None)
    assert len(pool.pump(now_ns)) == 8
