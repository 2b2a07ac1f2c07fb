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


def clients(world):
    ours = {"api_key": "k", "base_url": f"{world.base_url}/v1"}
    theirs = {"api_key": "k", "base_url": world.base_url}
    plain = openai.OpenAI(**ours), anthropic.Anthropic(**theirs)
    return *plain, openai.AsyncOpenAI(**ours), anthropic.AsyncAnthropic(**theirs)


async def close(chat, claude, async_chat, async_claude):
    chat.close()
    claude.close()
    await asyncio.gather(async_chat.close(), async_claude.close())


async def calls(world):
    """Two calls of each pool in sync, a whole answer and a stream, and two in async at once."""
    chat, claude, async_chat, async_claude = clients(world)
    chat.chat.completions.create(**CHAT)
    claude.messages.create(**MESSAGE)
    for _ in chat.chat.completions.create(**STREAM):
        pass
    with claude.messages.stream(**MESSAGE) as stream:
        stream.get_final_message()

    async def chat_stream():
        async for _ in await async_chat.chat.completions.create(**STREAM):
            pass

    async def claude_stream():
        async with async_claude.messages.stream(**MESSAGE) as stream:
            await stream.get_final_message()

    whole = async_chat.chat.completions.create(**CHAT), async_claude.messages.create(**MESSAGE)
    await asyncio.gather(*whole, chat_stream(), claude_stream())
    await close(chat, claude, async_chat, async_claude)


async def test_one_instrument_paces_both(world, limiter):
    with paceline.instrument(limiter):
        await calls(world)
    for pool in POOLS:
        assert counts(limiter, pool) == {"granted": 4, "settled": 4}
    assert spent(limiter, POOLS[0]) == charged(world, "gpt-5")
    assert spent(limiter, POOLS[1])["output_tokens"] == charged(world, "claude-haiku-4-5")["output_tokens"]
    await calls(world)  # undone
    assert counts(limiter, POOLS[0]) == {"granted": 4, "settled": 4}


async def test_each_raises_its_own_error_in_one_attempt(world):
    limiter = paceline.Limiter({"*": "10 tokens/min", "anthropic/*": "10 input_tokens/min"})
    limiter.limits.provider = "openai"
    chat, claude, async_chat, async_claude = clients(world)
    with paceline.instrument(limiter):
        for error, call, asked in (
            (openai.RateLimitError, chat.chat.completions.create, CHAT),
            (anthropic.RateLimitError, claude.messages.create, MESSAGE),
        ):
            with pytest.raises(error, match="the quota holds 10") as raised:
                call(**asked)
            assert raised.value.response.request.headers["x-stainless-retry-count"] == "0"
        with pytest.raises(openai.RateLimitError):
            await async_chat.chat.completions.create(**CHAT, stream=True)
        with pytest.raises(anthropic.RateLimitError):
            await async_claude.messages.create(**MESSAGE, stream=True)
    await close(chat, claude, async_chat, async_claude)
    assert world.tally()["admitted"] == 0
