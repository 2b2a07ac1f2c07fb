"""Shared pools in corners: closed and used again, paused by their breaker, stale, and away with slots in use."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

import paceline
from paceline.core.queue import Waiter
from paceline.core.quota import NS, parse_quotas
from paceline.core.results import Reservation, WaitUntil
from paceline.shared.exchange import answer, ask
from paceline.shared.ledger import SharedLedger
from paceline.stores.base import StoreError
from shared_pools import shared_pool
from waits import BOUND_S, until

GONE = StoreError("obedient:store: gone")


def waiting_for(world, work, seconds=1.0):
    """What ``work`` returns in a thread, where it may wait for ``seconds`` of the world's time."""
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(work)
        until(lambda: done.done() or world.limiters[0].status()["pools"]["jobs"]["waiting"], "a waiter")
        if not done.done():
            world.move(seconds)
        return done.result(BOUND_S)


class TestClosed:
    def test_what_settles_after_it_hangs_nobody(self, world):
        limiter = world.limiter()
        permit = world.take(limiter)
        limiter.close()
        permit.settle()
        world.move(0.1)
        assert waiting_for(world, lambda: limiter.acquire("jobs", tokens=0).wait()).open

    def test_what_settles_after_it_is_told_when_it_is_closed_again(self, world):
        limiter = world.limiter()
        permit = world.take(limiter, tokens=500)
        limiter.close()
        permit.settle(tokens=10)
        limiter.close()
        assert world.store.charged(1)[1] == 10

    def test_not_while_it_holds_slots(self, world):
        one, other = world.limiter("600 requests/min, 1 concurrency"), world.limiter("600 requests/min, 1 concurrency")
        permit = world.take(one)
        one.close()
        assert not other.try_acquire("jobs", tokens=0)
        assert world.status(other)["store"]["peers"] == 2
        permit.cancel()


@pytest.mark.parametrize("lost", [False, True])
async def test_after_a_pause_of_the_breaker_one_goes_alone(world, lost):
    limiter = world.joined("6000 requests/min")
    if lost:
        world.store.failure = GONE
        world.take(limiter).settle()
    limiter.pacer.pools.scheduler("jobs").pause(world.clock.now_ns() + 8 * NS)
    tasks = [asyncio.ensure_future(limiter.acquire("jobs", tokens=0)) for _ in range(10)]
    await world.moved(7.9)
    assert not any(task.done() for task in tasks)
    await world.moved(0.5)
    gone = [task.result() for task in tasks if task.done()]
    assert len(gone) == 1
    gone[0].settle()
    await world.moved(0.5)
    assert all(task.done() for task in tasks)
    for task in tasks:
        task.result().cancel()


class TestStale:
    def test_a_deadline_is_not_missed_by_what_was_said_long_ago(self, world):
        one, other = (world.joined("60000 requests/min, 6000 tokens/min", headroom_s=0.0) for _ in "ab")
        large = world.take(other, tokens=5_900)
        assert not one.try_acquire("jobs", tokens=3_000)
        large.cancel()
        world.move(1.0)
        assert waiting_for(world, lambda: one.acquire("jobs", tokens=3_000, timeout=5).wait()).open

    def test_a_limit_that_was_raised_meanwhile_is_asked_for(self, world):
        one = world.joined("6000 requests/min, 6k tokens/min")
        world.take(world.limiter("6000 requests/min, 600k tokens/min")).settle()
        world.move(5)
        assert waiting_for(world, lambda: one.acquire("jobs", tokens=9_000).wait()).open

    def test_one_that_was_not_is_still_an_error(self, world):
        one = world.joined("6000 requests/min, 6k tokens/min")
        world.move(5)
        with pytest.raises(paceline.NeverFitsError):
            waiting_for(world, lambda: one.acquire("jobs", tokens=9_000).wait())
        assert isinstance(one.try_acquire("jobs", tokens=9_000), paceline.NeverFits)


class TestSlots:
    def test_those_that_only_the_store_knows_of_are_renewed(self, world):
        knows, other = world.joined("600 requests/min, 2 concurrency"), world.joined("600 requests/min")
        held = [world.take(other) for _ in range(2)]
        for _ in range(20):
            world.move(1.0)
            assert not knows.try_acquire("jobs", tokens=0)
        for permit in held:
            permit.cancel()

    @pytest.mark.parametrize("in_use", [True, False], ids=["in use", "come free"])
    @pytest.mark.parametrize("mode", ["fail_safe", "fail_open"])
    def test_those_of_the_time_when_the_store_is_lost_are_used_again(self, world, mode, in_use):
        limiters = [world.joined("60000 requests/min, 8 concurrency", on_store_failure=mode) for _ in range(2)]
        held = [world.take(limiter) for limiter in limiters for _ in range(4)]
        world.move(6.0)  # by now each has heard of the other's
        world.store.failure = GONE
        for permit in () if in_use else held:
            permit.settle()
        world.move(6.0)
        assert [world.status(limiter)["store"]["state"] for limiter in limiters] == ["lost", "lost"]
        if in_use and mode == "fail_safe":
            assert not any(limiter.try_acquire("jobs", tokens=0) for limiter in limiters)
        for permit in held if in_use else ():
            permit.settle()
        for limiter in limiters:
            taken = [limiter.try_acquire("jobs", tokens=0) for _ in range(5)]
            assert [bool(one) for one in taken] == [True] * 4 + [mode == "fail_open"]
            for permit in filter(None, taken):
                permit.settle()


@pytest.mark.parametrize(
    ("quota", "lease_s"), [("1000 requests/min window utc", 60.0), ("600 requests/s window utc", None)]
)
def test_a_lease_ends_before_its_window(quota, lease_s):
    """It grants nothing when it outlasts the window; so it must not be as long as one."""
    now_ns = began_ns = 1_800_000_000 * NS
    pool = shared_pool("p", parse_quotas(quota), now_ns, who="a", lease_s=lease_s, headroom_s=0.02)
    books, granted, waiting, longest_s = SharedLedger(), 0, [], 0.0
    period_s, step_ns = (60, NS // 20) if lease_s else (1, NS // 400)

    def take(waiter, outcome):
        nonlocal granted
        granted += 1
        pool.settle(now_ns, outcome, None)

    while now_ns < began_ns + 3 * period_s * NS:
        waiter = Waiter({"requests": 1})
        outcome = pool.submit(now_ns, waiter)
        if isinstance(outcome, Reservation):
            take(waiter, outcome)
        else:
            assert isinstance(outcome, WaitUntil)
            waiting.append((now_ns, waiter))
        while (message := ask(pool, now_ns)) is not None:
            for done in answer(pool, now_ns, books.apply(now_ns, message)):
                take(done, done.outcome)
        waiting = [(since, waiter) for since, waiter in waiting if waiter.outcome is None]
        longest_s = max([longest_s, *((now_ns - since) / NS for since, _ in waiting[:1])])
        now_ns += step_ns
    amount = 1_000 if lease_s else 600
    asked = 3 * period_s * NS / step_ns
    assert granted >= 0.97 * min(asked, 3 * amount)
