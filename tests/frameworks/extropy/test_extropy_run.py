"""extropy's own loop over agents (0.2.3: the newest whose wheel starts), its calls sent to the emulator by openai 1.

Replaced are the prompts, and what reads an answer as JSON: the emulator writes prose.
"""

import asyncio

import openai
import openai.resources.chat  # at the first call it would take part of the deadline
import pytest
from extropy.core.models.simulation import ReasoningContext, SimulationRunConfig
from extropy.core.providers.base import TokenUsage
from extropy.simulation import engine, reasoning
from harness import PROMPT

import paceline
from paceline.integrations.extropy import ExtropyLimiter

AGENTS = 60
LIMITS = {
    "openai/gpt-5": ["1200 requests/min burst 30", "1M tokens/min"],
    "openai/gpt-5-mini": ["600 requests/min burst 5", "1M tokens/min"],
}


@pytest.fixture
def world(paceline_emulator):
    return paceline_emulator(limits="1200 requests/min,1M tokens/min", latency_s=0.2, headers=False)


@pytest.fixture
def loop(monkeypatch, world):
    """Let extropy's loop ask the emulator."""
    clients = []

    async def simple_call_async(prompt, model, **_):
        if not clients:
            clients.append(openai.AsyncOpenAI(api_key="k", base_url=f"{world.base_url}/v1"))
        answer = await clients[0].chat.completions.create(
            model=model, messages=[{"role": "user", "content": prompt}], max_completion_tokens=80
        )
        usage = TokenUsage(answer.usage.prompt_tokens, answer.usage.completion_tokens)
        return {"reasoning": answer.choices[0].message.content, "conviction": 50}, usage

    async def close():
        await clients[0].close()

    monkeypatch.setattr(reasoning, "simple_call_async", simple_call_async)
    monkeypatch.setattr(reasoning, "close_simulation_provider", close)
    for name, value in {
        "build_pass1_prompt": PROMPT, "build_pass1_schema": {}, "build_pass2_prompt": PROMPT,
        "build_pass2_schema": {"type": "object"}, "_get_primary_position_outcome": None,
    }.items():  # fmt: skip
        monkeypatch.setattr(reasoning, name, lambda *_, value=value: value)


def test_the_two_passes_of_a_population(monkeypatch, loop, world):
    limiter = paceline.Limiter(LIMITS, headroom_s=0)
    monkeypatch.setattr(engine.DualRateLimiter, "create", ExtropyLimiter.factory(limiter))
    dual = engine.DualRateLimiter.create(provider="openai", pivotal_model="gpt-5", routine_model="gpt-5-mini", tier=1)
    scenario = type("Scenario", (), {"outcomes": None})()
    config = SimulationRunConfig(scenario_path="", output_dir="", model="gpt-5", routine_model="gpt-5-mini")
    contexts = [
        ReasoningContext(agent_id=str(number), persona="", event_content="", exposure_history=[])
        for number in range(AGENTS)
    ]
    monkeypatch.setattr(asyncio, "wait_for", shortened(asyncio.wait_for))
    with paceline.instrument(limiter):
        results, used = reasoning.batch_reason_agents(contexts, scenario, config, rate_limiter=dual)
    assert all(answer is not None and answer.outcomes for _, answer in results)
    tally = world.tally()
    assert tally["refused_total"] == 0
    assert tally["admitted"] == 2 * AGENTS
    for pool, model in (("openai/gpt-5", "gpt-5"), ("openai/gpt-5-mini", "gpt-5-mini")):
        status = limiter.status()["pools"][pool]
        assert status["counts"] == {"granted": AGENTS, "settled": AGENTS}
        spent = {quota["unit"]: quota["spent"] for quota in status["quotas"]}
        assert spent == tally["pools"][model]["charges"]
    assert used.pivotal_input_tokens
    assert dual.routine.stats()["total_wait_time_seconds"] > AGENTS / 4


def shortened(wait_for):
    """Deadlines of two seconds: nothing waits below them."""
    return lambda call, timeout: wait_for(call, min(timeout, 2.0))
