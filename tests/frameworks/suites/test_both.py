"""openai and anthropic in one process, of majors that send through different libraries, under one limiter."""

import asyncio

import anthropic
import openai
import pytest
from harness import LIMITS, MESSAGES, charged, counts, spent

import paceline

CHAT = {"model": "gpt-5", "messages": MESSAGES, "max_tokens": 20}
STREAM = CHAT | {"stream": True, "stream_options": {"include_usage": True}}
MESSAGE = {"model": "claude-haiku-4-5", "messages": MESSAGES, "max_tokens": 20}
POOLS = "openai/gpt-5", "anthropic/claude-haiku-4-5"


@pytest.fixture
def limiter():
    limiter = paceline.Limiter(LIMITS)
    limiter.limits.provider = "openai"  # anthropic's header tells by itself
    return limiter


async def calls(world):
    """Two calls of each pool in sync, a whole answer and a stream, and two in async at once."""
    ours, theirs = {"api_key": "k", "base_url": f"{world.base_url}/v1"}, {"api_key": "k", "base_url": world.base_url}
    with openai.OpenAI(**ours) as chat, anthropic.Anthropic(**theirs) as claude:
        chat.chat.completions.create(**CHAT)
        claude.messages.create(**MESSAGE)
        for _ in chat.chat.completions.create(**STREAM):
            pass
        with claude.messages.stream(**MESSAGE) as stream:
            stream.get_final_message()

    async with openai.AsyncOpenAI(**ours) as chat, anthropic.AsyncAnthropic(**theirs) as claude:

        async def chat_stream():
            async for _ in await chat.chat.completions.create(**STREAM):
                pass

        async def claude_stream():
            async with claude.messages.stream(**MESSAGE) as stream:
                await stream.get_final_message()

        whole = chat.chat.completions.create(**CHAT), claude.messages.create(**MESSAGE)
        await asyncio.gather(*whole, chat_stream(), claude_stream())


async def test_one_instrument_paces_both(world, limiter):
    with paceline.instrument(limiter):
        await calls(world)
    for pool in POOLS:
        assert counts(limiter, pool) == {"granted": 4, "settled": 4}
    assert spent(limiter, POOLS[0]) == charged(world, "gpt-5")
    assert spent(limiter, POOLS[1])["output_tokens"] == charged(world, "claude-haiku-4-5")["output_tokens"]
    await calls(world)  # undone
    assert counts(limiter, POOLS[0]) == {"granted": 4, "settled": 4}
