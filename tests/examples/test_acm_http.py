"""The evaluation program over HTTP: five SDKs, five dialects, and an emulated provider for each."""

from __future__ import annotations

import contextlib
import sys

import pytest
from acm_example import LIMITS, clients, program

import paceline
from paceline.config import load_arguments

ENFORCED = {
    "openai": ("gpt-6.1-sol", "700 requests/min,600k tokens/min", {("requests", 60): 700, ("tokens", 60): 600e3}),
    "anthropic": (
        "claude-haiku-5-5", "70 requests/min,60k input_tokens/min,12k output_tokens/min",
        {("requests", 60): 70, ("input_tokens", 60): 60e3, ("output_tokens", 60): 12e3},
    ),
    # No header tells: the refusal does.
    "google": ("gemini-3.8-flash", "60 requests/min", {("requests", 60): 60, ("requests", 86_400): 10e3}),
    # The file has requests a minute, Azure counts them over ten seconds.
    "azure": ("gpt-6-astra", "40 requests/10s,45k tokens/min", {("requests", 10): 40, ("tokens", 60): 45e3}),
    "groq": (
        "openai/gpt-oss-120b", "9k requests/day,30k tokens/min", {("requests", 86_400): 9e3, ("tokens", 60): 30e3},
    ),
}  # fmt: skip
"""Of each provider a model, what its emulator enforces, and what the limiter should hold then, by unit and period."""
POOLS = {"google": "gemini"}


@contextlib.asynccontextmanager
async def program_of(emulators, **given):
    """A limiter by the file, and the five clients behind it."""
    limiter = paceline.Limiter(**load_arguments(LIMITS, {}, **given))
    # A provider that is not called needs an address all the same.
    urls = dict.fromkeys(clients.PROVIDERS, "http://127.0.0.1:9") | {
        provider: emulator.base_url for provider, emulator in emulators.items()
    }
    everybody = clients.Clients(limiter, urls)
    try:
        yield limiter, everybody
    finally:
        await everybody.close()
        limiter.close()


def pool_of(limiter, provider, model):
    return limiter.status()["pools"][f"{POOLS.get(provider, provider)}/{model}"]


def held(pool):
    return {(quota["unit"], quota["period_s"]): quota["limit"] for quota in pool["quotas"]}


@pytest.mark.parametrize("provider", ENFORCED)
async def test_the_answer_is_authoritative_in_five_dialects(provider, paceline_emulator):
    model, limits, expected = ENFORCED[provider]
    emulator = paceline_emulator({model: limits})
    async with program_of({provider: emulator}) as (limiter, everybody):
        before = held(limiter.pacer.pools.scheduler(f"{provider}/{model}").status())
        if provider == "google":
            emulator.reset(start_level=0.0)
        text = await everybody.ask(provider, model, "Say something about the weather.", 60)
        pool = pool_of(limiter, provider, model)
    assert len(text) > 20
    after = held(pool)
    assert {quota: after[quota] for quota in expected} == expected
    assert any(before.get(quota) != limit for quota, limit in expected.items())
    assert pool["counts"].get("refused_rate", 0) == (provider == "google")
    assert (pool["counts"]["settled"], pool["in_flight"]) == (1, 0)


async def test_the_whole_program(capsys):
    """Every component and every provider: nothing refused, and never more in flight than the file says."""
    options = program.parse(["--documents", "12", "--speed", "4"])
    outcome = await program.run(options)
    assert outcome.evaluation.failed == []
    assert outcome.evaluation.answered == 120
    assert set(outcome.tallies) == set(clients.PROVIDERS)
    assert {provider: tally["refused_total"] for provider, tally in outcome.tallies.items()} == dict.fromkeys(
        clients.PROVIDERS, 0
    )
    most = {"openai": 10, "anthropic": 5, "google": 10, "azure": 10, "groq": 5}
    for provider, tally in outcome.tallies.items():
        assert 2 <= tally["in_flight_peak"] <= most[provider]
    said = capsys.readouterr().out
    assert said.startswith("120 calls: about ")
    assert "azure/gpt-6-astra: 140 requests/10s (the file does not say so)" in said


def test_a_restart_of_the_program_knows_the_day(tmp_path, capsys, monkeypatch):
    words = ["run.py", "--documents", "4", "--speed", "10", "--state", str(tmp_path / "acm.db")]
    monkeypatch.setattr(sys, "argv", words)
    assert program.main() == 0
    said = capsys.readouterr().out
    assert "used today" not in said
    assert "google saw 16 requests, refused 0, at most " in said
    assert "took " in said.splitlines()[-1]
    assert program.main() == 0
    said = capsys.readouterr().out
    assert "used today: gemini/gemini-3.8-flash: 1" in said  # 16 requests, less what has come back
    assert "used today: groq/openai/gpt-oss-120b: " in said
