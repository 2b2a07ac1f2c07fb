"""What a paced HTTP client costs for each call: paced minus bare, over a transport that answers by itself."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator

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


ROLE = b'data: {"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
WORD = b'data: {"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"word "}}]}\n\n'
STREAM_HEADERS = {**HEADERS, "content-type": "text/event-stream"}
STREAM_HEADERS.pop("content-length")
WORDS = 200


class Events(httpx2.AsyncByteStream):
    """A chat's stream of ``WORDS`` events."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield ROLE
        for _ in range(WORDS):
            yield WORD


class Inner(httpx2.BaseTransport, httpx2.AsyncBaseTransport):
    """Answers at once, with a body that is still to be read, as from a network."""

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.headers.get("accept") == "text/event-stream":
            return httpx2.Response(200, headers=STREAM_HEADERS, stream=Events(), request=request)
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
    first, event = asyncio.run(_stream(count // 2, times))
    rows.append(below("the same, a stream: added until the first content", first, "us", 1_000, digits=0))
    rows.append(below("the same: added for each event after it", event, "us", 1_000, digits=1))
    return rows


async def _stream(count: int, times: int) -> tuple[list[float], list[float]]:
    """Until the first content of a stream, and for each event after it: paced minus bare."""
    bare, paced = httpx2.AsyncClient(transport=Inner()), httpx2.AsyncClient(transport=Inner())
    paceline.Limiter({"openai/gpt-5": QUOTAS}).attach(paced)
    asked = json.dumps({**json.loads(body(2_000)), "stream": True}).encode()

    async def run(client: httpx2.AsyncClient) -> tuple[float, float]:
        firsts = rests = 0.0
        for _ in range(count):
            began, seen = time.perf_counter(), 0.0
            async with client.stream("POST", URL, content=asked, headers={"accept": "text/event-stream"}) as response:
                async for part in response.aiter_raw():
                    if not seen and part == WORD:
                        seen = time.perf_counter()
            firsts, rests = firsts + seen - began, rests + time.perf_counter() - seen
        return firsts / count * 1e6, rests / count / (WORDS - 1) * 1e6

    async with bare, paced:
        await run(bare), await run(paced)
        pairs = [(await run(paced), await run(bare)) for _ in range(times)]
    return [one[0] - other[0] for one, other in pairs], [one[1] - other[1] for one, other in pairs]


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
