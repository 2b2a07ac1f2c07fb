"""Limiters for several event loops and plain threads at once, in real time."""

import asyncio
import threading
from functools import partial
from itertools import combinations

import pytest

import paceline
from memory_store import MemoryStore
from waits import BOUND_S, run_all, soon

EACH, RATE, BURST = 2, 500, 50


@pytest.mark.parametrize(
    ("number", "loops", "threads", "tasks"), [(1, 3, 4, 30), (2, 2, 3, 20)], ids=["one limiter", "two on one store"]
)
def test_loops_and_threads_share_one_promise(number, loops, threads, tasks):
    shared, granted_ns = number > 1, []
    store, start = MemoryStore(), threading.Barrier(number * (loops + threads))
    limits, options = {"jobs": f"{RATE} requests/s burst {BURST}"}, {"store": store} if shared else {}
    limiters = [paceline.Limiter(limits, headroom_s=0.02, **options) for _ in range(number)]

    async def task(limiter):
        for _ in range(EACH):
            async with limiter.acquire("jobs") as permit:
                granted_ns.append(permit.reservation.granted_ns)

    async def loop(limiter):
        start.wait(BOUND_S)
        await asyncio.gather(*(task(limiter) for _ in range(tasks)))

    def plain(limiter):
        start.wait(BOUND_S)
        for _ in range(tasks * EACH):
            with limiter.acquire("jobs") as permit:
                granted_ns.append(permit.reservation.granted_ns)

    works = [lambda limiter: asyncio.run(loop(limiter))] * loops + [plain] * threads
    run_all(partial(work, limiter) for work in works for limiter in limiters)
    total = number * (loops + threads) * tasks * EACH
    assert len(granted_ns) == total
    granted_ns.sort()
    assert (granted_ns[-1] - granted_ns[0]) / 1e9 >= (total - BURST) / RATE - 0.05
    if not shared:
        assert granted_ns[-1] - granted_ns[0] <= 5e9  # about 1 s on an idle machine
        # In any interval that starts and ends with a grant.
        for (first, begin_ns), (last, end_ns) in combinations(enumerate(granted_ns), 2):
            assert last - first + 1 <= BURST + RATE * (end_ns - begin_ns) / 1e9 + 1e-6
    for limiter in limiters:
        status = limiter.status()["pools"]["jobs"]
        assert status["counts"] == {"granted": total / number, "settled": total / number}
        assert (status["waiting"], status["in_flight"]) == (0, 0)
        assert not shared or status["store"]["peers"] == 2
        limiter.close()
    if shared:
        account = store._ledgers["jobs"]._accounts[0]
        assert account.charged == account.spent == total


async def test_a_task_is_woken_by_its_loop_where_all_threads_see_the_same_one(monkeypatch):
    """As with gevent's patch, whose threads are greenlets of one; with it: ``frameworks/servers``."""
    clock, loop, calls = paceline.testing.ManualClock(), asyncio.get_running_loop(), []
    limiter = paceline.Limiter({"jobs": "60 requests/min burst 1"}, headroom_s=0, clock=clock)
    limiter.acquire("jobs").wait().settle()

    async def wait():
        async with limiter.acquire("jobs"):
            pass

    waiting = asyncio.create_task(wait())
    await soon(lambda: limiter.status()["pools"]["jobs"]["waiting"])

    def pass_time():
        asyncio._set_running_loop(loop)
        with monkeypatch.context() as patch:
            patch.setattr(loop, "call_soon_threadsafe", lambda *call: calls.append(call))
            clock.advance(2)
        asyncio._set_running_loop(None)

    await asyncio.to_thread(pass_time)
    assert len(calls) == 1  # the loop is told, which wakes it
    loop.call_soon(*calls[0])
    await asyncio.wait_for(waiting, BOUND_S)
