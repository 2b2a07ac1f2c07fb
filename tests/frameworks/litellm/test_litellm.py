"""litellm against the emulator, paced by ``paceline.instrument()`` alone: every route, sync, async, streamed, Router."""

import asyncio
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it fetches its prices while it is imported

import litellm
import pytest
from harness import LIMITS, MESSAGES, counts, crowd_row, spent

import paceline

OPENAI_LIMITS, CLAUDE_LIMITS = LIMITS["openai/*"], LIMITS["anthropic/*"]
PROVIDER = "openai"
GPT, CLAUDE = "openai/gpt-5", "anthropic/claude-haiku-4-5"

ROUTES = {"openai": (GPT, "/v1", "gpt-5"), "anthropic": (CLAUDE, "", "claude-haiku-4-5")}


def options(world, path="/v1", **more):
    return {"messages": MESSAGES, "api_key": "k", "api_base": world.base_url + path, "max_tokens": 40, **more}


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
async def test_every_way_of_calling(world, provider):
    pool, path, model = ROUTES[provider]
    limiter = paceline.Limiter({f"{provider}/*": OPENAI_LIMITS if provider == "openai" else CLAUDE_LIMITS})
    asked = options(world, path, model=pool)
    streamed = {**asked, "stream": True, "stream_options": {"include_usage": True}}
    await litellm.acompletion(**asked)  # it keeps its clients: this one was made before
    with paceline.instrument(limiter):
        litellm.completion(**asked)
        await litellm.acompletion(**asked)
        for _ in litellm.completion(**streamed):
            pass
        async for _ in await litellm.acompletion(**streamed):
            pass
        assert await asyncio.to_thread(litellm.completion, **asked)
        paced = world.tally()["admitted"] - 1
    await litellm.acompletion(**asked)
    litellm.completion(**asked)
    tally = world.tally()
    assert paced == 5
    assert tally["admitted"] == 8
    assert counts(limiter, pool) == {"granted": 5, "settled": 5}
    before_and_after = 3
    requests = tally["pools"][model]["charges"]["requests"] - before_and_after
    assert spent(limiter, pool)["requests"] == requests


async def test_usage_is_settled(world, limiter):
    with paceline.instrument(limiter):
        answer = await litellm.acompletion(**options(world, model=GPT, max_tokens=None))
        stream = await litellm.acompletion(
            **options(world, model=GPT, max_tokens=None, stream=True, stream_options={"include_usage": True})
        )
        usage = [chunk.usage async for chunk in stream if getattr(chunk, "usage", None)][-1]
    assert spent(limiter, GPT)["tokens"] == answer.usage.total_tokens + usage.total_tokens


async def test_router(world, limiter):
    router = litellm.Router(
        model_list=[{"model_name": "weather", "litellm_params": {k: v for k, v in options(world, model=GPT).items() if k != "messages"}}],
        num_retries=0,
    )  # fmt: skip
    with paceline.instrument(limiter):
        await router.acompletion("weather", MESSAGES)
        router.completion("weather", MESSAGES)
        async for _ in await router.acompletion("weather", MESSAGES, stream=True):
            pass
        with pytest.raises(litellm.RateLimitError, match="paceline: openai/gpt-5"):
            await router.acompletion("weather", MESSAGES, max_tokens=5_000_000)
    assert counts(limiter, GPT) == {"granted": 3, "settled": 3}
    assert world.tally()["admitted"] == 3


async def test_our_refusals_are_rate_limit_errors_in_one_attempt(world, limiter):
    asked = []
    limiter = paceline.Limiter({"openai/*": OPENAI_LIMITS})
    acquire_call = limiter.pacer.acquire_call

    def watched(scheduler, estimate, **options):
        asked.append(scheduler.pool.name)
        return acquire_call(scheduler, estimate, **options)

    limiter.pacer.acquire_call = watched
    with paceline.instrument(limiter):
        with pytest.raises(litellm.RateLimitError, match="the quota holds 4,000,000"):
            litellm.completion(**options(world, model=GPT, max_tokens=5_000_000))
        with pytest.raises(litellm.RateLimitError, match="the quota holds 4,000,000"):
            await litellm.acompletion(**options(world, model=GPT, max_tokens=5_000_000))
    assert asked == [GPT, GPT]
    assert world.tally()["admitted"] == 0


def test_a_crowd_in_threads_and_tasks(paceline_emulator):
    def calls(world):
        ask = options(world, model=GPT, max_retries=0)
        return lambda: litellm.completion(**ask), lambda: litellm.acompletion(**ask)

    crowd_row(paceline_emulator, "litellm", "over openai 2 and its own aiohttp transport", GPT, calls)
