"""crewai against the emulator: its own providers for OpenAI and Anthropic's dialects, a crew, async, streamed."""

import asyncio
import os

os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true", "CREWAI_DISABLE_VERSION_CHECK": "true"}

import pytest
from crewai import LLM, Agent, Crew, Task
from harness import PROMPT, books_agree, crowd_row

import paceline

PROVIDER = "openai"
POOL = "openai/gpt-5"


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("CREWAI_STORAGE_DIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))


def llm(world, **options):
    return LLM(model="openai/gpt-5", api_key="k", base_url=f"{world.base_url}/v1", max_tokens=40, **options)


async def test_calls_sync_async_and_streamed(world, limiter):
    with paceline.instrument(limiter):
        assert llm(world).call(PROMPT)
        assert await llm(world).acall(PROMPT)
        assert llm(world, stream=True).call(PROMPT)
    books_agree(limiter, world, POOL, 3)


def crew(model):
    writer = Agent(role="writer", goal="write about the weather", backstory="a poet", llm=model, max_iter=1)
    task = Task(description=PROMPT, expected_output="one sentence", agent=writer)
    return Crew(agents=[writer], tasks=[task], verbose=False)


def test_a_crew_in_this_thread_and_in_others(world, limiter):
    with paceline.instrument(limiter):
        crew(llm(world)).kickoff()
        asyncio.run(crew(llm(world)).kickoff_async())
        asyncio.run(crew(llm(world)).akickoff())
    calls = world.tally()["admitted"]
    assert calls >= 3
    books_agree(limiter, world, POOL, calls)


def test_our_refusal_never_reaches_the_provider(world, limiter):
    """crewai itself tries three times, with pauses of about a second."""
    with paceline.instrument(limiter), pytest.raises(Exception, match="the quota holds 4,000,000"):
        LLM(model="openai/gpt-5", api_key="k", base_url=f"{world.base_url}/v1", max_tokens=5_000_000).call(PROMPT)
    assert world.tally()["admitted"] == 0


def test_a_crowd_in_threads_and_tasks(paceline_emulator):
    def calls(world):
        model = llm(world)
        return lambda: model.call(PROMPT), lambda: model.acall(PROMPT)

    crowd_row(paceline_emulator, "crewai", "over openai", POOL, calls)
