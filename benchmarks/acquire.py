"""Acquire and settle three quotas with nobody else there: sync, async and without waiting; peers beside it. What is cached of a prompt."""

from __future__ import annotations

import asyncio
import statistics
from typing import Any, TypedDict

import paceline
from benchmarks.peers import installed
from benchmarks.table import Row, below
from benchmarks.throttle import run_throttle
from benchmarks.timing import rounds, rounds_async
from paceline.estimation.prefixes import Prefixes, Prompt, PromptCache, keys_of

QUOTAS = ["100M requests/min", "1B input_tokens/min", "1B output_tokens/min"]  # never binding


class Tokens(TypedDict):
    """Of a request."""

    input_tokens: int
    output_tokens: int


COST: Tokens = {"input_tokens": 1_200, "output_tokens": 300}
ACTUAL: Tokens = {"input_tokens": 1_150, "output_tokens": 120}
GOAL_US = 10.0
KEYS_US = 30.0


def measure(quick: bool) -> list[Row]:
    """Five rows; the peers stand in the one that is like what they do."""
    count, times = (2_000, 5) if quick else (10_000, 9)
    limiter = paceline.Limiter({"p": QUOTAS})

    def sync(n: int) -> None:
        for _ in range(n):
            with limiter.acquire("p", **COST) as permit:
                permit.settle(**ACTUAL)

    async def asynchronous(n: int) -> None:
        for _ in range(n):
            async with limiter.acquire("p", **COST) as permit:
                permit.settle(**ACTUAL)

    def at_once(n: int) -> None:
        for _ in range(n):
            permit = limiter.try_acquire("p", **COST)
            assert isinstance(permit, paceline.Permit)
            permit.settle(**ACTUAL)

    follow_up, edited = _conversation(60), _conversation(60, edited=True)

    def look(n: int) -> None:
        for _ in range(n):
            _look(follow_up)

    def look_back(n: int) -> None:
        for _ in range(n):
            _look(edited)

    peers = asyncio.run(_peers(count // 5, times))
    return [
        below("acquire + settle, 3 quotas: with", rounds(sync, count, times), "us", GOAL_US),
        below("the same: async with", asyncio.run(rounds_async(asynchronous, count, times)), "us", GOAL_US, peers),
        below("the same: try_acquire + settle", rounds(at_once, count, times), "us", GOAL_US),
        below("find what is cached of a prompt of 100 kB", rounds(look, count // 5, times), "us", KEYS_US),
        below("the same, where it is not known", rounds(look_back, count // 5, times), "us", KEYS_US),
    ]


def _conversation(turns: int, *, edited: bool = False) -> tuple[PromptCache, dict[str, Any]]:
    """A cache that has the prompt before the last one of a conversation; ``edited``: of another course of it."""
    cache, messages = PromptCache(Prefixes(), "anthropic/m"), list[dict[str, Any]]()
    for turn in range(turns):
        text = f"{turn} " + "some words and more " * (100_000 // turns // 20)
        result = {"type": "tool_result", "tool_use_id": f"t{turn}", "content": text}
        call = {"type": "tool_use", "id": f"t{turn + 1}", "name": "run", "input": {"command": "ls"}}
        messages += [{"role": "user", "content": [result]}, {"role": "assistant", "content": [call]}]
    body = {"model": "m", "system": "You are an agent. " * 100, "messages": messages[:-1]}
    last = [*messages[:-4], {"role": "user", "content": "edited"}] if edited else messages[:-3]
    before = keys_of(cache, "m", {**body, "messages": last})
    assert before is not None
    Prompt(cache, before).answered(0, 300 * 10**9, 20_000, 0, 20_000)
    return cache, body


def _look(conversation: tuple[PromptCache, dict[str, Any]]) -> None:
    cache, body = conversation
    keys = keys_of(cache, "m", body)
    assert keys is not None
    Prompt(cache, keys).look(1)


async def _peers(count: int, times: int) -> str:
    said = [
        f"aiolimiter, 3 limiters, cannot settle: {await _aiolimiter(count, times)}",
        f"limits, 3 hits (sliding counter in memory), cannot settle: {await _limits(count, times)}",
        f"token-throttle, reserve + settle: {await asyncio.to_thread(_throttle, count, times)}",
        "async-batch-llm: has no acquire of its own",
    ]
    return "; ".join(said)


async def _aiolimiter(count: int, times: int) -> str:
    if not installed("aiolimiter"):
        return "n/a"
    from aiolimiter import AsyncLimiter

    limiters = [(AsyncLimiter(1e8), 1), (AsyncLimiter(1e9), 1_200), (AsyncLimiter(1e9), 300)]

    async def run(n: int) -> None:
        for _ in range(n):
            for limiter, amount in limiters:
                await limiter.acquire(amount)

    return f"{statistics.median(await rounds_async(run, count, times)):.1f} us"


async def _limits(count: int, times: int) -> str:
    if not installed("limits"):
        return "n/a"
    from limits import RateLimitItemPerMinute
    from limits.aio.storage import MemoryStorage
    from limits.aio.strategies import SlidingWindowCounterRateLimiter

    limiter = SlidingWindowCounterRateLimiter(MemoryStorage())
    items = [(RateLimitItemPerMinute(int(1e9), 1, f"q{i}"), cost) for i, cost in enumerate((1, 1_200, 300))]

    async def run(n: int) -> None:
        for _ in range(n):
            for item, cost in items:
                await limiter.hit(item, "p", cost=cost)

    return f"{statistics.median(await rounds_async(run, count, times)):.1f} us"


def _throttle(count: int, times: int) -> str:
    result = run_throttle({"what": "acquire", "count": max(count // 10, 50), "times": times})
    return f"{statistics.median(result['us']):.0f} us" if "us" in result else f"n/a ({result['why']})"
