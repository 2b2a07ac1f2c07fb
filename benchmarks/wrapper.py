"""What a paced HTTP client costs for each call: paced minus bare, over a transport that answers by itself."""

from __future__ import annotations

import asyncio
import json
import time

import httpx2

import paceline
from benchmarks.table import Row, below

URL = "https://api.openai.com/v1/chat/completions"
QUOTAS = ["100M requests/min", "100B tokens/min"]  # never binding
ANSWER = json.dumps(
    {
        "id": "x",
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "word " * 60}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 400, "completion_tokens": 60, "total_tokens": 460},
    }
).encode()
HEADERS = {
    "content-type": "application/json",
    "content-length": str(len(ANSWER)),
    "x-ratelimit-limit-requests": "100000000",
    "x-ratelimit-remaining-requests": "99999999",
    "x-ratelimit-reset-requests": "1ms",
    "x-ratelimit-limit-tokens": "100000000000",
    "x-ratelimit-remaining-tokens": "99999999000",
    "x-ratelimit-reset-tokens": "1ms",
}
SIZES = {"2 kB": (2_000, 150.0), "100 kB": (100_000, 400.0)}


class Inner(httpx2.BaseTransport, httpx2.AsyncBaseTransport):
    """Answers at once, with a body that is still to be read, as from a network."""

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers=HEADERS, stream=httpx2.ByteStream(ANSWER), request=request)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return self.handle_request(request)


def body(size: int) -> bytes:
    """A chat request whose prompt is prose of about ``size`` bytes."""
    prose = "The limit of a minute is shared by all workers, so each request waits until its turn has come. "
    prompt = (prose * (size // len(prose) + 1))[:size]
    message = {"role": "user", "content": prompt}
    return json.dumps({"model": "gpt-5", "messages": [message], "max_tokens": 100}).encode()


def measure(quick: bool) -> list[Row]:
    """Two sizes, async and sync."""
    count, times = (100, 5) if quick else (400, 9)
    rows = []
    for name, (size, goal_us) in SIZES.items():
        for kind, run in (("async", lambda *args: asyncio.run(_async(*args))), ("sync", _sync)):
            added = run(body(size), count, times)
            rows.append(
                below(f"HTTP call through a paced client, {kind}, {name}: added", added, "us", goal_us, digits=0)
            )
    return rows


async def _async(content: bytes, count: int, times: int) -> list[float]:
    bare = httpx2.AsyncClient(transport=Inner())
    paced = httpx2.AsyncClient(transport=Inner())
    paceline.Limiter({"openai/gpt-5": QUOTAS}).attach(paced)

    async def run(client: httpx2.AsyncClient) -> float:
        began = time.perf_counter()
        for _ in range(count):
            await client.post(URL, content=content)
        return (time.perf_counter() - began) / count * 1e6

    async with bare, paced:
        await run(bare), await run(paced)
        return [-(await run(bare)) + await run(paced) for _ in range(times)]


def _sync(content: bytes, count: int, times: int) -> list[float]:
    bare, paced = httpx2.Client(transport=Inner()), httpx2.Client(transport=Inner())
    paceline.Limiter({"openai/gpt-5": QUOTAS}).attach(paced)

    def run(client: httpx2.Client) -> float:
        began = time.perf_counter()
        for _ in range(count):
            client.post(URL, content=content)
        return (time.perf_counter() - began) / count * 1e6

    with bare, paced:
        run(bare), run(paced)
        return [-run(bare) + run(paced) for _ in range(times)]
