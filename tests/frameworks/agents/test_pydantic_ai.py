"""pydantic-ai against the emulator: OpenAI's two APIs and Anthropic's, sync, async, streamed."""

import asyncio

import httpx2
import pytest
from harness import LIMITS, PROMPT, books_agree, crowd_row
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

import paceline

PROVIDER = "openai"
GPT, CLAUDE = "openai/gpt-5", "anthropic/claude-haiku-4-5"

SETTINGS = {"max_tokens": 40}


def gpt(world, model_class=OpenAIChatModel):
    return model_class("gpt-5", provider=OpenAIProvider(api_key="k", base_url=f"{world.base_url}/v1"))


@pytest.mark.parametrize("model_class", [OpenAIChatModel, OpenAIResponsesModel])
async def test_openai_run_and_stream(world, limiter, model_class):
    model = gpt(world, model_class)
    limiter.attach(model.client, provider="openai")
    agent = Agent(model, model_settings=SETTINGS)
    await agent.run(PROMPT)
    async with agent.run_stream(PROMPT) as streamed:
        assert await streamed.get_output()
    await asyncio.gather(*[agent.run(PROMPT) for _ in range(20)])
    books_agree(limiter, world, GPT, 22)


async def test_an_http_client_of_ones_own(world):
    limiter = paceline.Limiter({"anthropic/*": LIMITS["anthropic/*"]})
    async with httpx2.AsyncClient(timeout=30) as http_client:
        limiter.attach(http_client)
        provider = AnthropicProvider(api_key="k", base_url=world.base_url, http_client=http_client)
        agent = Agent(AnthropicModel("claude-haiku-4-5", provider=provider), model_settings=SETTINGS)
        await agent.run(PROMPT)
        async with agent.run_stream(PROMPT) as streamed:
            assert await streamed.get_output()
    books_agree(limiter, world, CLAUDE, 2)


async def test_our_refusal_is_one_error(world, limiter):
    model = gpt(world)
    limiter.attach(model.client, provider="openai")
    with pytest.raises(ModelHTTPError, match="the quota holds 4,000,000") as error:
        await Agent(model, model_settings={"max_tokens": 5_000_000}).run(PROMPT)
    assert error.value.status_code == 429
    assert world.tally()["admitted"] == 0


def test_a_crowd_in_threads_and_tasks(paceline_emulator):
    def calls(world):
        agent = Agent(gpt(world), model_settings=SETTINGS)
        return lambda: Agent(gpt(world), model_settings=SETTINGS).run_sync(PROMPT), lambda: agent.run(PROMPT)

    crowd_row(paceline_emulator, "pydantic-ai-slim", "over openai 3", GPT, calls)
