"""Ten thousand who wait: what they cost while nothing can be granted, and how fast they go when it can."""

from __future__ import annotations

import asyncio
import statistics
import time

import paceline
from benchmarks.peers import installed
from benchmarks.table import Row, below, spread

WAITERS = 10_000
WATCHED_S = 2.0
GRANTS_GOAL, CPU_GOAL_MS = 50_000, 20.0


def measure(quick: bool) -> list[Row]:
    """Grants a second, and CPU while waiting."""
    results = [asyncio.run(_paceline()) for _ in range(3 if quick else 5)]
    speeds = [speed for speed, _ in results]
    cpu = [ms for _, ms in results]
    peers = ", ".join(
        [
            f"aiolimiter {asyncio.run(_aiolimiter()) if installed('aiolimiter') else 'n/a'}",
            f"limits, asked every 50 ms: {asyncio.run(_limits()) if installed('limits') else 'n/a'}",
        ]
    )
    met = statistics.median(speeds) >= GRANTS_GOAL
    return [
        Row(
            f"{WAITERS:,} waiters who can go at the same moment: grants",
            spread(speeds, "/s", 0),
            f">= {GRANTS_GOAL:,} /s",
            met,
        ),
        below(f"CPU while they wait {WATCHED_S:g} s", cpu, "ms", CPU_GOAL_MS, peers),
    ]


async def _paceline() -> tuple[float, float]:
    """Grants per second from the moment when all fit to the last grant, and milliseconds of CPU while waiting."""
    limiter = paceline.Limiter({"p": ["100M requests/min", "1B tokens/min", f"{WAITERS} concurrency"]})
    everything = limiter.try_acquire("p", tokens=1, concurrency=WAITERS)
    assert isinstance(everything, paceline.Permit)
    times: list[float] = []

    async def wait() -> paceline.Permit:
        permit = await limiter.acquire("p", tokens=1)
        times.append(time.perf_counter())
        return permit

    tasks = [asyncio.create_task(wait()) for _ in range(WAITERS)]
    cpu_ms = await _cpu_ms()
    assert not times, "somebody went before the measurement"
    opens = time.perf_counter()
    everything.settle()  # from here all of them fit
    for permit in await asyncio.gather(*tasks):
        permit.settle()
    return WAITERS / (max(times) - opens), cpu_ms


async def _cpu_ms() -> float:
    """CPU of this process over ``WATCHED_S``, once everybody has joined the line."""
    await asyncio.sleep(0.5)
    began = time.process_time()
    await asyncio.sleep(WATCHED_S)
    return (time.process_time() - began) * 1e3


async def _aiolimiter() -> str:
    from aiolimiter import AsyncLimiter

    limiter = AsyncLimiter(1, 3_600)
    await limiter.acquire()
    return await _watch([asyncio.create_task(limiter.acquire()) for _ in range(WAITERS)])


async def _limits() -> str:
    from limits import RateLimitItemPerHour
    from limits.aio.storage import MemoryStorage
    from limits.aio.strategies import SlidingWindowCounterRateLimiter

    limiter, item = SlidingWindowCounterRateLimiter(MemoryStorage()), RateLimitItemPerHour(1)
    await limiter.hit(item, "p")

    async def poll() -> None:
        while not await limiter.hit(item, "p"):  # noqa: ASYNC110  (the library has nothing to wait on)
            await asyncio.sleep(0.05)

    return await _watch([asyncio.create_task(poll()) for _ in range(WAITERS)])


async def _watch(tasks: list[asyncio.Task[None]]) -> str:
    cpu_ms = await _cpu_ms()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return f"{cpu_ms:,.0f} ms"
