"""Limiters that share a store, from their first word to their last: leases, pauses, forks, and the end of the program."""

import asyncio
import gc
import os
import threading
import weakref

import pytest
from shared_world import JOBS, store_threads

import paceline
from paceline.pacing.clock import SYSTEM_CLOCK
from paceline.shared.messages import Message
from paceline.stores import StoreError
from paceline.stores.sqlite import SQLiteStore
from programs import python
from waits import BOUND_S, gone, join, run_all, until

FAST = "6000 requests/min burst 6000, 600k tokens/min burst 600k"  # a hundred requests a second


class TestTheLastWord:
    @pytest.mark.parametrize("closed", [False, True], ids=["new", "closed before"])
    def test_closing_tells_what_is_still_to_be_told_and_whoever_asks_opens_it_again(self, world, closed):
        limiter = world.limiter()
        if closed:
            limiter.close()
        limiter.acquire("jobs", tokens=100).wait().settle(tokens=40)
        assert world.store.charged(1) == (100, 100)  # it waits for a question to go with
        limiter.close()
        assert (world.store.charged(1), world.store.times_closed) == ((100, 40), 1 + closed)
        limiter.close()
        assert (len(world.store.messages), store_threads()) == (2, [])
        limiter.acquire("jobs", tokens=100).wait().settle(tokens=40)
        limiter.close()
        assert world.store.charged(1) == (200, 80)

    async def test_whoever_waits_goes_on(self, world):
        limiter = world.limiter()
        world.take(limiter, tokens=9_850).settle()
        task = asyncio.create_task(limiter.acquire("jobs", tokens=200)._wait_async())
        await world.moved(0.02)
        assert not task.done()
        worker, asked, close = limiter.pacer.pools.worker, [], world.store.close

        def asked_while_it_closes():
            worker.poke(*worker.schedulers)
            asked.append(store_threads())
            close()

        world.store.close = asked_while_it_closes
        limiter.close()
        assert asked == [[]]
        await world.moved(5)
        assert (await asyncio.wait_for(task, BOUND_S)).waited_s == pytest.approx(1.5, abs=0.05)
        task.result().cancel()

    async def test_whoever_asks_meanwhile_starts_no_second_exchange_and_goes_on_after_it(self, world, caplog):
        limiter = world.joined()
        world.take(limiter, tokens=100).settle(tokens=40)
        known, others, exchange = len(world.store.messages), [], world.store.exchange

        def watched(pool, message):
            if threading.current_thread() is closing:
                others.append(store_threads())
            return exchange(pool, message)

        world.store.exchange = watched
        world.store.hold()
        closing = threading.Thread(target=limiter.close)
        closing.start()
        until(lambda: len(world.store.messages) > known)
        task = asyncio.create_task(limiter.acquire("jobs", tokens=100)._wait_async())
        await asyncio.sleep(0)
        world.store.let_go()  # its reply shows that the task's request is due
        join(closing)
        assert others == [[], []]
        await world.moved(1)
        (await asyncio.wait_for(task, BOUND_S)).settle(tokens=40)
        assert (world.status(limiter)["store"]["state"], caplog.messages) == ("joined", [])

    def test_what_must_be_told_again_is_told_before_it(self, world):
        limiter = world.limiter()
        limiter.acquire("jobs", tokens=100).wait().settle(tokens=40)
        world.move(0.005)
        world.store.failure = StoreError("gone")
        limiter.acquire("jobs", tokens=100).wait().settle(tokens=30)  # by itself
        world.store.failure = None
        world.clock.advance(1)
        world.quiet()
        limiter.close()
        assert world.store.charged(1)[1] == 70

    def test_a_forgotten_limiter_ends_its_thread(self, world):
        limiter = paceline.Limiter({"jobs": JOBS}, store=world.store)
        limiter.acquire("jobs", tokens=100).wait().settle(tokens=40)
        gone = weakref.ref(limiter), weakref.ref(limiter.pacer.pools.worker)
        del limiter
        until(lambda: world.store.charged(1) == (100, 40))  # its last word

        def all_gone():
            SYSTEM_CLOCK.call_at(0, int)  # the clock's thread keeps its last timer until the next
            gc.collect()
            return gone[0]() is gone[1]() is None and not store_threads()

        until(all_gone)


def spent(path):
    """What each quota of the books in this file was charged in the end."""
    store = SQLiteStore(path)
    standings = store.exchange("jobs", Message("test", 0)).standings
    store.close()
    return [standing.spent for standing in standings]


class TestPrograms:
    def test_the_end_of_one_tells_what_is_still_to_be_told(self, tmp_path):
        python(
            """
            import sys, paceline
            limiter = paceline.Limiter({"jobs": ["100 requests/day", "10k tokens/day"]}, store="sqlite:" + sys.argv[1])
            limiter.acquire("jobs", tokens=100).wait().settle(tokens=40)
            """,
            tmp_path / "books",
        )
        assert spent(tmp_path / "books") == [1, 40]

    def test_the_end_of_one_is_not_kept_by_a_store_that_is_lost(self):
        said = python(
            """
            import paceline, threading
            from paceline.shared import worker
            worker.FLUSH_S = 0.1
            class Store:
                url = "silent:"
                exchange = lambda self, pool, message: threading.Event().wait()
                close = after_fork = lambda self: None
            limiter = paceline.Limiter({"jobs": "60 requests/min"}, store=Store())
            try:
                limiter.acquire("jobs", tokens=0, timeout=0.1).wait()
            except paceline.AcquireTimeoutError:
                print("in time")
            """
        )
        assert said == "in time\n"

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
    def test_a_fork_is_another_process(self, tmp_path):
        """What its parent was granted, and has still to tell, is its parent's; both go on."""
        python(
            """
            import os, sys, paceline
            limiter = paceline.Limiter({"jobs": ["100 requests/day", "10k tokens/day"]}, store="sqlite:" + sys.argv[1])
            limiter.acquire("jobs", tokens=100).wait().settle(tokens=10)
            held = limiter.acquire("jobs", tokens=50).wait()
            child = os.fork()
            if child == 0:
                try:
                    held.settle(tokens=1)
                    assert limiter.status()["pools"]["jobs"]["in_flight"] == 0
                    limiter.acquire("jobs", tokens=7).wait().settle()
                    limiter.close()
                    os._exit(0)
                finally:
                    os._exit(1)
            limiter.acquire("jobs", tokens=5).wait().settle()
            assert os.waitpid(child, 0)[1] == 0
            held.settle(tokens=20)
            limiter.acquire("jobs", tokens=3).wait().settle()
            store = limiter.status()["pools"]["jobs"]["store"]
            assert (store["state"], store["peers"]) == ("joined", 1)  # the child has left
            """,
            tmp_path / "books",
        )
        assert spent(tmp_path / "books") == [5, 10 + 20 + 7 + 5 + 3]


class TestLeases:
    def test_many_acquires_and_few_exchanges(self, world):
        limiter = world.limiter("60k requests/min, 6M tokens/min", lease_s=0.1)  # a thousand requests a second
        for _ in range(2_000):
            limiter.acquire("jobs", tokens=100).wait().settle(tokens=50)
            world.move(0.001)  # as fast as the rate
        assert len(world.store.messages) <= 2 * (100 + 2 * 10)  # news each hundredth of a second, and leases
        assert world.store.charged()[1] - 2_000 <= 2 * 100  # no more than two leases ahead
        world.close()
        assert (world.store.charged()[1], world.store.charged(1)[1]) == (2_000, 2_000 * 50)

    @pytest.mark.parametrize("closing", [False, True], ids=["after its time", "by closing"])
    def test_what_nobody_spends_is_given_back(self, world, closing):
        limiter = world.limiter(FAST, lease_s=1.0)
        for _ in range(20):
            limiter.acquire("jobs", tokens=100).wait().settle()
        world.move(0.02)
        assert world.store.charged()[1] > 20
        limiter.close() if closing else world.move(1.1)
        assert (world.store.charged()[1], world.store.charged(1)[1]) == (20, 20 * 100)

    async def test_all_units_or_none(self, world):
        limiter = world.limiter("6000 requests/min burst 1000, 600 tokens/min burst 100", lease_s=1.0)
        tasks = [asyncio.create_task(limiter.acquire("jobs", tokens=30)._wait_async()) for _ in range(5)]
        await world.moved(0.5)
        assert sum(task.done() for task in tasks) <= 3  # ninety tokens at once, less what a lease keeps unused
        await gone(tasks)
        went = [task for task in tasks if not task.cancelled()]
        assert went
        world.close()
        assert (world.store.charged(0)[1], world.store.charged(1)[1]) == (len(went), 30 * len(went))


async def test_a_refusal_pauses_everybody(world):
    one, other = world.joined(), world.joined()
    world.take(one, tokens=100).refused(retry_after_s=30)
    await world.moved(0.01)
    assert world.status(one)["cool_down_s"] == pytest.approx(30, abs=0.1)
    later = other.try_acquire("jobs", tokens=0)
    assert (later.quota, later.retry_after_s) == ("cool-down", pytest.approx(30, abs=0.1))
    tasks = [asyncio.create_task(each.acquire("jobs", tokens=0)._wait_async()) for each in [one] * 3 + [other] * 3]
    await world.moved(29.5)
    assert not any(task.done() for task in tasks)
    await world.moved(0.7)
    (probe,) = [task for task in tasks if task.done()]  # the others wait for its answer
    probe.result().settle()
    await world.moved(1.5)
    assert all(task.done() for task in tasks)
    for task in tasks:
        task.result().settle()
    world.close()
    assert world.store.charged(0)[1] == 1 + 6
    assert world.store.charged(1)[1] == 100  # the refused attempt stays charged


def test_threads_that_start_the_courier_at_once_start_one(world):
    limiter, ready = world.limiter(), threading.Barrier(8)
    limiter.pacer.pools.scheduler("jobs")

    def work():
        ready.wait(BOUND_S)
        limiter.acquire("jobs", tokens=0).wait().settle()

    run_all([work] * 8)
    assert len(store_threads()) == 1
