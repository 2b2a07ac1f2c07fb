"""The command against the emulator: what it sends, what it finds, how it fails."""

import json
import os

import pytest
from click.testing import CliRunner

from odd_server import OddServer
from paceline.check.probe import target
from paceline.cli.app import app
from paceline.config import Config
from paceline.core.results import SettingsError


@pytest.fixture(autouse=True)
def no_keys(monkeypatch):
    for name in [name for name in os.environ if name.endswith("_API_KEY")]:
        monkeypatch.delenv(name)


def run(*arguments, answer=None):
    return CliRunner().invoke(app, ["check", *(str(argument) for argument in arguments)], input=answer)


def found(result):
    (one,) = json.loads(result.stdout)["models"]
    return {quota["configured"] or f"+{quota['use']}": (quota["stated"], quota["verdict"]) for quota in one["quotas"]}


def test_it_asks_and_sends_one_request(paceline_emulator):
    emulator = paceline_emulator(limits="gpt-5=5000 requests/min,1m tokens/min")
    result = run("gpt-5", "--base-url", emulator.base_url, answer="y\n")
    assert result.exit_code == 0
    assert "at most 16 tokens" in result.stderr
    assert f"gpt-5: {emulator.base_url}/v1/chat/completions" in result.stderr
    assert "a fraction of a cent" in result.stderr
    tally = emulator.tally()
    assert (tally["admitted"], tally["charges"]["tokens"] < 40) == (1, True)
    assert "more is allowed" in result.stdout
    assert '"openai/gpt-5" = ["5k requests/min", "1M tokens/min"]' in result.stdout


@pytest.mark.parametrize("answer", ["n\n", ""])
def test_without_consent_nothing_is_sent(paceline_emulator, answer):
    emulator = paceline_emulator()
    result = run("gpt-5", "--base-url", emulator.base_url, answer=answer)
    assert result.exit_code == 2
    assert "nothing has been sent" in result.stderr
    assert result.stdout.strip() in ("", answer.strip())  # click 8.2 repeats the answer there
    assert emulator.tally()["admitted"] == 0


def test_its_toml_is_a_configuration_that_holds(paceline_emulator, tmp_path):
    emulator = paceline_emulator(
        limits={"claude-haiku-4-5": "70 requests/min,60k input_tokens/min,9k output_tokens/min"}
    )
    first = run("claude-haiku-4-5", "--base-url", emulator.base_url, "--yes", "--json")
    assert first.exit_code == 0
    file = tmp_path / "paceline.toml"
    file.write_text(json.loads(first.stdout)["config"])
    second = run("--config", file, "--yes", "--json")
    assert found(second) == {
        "70 requests/min": (70, "as configured"),
        "60k input_tokens/min": (60_000, "as configured"),
        "9k output_tokens/min": (9_000, "as configured"),
    }
    assert set(json.loads(second.stdout)["models"][0]["sources"].values()) == {"given"}


def test_a_bound_over_all_models_is_none_of_each(paceline_emulator, tmp_path):
    emulator, file = paceline_emulator(limits="600 requests/min,90k tokens/min"), tmp_path / "paceline.toml"
    file.write_text("[concurrency]\nopenai = 3\n")
    asked = "--base-url", emulator.base_url, "--config", file, "--yes", "--json"
    toml = json.loads(run("gpt-5", "gpt-5-mini", *asked).stdout)["config"]
    assert '"openai/gpt-5-mini" = ["600 requests/min", "90k tokens/min"]' in toml
    file.write_text(toml)
    assert Config.load(file).concurrency == {"openai": 3}


def test_limits_beat_tables_and_several_models_are_asked_once_each(paceline_emulator):
    emulator = paceline_emulator(limits="30 requests/min,8k tokens/min", dialect="openai")
    limit = "gpt-5=31 requests/min,8k tokens/min"
    result = run("gpt-5", "gpt-5-mini", "gpt-5", "--base-url", emulator.base_url, "--yes", "--json", "--limit", limit)
    report = json.loads(result.stdout)
    assert [one["model"] for one in report["models"]] == ["openai/gpt-5", "openai/gpt-5-mini"]
    assert [quota["verdict"] for quota in report["models"][0]["quotas"]] == ["less is allowed", "as configured"]
    assert emulator.tally()["admitted"] == 2


def test_groq_speaks_of_a_day(paceline_emulator):
    emulator = paceline_emulator(scenario="groq", latency_s=0.0)
    limit = "llama=30 requests/min,500 requests/day,6k tokens/min"
    result = run("llama", "--provider", "groq", "--base-url", emulator.base_url, "--limit", limit, "--yes", "--json")
    assert found(result) == {
        "30 requests/min": (None, "not stated"),
        "500 requests/day window utc": (1_000, "more is allowed"),
        "500 requests/86401s": (None, "not stated"),  # the bucket beside the window
        "6k tokens/min": (8_000, "more is allowed"),
    }


def test_gemini_says_nothing_and_that_is_said(paceline_emulator):
    emulator = paceline_emulator(scenario="gemini-free", latency_s=0.0)
    result = run("gemini-2.5-flash", "--base-url", emulator.base_url, "--yes")
    assert result.exit_code == 0
    assert "the answer says nothing about limits" in result.stdout
    assert "not stated" in result.stdout


def test_azure_is_asked_for_its_deployment(paceline_emulator):
    emulator = paceline_emulator(scenario="azure", latency_s=0.0)
    limit = "mine=600 requests/min,50k tokens/min"
    base = f"{emulator.base_url}/openai/v1"
    result = run("mine", "--provider", "azure", "--base-url", base, "--limit", limit, "--yes", "--json")
    assert result.exit_code == 0
    assert found(result)["50k tokens/min"] == (100_000, "more is allowed")


@pytest.mark.parametrize(
    ("model", "settings", "sentence"),
    [
        ("gpt-5", {"valid_key": "other"}, "openai refused the key in OPENAI_API_KEY (401)"),
        ("gpt-5", {"limits": "gpt-6=5 requests/min"}, "openai has no model 'gpt-5', or this key may not use it (404)"),
        ("gpt-5", {"money_after": 0}, "openai reports that no money is left (429): You exceeded your current quota"),
        ("gpt-5", {"faults": {"503": 1.0}}, "openai is overloaded (503)"),
        ("gpt-5", {"faults": {"500": 1.0}}, "openai did not answer the request (500): The server had an error"),
        ("gpt-5", {"limits": "1 tokens/min"}, "openai will never admit even this request (429): Request too large"),
        ("gpt-5", {"faults": {"drop": 1.0}}, "no answer from openai at 127.0.0.1"),
        ("gemini-2.5-flash", {"valid_key": "other"}, "gemini refused the key in GEMINI_API_KEY (400)"),
    ],
)
def test_what_goes_wrong_is_one_sentence_and_code_1(paceline_emulator, model, settings, sentence):
    emulator = paceline_emulator(**settings)
    result = run(model, "--base-url", emulator.base_url, "--yes")
    assert result.exit_code == 1
    assert sentence in result.stdout
    assert emulator.tally()["admitted"] <= 1


def test_a_refusal_still_tells_the_limit(paceline_emulator):
    emulator = paceline_emulator(limits="gpt-5=2 requests/min", start_level=0.0)
    result = run("gpt-5", "--base-url", emulator.base_url, "--yes", "--json")
    assert result.exit_code == 1
    (one,) = json.loads(result.stdout)["models"]
    assert one["problem"].startswith(
        "openai refused the request: its limit of requests is used up (429); it asks to wait"
    )
    assert found(result)["500 requests/min"] == (2, "less is allowed")
    assert emulator.tally()["refused"] == {"rate": 1}


def test_the_key_never_shows(paceline_emulator, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    emulator = paceline_emulator(valid_key="other")
    for options in (["--yes"], ["--yes", "--json"], []):
        result = run("gpt-5", "--base-url", emulator.base_url, *options, answer="y\n")
        assert "secret" not in result.output
    assert "secret" not in repr(target("gpt-5", Config(), {"OPENAI_API_KEY": "sk-very-secret"}))


def test_a_pool_of_the_users_own_is_no_model(paceline_emulator, tmp_path):
    emulator, file = paceline_emulator(limits="gpt-5=5000 requests/min"), tmp_path / "paceline.yaml"
    file.write_text(
        "limits: {openai/gpt-5: 5000 requests/min, jobs: 9 requests/min, scans: 7 pages/min}\n"
        "starts: {gemini: {max_starts: 7, time_window: 60}}\n"
    )
    result = run("--config", file, "--base-url", emulator.base_url, "--yes", "--json")
    assert found(result) == {"5k requests/min": (5_000, "as configured")}
    assert emulator.tally()["admitted"] == 1
    assert "not asked: 'jobs', because no provider is known of it" in result.stderr
    assert "scans" not in result.stderr


def test_the_models_of_a_groups_members_are_asked_for_at_their_servers(paceline_emulator, tmp_path, monkeypatch):
    eu, us = (paceline_emulator(limits=f"{n}000 requests/min,8k tokens/min", valid_key=f"k{n}") for n in (3, 4))
    file = tmp_path / "paceline.toml"
    file.write_text(
        f'[upstreams]\neu = {{ provider = "anthropic", base_url = "{eu.base_url}", key_env = "EU_KEY" }}\n'
        f'us = {{ provider = "openai", base_url = "{us.base_url}/v1", key_env = "US_KEY" }}\n'
        '[groups]\nboth = { members = ["eu", "us"] }\n'
        '[limits]\n"anthropic@eu/claude-haiku-4-5" = "9 requests/min"\n"openai@us/gpt-5" = "9 requests/min"\n'
    )
    monkeypatch.setenv("EU_KEY", "k3")
    monkeypatch.setenv("US_KEY", "k4")
    result = run("--config", file, "--yes", "--json")
    assert result.exit_code == 0
    stated = {one["model"]: one["quotas"][0]["stated"] for one in json.loads(result.stdout)["models"]}
    assert stated == {"anthropic@eu/claude-haiku-4-5": 3_000, "openai@us/gpt-5": 4_000}
    monkeypatch.setenv("US_KEY", "another")
    result = run("openai@us/gpt-5", "--config", file, "--yes")
    assert "openai@us refused the key in US_KEY (401)" in result.stdout
    assert "provider =" not in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gpt-5"], "no key for openai: set the environment variable OPENAI_API_KEY"),
        (["somebodys-model"], "unknown provider of model 'somebodys-model': write it like 'openai/somebodys-model'"),
        ([], "name a model"),
        (["mine", "--provider", "azure"], "it is your own: give it with --base-url https://RESOURCE.openai.azure.com"),
        (["gpt-5", "--limit", "gpt-5"], "write it like 'gpt-6-luna=500 requests/min,400k tokens/min'"),
        (
            ["gpt-5", "claude-haiku-4-5", "--yes", "--base-url", "http://127.0.0.1:9"],
            "base_url would get the keys of openai, anthropic: check the models of each one apart",
        ),
        (["openai/gpt-5", "--base-url", "nowhere"], "base_url: it must be an address"),
        (["openai/gpt-5", "--tier", "99", "--base-url", "http://127.0.0.1:9"], "tier '99' of openai is unknown"),
    ],
)
def test_what_cannot_be_meant_is_code_2(arguments, message):
    result = run(*arguments, "--yes")
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize(
    ("name", "provider", "url"),
    [
        ("gpt-5", None, "https://api.openai.com/v1/chat/completions"),
        ("text-embedding-3-small", "openai", "https://api.openai.com/v1/embeddings"),
        ("claude-sonnet-4-5", None, "https://api.anthropic.com/v1/messages"),
        (
            "gemini-2.5-pro",
            None,
            "https://generativelanguage.googleapis.com/v1beta/models/gemini-2.5-pro:generateContent",
        ),
        ("groq/llama-3.1-8b-instant", None, "https://api.groq.com/openai/v1/chat/completions"),
        ("openai/gpt-oss-120b", "groq", "https://api.groq.com/openai/v1/chat/completions"),
        ("glm-5", None, "https://api.z.ai/api/paas/v4/chat/completions"),
        ("openai/gpt-5", "github", "https://models.github.ai/inference/chat/completions"),
    ],
)
def test_every_model_goes_to_its_provider(name, provider, url):
    makers = ("OPENAI", "ANTHROPIC", "GEMINI", "GROQ", "ZAI")
    keys = dict.fromkeys([*(f"{maker}_API_KEY" for maker in makers), "GITHUB_TOKEN"], "k")
    one = target(name, Config(provider=provider), keys)
    assert one.url == url
    assert ("anthropic-version" in one.headers) == (one.provider.name == "anthropic")
    assert one.provider.describe(url.partition(".com")[2] or url.partition(".ai")[2], one.body) is not None
    assert one.host_known


def test_credentials_of_another_kind_are_said():
    with pytest.raises(SettingsError, match="signed with credentials"):
        target("vertex/gemini-2.5-pro", Config(), {})


def test_the_reason_is_read_in_the_forms_of_all_providers(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with OddServer(lambda *_: (422, {}, {"detail": "no such field"})) as server:
        result = run("gpt-5", "--base-url", server.base_url, "--yes")
    assert "openai did not answer the request (422): no such field" in result.stdout
