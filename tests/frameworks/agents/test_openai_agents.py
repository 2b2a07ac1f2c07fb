"""openai-agents against the emulator: Responses and chat completions, sync, async, streamed."""

import openai
import pytest
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIProvider,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    set_default_openai_client,
)
from harness import PROMPT, books_agree, crowd_row

import paceline

PROVIDER = "openai"
POOL, MODEL = "openai/gpt-5", "gpt-5"


@pytest.fixture
def client(world):
    return openai.AsyncOpenAI(api_key="k", base_url=f"{world.base_url}/v1")


def agent(model, most=40):
    settings = ModelSettings(max_tokens=most, include_usage=True)
    return Agent(name="weather", model=model, model_settings=settings)


QUIET = RunConfig(tracing_disabled=True)


@pytest.mark.parametrize("model_class", [OpenAIResponsesModel, OpenAIChatCompletionsModel])
async def test_run_and_stream(world, limiter, client, model_class):
    limiter.attach(client, provider="openai")
    weather = agent(model_class("gpt-5", client))
    answer = await Runner.run(weather, PROMPT, run_config=QUIET)
    streamed = Runner.run_streamed(weather, PROMPT, run_config=QUIET)
    async for _ in streamed.stream_events():
        pass
    assert answer.final_output
    assert streamed.final_output
    books_agree(limiter, world, POOL, 2)


def test_run_sync_and_a_provider_of_ones_own_by_instrument(world, limiter, client):
    set_default_openai_client(client, use_for_tracing=False)
    own = OpenAIProvider(api_key="k", base_url=f"{world.base_url}/v1")
    with paceline.instrument(limiter):
        for config in (QUIET, RunConfig(tracing_disabled=True, model_provider=own)):
            Runner.run_sync(agent("gpt-5"), PROMPT, run_config=config)
    books_agree(limiter, world, POOL, 2)


def test_a_crowd_in_tasks(paceline_emulator):
    def calls(world):
        client = openai.AsyncOpenAI(api_key="k", base_url=f"{world.base_url}/v1", max_retries=0)
        weather = agent(OpenAIResponsesModel("gpt-5", client))
        return None, lambda: Runner.run(weather, PROMPT, run_config=QUIET)

    crowd_row(paceline_emulator, "openai-agents", "over openai 3", POOL, calls)
