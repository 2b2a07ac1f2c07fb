"""The evaluation program over HTTP: five SDKs, five dialects, and an emulated provider for each."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys

import httpx2
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


async def test_limits_that_change_while_it_runs_are_followed(paceline_emulator):
    emulator = paceline_emulator({"gpt-6.1-sol": "500 requests/min,500k tokens/min"})
    async with program_of({"openai": emulator}) as (limiter, everybody):
        for limit in (500, 250, 800):
            emulator.set_limits({"gpt-6.1-sol": f"{limit} requests/min,{limit}k tokens/min"})
            await everybody.ask("openai", "gpt-6.1-sol", "Hello.", 50)
            now = held(pool_of(limiter, "openai", "gpt-6.1-sol"))
            assert (now["requests", 60], now["tokens", 60]) == (limit, limit * 1_000)
        assert emulator.tally()["refused_total"] == 0


@pytest.mark.parametrize("provider", ENFORCED)
async def test_estimates_are_corrected_and_compared_for_each_model(provider, paceline_emulator):
    model = ENFORCED[provider][0]
    emulator = paceline_emulator({"*": "6000 requests/min,6M tokens/min,6M input_tokens/min,6M output_tokens/min"})
    prompt = "The committee asked for 3 reports (A, B, C), each with numbers: 1,250; 3,475; 12,000. " * 4
    async with program_of({provider: emulator}, min_interval_s=0) as (limiter, everybody):
        ratios = []
        for _ in range(3):
            for _ in range(6):
                await everybody.ask(provider, model, prompt, 60)
            estimates = pool_of(limiter, provider, model)["estimates"]
            unit = "input_tokens" if "input_tokens" in estimates else "tokens"
            ratios.append(1 / estimates[unit]["ratio"])
    # The file's buffer is 1.1: that much above the truth is where corrected estimates settle.
    assert abs(ratios[-1] - 1.1) < max(abs(ratios[0] - 1.1), 0.02)
    assert ratios[-1] == pytest.approx(1.1, abs=0.15)


@pytest.mark.long("runs for seconds of real time")
async def test_an_outsider_on_the_same_key_costs_one_429_and_no_answer(paceline_emulator, caplog):
    """Somebody else empties the quota: the refusal is waited out as it asks, logged, and tried again."""
    model = "openai/gpt-oss-120b"
    caplog.set_level(logging.DEBUG, "paceline.rate_limit")
    emulator = paceline_emulator({model: "12 requests/min,500k tokens/min"})
    ask = {"model": model, "messages": [{"role": "user", "content": "Hello."}], "max_tokens": 5}
    async with program_of({"groq": emulator}) as (limiter, everybody):
        await everybody.ask("groq", model, "Hello.", 5)
        async with httpx2.AsyncClient(base_url=emulator.base_url, headers={"authorization": "Bearer any"}) as outsider:
            said = await asyncio.gather(*(outsider.post("/openai/v1/chat/completions", json=ask) for _ in range(20)))
            assert 429 in {answer.status_code for answer in said}
        started_s = asyncio.get_running_loop().time()
        assert await everybody.ask("groq", model, "Hello.", 5)
        took_s = asyncio.get_running_loop().time() - started_s
        counts = pool_of(limiter, "groq", model)["counts"]
    assert counts == {"granted": 3, "refused_rate": 1, "settled": 2}
    assert took_s > 0.4  # a request comes back every five seconds
    told = [record for record in caplog.records if record.event != "rate_limit.wait"]
    acquire, release = "rate_limit.acquire", "rate_limit.release"
    assert [record.event for record in told] == [
        acquire, release, acquire, "rate_limit.429_error", "rate_limit.retry", acquire, release,
    ]  # fmt: skip
    assert {record.pool for record in told} == {f"groq/{model}"}
    refused, settled = told[3], told[-1]
    assert (refused.levelname, refused.reason) == ("WARNING", "rate")
    assert refused.retry_after_s > 0
    assert settled.used["tokens"] > 0
    assert settled.rpm_remaining < 12
    assert settled.ratio > 0


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


@pytest.mark.long("runs for seconds of real time")
async def test_a_provider_that_is_down_is_left_alone_and_nothing_is_lost(tmp_path, capsys):
    """The breaker opens after five failures; after its pause the probe finds the provider well."""
    file = tmp_path / "limits.yaml"
    file.write_text(LIMITS.read_text().replace("pause_s: 60", "pause_s: 3"))
    options = program.parse(["--documents", "2", "--speed", "10", "--down", "groq", "--limits", str(file)])
    outcome = await program.run(options, jitter=0.0)
    calls = outcome.tallies["groq"]["admitted"]  # since the outage
    assert outcome.evaluation.failed == []
    assert outcome.evaluation.answered == 20
    assert calls == 1
    assert outcome.took_s < 30
    capsys.readouterr()


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
