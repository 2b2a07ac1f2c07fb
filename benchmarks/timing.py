"""Rounds of a small operation: sync and async, in microseconds each."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable


def rounds(run: Callable[[int], None], count: int, times: int) -> list[float]:
    """Call ``run(count)`` ``times`` times after a warm-up; microseconds for each of its ``count`` operations."""
    run(max(count // 10, 1))
    return [_timed(run, count) for _ in range(times)]


def _timed(run: Callable[[int], None], count: int) -> float:
    began = time.perf_counter()
    run(count)
    return (time.perf_counter() - began) / count * 1e6


async def rounds_async(run: Callable[[int], Awaitable[None]], count: int, times: int) -> list[float]:
    """The same for a coroutine function."""
    await run(max(count // 10, 1))
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        await run(count)
        taken.append((time.perf_counter() - began) / count * 1e6)
    return taken
