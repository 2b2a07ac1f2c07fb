"""Limiters for several event loops and plain threads at once, in real time."""

import asyncio
import threading
from functools import partial
from itertools import combinations

import pytest

import paceline
from memory_store import MemoryStore
from waits import BOUND_S, run_all

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
