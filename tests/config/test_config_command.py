"""``paceline config``: each setting with its value and its origin, and errors."""

import json
import shlex

import pytest
from click.testing import CliRunner
from config_helpers import load_limiter

from paceline.cli.app import app

FILE = """
provider: openai
tier: 2
store: redis://user:hunter2@quotas.internal/0
retry: {backoff_s: 2}
concurrency: {anthropic: 5}
lanes:
  wrap: {weight: 4}
limits:
  gpt-5: {rpm: 500}
"""


@pytest.fixture
def show(write, monkeypatch):
    monkeypatch.setenv("PACELINE_WORKERS", "7")
    write(FILE, "paceline.yaml")
    return lambda *arguments: CliRunner().invoke(app, ["config", *arguments])


def test_each_value_and_its_source(show):
    result = show("--json", "--tier", "3", "--limit", "gpt-4o=5 requests/min")
    assert (result.exit_code, "hunter2" in result.output) == (0, False), result.output
    settings = {row.pop("name"): (row["value"], row["source"]) for row in json.loads(result.stdout)["settings"]}
    for name, expected in {
        "provider": ("openai", "paceline.yaml:2"),
        "tier": ("3", "command line"),
        "workers": (7, "PACELINE_WORKERS"),
        "timeout_s": (600.0, "default"),
        "acquire_timeout_s": (None, "default"),
        "store": ("redis://quotas.internal/0", "paceline.yaml:4"),
        "retry.backoff_s": (2.0, "paceline.yaml:5"),
        "retry.jitter": (0.25, "default"),
        "breaker.failures": (5, "default"),
        "concurrency.anthropic": (5, "paceline.yaml:6"),
        "lanes.wrap.weight": (4.0, "paceline.yaml:8"),
        "lanes.wrap.priority": (0, "default"),
        "limits: gpt-5": (["500 requests/min"], "paceline.yaml:10"),
        "limits: gpt-4o": (["5 requests/min"], "command line"),
    }.items():
        assert settings[name] == expected
    quotas, source = settings["limits: openai/*"]
    assert quotas[0].endswith("requests/min")
    assert source.startswith("https://developers.openai.com/")
    assert source.endswith(", tier_3); models of the table: see `paceline limits openai --tier 3`")
    assert "(20" in source, "its date"
    there = settings["limits: anthropic/*"][1]
    assert ", start); " in there, "the tier is the home provider's"
    assert there.endswith("see `paceline limits anthropic`")


def test_in_words(show, write):
    assert "redis://quotas.internal/0" in show().stdout  # and no password
    result = show(write('limits."*" = "5 requests/min"\nbreaker = false\n', "other.toml"))
    assert result.exit_code == 0
    lines = [line.split("  ") for line in result.stdout.splitlines()]
    words = [[word.strip() for word in line if word.strip()] for line in lines]
    assert ["breaker", "false", "other.toml"] in words
    assert ["limits: *", "5 requests/min", "other.toml"] in words
    assert ["store", "-", "default"] in words
    assert ["budget", "-", "default"] in words
    assert words[-1][0] == "limits: *", "no table is asked"


RATES = """
[limits]
gpt-5 = "500 requests/min, 2M tokens/min"
"openai/*" = "300 requests/min"
starts = "7 starts/min window"
"""
OVERRIDES = ("--json", "--rpm-override", "400")


@pytest.fixture
def limits(write):
    def limits(text, *arguments):
        result = CliRunner().invoke(app, ["config", write(text, "rates.toml"), *arguments])
        assert result.exit_code == 0, result.output
        rows = json.loads(result.stdout)["settings"]
        named = {row["name"].partition(": "): (row["value"], row["source"]) for row in rows}
        return {name: said for (setting, _, name), said in named.items() if setting == "limits"}

    return limits


def are_in_effect(shown, resolved):
    for name, those in resolved.items():
        assert [str(quota) for quota in those.quotas] == shown[name][0]


def test_overrides_change_the_limits_that_are_shown(limits):
    text = f"provider = 'openai'{RATES}"
    shown = limits(text, *OVERRIDES)
    assert shown == {
        "gpt-5": (["2M tokens/min", "400 requests/min"], "rates.toml, command line"),
        "openai/*": (["400 requests/min"], "command line"),
        "starts": (["7 starts/min window", "400 requests/min"], "rates.toml, command line"),
    }
    held = load_limiter("rates.toml", {}, rpm_override=400).limits
    are_in_effect(shown, {name: held.resolve(name) for name in shown})


def test_overrides_change_published_limits_too(limits):
    quotas, source = limits("provider = 'openai'", *OVERRIDES)["openai/*"]
    assert [quota for quota in quotas if "requests" in quota] == ["400 requests/min"]
    assert source.startswith("https://developers.openai.com/")
    assert source.endswith(", command line; models of the table: see `paceline limits openai`")


def test_the_models_of_a_table_are_shown_by_a_command(limits):
    source = limits("provider = 'openai'\ntier = 'tier 2'", "--json")["openai/*"][1]
    listed = CliRunner().invoke(app, [*shlex.split(source.split("`")[1])[1:], "--json"]).stdout
    assert "tier_2" in {json.loads(line)["tier"] for line in listed.splitlines()}


def test_a_bare_model_beside_the_provider_s_own_says_where_it_does_not_hold(limits):
    text = "[limits]\ngpt-5 = '500 requests/min'\n'openai/gpt-5' = '100 requests/min'\ngpt-4o = '7 requests/min'\n"
    shown = limits(f"provider = 'openai'\n{text}", "--json")
    assert shown["gpt-5"] == (["500 requests/min"], "rates.toml; not at openai: see openai/gpt-5")
    assert shown["openai/gpt-5"] == (["100 requests/min"], "rates.toml")
    assert shown["gpt-4o"] == (["7 requests/min"], "rates.toml")
    held = load_limiter("rates.toml", {}).limits
    are_in_effect(shown, {"gpt-5": held.model("azure", "gpt-5"), "openai/gpt-5": held.resolve("gpt-5")})
    assert limits(text, "--json")["gpt-5"][1] == "rates.toml", "by hand, without a provider, it holds"
    assert limits(f"provider = 'openai'\n{text}", *OVERRIDES)["gpt-5"][1] == "command line", "both are 400"
    shown = limits("provider = 'openai'\n[limits]\n'*' = '1 requests/s'\n'openai/*' = '2 requests/s'\n", "--json")
    assert shown["*"][1] == "rates.toml", "all others: so the name says"


def test_overrides_leave_pools_of_one_s_own(limits):
    shown = limits(RATES, *OVERRIDES)
    assert shown["gpt-5"] == (["2M tokens/min", "400 requests/min"], "rates.toml, command line")  # OpenAI's, by name
    assert shown["starts"] == (["7 starts/min window"], "rates.toml")
    assert shown["*/starts"] == (["7 starts/min window", "400 requests/min"], "rates.toml, command line")
    held = load_limiter("rates.toml", {}, rpm_override=400).limits
    are_in_effect(
        shown,
        {"*/starts": held.model("openai", "starts"), **{name: held.resolve(name) for name in ("gpt-5", "starts")}},
    )
    assert not [name for name in limits(RATES, "--json") if name.startswith("*")], "nothing is overridden"


def test_what_is_wrong(show, write):
    result = show(write("workr = 3\ntier = ''\n", "other.toml"))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines() == [
        "paceline config: other.toml: workr: no such setting; did you mean 'workers'?",
        "other.toml: tier: '': it must be a text",
    ]


def test_budgets_and_limits_of_lanes_are_shown_as_they_are_written(write):
    text = 'budget = "100 usd/day, 2_000 usd/month"\n[lanes.alice]\nlimits = ["60 requests/min"]\n[upstreams]\nopenai = {}\n'
    result = CliRunner().invoke(app, ["config", write(text, "own.toml"), "--json"])
    values = {row["name"]: row["value"] for row in json.loads(result.stdout)["settings"]}
    assert values["budget"] == ["100 usd/day", "2k usd/month"]
    assert values["lanes.alice.limits"] == ["60 requests/min"]
