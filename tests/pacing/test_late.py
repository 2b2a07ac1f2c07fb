"""An event loop that stalls: requests that were granted meanwhile are sent late, all at once, and none of them too much."""

import asyncio

import pytest

import paceline
from paceline.core.quota import NS
from paceline.emulator.rules import BucketRule
from paceline.testing import ManualClock
from waits import gone

LIMIT, PERIOD_S = 100, 6


class World:
    """A limiter and its provider; time passes only in ``stall`` and ``run``."""

    def __init__(self, **options):
        self.clock = ManualClock()
        self.provider = BucketRule(LIMIT, PERIOD_S, self.now_s)
        self.limiter = paceline.Limiter({"jobs": f"{LIMIT} requests/{PERIOD_S}s"}, clock=self.clock, **options)
        self.sent = self.refused = 0

    @property
    def now_s(self):
        return self.clock.now_ns() / NS

    async def work(self):
        async with self.limiter.acquire("jobs") as permit:
            if self.provider.fits(self.now_s, 1):
                self.provider.charge(self.now_s, 1)
                self.sent += 1
            else:
                self.refused += 1
            permit.settle()

    def stall(self, seconds):
        """Time passes, and no task runs."""
        for _ in range(round(seconds * 50)):
            self.clock.advance(0.02)

    async def run(self, seconds):
        for _ in range(round(seconds * 50)):
            self.clock.advance(0.02)
            for _ in range(3):
                await asyncio.sleep(0)


@pytest.mark.sample(2)
@pytest.mark.parametrize("options", [{}, {"headroom_s": 0.1}], ids=["adaptive", "given"])
@pytest.mark.parametrize("stall_s", [0.1, 1, 5, 7, 20, 100])
async def test_a_stalled_loop_with_a_full_queue(stall_s, options):
    world = World(**options)
    tasks = [asyncio.create_task(world.work()) for _ in range(1_300)]
    await world.run(12)
    for _ in range(3):
        world.stall(stall_s)
        await world.run(6)
    assert world.refused == 0
    before = world.sent
    await world.run(12)
    assert world.sent - before >= 0.9 * LIMIT / PERIOD_S * 12  # and it runs at the full speed again
    await gone(tasks)


async def test_a_stalled_loop_and_requests_that_come_after_it():
    """The queue is empty when the loop continues: what comes then is granted at once, beside what was granted before."""
    world = World()
    first = [asyncio.create_task(world.work()) for _ in range(LIMIT)]
    await world.run(12)
    assert world.sent == LIMIT
    await world.run(6)  # the buckets are full
    many = [asyncio.create_task(world.work()) for _ in range(LIMIT + 20)]
    await asyncio.sleep(0)  # most are granted at once; the rest waits
    world.stall(10)
    await asyncio.sleep(0)
    others = [asyncio.create_task(world.work()) for _ in range(LIMIT)]
    await world.run(20)
    assert (world.refused, world.sent) == (0, 3 * LIMIT + 20)
    await asyncio.gather(*first, *many, *others)


async def test_a_permit_that_is_taken_at_once_counts_those_granted_in_a_stall():
    """They are sent with it, and the provider's bucket holds no more than its burst."""
    world = World(headroom_s=0)
    while world.limiter.try_acquire("jobs"):
        pass
    late = [asyncio.create_task(world.work()) for _ in range(LIMIT * 4 // 5)]
    await asyncio.sleep(0)
    world.stall(2 * PERIOD_S)
    at_once = 0
    while world.limiter.try_acquire("jobs"):
        at_once += 1
    assert at_once <= LIMIT - len(late)
    await gone(late)


@pytest.mark.sample(3)
@pytest.mark.parametrize("stall_s", [0.1, 1, 3, 7, 20, 70])
async def test_an_exact_quota_counts_a_start_when_it_happens(stall_s):
    """Fifty agents wait for 7 in any 6 s, in a loop that stalls again and again."""
    world, at_s = World(), []
    limiter = paceline.Limiter({"starts": "7 starts/6s exact"}, clock=world.clock)

    async def start():
        async with limiter.acquire("starts", starts=1) as permit:
            permit.settle()
        at_s.append(world.now_s)

    tasks = [asyncio.create_task(start()) for _ in range(50)]
    for _ in range(9):
        await world.run(1)
        world.stall(stall_s)
        await world.run(6)
    await asyncio.gather(*tasks)
    assert max(sum(first <= other < first + 5.999 for other in at_s) for first in at_s) == 7
