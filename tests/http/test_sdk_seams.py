"""Seams of single SDKs: anthropic's middleware, google-genai's clients per event loop. All versions: tests/frameworks."""

import asyncio
import sys

import anthropic
import pytest
from chats import counts, spent
from google import genai
from google.genai import types

import paceline
from paceline.integrations.anthropic import middleware

CLAUDE, GEMINI = "anthropic/claude-haiku-4-5", "gemini/gemini-2.5-flash"
ASK = {"model": "claude-haiku-4-5", "messages": [{"role": "user", "content": "Hello there."}], "max_tokens": 50}


@pytest.mark.parametrize("also_attached", [False, True])
async def test_a_middleware_charges_once(world, limiter, also_attached):
    options = {"api_key": "k", "base_url": world.base_url, "middleware": [middleware(limiter)]}
    async with anthropic.AsyncAnthropic(**options) as async_client:
        with anthropic.Anthropic(**options) as client:
            if also_attached:
                limiter.attach(client)
                limiter.attach(async_client)
            messages = [client.messages.create(**ASK), await async_client.messages.create(**ASK)]
            with client.messages.stream(**ASK) as stream:
                messages.append(stream.get_final_message())
        async with async_client.messages.stream(**ASK) as stream:
            messages.append(await stream.get_final_message())
    assert counts(limiter, CLAUDE) == {"granted": 4, "settled": 4}
    assert spent(limiter, CLAUDE)["output_tokens"] == sum(message.usage.output_tokens for message in messages)


async def test_what_a_middleware_refuses_is_a_rate_limit_error(world):
    limiter = paceline.Limiter({"anthropic/*": "1 input_tokens/min"})
    options = {"api_key": "k", "base_url": world.base_url, "middleware": [middleware(limiter)]}
    with (
        anthropic.Anthropic(**options) as client,
        pytest.raises(anthropic.RateLimitError, match="quota holds 1") as error,
    ):
        client.messages.create(**ASK)
    assert error.value.response.headers["x-paceline"] == "never_fits"
    async with anthropic.AsyncAnthropic(**options) as client:
        with pytest.raises(anthropic.RateLimitError, match="quota holds 1"):
            await client.messages.create(**ASK, stream=True)
    assert world.tally()["admitted"] == 0


def test_a_middleware_below_that_needs_no_request_and_calls_that_nobody_meters(world, limiter):
    with anthropic.Anthropic(api_key="k", base_url=world.base_url, middleware=[middleware(limiter)]) as client:
        assert client.models.list()
        assert limiter.status()["pools"] == {}
        ready = client.messages.create(**ASK)
        cached = client.with_options(middleware=[*client.middleware, lambda _, call_next: ready])
        assert cached.messages.create(**ASK) is ready
    assert counts(limiter, CLAUDE) == {"granted": 2, "settled": 1, "cancelled": 1}


def test_a_missing_or_old_anthropic_is_named(limiter, monkeypatch):
    monkeypatch.delattr(anthropic, "Middleware")
    with pytest.raises(ImportError, match=r"anthropic 2\.\S+ has no middleware: pip install 'anthropic>=0\.125'"):
        middleware(limiter)
    monkeypatch.setitem(sys.modules, "anthropic", None)
    with pytest.raises(ImportError, match=r"this integration needs anthropic: pip install 'anthropic>=0\.125'"):
        middleware(limiter)


def test_google_genai_is_paced_in_every_event_loop(world, limiter):
    client = genai.Client(api_key="k", http_options=types.HttpOptions(base_url=world.base_url))
    ask = {"model": "gemini-2.5-flash", "contents": "Hello there."}

    async def call():
        await client.aio.models.generate_content(**ask)
        api = client._api_client  # its sockets would outlive the loop
        await api._async_httpx_client._client_for_running_loop().aclose()
        if api._aiohttp_session is not None:
            await api._aiohttp_session.close()

    asyncio.run(call())  # before it is attached
    limiter.attach(client, provider="gemini")
    limiter.attach(client, provider="gemini")
    asyncio.run(call())
    asyncio.run(call())
    client.models.generate_content(**ask)
    client.close()
    assert counts(limiter, GEMINI) == {"granted": 3, "settled": 3}
