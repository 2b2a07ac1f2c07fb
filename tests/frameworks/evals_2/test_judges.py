"""deepeval and ragas: their models at once, and the deadlines that they set for an attempt."""

import asyncio
import os

os.environ |= {"DEEPEVAL_TELEMETRY_OPT_OUT": "YES", "RAGAS_DO_NOT_TRACK": "true", "DEEPEVAL_RETRY_MAX_ATTEMPTS": "1"}

import pytest
from deepeval.models import OpenAIModel
from harness import row
from langchain_core.prompt_values import StringPromptValue
from langchain_openai import ChatOpenAI
from ragas.llms import LangchainLLMWrapper
from ragas.run_config import RunConfig

import paceline

SLOTS = ["100k requests/min", "10M tokens/min", "2 concurrency"]
POOL = "openai/gpt-5"
CROWD = 24
"""With two slots and a fifth of a second for each answer they take 2.4 s."""


@pytest.fixture
def world(paceline_emulator):
    return paceline_emulator(limits={"gpt-5": SLOTS}, latency_s=0.2)


@pytest.fixture
def limiter():
    return paceline.Limiter({"openai/*": SLOTS})


@pytest.mark.parametrize("disabled", [True, False])
async def test_deepeval(world, limiter, monkeypatch, disabled):
    monkeypatch.setenv("DEEPEVAL_PER_ATTEMPT_TIMEOUT_SECONDS_OVERRIDE", "1")
    monkeypatch.setenv("DEEPEVAL_DISABLE_TIMEOUTS", str(disabled))
    model = OpenAIModel(
        model="gpt-5", api_key="k", base_url=f"{world.base_url}/v1", generation_kwargs={"max_tokens": 8}
    )
    with paceline.instrument(limiter, provider="openai"):
        calls = [model.a_generate(f"What is {i} plus 1?") for i in range(CROWD)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
    late = [answer for answer in answers if isinstance(answer, Exception)]
    if not disabled:
        assert late != []  # its deadline includes the wait in the queue
        return
    assert late == []
    assert row("deepeval", "24 at once", limiter, world, "gpt-5", POOL)["attempts"] == CROWD


async def test_ragas(world, limiter):
    chat = ChatOpenAI(model="gpt-5", api_key="k", base_url=f"{world.base_url}/v1", max_tokens=8, max_retries=0)
    llm = LangchainLLMWrapper(chat, run_config=RunConfig(timeout=1, max_retries=1))
    with paceline.instrument(limiter, provider="openai"):
        prompts = [StringPromptValue(text=f"What is {i} plus 1?") for i in range(CROWD)]
        answers = await asyncio.gather(*[llm.generate(prompt) for prompt in prompts])
    assert all(answer.generations[0][0].text for answer in answers)
    assert row("ragas", "24 at once", limiter, world, "gpt-5", POOL)["attempts"] == CROWD
