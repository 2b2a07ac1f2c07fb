"""The peers, each used as its own documentation advises. All are optional."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Any

import httpx2

from benchmarks.traffic import MAX_OUTPUT_TOKENS, Admit, body


def installed(module: str) -> bool:
    """Whether ``module`` can be imported."""
    return find_spec(module) is not None


def aiolimiter(requests: int, tokens: int) -> Admit:
    """Two leaky buckets, one after the other; the library has no way to take both at once."""
    from aiolimiter import AsyncLimiter

    requests_a_minute, tokens_a_minute = AsyncLimiter(requests, 60), AsyncLimiter(tokens, 60)

    @asynccontextmanager
    async def admit(amount: int) -> AsyncIterator[None]:
        await tokens_a_minute.acquire(amount)
        async with requests_a_minute:
            yield

    return admit


def limits(requests: int, tokens: int) -> Admit:
    """The sliding window counter in memory: test both, hit both, else sleep a little and ask again."""
    from limits import RateLimitItemPerMinute
    from limits.aio.storage import MemoryStorage
    from limits.aio.strategies import SlidingWindowCounterRateLimiter

    limiter = SlidingWindowCounterRateLimiter(MemoryStorage())
    by_requests = RateLimitItemPerMinute(requests, 1, "requests")
    by_tokens = RateLimitItemPerMinute(tokens, 1, "tokens")

    @asynccontextmanager
    async def admit(amount: int) -> AsyncIterator[None]:
        while not (  # noqa: ASYNC110  (the library has nothing to wait on)
            await limiter.test(by_requests, "k")
            and await limiter.hit(by_tokens, "k", cost=amount)
            and await limiter.hit(by_requests, "k")
        ):
            await asyncio.sleep(0.05)
        yield

    return admit


async def async_batch_llm(
    client: httpx2.AsyncClient, jobs: list[tuple[str, int]], *, requests: int, tokens: int, workers: int, cut_s: float
) -> dict[str, Any]:
    """Its own batch runner with both quotas set, over an existing client, everything else at its default."""
    from async_batch_llm import CallableStrategy, CallOutcome, ProcessorConfig, TokenEstimate, process_prompts

    logging.getLogger("async_batch_llm").setLevel(logging.CRITICAL)  # a line for each retry
    costs = dict(jobs)
    done = 0

    async def invoke(prompt: str, *, attempt: int, timeout: float, state: Any) -> CallOutcome[str]:  # noqa: ARG001, ASYNC109
        nonlocal done
        answer = await client.post("/v1/chat/completions", json=body(prompt))
        answer.raise_for_status()
        usage = answer.json()["usage"]
        done += 1
        used = {"input_tokens": usage["prompt_tokens"], "output_tokens": MAX_OUTPUT_TOKENS}  # what the server keeps
        return CallOutcome("", token_usage=used)

    def estimate(prompt: str, **_: Any) -> TokenEstimate:
        return TokenEstimate(costs[prompt] - MAX_OUTPUT_TOKENS, MAX_OUTPUT_TOKENS)

    config = ProcessorConfig(
        concurrency=workers, max_requests_per_minute=requests, max_tokens_per_minute=tokens, token_estimator=estimate
    )
    began = time.monotonic()
    stopped, lost = False, 0
    try:
        async with asyncio.timeout(cut_s):
            batch = await process_prompts(CallableStrategy(invoke), [prompt for prompt, _ in jobs], config=config)
            lost = sum(not result.success for result in batch.results)
    except TimeoutError:
        stopped = True
    return {"done": done, "lost": lost, "stopped": stopped, "seconds": time.monotonic() - began}
