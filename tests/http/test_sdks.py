"""The real SDKs against the emulator: paced, settled, and refused in one attempt when it must be."""

import asyncio

import anthropic
import openai
from chats import LIMITS, counts, pool_of, spent

import paceline
from waits import BOUND_S, soon

PROMPT = [{"role": "user", "content": "Say something about the weather in twenty words. " * 5}]


def test_anthropic_s_path_of_openai_shares_the_pool_of_messages(world, limiter):
    pool, model = "anthropic/claude-haiku-4-5", "claude-haiku-4-5"
    with (
        anthropic.Anthropic(api_key="k", base_url=world.base_url) as native,
        openai.OpenAI(api_key="k", base_url=f"{world.base_url}/v1") as client,
    ):
        limiter.attach(native)
        limiter.attach(client, provider="anthropic")
        first = native.messages.create(model=model, messages=PROMPT, max_tokens=50).usage
        second = client.chat.completions.create(model=model, messages=PROMPT, max_tokens=50).usage
        options = {"stream": True, "stream_options": {"include_usage": True}}
        stream = client.chat.completions.create(model=model, messages=PROMPT, max_tokens=50, **options)
        third = [chunk.usage for chunk in stream if chunk.usage][-1]
    assert counts(limiter, pool) == {"granted": 3, "settled": 3}
    assert spent(limiter, pool) == {
        "requests": 3,
        "input_tokens": first.input_tokens + second.prompt_tokens + third.prompt_tokens,
        "output_tokens": first.output_tokens + second.completion_tokens + third.completion_tokens,
    }


async def test_a_cancelled_stream_that_nobody_closes_settles_by_its_time_to_live(clock, paceline_emulator):
    """Cancelled between two chunks, an SDK leaves its stream open until the garbage collector comes."""
    world = paceline_emulator(limits={"gpt-5": LIMITS["openai/*"]}, latency_per_token_s=0.002)
    limiter = paceline.Limiter({"openai/*": [*LIMITS["openai/*"], "1 concurrency"]}, ttl_s=30, clock=clock)
    kept = []
    async with openai.AsyncOpenAI(api_key="k", base_url=f"{world.base_url}/v1") as client:
        limiter.attach(client, provider="openai")

        async def consume():
            stream = await client.chat.completions.create(model="gpt-5", messages=PROMPT, stream=True, max_tokens=5_000)
            kept.append(stream)  # what a framework's bookkeeping does
            async for _ in stream:
                between_chunks.set()
                await asyncio.Event().wait()

        between_chunks = asyncio.Event()
        task = asyncio.create_task(consume())
        await asyncio.wait_for(between_chunks.wait(), BOUND_S)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert pool_of(limiter)["in_flight"] == 1
        # Its slot comes back by itself: this call would wait for ever.
        call = asyncio.create_task(client.chat.completions.create(model="gpt-5", messages=PROMPT, max_tokens=5))
        await soon(lambda: pool_of(limiter)["waiting"])
        clock.advance(31)
        await call
        assert counts(limiter)["lost"] == 1
        await kept[0].close()


def test_a_permit_taken_above_is_not_charged_again_below(world, limiter):
    with openai.OpenAI(api_key="k", base_url=f"{world.base_url}/v1") as client:
        limiter.attach(client, provider="openai")
        with limiter.acquire("openai/gpt-5", input_tokens=100, output_tokens=5):
            answer = client.chat.completions.create(model="gpt-5", messages=PROMPT, max_tokens=5)
    assert counts(limiter) == {"granted": 1, "settled": 1}
    assert spent(limiter)["tokens"] == answer.usage.prompt_tokens + 5
