"""google-genai, with aiohttp installed (its async client sends through that) and without, of 3 (a client per event loop) and 2."""

import asyncio
from importlib.util import find_spec

import pytest
from google import genai
from google.genai import errors, types
from harness import LIMITS, PROMPT, books_agree, cancel_in_a_stream, counts, crowd_row

import paceline
from waits import run_all

POOL = "gemini/gemini-2.5-flash"
AIOHTTP = find_spec("aiohttp") is not None
ASK = {"model": "gemini-2.5-flash", "contents": PROMPT, "config": {"max_output_tokens": 50}}


def make(world, **options):
    return genai.Client(api_key="k", http_options=types.HttpOptions(base_url=world.base_url, **options))


def attached(limiter, world, **options):
    return limiter.attach(make(world, **options), provider="gemini")


async def stream_of(client):
    return [chunk async for chunk in await client.aio.models.generate_content_stream(**ASK)]


def test_an_attached_client_sends_as_before(world, limiter):
    """Through aiohttp, where that is installed."""
    assert attached(limiter, world)._api_client._use_aiohttp() is AIOHTTP


async def test_sync_async_and_streams(world, limiter):
    client = attached(limiter, world)
    client.models.generate_content(**ASK)
    assert list(client.models.generate_content_stream(**ASK))
    books_agree(limiter, world, POOL, 2)
    await client.aio.models.generate_content(**ASK)
    assert await stream_of(client)
    books_agree(limiter, world, POOL, 4)
    await client.aio.aclose()
    client.close()


async def test_attached_after_its_first_call_and_twice(world, limiter):
    client = make(world)
    await client.aio.models.generate_content(**ASK)  # a session of aiohttp's, or a client of this loop, is there now
    limiter.attach(client, provider="gemini")
    limiter.attach(client, provider="gemini")
    await client.aio.models.generate_content(**ASK)
    assert counts(limiter, POOL) == {"granted": 1, "settled": 1}
    with pytest.raises(ValueError, match="another limiter"):
        paceline.Limiter().attach(client, provider="gemini")
    await client.aio.aclose()


def test_every_event_loop_is_paced(world, limiter):
    """Loops one after the other, and two at once in threads, through one client."""
    if genai.__version__ < "3":
        pytest.skip("before 3 one client served all loops, which httpx does not allow")
    client = attached(limiter, world)

    async def twice():
        await client.aio.models.generate_content(**ASK)
        assert await stream_of(client)

    asyncio.run(twice())
    asyncio.run(twice())
    run_all([lambda: asyncio.run(twice())] * 2)
    assert counts(limiter, POOL) == {"granted": 8, "settled": 8}
    client.close()


async def test_a_transport_or_a_client_of_ones_own(world, limiter):
    httpx = pytest.importorskip("httpx2" if find_spec("httpx2") else "httpx")
    own = {
        "client_args": {"transport": httpx.HTTPTransport()},
        "async_client_args": {"transport": httpx.AsyncHTTPTransport()},
    }
    client = attached(limiter, world, **own)
    client.models.generate_content(**ASK)
    await client.aio.models.generate_content(**ASK)
    await client.aio.aclose()
    with httpx.Client() as sync:
        async with httpx.AsyncClient() as http:
            client = attached(limiter, world, httpx_client=sync, httpx_async_client=http)
            client.models.generate_content(**ASK)
            assert await stream_of(client)
    assert counts(limiter, POOL) == {"granted": 4, "settled": 4}


async def test_a_cancelled_stream_gives_its_place_back(paceline_emulator, limiter):
    world = paceline_emulator(
        limits={"gemini-2.5-flash": LIMITS["gemini/*"]}, latency_per_token_s=0.002, default_output_tokens=5_000
    )
    client = attached(limiter, world)

    async def consume(begun):
        ask = ASK | {"config": {"max_output_tokens": 5_000}}
        async for _ in await client.aio.models.generate_content_stream(**ask):
            begun.set()

    await cancel_in_a_stream(limiter, POOL, consume)
    await client.aio.aclose()


async def test_our_own_refusal_is_their_client_error_in_one_attempt(world):
    limiter = paceline.Limiter({"gemini/*": "10 input_tokens/min"})
    client = attached(limiter, world, retry_options=types.HttpRetryOptions(attempts=1))
    with pytest.raises(errors.ClientError, match="the quota holds 10") as raised:
        client.models.generate_content(**ASK)
    assert raised.value.code == 429
    with pytest.raises(errors.ClientError, match="the quota holds 10"):
        await client.aio.models.generate_content(**ASK)
    with pytest.raises(errors.ClientError, match="the quota holds 10"):
        await stream_of(client)
    assert world.tally()["admitted"] == 0
    await client.aio.aclose()


def test_client_certificates_are_said_not_to_be_paced(world, limiter, monkeypatch):
    client = make(world)
    monkeypatch.setattr(type(client._api_client), "_use_google_auth_sync", lambda _: True, raising=False)
    with pytest.warns(paceline.PacelineWarning, match="client certificates"):
        limiter.attach(client, provider="gemini")


def test_a_crowd_in_threads_and_tasks(paceline_emulator):
    def calls(world):
        client = make(world)
        return lambda: client.models.generate_content(**ASK), lambda: client.aio.models.generate_content(**ASK)

    over = f"over {'httpx2' if find_spec('httpx2') else 'httpx'}{' and aiohttp' if AIOHTTP else ''}"
    crowd_row(paceline_emulator, "google-genai", over, POOL, calls)
