"""The example's agent: real LangChain on the limiter of the example's pipeline."""

import asyncio
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from long_tools import Calls, long_json, long_text

HOME = Path(__file__).resolve().parents[3] / "examples" / "contextualizer"
sys.path.insert(0, str(HOME))

from limited_agent import make_agent, make_model  # noqa: E402
from limited_provider import make_provider  # noqa: E402
from limited_settings import MODEL, POOL, Settings  # noqa: E402
from rate_limiting import TPMThrottle  # noqa: E402
from token_budget import TokenBudgetMiddleware  # noqa: E402

SPEED = 20
"""Three seconds for a minute."""

TEXT = "Say something about the weather of yesterday, and of the day before. " * 20


@pytest.fixture
def world(paceline_emulator):
    return paceline_emulator(limits={MODEL: "30k tokens/3s"}, latency_s=0.05, jitter=0.5)


def spent(limiter):
    return limiter.status()["pools"][POOL]["quotas"][0]["spent"]


@pytest.mark.parametrize("limited", [True, False])
def test_history_is_trimmed_to_max_input_tokens(world, limited):
    limiter = Settings().limiter(SPEED) if limited else None
    agent = make_agent(make_model(limiter, world.base_url), limiter, max_input_tokens=2_000)
    messages, sent = [], []
    for _ in range(10):
        messages = agent.invoke({"messages": [*messages, HumanMessage(TEXT)]})["messages"]
        sent.append(messages[-1].usage_metadata["input_tokens"])
    assert len(messages) == 20  # the conversation keeps everything
    assert sent[0] < sent[1] <= max(sent) <= 2_000 * 1.1  # an estimate
    assert sent[-1] > 1_000


def test_the_agent_waits_on_the_same_limiter(world):
    settings = Settings()
    limiter = settings.limiter(SPEED)
    provider = make_provider(limiter, world.base_url)
    agent = make_agent(make_model(limiter, world.base_url), limiter)
    provider.generate(TEXT)
    before = spent(limiter)
    assert before == world.tally()["pools"][MODEL]["charges"]["tokens"]
    agent.invoke({"messages": [HumanMessage(TEXT)]})
    assert spent(limiter) > before
    assert spent(limiter) == world.tally()["pools"][MODEL]["charges"]["tokens"]
    assert list(limiter.status()["pools"]) == [POOL]
    assert limiter.status()["pools"][POOL]["counts"] == {"granted": 2, "settled": 2}  # charged once each


def test_pipeline_and_agent_at_the_same_time_none_refused(world):
    settings = Settings()
    limiter = settings.limiter(SPEED)
    provider = make_provider(limiter, world.base_url)
    agent = make_agent(make_model(limiter, world.base_url), limiter)

    def talk(_):
        messages = []
        for _turn in range(8):
            messages = agent.invoke({"messages": [*messages, HumanMessage(TEXT * 2)]})["messages"]

    with ThreadPoolExecutor(12) as pool:
        talks = [pool.submit(talk, number) for number in range(2)]
        calls = [pool.submit(provider.generate, TEXT * 3) for _ in range(40)]
        for job in [*talks, *calls]:
            job.result(60)
    tally = world.tally()
    assert (tally["admitted"], tally["refused_total"]) == (56, 0)
    assert spent(limiter) > 2 * 30_000  # more than was there at once
    assert provider.waited_s > 1


def test_one_command_runs_both_none_refused():
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MAX_", "RETRY_", "TPM_"))}
    command = [sys.executable, str(HOME / "run.py"), "--speed", "30"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert sum(line.startswith("pipeline ") and " waited " in line for line in lines) == 40
    assert sum(line.startswith("agent ") for line in lines) == 16
    assert lines[-1] == "the API admitted 56 requests and refused 0"


# --- with the author's names


class Fixed:
    """Estimates every call alike, and remembers what it was asked."""

    def __init__(self, tokens):
        self.tokens, self.asked = tokens, []

    def estimate(self, messages, model):
        self.asked.append((model, messages))
        return self.tokens


def named_agent(world, tools=(), **options):
    model = Calls if tools else ChatOpenAI
    chat = model(model=MODEL, max_tokens=40, max_retries=0, base_url=f"{world.base_url}/v1", api_key="any")
    return create_agent(chat, list(tools), system_prompt="Be brief.", middleware=[TokenBudgetMiddleware(**options)])


@pytest.mark.parametrize("in_loop", [False, True])
def test_the_middleware_waits_on_the_throttle_and_records_what_was_used(world, in_loop):
    throttle, estimator = TPMThrottle(30_000, 1.0), Fixed(500)
    agent = named_agent(world, throttle=throttle, estimator=estimator, model_name="test-model")
    asked = {"messages": [HumanMessage(TEXT)]}
    said = asyncio.run(agent.ainvoke(asked)) if in_loop else agent.invoke(asked)
    [(model, messages)] = estimator.asked
    assert (model, [one["role"] for one in messages]) == ("test-model", ["system", "human"])
    assert throttle.current_usage == said["messages"][-1].usage_metadata["total_tokens"] > 0
    throttle.record_usage(30_000 - throttle.current_usage)
    assert throttle.remaining_budget == 0  # the pipeline's own calls are in the same window


@pytest.mark.parametrize("limited", [True, False])
def test_the_middleware_trims_and_cuts_also_without_a_throttle(world, limited):
    throttle = TPMThrottle(30_000) if limited else None
    middleware = TokenBudgetMiddleware(max_input_tokens=5_000)
    assert (middleware.throttle, middleware.estimator, middleware.max_tool_output_chars) == (None, None, 12_000)
    options = {"throttle": throttle, "estimator": Fixed(500)} if limited else {}
    agent = named_agent(world, [long_text, long_json], max_input_tokens=20_000, **options)
    messages = agent.invoke({"messages": [HumanMessage("Read both.")]})["messages"]
    assert [len(one.content) <= 12_000 for one in messages if one.type == "tool"] == [True, True]
    agent, messages = named_agent(world, max_input_tokens=2_000, **options), []
    for _ in range(6):
        messages = agent.invoke({"messages": [*messages, HumanMessage(TEXT)]})["messages"]
    assert len(messages) == 12
    assert messages[-1].usage_metadata["input_tokens"] <= 2_000 * 1.1
