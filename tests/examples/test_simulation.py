"""The population simulation: what it asks of two models' limits, and whole runs at the emulator."""

import asyncio
import sys

import pytest
from example_programs import load

import paceline

program, population = load("simulation", "population")
set_up = program.set_up


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch, tmp_path):
    for name in program.KEYS.values():
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def said(*words):
    return program.parse([str(word) for word in words])


def limits(model, *words):
    setup = set_up(said("--pivotal", model, "--routine", model, *words))
    [(_, quotas)] = setup.pools.values()
    assert {quota.period_s for quota in quotas} == {60}
    return {quota.unit: quota.amount for quota in quotas}


async def simulate(*words, **world):
    options = said(*words)
    setup = set_up(options)
    rows, people = await program.run(options, setup, **world)
    assert people.failed == []
    return {row.model: row for row in rows}, people, setup


def test_claude_is_an_alias_of_anthropic():
    setup = set_up(said("--provider", "claude"))
    assert setup.provider == "anthropic"
    assert set(setup.emulated) == {"claude-sonnet-5", "claude-haiku-5-5"}


def test_anthropic_has_three_quotas_and_openai_one_for_tokens():
    assert list(limits("claude-sonnet-4-5", "--provider", "anthropic")) == ["requests", "input_tokens", "output_tokens"]
    assert list(limits("gpt-6.1-sol")) == ["requests", "tokens"]


# --- pools and who is in flight --------------------------------------------------------------------------------------


@pytest.mark.long("runs in real time")
async def test_each_model_has_its_pool_and_one_model_in_both_roles_has_one():
    rows, _, setup = await simulate("--agents", 3, "--rounds", 1, "--speed", 20)
    assert sorted(setup.limiter.status()["pools"]) == ["openai/gpt-6-luna", "openai/gpt-6.1-sol"]
    assert rows["gpt-6.1-sol"].requests == rows["gpt-6-luna"].requests == 3
    rows, _, setup = await simulate("--agents", 3, "--rounds", 1, "--speed", 20, "--routine", "gpt-6.1-sol")
    assert list(setup.limiter.status()["pools"]) == ["openai/gpt-6.1-sol"]
    assert [(row.model, row.requests) for row in rows.values()] == [("gpt-6.1-sol", 6)]


@pytest.mark.long("a run in real time")
async def test_agents_in_flight_are_derived_from_the_limits():
    _, people, _ = await simulate("--agents", 40, "--rounds", 1, "--rpm-override", 20, "--speed", 60)
    assert people.peak == 10  # half a minute's requests


async def test_never_more_than_that_are_in_flight():
    now = peak = 0

    async def ask(model, prompt, most):
        nonlocal now, peak
        now += 1
        peak = max(peak, now)
        await asyncio.sleep(0)
        now -= 1
        return "So be it."

    people = population.Population(100, ask, lambda: 7)
    await people.run(2, "gpt-6.1-sol", "gpt-6-luna")
    assert peak == people.peak == 7


# --- estimates -------------------------------------------------------------------------------------------------------


async def test_estimates_come_from_the_prompt_and_the_expected_output(paceline_emulator):
    setup = set_up(said())
    world = paceline_emulator(limits=setup.emulated)
    model = population.Model(setup.limiter, setup.provider, world.base_url)
    people = population.Population(20, model.ask, lambda: 10)
    await people.run(1, "gpt-6.1-sol", "gpt-6-luna")
    await model.close()
    for record in model.records:
        expected = 300 if record.pool == "openai/gpt-6.1-sol" else 80
        assert record.cost["tokens"] - record.cost["input_tokens"] == pytest.approx(expected)
        assert record.cost["input_tokens"] == pytest.approx(record.usage.input_tokens, rel=0.25)
    used = [record.usage.input_tokens for record in model.records]
    assert len(used) == 40
    assert min(used) < 300
    assert max(used) > 1_000


# --- who beats whom --------------------------------------------------------------------------------------------------


def test_overrides_beat_the_file_which_beats_the_tables(tmp_path):
    file = tmp_path / "simulation.toml"
    file.write_text('provider = "openai"\ntier = 2\n[limits]\n"gpt-6.1-sol" = ["700 requests/min", "90k tokens/min"]\n')
    config = ("--config", file)
    assert limits("gpt-6.1-sol") == {"requests": 500, "tokens": 500e3}
    assert limits("gpt-6.1-sol", *config) == {"requests": 700, "tokens": 90e3}
    assert limits("gpt-6-luna", *config) == {"requests": 5_000, "tokens": 2e6}
    assert limits("gpt-6-luna", *config, "--rate-tier", 3) == {"requests": 5_000, "tokens": 4e6}
    assert limits("gpt-6.1-sol", *config, "--rpm-override", 900) == {"requests": 900, "tokens": 90e3}
    overrides = ("--rpm-override", 900, "--tpm-override", 1e6)
    assert limits("gpt-6.1-sol", *config, *overrides) == {"requests": 900, "tokens": 1e6}
    assert limits("gpt-6.1-sol", *config, *overrides, "--speed", 2) == {"requests": 1_800, "tokens": 2e6}


def test_overrides_belong_to_the_pivotal_model_and_the_tier_to_both():
    setup = set_up(said("--rate-tier", 3, "--rpm-override", 300, "--tpm-override", 90_000))
    quotas = [{quota.unit: quota.amount for quota in quotas} for _, quotas in setup.pools.values()]
    assert quotas == [{"requests": 300, "tokens": 90_000}, {"requests": 5_000, "tokens": 4e6}]


def test_a_file_that_names_no_provider_is_about_openai(tmp_path, monkeypatch):
    file = tmp_path / "simulation.toml"
    file.write_text('[limits]\n"gpt-6.1-sol" = "700 requests/min"\n')
    config = ("--config", file)
    assert limits("gpt-6.1-sol", *config) == {"requests": 700}
    assert limits("gpt-6-luna", *config, "--rate-tier", 2) == {"requests": 5_000, "tokens": 2e6}
    monkeypatch.setenv("PACELINE_PROVIDER", "anthropic")
    assert set_up(said(*config)).provider == "anthropic"
    assert set_up(said(*config, "--provider", "openai")).provider == "openai"


def test_what_cannot_be_meant_is_said(capsys, monkeypatch):
    with pytest.raises(paceline.SettingsError, match="tier_4"):
        set_up(said("--rate-tier", 9))
    with pytest.raises(SystemExit):
        said("--live", "--speed", 2)
    monkeypatch.setattr(sys, "argv", ["run.py", "--live"])
    assert program.main() == 2
    assert "OPENAI_API_KEY" in capsys.readouterr().err


# --- whole runs ------------------------------------------------------------------------------------------------------


async def test_limits_and_levels_follow_the_answers_headers():
    fast = {"gpt-6.1-sol|gpt-6-luna": "800 requests/min,600k tokens/min"}
    rows, _, setup = await simulate("--agents", 5, "--rounds", 1, "--routine", "gpt-6.1-sol", limits=fast, latency_s=0)
    [pool] = setup.limiter.status()["pools"].values()
    assert {quota["unit"]: quota["limit"] for quota in pool["quotas"]} == {"requests": 800, "tokens": 600e3}
    assert rows["gpt-6.1-sol"].requests == 10
