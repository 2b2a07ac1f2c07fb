"""One process that sends through every HTTP library at once, on one limiter."""

import asyncio
import json
from contextlib import suppress
from functools import partial

import aiohttp
import httpx
import httpx2
from chats import spent
from http_ways import WAYS, Loopback, ask_by_aiohttp, ask_by_httpx

import paceline
from waits import run_all

NARROW = ["100k requests/min", "4M tokens/min", "4 concurrency"]
"""Of requests that are not paced together, most are refused."""

EACH = 6
SAID = [{"role": "user", "content": "Say something. " * 20}]
CHAT = {"model": "gpt-5", "messages": SAID, "max_completion_tokens": 20}
BODIES = [CHAT, {**CHAT, "stream": True, "stream_options": {"include_usage": True}}] * (EACH // 2)


SYNC = [WAYS[name] for name in ("httpx", "httpx2", "requests", "urllib3")]
ASYNC = [ask_by_httpx(httpx), ask_by_httpx(httpx2), ask_by_aiohttp]


def crowd(url, stray=None):
    """The statuses of :data:`EACH` requests by each library: in a thread each, and in the tasks of one event loop."""
    statuses = []

    async def main():
        calls = [send(url, body) for send in ASYNC for body in BODIES]
        results = await asyncio.gather(*calls, *([stray()] if stray else []))
        statuses.extend(status for status, _ in results[: len(calls)])

    def call(send, body):
        statuses.append(send(url, body)[0])

    calls = [partial(call, send, body) for send in SYNC for body in BODIES]
    run_all([*calls, lambda: asyncio.run(main())])
    return statuses


def test_no_request_is_refused_and_a_stray_one_is_announced(paceline_emulator, caplog):
    world = paceline_emulator(limits={"gpt-5": NARROW}, latency_s=0.02)
    limiter = paceline.Limiter({"openai/*": NARROW})

    async def stray():
        """To a host of a provider: a path that is not read, and a WebSocket."""
        port = world.base_url.rpartition(":")[2]
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(resolver=Loopback())) as session:
            for _ in range(2):
                async with session.post(f"http://api.openai.com:{port}/v1/videos", json={"prompt": "a cat"}):
                    pass
            with suppress(aiohttp.WSServerHandshakeError):  # the emulator has none
                await session.ws_connect(f"ws://api.openai.com:{port}/v1/realtime")

    with paceline.instrument(limiter, provider="openai"):
        statuses = crowd(f"{world.base_url}/v1/chat/completions", stray)
    tally, pool = world.tally(), limiter.status()["pools"]["openai/gpt-5"]
    assert statuses == [200] * 7 * EACH
    assert (tally["admitted"], tally["refused_total"]) == (7 * EACH, 0)
    assert pool["counts"] == {"granted": 7 * EACH, "settled": 7 * EACH}
    charges = tally["pools"]["gpt-5"]["charges"]
    for unit in ("requests", "tokens"):
        assert spent(limiter)[unit] == charges[unit]
    rows = limiter.status()["unpaced"]
    assert [(row["host"], row["kind"], row["count"]) for row in rows] == [
        ("api.openai.com", "POST /v1/videos", 2),
        ("api.openai.com", "WebSocket", 1),
    ]
    announced = [line.partition(" is not paced") for line in caplog.messages if "is not paced" in line]
    assert [what for what, *_ in announced] == ["POST api.openai.com/v1/videos", "WebSocket api.openai.com"]
    json.dumps(rows)


def test_the_limits_are_narrow(paceline_emulator):
    world = paceline_emulator(limits={"gpt-5": NARROW}, latency_s=0.02)
    assert 429 in crowd(f"{world.base_url}/v1/chat/completions")
