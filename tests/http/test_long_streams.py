"""Long streams after short answers: a pool whose answers have begun is not without an answer."""

import asyncio

import aiohttp
import pytest
from aiohttp import web

import paceline
from paceline.core.silence import SILENT_MIN

BODY = {"model": "gpt-5", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
USAGE = {"id": "1", "choices": [{"message": {"content": "Hi."}}], "usage": {"prompt_tokens": 5, "completion_tokens": 5}}


@pytest.fixture
async def server():
    """Short answers at once; streams that begin at once, and go on until the end of the test."""
    over = asyncio.Event()

    async def answer(request):
        if not (await request.json()).get("stream"):
            return web.json_response(USAGE)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b'data: {"choices": [{"delta": {"content": "Hi."}}]}\n\n')
        await over.wait()
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1/chat/completions"
    over.set()
    await runner.cleanup()


async def test_streams_that_have_begun_hold_nothing_back(server):
    limiter = paceline.Limiter({"openai/gpt-5": "100k requests/min"})
    async with aiohttp.ClientSession() as session:
        limiter.attach(session, provider="openai")
        for _ in range(3):
            async with session.post(server, json=BODY) as response:
                await response.read()
        streams = [await session.post(server, json=BODY | {"stream": True}) for _ in range(2 * SILENT_MIN)]
        pool = limiter.pacer.pools.scheduler("openai/gpt-5").pool
        later_ns = limiter.pacer.clock.now_ns() + 60 * 10**9
        pool.silence.check(later_ns)
        assert pool.ledger.in_flight == 2 * SILENT_MIN
        assert not pool.silence.since_ns
        for stream in streams:
            stream.close()
