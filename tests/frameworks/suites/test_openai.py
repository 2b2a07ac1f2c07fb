"""openai, whichever version is installed: 1 and 2 send through httpx, 3 through httpx2; 2 and 3 take either."""

import importlib

import openai
import pytest
from harness import LIMITS, MESSAGES, books_agree, cancel_in_a_stream, counts, crowd_row

import paceline

POOL = "openai/gpt-5"
ASK = {"model": "gpt-5", "messages": MESSAGES, "max_tokens": 20}
STREAM = ASK | {"stream": True, "stream_options": {"include_usage": True}}
MAJOR = int(openai.__version__.partition(".")[0])


def sync_client(world, **options):
    return openai.OpenAI(api_key="k", base_url=f"{world.base_url}/v1", **options)


def async_client(world, **options):
    return openai.AsyncOpenAI(api_key="k", base_url=f"{world.base_url}/v1", **options)


def test_sync_chat_responses_and_streams(world, limiter):
    with limiter.attach(sync_client(world), provider="openai") as client:
        assert client.chat.completions.create(**ASK).usage.completion_tokens
        assert client.responses.create(model="gpt-5", input="Hello.", max_output_tokens=30).output_text
        assert [chunk.usage for chunk in client.chat.completions.create(**STREAM) if chunk.usage]
    books_agree(limiter, world, POOL, 3)


async def test_async_chat_and_streams(world, limiter):
    async with limiter.attach(async_client(world), provider="openai") as client:
        assert await client.chat.completions.create(**ASK)
        stream = await client.chat.completions.create(**STREAM)
        assert [chunk.usage async for chunk in stream if chunk.usage]
        async with client.responses.stream(model="gpt-5", input="Hello.", max_output_tokens=20) as events:
            async for _ in events:
                pass
            assert (await events.get_final_response()).usage.total_tokens
    books_agree(limiter, world, POOL, 3)


async def test_a_cancelled_stream_gives_its_place_back(paceline_emulator, limiter):
    world = paceline_emulator(limits={"gpt-5": LIMITS["openai/*"]}, latency_per_token_s=0.002)
    async with limiter.attach(async_client(world), provider="openai") as client:

        async def consume(begun):
            async for _ in await client.chat.completions.create(**STREAM | {"max_tokens": 5_000}):
                begun.set()

        await cancel_in_a_stream(limiter, POOL, consume)
    assert counts(limiter, POOL) == {"granted": 1, "settled": 1}


async def test_our_own_refusal_is_their_rate_limit_error_in_one_attempt(world, limiter):
    said = "the quota holds 4,000,000"
    client = limiter.attach(sync_client(world), provider="openai")
    with client, pytest.raises(openai.RateLimitError, match=said) as first:
        client.chat.completions.create(**ASK | {"max_tokens": 5_000_000})
    async with limiter.attach(async_client(world), provider="openai") as client:
        with pytest.raises(openai.RateLimitError, match=said) as second:
            await client.chat.completions.create(**STREAM | {"max_tokens": 5_000_000})
    for raised in (first, second):
        assert raised.value.response.request.headers["x-stainless-retry-count"] == "0"
    assert world.tally()["admitted"] == 0


async def test_instrument_paces_clients_made_before_and_after(world, limiter):
    limiter.limits.provider = "openai"  # what a provider's host tells, loopback does not
    async with async_client(world) as before:
        with paceline.instrument(limiter), sync_client(world) as after:
            await before.chat.completions.create(**ASK)
            after.chat.completions.create(**ASK)
            async for _ in await before.chat.completions.create(**ASK, stream=True):
                pass
        await before.chat.completions.create(**ASK)  # undone
    assert counts(limiter, POOL) == {"granted": 3, "settled": 3}
    assert world.tally()["admitted"] == 4


async def test_over_aiohttp(world, limiter):
    if importlib.util.find_spec("aiohttp") is None or MAJOR < 3:
        pytest.skip("no aiohttp here, or an openai before 3, which needs one more package for it")
    async with async_client(world, http_client=openai.DefaultAioHttpClient()) as client:
        limiter.attach(client, provider="openai")
        await client.chat.completions.create(**ASK)
        async for _ in await client.chat.completions.create(**ASK, stream=True):
            pass
    assert counts(limiter, POOL) == {"granted": 2, "settled": 2}


def test_a_crowd_in_threads_and_tasks(paceline_emulator):
    def calls(world):
        client, async_client_ = sync_client(world, max_retries=0), async_client(world, max_retries=0)
        return lambda: client.chat.completions.create(**ASK), lambda: async_client_.chat.completions.create(**ASK)

    crowd_row(paceline_emulator, "openai", "over httpx2" if MAJOR > 2 else "over httpx", POOL, calls)
