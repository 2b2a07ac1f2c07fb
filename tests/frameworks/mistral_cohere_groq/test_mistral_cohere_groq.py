"""mistralai (httpx2), cohere and groq (httpx): attached, and instrumented."""

import contextlib

import cohere
import groq
import pytest
from harness import LIMITS, MESSAGES, cancel_in_a_stream, charged, counts, crowd_row, spent
from mistralai.client import Mistral
from mistralai.client.errors import SDKError

import paceline

ASK = {"messages": MESSAGES, "max_tokens": 40}


class MistralSdk:
    """How this SDK is asked, and how it says that it was refused."""

    provider, model, refused = "mistral", "mistral-small-latest", SDKError

    def __init__(self, world):
        self.client = Mistral(api_key="k", server_url=world.base_url)

    def call(self):
        return self.client.chat.complete(model=self.model, **ASK)

    def stream(self):
        return list(self.client.chat.stream(model=self.model, **ASK))

    async def acall(self, **more):
        return await self.client.chat.complete_async(model=self.model, **ASK | more)

    async def astream(self, **more):
        stream = await self.client.chat.stream_async(model=self.model, **ASK | more)
        async with stream:
            async for event in stream:
                yield event


class CohereSdk:
    provider, model, refused = "cohere", "command-a-03-2025", cohere.TooManyRequestsError

    def __init__(self, world):
        where = {"api_key": "k", "base_url": world.base_url, "max_retries": 0}  # it obeys no x-should-retry
        self.client, self.async_client = cohere.ClientV2(**where), cohere.AsyncClientV2(**where)

    def call(self):
        return self.client.chat(model=self.model, **ASK)

    def stream(self):
        return list(self.client.chat_stream(model=self.model, **ASK))

    async def acall(self, **more):
        return await self.async_client.chat(model=self.model, **ASK | more)

    async def astream(self, **more):
        async for event in self.async_client.chat_stream(model=self.model, **ASK | more):
            yield event


class GroqSdk:
    provider, model, refused = "groq", "llama-3.3-70b-versatile", groq.RateLimitError

    def __init__(self, world):
        self.client = groq.Groq(api_key="k", base_url=world.base_url)
        self.async_client = groq.AsyncGroq(api_key="k", base_url=world.base_url)

    def call(self):
        return self.client.chat.completions.create(model=self.model, **ASK)

    def stream(self):
        return list(self.client.chat.completions.create(model=self.model, **ASK, stream=True))

    async def acall(self, **more):
        return await self.async_client.chat.completions.create(model=self.model, **ASK | more)

    async def astream(self, **more):
        async for chunk in await self.async_client.chat.completions.create(model=self.model, **ASK | more, stream=True):
            yield chunk


@pytest.fixture(params=[MistralSdk, CohereSdk, GroqSdk])
def sdk(request):
    return request.param


def attached(limiter, sdk, world):
    one = sdk(world)
    for client in {one.client, getattr(one, "async_client", one.client)}:
        limiter.attach(client, provider=sdk.provider)
    return one


def pool(sdk):
    return f"{sdk.provider}/{sdk.model}"


async def test_sync_async_and_streams(world, limiter, sdk):
    one = attached(limiter, sdk, world)
    assert one.call()
    assert one.stream()
    assert await one.acall()
    assert [event async for event in one.astream()]
    assert counts(limiter, pool(sdk)) == {"granted": 4, "settled": 4}
    if sdk is not MistralSdk:  # whose server gives back what was not used, which the emulated one, OpenAI's, does not
        assert spent(limiter, pool(sdk)) == charged(world, sdk.model)


async def test_a_cancelled_stream_gives_its_place_back(paceline_emulator, limiter, sdk):
    world = paceline_emulator(limits={sdk.model: LIMITS[f"{sdk.provider}/*"]}, latency_per_token_s=0.002)
    one = attached(limiter, sdk, world)

    async def consume(begun):
        async with contextlib.aclosing(one.astream(max_tokens=5_000)) as stream:
            async for _ in stream:
                begun.set()

    await cancel_in_a_stream(limiter, pool(sdk), consume)


async def test_our_own_refusal_is_their_error_of_a_rate_limit_in_one_attempt(world, sdk):
    limiter = paceline.Limiter({f"{sdk.provider}/*": "10 tokens/min"})
    one = attached(limiter, sdk, world)
    with pytest.raises(sdk.refused, match="the quota holds 10"):
        one.call()
    with pytest.raises(sdk.refused, match="the quota holds 10"):
        await one.acall()
    assert world.tally()["admitted"] == 0


def test_what_cohere_tries_again_by_itself_reaches_nobody(world):
    """Its SDK retries every 429, ours too; each try is refused here."""
    limiter = paceline.Limiter({"cohere/*": "10 tokens/min"})
    client = limiter.attach(cohere.ClientV2(api_key="k", base_url=world.base_url, max_retries=1), provider="cohere")
    with pytest.raises(cohere.TooManyRequestsError, match="the quota holds 10"):
        client.chat(model=CohereSdk.model, **ASK)
    assert world.tally()["admitted"] + world.tally()["refused_total"] == 0


@pytest.mark.parametrize(
    ("package", "over", "one"),
    [("mistralai", "over httpx2", MistralSdk), ("cohere", "over httpx", CohereSdk), ("groq", "over httpx", GroqSdk)],
)
def test_a_crowd_in_threads_and_tasks(paceline_emulator, package, over, one):
    def calls(world):
        client = one(world)
        return client.call, client.acall

    crowd_row(paceline_emulator, package, over, pool(one), calls, dialect="" if package == "cohere" else "groq")
