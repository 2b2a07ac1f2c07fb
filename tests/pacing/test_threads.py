"""One limiter for several event loops and plain threads at once, in real time."""

from __future__ import annotations

import asyncio
import threading

import paceline
from waits import join, run_all, started, until

LOOPS, TASKS, THREADS, EACH = 3, 30, 4, 2
RATE, BURST = 500, 50


def test_loops_and_threads_share_one_promise():
    limiter = paceline.Limiter({"jobs": f"{RATE} requests/s burst {BURST}"}, headroom_s=0.02)
    granted_ns, start = [], threading.Barrier(LOOPS + THREADS)

    async def task():
        for _ in range(EACH):
            async with limiter.acquire("jobs") as permit:
                granted_ns.append(permit.reservation.granted_ns)

    async def loop():
        start.wait(10)
        await asyncio.gather(*(task() for _ in range(TASKS)))

    def plain():
        start.wait(10)
        for _ in range(TASKS // 3 * EACH):
            with limiter.acquire("jobs") as permit:
                granted_ns.append(permit.reservation.granted_ns)

    run_all([lambda: asyncio.run(loop())] * LOOPS + [plain] * THREADS)
    total = LOOPS * TASKS * EACH + THREADS * (TASKS // 3) * EACH
    assert len(granted_ns) == total
    granted_ns.sort()
    for first in range(total):  # in any interval that starts and ends with a grant
        for last in range(first, total):
            assert last - first + 1 <= BURST + RATE * (granted_ns[last] - granted_ns[first]) / 1e9 + 1e-6
    assert granted_ns[-1] - granted_ns[0] <= 5e9  # about 1 s on an idle machine
    status = limiter.status()["pools"]["jobs"]
    assert status["counts"] == {"granted": total, "settled": total}
    assert status["waiting"] == status["in_flight"] == 0


def test_a_grant_in_one_world_wakes_a_waiter_in_another():
    limiter = paceline.Limiter({"jobs": "1 concurrency"})
    held, order = limiter.acquire("jobs").wait(), []

    async def task(name):
        async with limiter.acquire("jobs"):
            order.append(name)

    def plain(name):
        with limiter.acquire("jobs"):
            order.append(name)

    threads = []
    for number in range(6):  # one after the other, so that the order of arrival is known
        work = plain if number % 2 else lambda name: asyncio.run(task(name))
        threads.append(started(work, number))
        until(lambda number=number: limiter.status()["pools"]["jobs"]["waiting"] > number)
    held.settle()
    join(*threads)
    assert order == list(range(6))
