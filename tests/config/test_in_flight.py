"""At most so many requests in flight at a provider, over all its models."""

import asyncio
import threading
from collections import Counter

import pytest

import paceline
from paceline import Limiter
from paceline.config import Config
from paceline.core.results import AcquireTimeoutError
from paceline.stores.memory import MemoryStore
from paceline.testing import ManualClock, run_virtual
from waits import join


def limiter_of(clock, most=3, store=None, **limits):
    limits = limits or {"a": "6000 requests/min", "b": "6000 requests/min", "slow": "1 requests/min burst 1"}
    said = {"limits": {f"openai/{model}": quotas for model, quotas in limits.items()}, "concurrency": {"openai": most}}
    return Limiter(**Config().having(said, "test").arguments() | {"store": store}, clock=clock)


class Traffic:
    """Counts who is in flight."""

    def __init__(self, limiter):
        self.limiter, self.now, self.most, self.done = limiter, Counter(), Counter(), Counter()

    async def one(self, model, duration_s=1.0, **options):
        async with self.limiter.acquire(f"openai/{model}", **options) as permit:
            self.came(model)
            await asyncio.sleep(duration_s)
            self.went(model)
            return permit

    def came(self, model):
        self.now[model] += 1
        self.now["all"] += 1
        for name in (model, "all"):
            self.most[name] = max(self.most[name], self.now[name])

    def went(self, model):
        self.now[model] -= 1
        self.now["all"] -= 1
        self.done[model] += 1


def test_never_more_and_always_as_many():
    async def main(clock):
        traffic = Traffic(limiter_of(clock))
        start_ns = clock.now_ns()
        await asyncio.gather(*(traffic.one(model) for _ in range(30) for model in "ab"))
        assert traffic.most["all"] == 3
        assert (clock.now_ns() - start_ns) / 1e9 == pytest.approx(20, abs=1)

    run_virtual(main)


def test_who_came_first_gets_a_slot_first():
    async def main(clock):
        traffic = Traffic(limiter_of(clock, 1))
        busy = [asyncio.create_task(traffic.one("a")) for _ in range(50)]
        await asyncio.sleep(0.5)
        await traffic.one("b")
        assert traffic.done["a"] <= 3  # the one in flight, and the one that was granted before
        for task in busy:
            task.cancel()

    run_virtual(main)


def test_who_waits_for_a_quota_holds_no_slot():
    async def main(clock):
        traffic = Traffic(limiter_of(clock))
        slow = [asyncio.create_task(traffic.one("slow")) for _ in range(20)]
        await asyncio.sleep(2)
        await asyncio.gather(*(traffic.one("a") for _ in range(9)))
        assert traffic.most["a"] == 3
        for task in slow:
            task.cancel()

    run_virtual(main)


def test_other_providers_have_slots_of_their_own():
    async def main(clock):
        said = {"limits": {"default": {"rpm": 6_000}}, "concurrency": {"openai": 1, "default": 2}}
        limiter = Limiter(**Config().having(said, "test").arguments(), clock=clock)
        held = [await limiter.acquire(name) for name in ("openai/x", "groq/x", "groq/y", "anthropic/x")]
        assert len(held) == 4
        for full in ("openai/y", "groq/z"):
            assert not limiter.try_acquire(full)
        assert limiter.try_acquire("anthropic/x")

    run_virtual(main)


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


def test_who_gives_up_waiting_for_a_slot_has_cost_nothing():
    async def main(clock):
        limiter = limiter_of(clock, 1, a="60 requests/min burst 10", b="60 requests/min burst 10")
        permit = await limiter.acquire("openai/a")
        waiting = asyncio.create_task(Traffic(limiter).one("b"))
        await asyncio.sleep(0.1)
        assert limiter.status()["pools"]["openai/in flight"]["waiting"] == 1
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        with pytest.raises(AcquireTimeoutError, match="1 concurrency of openai/in flight would allow it"):
            await limiter.acquire("openai/b", timeout=5)
        pools = limiter.status()["pools"]
        assert (pools["openai/b"]["in_flight"], pools["openai/b"]["quotas"][0]["spent"]) == (0, 0)
        assert (pools["openai/in flight"]["waiting"], pools["openai/in flight"]["in_flight"]) == (0, 1)
        permit.settle()
        assert limiter.try_acquire("openai/b")

    run_virtual(main)


def test_why_it_waits():
    async def main(clock):
        limiter = limiter_of(clock, 1)
        permit = await limiter.acquire("openai/a")
        acquisition = limiter.acquire("openai/b")
        task = asyncio.ensure_future(acquisition)
        await asyncio.sleep(0.1)
        assert acquisition.why().quota == "1 concurrency of openai/in flight"
        await asyncio.sleep(1)
        permit.settle()
        assert (await task).waited_s == pytest.approx(1.1)
        assert acquisition.why() is None

    run_virtual(main)


def test_a_pause_that_comes_while_it_waits_for_a_slot_holds_for_it():
    async def main(clock):
        limiter = limiter_of(clock, 1, a="6000 requests/min", b="6000 requests/min")
        other, mine = await limiter.acquire("openai/a"), asyncio.ensure_future(limiter.acquire("openai/b"))
        await asyncio.sleep(0.1)
        later = asyncio.ensure_future(limiter.acquire("openai/b"))
        await asyncio.sleep(0)
        limiter.pacer.pools.scheduler("openai/b").pause(clock.now_ns() + 30_000_000_000)
        other.settle()
        await asyncio.sleep(5)
        assert not mine.done()
        other = limiter.try_acquire("openai/a")
        assert other, "who pauses holds no slot"
        other.settle()
        (await mine).settle()
        assert not later.done(), "it has kept its place"
        permit = await later
        assert permit.waited_s == pytest.approx(30, abs=0.2)

    run_virtual(main)


def test_the_probe_after_a_pause_goes():
    async def main(clock):
        limiter = limiter_of(clock, 1, a="6000 requests/min", b="6000 requests/min")
        limiter.pacer.pools.scheduler("openai/b").pause(clock.now_ns() + 30_000_000_000)
        traffic = Traffic(limiter)
        await asyncio.gather(*(traffic.one(model, 0.1) for model in "bbbaaa"))
        assert traffic.most["all"] == 1
        assert traffic.done == {"a": 3, "b": 3}

    run_virtual(main)


def test_a_permit_that_nobody_closed_gives_the_slot_back_in_the_end():
    async def main(clock):
        limiter = Config().having(
            {"limits": {"openai/*": "6000 requests/min"}, "concurrency": {"openai": 1}, "ttl_s": 60}, "test"
        )
        limiter = Limiter(**limiter.arguments(), clock=clock)
        start_ns = clock.now_ns()
        for model in "abcd":
            await limiter.acquire(f"openai/{model}")
        assert (clock.now_ns() - start_ns) / 1e9 == pytest.approx(180, abs=1)

    run_virtual(main)


def test_leaked_permits_do_not_pile_up(monkeypatch):
    monkeypatch.setattr("paceline.pacing.chain.PASSED_MIN", 4)
    clock = ManualClock()
    limiter = Config(limits={"openai/a": Config().having({"limits": {"x": "9999 requests/s"}}, "").limits["x"]})
    limiter = Limiter(**limiter.having({"ttl_s": 1, "concurrency": {"openai": 2}}, "test").arguments(), clock=clock)
    for _ in range(40):
        assert limiter.try_acquire("openai/a")
        clock.advance(1)
    assert len(limiter.pacer.pools.scheduler("openai/a")._passed) < 20


def test_lanes_hold_in_the_line_for_slots_too():
    async def main(clock):
        limiter = limiter_of(clock, 1)
        held = await limiter.acquire("openai/slow")
        order = []

        async def one(model, priority):
            async with limiter.acquire(f"openai/{model}", lane=paceline.LaneSpec(str(priority), 1.0, priority)):
                order.append(priority)

        tasks = [asyncio.create_task(one(model, priority)) for model, priority in (("a", 0), ("b", 1))]
        await asyncio.sleep(0.1)
        held.settle()
        await asyncio.gather(*tasks)
        assert order == [1, 0]

    run_virtual(main)


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
    limiter = limiter_of(clock, 5, Pausing(clock=clock), a="100k requests/min")
    refused.append(limiter.try_acquire("openai/a"))
    thread = threading.Thread(target=lambda: said.append(limiter.try_acquire("openai/a")), daemon=True)
    thread.start()
    join(thread)
    assert [(later.quota, later.retry_after_s) for later in said] == [("cool-down", pytest.approx(4, abs=0.1))]
    limiter.close()
