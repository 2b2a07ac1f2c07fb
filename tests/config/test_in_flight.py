"""At most so many requests in flight at a provider, over all its models."""

import asyncio
import gc
from collections import Counter

import pytest

from memory_store import MemoryStore
from paceline import Limiter
from paceline.config import Config
from paceline.core.results import Reservation
from paceline.testing import ManualClock
from virtual_time import virtual
from waits import join, started


def limiter_of(clock, most=3, store=None, limit="6000 requests/min", **settings):
    """A limiter of a provider that takes ``most`` requests at once, each model with this limit."""
    said = {"limits": {"openai/*": limit}, "concurrency": {"openai": most}, **settings}
    return Limiter(**Config().having(said, "test").arguments() | {"store": store}, clock=clock)


class Traffic:
    """Counts the requests in flight: now, and at most; and those of each model that have ended."""

    def __init__(self, limiter):
        self.limiter, self.now, self.most, self.done = limiter, 0, 0, Counter()

    async def one(self, model, duration_s=1.0):
        async with self.limiter.acquire(f"openai/{model}"):
            self.now += 1
            self.most = max(self.most, self.now)
            await asyncio.sleep(duration_s)
            self.now -= 1
            self.done[model] += 1


@virtual
async def test_never_more_and_always_as_many(clock):
    traffic = Traffic(limiter_of(clock))
    start_ns = clock.now_ns()
    await asyncio.gather(*(traffic.one(model) for _ in range(30) for model in "ab"))
    assert traffic.most == 3
    assert (clock.now_ns() - start_ns) / 1e9 == pytest.approx(20, abs=1)


@pytest.mark.parametrize("end", ["settle", "cancel", "refused"])
def test_every_end_gives_the_slot_back(end):
    clock = ManualClock()
    limiter = limiter_of(clock, 1)
    for _ in range(5):
        permit = limiter.try_acquire("openai/a")
        assert not limiter.try_acquire("openai/b")
        getattr(permit, end)()
        clock.advance(60)
    permit = limiter.try_acquire("openai/b")
    assert limiter.status()["pools"]["openai/in flight"]["in_flight"] == 1
    permit.settle()
    permit.settle()
    assert limiter.status()["pools"]["openai/in flight"]["in_flight"] == 0


@virtual
async def test_the_probe_after_a_pause_goes(clock):
    limiter = limiter_of(clock, 1)
    limiter.pacer.pools.scheduler("openai/b").pause(clock.now_ns() + 30_000_000_000)
    traffic = Traffic(limiter)
    await asyncio.gather(*(traffic.one(model, 0.1) for model in "bbbaaa"))
    assert traffic.most == 1
    assert traffic.done == {"a": 3, "b": 3}


@virtual
async def test_a_permit_that_nobody_closed_gives_the_slot_back_in_the_end(clock):
    limiter = limiter_of(clock, 1, ttl_s=60)
    start_ns = clock.now_ns()
    for model in "abcd":
        await limiter.acquire(f"openai/{model}")
    assert (clock.now_ns() - start_ns) / 1e9 == pytest.approx(180, abs=1)


def test_leaked_permits_do_not_pile_up():
    def kept():
        gc.collect()
        return sum(isinstance(one, Reservation) for one in gc.get_objects())

    clock, before = ManualClock(), kept()
    limiter = limiter_of(clock, 2, limit="9999 requests/s", ttl_s=1)
    for _ in range(40):
        assert limiter.try_acquire("openai/a")
        clock.advance(1)
    assert kept() - before < 20


@pytest.mark.parametrize("by_breaker", [False, True])
def test_a_pause_that_begins_while_the_slots_are_asked_for_keeps_nobody_who_does_not_wait(by_breaker):
    class Pausing(MemoryStore):
        def exchange(self, pool, message):
            if refused and pool == "openai/in flight" and message.wants:
                permit = refused.pop()
                if by_breaker:  # of this process alone
                    limiter.pacer.pools.scheduler("openai/a").pause(clock.now_ns() + 4 * 10**9)
                else:
                    permit.refused(retry_after_s=4)
            return super().exchange(pool, message)

    clock, refused, said = ManualClock(), [], []
    limiter = limiter_of(clock, 5, Pausing(clock=clock), "100k requests/min")
    refused.append(limiter.try_acquire("openai/a"))
    join(started(lambda: said.append(limiter.try_acquire("openai/a"))))
    assert [(later.quota, later.retry_after_s) for later in said] == [("cool-down", pytest.approx(4, abs=0.1))]
    limiter.close()
