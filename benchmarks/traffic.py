"""Many workers, one list of requests, any limiter. Needs httpx2 alone, so that every peer's interpreter can run it."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import httpx2

MODEL = "gpt-4.1-mini"
CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
MAX_OUTPUT_TOKENS = 100
ATTEMPTS_MAX = 9
"""One and eight retries: what every peer gets that has such a number."""
Admit = Callable[[int], AbstractAsyncContextManager[Any]]
"""Given a request's tokens, waits until the limiter lets it go."""


def prompts(count: int, seed: int = 11) -> list[str]:
    """Mixed lengths, 30 to 900 words; the same for the same seed."""
    chance = random.Random(seed)
    words = (
        "all",
        "workers",
        "share",
        "one",
        "limit",
        "so",
        "each",
        "request",
        "waits",
        "until",
        "its",
        "turn",
        "comes",
    )
    return [" ".join(chance.choices(words, k=chance.randint(30, 900))) for _ in range(count)]


def body(prompt: str) -> dict[str, Any]:
    """A chat request."""
    return {"model": MODEL, "messages": [{"role": "user", "content": prompt}], "max_tokens": MAX_OUTPUT_TOKENS}


def client_of(url: str) -> httpx2.AsyncClient:
    """A client with room for every worker."""
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=1_000)
    return httpx2.AsyncClient(
        base_url=url, limits=limits, timeout=60, trust_env=False, headers={"authorization": "Bearer none"}
    )


async def send(
    client: httpx2.AsyncClient, jobs: list[tuple[str, int]], admit: Admit, workers: int, cut_s: float
) -> dict[str, Any]:
    """Send every job; after a 429 wait as long as it asks, after a 5xx as OpenAI's SDK does, then go through the limiter again.

    Args:
        client: Points at the emulator.
        jobs: Prompt and true cost in tokens of each.
        admit: The limiter.
        workers: How many work on the list.
        cut_s: Stop after so many seconds.
    """
    done, lost = 0, 0
    queue = iter(jobs)

    async def work() -> None:
        nonlocal done, lost
        for prompt, tokens in queue:
            for attempt in range(ATTEMPTS_MAX):
                async with admit(tokens):
                    answer = await client.post(CHAT, json=body(prompt))
                if answer.status_code != 429 and answer.status_code < 500:
                    answer.raise_for_status()
                    done += 1
                    break
                backoff_s = min(8.0, 0.5 * 2**attempt) * random.uniform(0.75, 1.0)
                await asyncio.sleep(float(answer.headers.get("retry-after", backoff_s)))
            else:
                lost += 1

    began = time.monotonic()
    stopped = False
    try:
        async with asyncio.timeout(cut_s):
            await asyncio.gather(*(work() for _ in range(workers)))
    except TimeoutError:
        stopped = True
    return {"done": done, "lost": lost, "stopped": stopped, "seconds": time.monotonic() - began}


@asynccontextmanager
async def free(_: int) -> AsyncIterator[None]:
    """No limiter here: the client has its own."""
    yield


def cut(seconds: float) -> float:
    """A bound on a run that needs ``seconds`` at best."""
    return math.ceil(seconds * 1.2 + 8)
