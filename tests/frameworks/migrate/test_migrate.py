"""The tools of docs/migrate.md before a provider that counts: with their own settings, and with those that the page gives."""

import asyncio

import openai
import pytest
from aiolimiter import AsyncLimiter
from autogen_core.models import UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient
from graphrag_llm.completion import create_completion
from graphrag_llm.config import ModelConfig
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random_exponential

import paceline

CALLS = 60
LIMIT = "20 requests/2s"
MESSAGES = [{"role": "user", "content": "Why is the sky blue?"}]


@pytest.fixture
def world(paceline_emulator):
    return paceline_emulator(limits={"*": f"{LIMIT} bucket"})


def client(world):
    return openai.AsyncOpenAI(api_key="k", base_url=f"{world.base_url}/v1", max_retries=0)


def plain(world):
    create = client(world).chat.completions.create
    return lambda: create(model="gpt-4o", messages=MESSAGES)


def autogen(world):
    model = OpenAIChatCompletionClient(model="gpt-4o", api_key="k", base_url=f"{world.base_url}/v1", max_retries=0)
    return lambda: model.create([UserMessage(content="Why?", source="user")])


def graphrag(world):
    settings = {"api_base": f"{world.base_url}/v1", "api_key": "k", "retry": {"type": "immediate", "max_retries": 2}}
    model = create_completion(ModelConfig(model_provider="openai", model="gpt-4o", **settings))
    return lambda: model.completion_async(messages="Why?")


def tenacity(world):
    rate = retry_if_exception_type(openai.RateLimitError)
    return retry(wait=wait_random_exponential(min=1, max=60), stop=stop_after_attempt(6), retry=rate)(plain(world))


def aiolimiter(world):
    limiter, call = AsyncLimiter(40, 2), plain(world)  # set too high, as a limit of its own must be

    async def ask():
        async with limiter:
            return await call()

    return ask


async def answers(call):
    return await asyncio.gather(*[call() for _ in range(CALLS)], return_exceptions=True)


@pytest.mark.parametrize("tool", [plain, autogen, graphrag, aiolimiter])
async def test_without_paceline_requests_are_refused(world, tool):
    await answers(tool(world))
    assert world.tally()["refused"]["rate"] > 0


@pytest.mark.parametrize("tool", [plain, autogen, graphrag, tenacity, aiolimiter])
async def test_with_it_each_is_answered_and_none_refused(world, tool):
    call = tool(world)
    with paceline.instrument(paceline.Limiter({"*": LIMIT}), provider="openai"):
        found = await answers(call)
    assert [one for one in found if isinstance(one, BaseException)] == []
    assert (world.tally()["admitted"], world.tally()["refused"]) == (CALLS, {})
