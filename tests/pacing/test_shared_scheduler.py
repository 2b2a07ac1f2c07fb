"""A limiter whose books are in a store: every way to ask, and everybody who goes away in between."""

import asyncio
import gc
from concurrent.futures import ThreadPoolExecutor

import pytest
from shared_world import store_threads

import paceline
from paceline.core.results import NeverFits
from paceline.pacing import scheduler as scheduler_module
from paceline.pacing.permit import Later, Permit
from waits import BOUND_S, soon, until


@pytest.fixture
def limiter(world):
    return world.limiter()


class TestWaysToAsk:
    def test_try(self, world, limiter):
        permit = limiter.try_acquire("jobs", tokens=9_000)
        assert isinstance(permit, Permit)
        later = limiter.try_acquire("jobs", tokens=3_000)
        assert isinstance(later, Later)
        assert later.retry_after_s == pytest.approx(21)  # 9 000 and 3 000 less what it holds: 10 000, and 100 unused
        assert later.quota == "360k tokens/hour burst 10k"
        assert isinstance(limiter.try_acquire("jobs", tokens=10_001), NeverFits)
        permit.cancel()
        assert world.status(limiter)["waiting"] == 0
        world.close()
        assert world.store.charged(1) == (9_000, 0)

    async def test_while_the_store_is_asked_it_binds(self, world, limiter):
        world.store.hold()
        acquisition = limiter.acquire("jobs", tokens=0)
        task = asyncio.ensure_future(acquisition)
        await soon(lambda: world.store.messages)
        assert world.status(limiter)["binds"] == acquisition.why().quota == "store"
        world.store.let_go()
        (await task).settle()
        assert world.status(limiter)["binds"] is None

    def test_a_cost_that_never_fits(self, world, limiter):
        with pytest.raises(paceline.NeverFitsError):
            limiter.acquire("jobs", tokens=10_001).wait()
        assert store_threads() == []  # nobody needs to be asked for that


class TestWhoGoesAway:
    """Whatever was granted to nobody is given back."""

    @pytest.mark.parametrize(
        "when", ["while its message is under way", "after the grant, before its loop knows", "when its loop knows"]
    )
    async def test_a_task(self, world, when, limiter):
        world.store.hold()
        task = asyncio.create_task(limiter.acquire("jobs", tokens=0)._wait_async())
        await soon(lambda: world.store.messages)
        if when != "while its message is under way":
            world.store.let_go()
            world.quiet()  # this loop stands still meanwhile
            assert world.status(limiter)["counts"] == {"granted": 1}
        if when == "when its loop knows":
            asyncio.get_running_loop().call_soon(task.cancel)  # right after what the worker has left there
        else:
            task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        world.close()
        assert world.store.charged() == (1, 0)
        assert world.store.messages[0].wants == [[1.0, 0.0]]
        assert world.status(limiter)["in_flight"] == 0

    @pytest.mark.parametrize("way", ["wait", "try"])
    @pytest.mark.parametrize("granted", [False, True], ids=["before the grant", "after the grant"])
    def test_an_interrupted_thread(self, world, monkeypatch, way, granted, limiter):

        class Interrupted(scheduler_module.ThreadOwner):
            def wait(self):
                until(lambda: world.store.messages)
                if granted:
                    world.store.let_go()
                    world.quiet()
                assert self._woken.locked() != granted
                raise KeyboardInterrupt

        monkeypatch.setattr(scheduler_module, "ThreadOwner", Interrupted)
        world.store.hold()
        with pytest.raises(KeyboardInterrupt):
            limiter.acquire("jobs", tokens=0).wait() if way == "wait" else limiter.try_acquire("jobs", tokens=0)
        world.close()
        assert world.store.charged() == (1, 0)
        assert (world.status(limiter)["waiting"], world.status(limiter)["in_flight"]) == (0, 0)

    def test_a_loop_that_is_closed(self, world, limiter):
        world.store.hold()
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda loop, context: None)  # "Task was destroyed but it is pending"
        task = loop.create_task(limiter.acquire("jobs", tokens=0)._wait_async())
        loop.run_until_complete(asyncio.sleep(0))
        until(lambda: world.store.messages)
        loop.close()
        world.store.let_go()
        world.move(0.1)
        assert world.status(limiter)["in_flight"] == 0
        del task
        gc.collect()
        world.close()
        assert world.store.charged() == (1, 0)


class TestAnInstantInside:
    """The collector, or a signal, comes while this thread is at the books: what it changes waits its turn."""

    def held(self, world):
        limiter = world.limiter()
        permits = [limiter.acquire("jobs", tokens=100).wait() for _ in range(3)]
        world.move(1)
        return limiter, permits

    @pytest.mark.parametrize("where", ["submit", "message", "receive", "pump", "place", "status"])
    def test_a_settle_in_the_middle(self, world, monkeypatch, where):
        limiter, permits = self.held(world)
        pool = limiter.pacer.pools.scheduler("jobs").pool
        owner = next(one for one in (pool.capacity, pool) if hasattr(one, where))
        inner = getattr(owner, where)

        def interrupted(*args, **options):
            if permits:
                permits.pop().settle(tokens=10)
            return inner(*args, **options)

        monkeypatch.setattr(owner, where, interrupted)
        with ThreadPoolExecutor(1) as thread:
            acquisition = limiter.acquire("jobs", tokens=9_850)
            waits = thread.submit(acquisition.wait)
            until(lambda: world.status(limiter)["waiting"] or waits.done())
            acquisition.why()
            world.move(30)
            waits.result(BOUND_S).settle()
        for permit in permits:
            permit.settle(tokens=10)
        world.close()
        assert world.store.charged(1)[1] == 9_880

    def test_a_settle_while_the_news_is_gathered(self, world):
        limiter, permits = self.held(world)
        first, second, third = permits
        outbox = limiter.pacer.pools.scheduler("jobs").pool.capacity.outbox

        class Gathered(list):
            def __iter__(self):
                yield from super().__iter__()
                third.settle(tokens=10)

        first.settle(tokens=10)
        outbox._settled = Gathered(outbox._settled)
        second.settle(tokens=10)
        world.move(1)
        world.close()
        assert world.store.charged(1)[1] == 30
