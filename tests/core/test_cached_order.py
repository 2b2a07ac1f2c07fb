"""Requests whose prompts are cached: who goes first, who waits how long for it, and what is not touched by it."""

from __future__ import annotations

import pytest
from core_pools import RATE, again, pool_of, use_up
from core_worlds import T0
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.pool import Pool
from paceline.core.queue import OVERTAKING, Estimate, LaneSpec, Queue, Waiter
from paceline.core.quota import NS
from paceline.core.results import Expired, WaitUntil


def cached(tokens: float = 1.0, lost_s: float = 300.0, cached_tokens: int = 1_000, **options) -> Waiter:
    """A request whose prompt is cached until ``lost_s`` from the start on."""
    waiter = Waiter({"input_tokens": tokens}, **options)
    waiter.lost_ns, waiter.cached_tokens = T0 + round(lost_s * NS), cached_tokens
    return waiter


def cold(tokens: float = 1.0, **options) -> Waiter:
    return Waiter({"input_tokens": tokens}, **options)


def submit(pool: Pool, *waiters: Waiter) -> None:
    for waiter in waiters:
        assert isinstance(pool.submit(T0, waiter), WaitUntil)


def full_pool(text: str = "60 input_tokens/min") -> Pool:
    pool = pool_of(text)
    use_up(pool, cost={"input_tokens": 1.0})
    return pool


def order(pool: Pool) -> list[Waiter]:
    """The waiters in the order in which they are granted, the foretold one."""
    foretold, granted = pool.queue.peek(1_000), []
    while pool.queue.length:
        assert pool.wake_ns is not None
        granted += pool.pump(pool.wake_ns)
    assert granted == foretold
    return granted


@pytest.fixture
def pool():
    """It is used up, so that all have to wait."""
    return full_pool()


def test_the_one_that_loses_its_prompt_first_goes_first(pool):
    first, late, soon, last = cold(), cached(lost_s=300), cached(lost_s=200), cold()
    submit(pool, first, late, soon, last)
    assert order(pool) == [soon, late, first, last]
    assert pool.record.counts["overtook"] == 2


def test_a_returned_attempt_goes_before_all_that_it_had_not_overtaken(pool):
    first, follower, other = cold(), cached(lost_s=200), cached(lost_s=300)
    submit(pool, first, follower, other)
    assert pool.pump(T0 + NS) == [follower]
    pool.refuse(T0 + NS, follower.outcome, RATE, 0.0)
    second, _ = again(pool, T0 + NS, follower)
    assert order(pool) == [other, first, second]  # again() knows nothing of the first attempt


def test_a_returned_attempt_that_had_overtaken_goes_before_all(pool):
    first, follower, other = cold(), cached(lost_s=200), cached(lost_s=300)
    submit(pool, first, follower, other)
    assert pool.pump(T0 + NS) == [follower]
    pool.refuse(T0 + NS, follower.outcome, RATE, 0.0)
    second = Waiter(follower.cost)
    second.number, second.returned, second.overtook, second.lost_ns = follower.number, True, True, follower.lost_ns
    submit(pool, second)
    assert [pool.place(T0 + NS, waiter)[0] for waiter in (second, other, first)] == [0, 1, 2]
    assert order(pool) == [second, other, first]


def test_one_whose_prompt_is_lost_takes_its_place_by_arrival(pool):
    first, follower = cold(), cached(lost_s=0.5)
    follower.estimate = lambda: Estimate({"input_tokens": 5.0})
    submit(pool, first, follower)
    assert pool.queue.head() is follower
    assert pool.pump(T0 + NS) == [first]
    assert (follower.lost_ns, follower.cached_tokens, follower.cost) == (0, 0, {"input_tokens": 5.0})


def test_one_whose_prompt_was_read_again_goes_by_its_new_instant(pool):
    renewed, other = cached(lost_s=0.5), cached(lost_s=100)
    renewed.estimate = lambda: Estimate({"input_tokens": 1.0}, 500, T0 + 200 * NS)
    other.estimate = lambda: Estimate({"input_tokens": 1.0}, 500, T0 + 400 * NS)  # not lost yet: its place stays
    submit(pool, cold(), renewed, other)
    assert pool.pump(T0 + NS) == [other]
    assert pool.pump(T0 + 2 * NS) == [renewed]


def test_many_that_leave_leave_nothing_behind(pool):
    submit(pool, cold(), cached(lost_s=1))
    for k in range(500):
        waiter = cached(lost_s=100 + k)
        submit(pool, waiter)
        pool.withdraw(T0, waiter)
    [lane] = pool.queue._lanes.values()
    assert len(lane.cached) < 100


def test_the_tokens_are_saved_of_those_that_would_have_been_lost(pool):
    submit(pool, *[cold(10.0) for _ in range(20)], cached(lost_s=100, cached_tokens=700))
    pool.pump(T0 + NS)
    assert pool.record.saved_tokens == 700
    submit(pool, cached(lost_s=300, cached_tokens=900))
    pool.pump(T0 + 2 * NS)
    assert pool.record.saved_tokens == 700


class TestTheBeginningOfAnAnswer:
    def test_one_larger_than_a_quota_is_charged_at_its_end(self):
        pool = pool_of("100 input_tokens/min")
        pool.ledger.entries[0].refused_above = 10**6
        attempt = Waiter({"input_tokens": 500.0})
        reservation = pool.submit(T0, attempt)
        pool.adjust(T0, reservation, {"input_tokens": 70.0}, attempt)
        assert pool.ledger.meters[0].level(T0) == 0

    def test_its_lane_has_its_turn_earlier(self, pool):
        mine, other = LaneSpec("mine"), LaneSpec("other")
        first = cold(10.0, lane=mine)
        submit(pool, first, *[cold(lane=lane) for lane in (mine, other)])
        pool.pump(T0 + 10 * NS)
        assert pool.queue.head().lane is other
        pool.adjust(T0 + 10 * NS, first.outcome, {"input_tokens": 0.0}, first)
        assert pool.queue.head().lane is mine


class TestDeadlines:
    def test_a_cached_request_in_time_does_not_expire(self):
        pool = pool_of("60 requests/min burst 1")
        use_up(pool)
        submit(pool, *[cold() for _ in range(30)])
        deadline_ns = T0 + 5 * NS
        assert isinstance(pool.submit(T0, cold(deadline_ns=deadline_ns)), Expired)
        in_time = cached(deadline_ns=deadline_ns)
        submit(pool, in_time)
        assert pool.place(T0, in_time)[0] == 0
        assert pool.pump(T0 + NS) == [in_time]

    def test_those_that_lose_theirs_earlier_count(self):
        pool = pool_of("60 requests/min burst 1")
        use_up(pool)
        submit(pool, cold(), *[cached(lost_s=100) for _ in range(9)])
        assert isinstance(pool.submit(T0, cached(lost_s=200, deadline_ns=T0 + 5 * NS)), Expired)
        assert isinstance(pool.submit(T0, cached(lost_s=50, deadline_ns=T0 + 5 * NS)), WaitUntil)
        assert pool.expected(T0, cached(lost_s=50)) < pool.expected(T0, cached(lost_s=200))


class TestLanes:
    @given(
        costs=st.lists(st.tuples(st.sampled_from("ab"), st.floats(1, 20), st.floats(0, 40)), min_size=40, max_size=120),
        weights=st.tuples(st.sampled_from([1.0, 2.0]), st.sampled_from([1.0, 4.0])),
    )
    def test_busy_lanes_differ_by_their_largest_requests_and_the_largest_cached_prompt(self, costs, weights):
        queue, lanes = Queue(), {name: LaneSpec(name, weight) for name, weight in zip("ab", weights, strict=True)}
        for number, (name, cost, saves) in enumerate(costs, 1):
            waiter = Waiter({}, lanes[name])
            waiter.number, waiter.amounts = number, [cost]
            waiter.lost_ns, waiter.saves = (number, saves) if saves > 20 else (0, 0.0)
            queue.push(waiter)
        balance = [0.0]
        while len(queue.waiting()) == 2:
            head = queue.head()
            queue.pop(head, head.amounts[0])
            step = head.amounts[0] / head.lane.weight
            balance.append(balance[-1] + (step if head.lane.name == "a" else -step))
        bound = sum((2 * 20 + 40) / weight for weight in weights)
        assert max(balance) - min(balance) <= bound + 1e-6


@given(
    script=st.lists(st.tuples(st.booleans(), st.floats(0.5, 9.0), st.integers(1, 50)), min_size=1, max_size=80),
    data=st.data(),
)
def test_a_request_is_overtaken_by_at_most_the_bound(script, data):
    """Seven times the cost of itself and of those that came before it, and one request more."""
    queue, waiting, taken = Queue(), {}, {}
    largest = max(cost for _, cost, _ in script)

    def go() -> None:
        head = queue.head()
        queue.pop(head, head.amounts[0])
        del waiting[head.number]
        for number in waiting:
            if number < head.number:
                taken[number] += head.amounts[0]

    bounds = {}
    for number, (is_cached, cost, lost) in enumerate(script, 1):
        waiter = Waiter({})
        waiter.number, waiter.amounts = number, [cost]
        waiter.lost_ns = lost if is_cached else 0
        ahead = sum(each.amounts[0] for each in waiting.values())
        queue.push(waiter)
        waiting[number], taken[number] = waiter, 0.0
        bounds[number] = OVERTAKING * (ahead + cost) + largest
        if data.draw(st.booleans()):
            go()
    while waiting:
        go()
    assert all(taken[number] <= bound + 1e-6 for number, bound in bounds.items())


def test_without_cached_prompts_the_order_is_that_of_arrival(pool):
    waiters = [cold(1.0 + number % 3) for number in range(20)]
    submit(pool, *waiters)
    assert order(pool) == waiters
    assert "overtook" not in pool.record.counts
