"""The published limits, the registry, and the command that shows them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import date

import pytest
from click.testing import CliRunner

from paceline.cli import limits as limits_command
from paceline.cli.app import app
from paceline.core.results import PacelineWarning, SettingsError
from paceline.providers.tables import known_providers, lookup, models, tiers
from programs import python


def amounts(provider, model, tier):
    return tuple(int(quota.amount) for quota in lookup(provider, model, tier).quotas)


@pytest.mark.parametrize(
    ("provider", "model", "tier", "want"),
    [
        ("openai", "gpt-5", 1, (500, 500_000)),
        ("openai", "gpt-5.1", 2, (5_000, 1_000_000)),
        ("openai", "gpt-5.2", 3, (5_000, 2_000_000)),
        ("openai", "gpt-99", 4, (10_000, 4_000_000)),
        ("openai", "default", 1, (500, 500_000)),
        ("openai", "gpt-5-mini", 1, (500, 500_000)),
        ("openai", "gpt-5-mini", 2, (5_000, 2_000_000)),
        ("openai", "gpt-5-mini", 3, (5_000, 4_000_000)),
        ("openai", "gpt-5-mini", 4, (10_000, 10_000_000)),
        ("claude", "claude-sonnet-4", 1, (50, 30_000, 8_000)),
        ("claude", "claude-sonnet-4-5", 2, (1_000, 450_000, 90_000)),
        ("claude", "claude-99", 3, (2_000, 800_000, 160_000)),
        ("claude", "default", 4, (4_000, 2_000_000, 400_000)),
        ("claude", "claude-haiku-4", 1, (50, 50_000, 10_000)),
        ("claude", "claude-haiku-4-5", 2, (1_000, 450_000, 90_000)),
        ("claude", "claude-haiku-4-5-20251001", 3, (2_000, 1_000_000, 200_000)),
        ("claude", "claude-haiku-4-5", 4, (4_000, 4_000_000, 800_000)),
        ("openai", "gpt-6.1-sol", "Grow", (15_000, 40_000_000)),
        ("openai", "gpt-5", "launch", (10_000, 4_000_000)),
        ("openai", "gpt-5", 5, (15_000, 40_000_000)),
        ("openai", "gpt-4o-2024-08-06", 1, (500, 30_000)),
        ("openai", "ft:gpt-4o-2024-08-06:acme::1", 1, (500, 30_000)),
        ("vertex", "google/gemini-2.5-flash", 1, (30_000, 2_000_000)),
        ("anthropic", "claude-haiku-4.5", 1, (50, 50_000, 10_000)),
        ("anthropic", "claude-opus-4.8", "start", (1_000, 2_000_000, 400_000)),
        ("openai", "gpt-4o-mini", 3, (5_000, 2_000_000)),  # not published: the next lower tier
        ("openai", "gpt-4.1-mini", 1, (200_000, 500)),  # requests from the default
        ("openai", "gpt-5", "free", (3, 200, 10_000)),
        ("anthropic", "claude-opus-5", "evaluation", (50, 30_000, 8_000)),
        ("azure", "acme.services.ai.azure.com/claude-opus-5-5", None, (40, 40_000, 8_000)),
        ("vertex", "global/claude-opus-5", 2, (8,)),
        ("bedrock", "ap-northeast-1/jp.anthropic.claude-sonnet-5-5-v1:0", None, (6_000_000,)),
        ("gemini", "gemini-2.5-pro", 3, (150, 2_000_000, 1_000, 200)),
        ("kimi", "kimi-k2.5", 1, (50, 200, 2_000_000)),
        ("cloudflare", "@cf/meta/llama-3.1-8b-instruct", None, (300,)),
        ("azure", "gpt-6-luna", 3, (166, 1_000_000)),
        ("gemini", "gemini-3.8-flash", 1, (1_000, 1_000_000, 10_000, 10)),
        ("ovhcloud", "gpt-oss-120b", None, (400,)),
        ("sambanova", "gpt-oss-120b", None, (60, 12_000, 20_000_000)),
        ("anthropic", "claude-opus-5", "start", (1_000, 2_000_000, 400_000)),
        ("anthropic", "claude-opus-5", None, (1_000, 2_000_000, 400_000)),
        ("anthropic", "count_tokens", 2, (2_000,)),
    ],
)
def test_rows(provider, model, tier, want):
    assert amounts(provider, model, tier) == want


def test_what_a_row_says_of_itself():
    exact = lookup("openai", "gpt-4o-2024-08-06", "T2")
    assert (exact.pool, exact.tier, exact.confidence, exact.matched) == ("gpt-4o", "tier_2", "third_party", "gpt-4o")
    lower = lookup("openai", "gpt-4o-mini", 3)
    assert (lower.tier, lower.confidence) == ("tier_2", "assumed")
    equal = lookup("openai", "gpt-5-mini", "build")
    assert (equal.tier, equal.confidence) == ("tier_2", "assumed")
    default = lookup("openai", "gpt-99")
    assert (default.pool, default.matched, default.confidence) == ("gpt-99", "default", "assumed")
    assert default.source.startswith("https://")


@pytest.mark.parametrize("tier", [2, "2", "tier_2", "T2", "tier-2", "Tier 2", " t2 "])
def test_tiers_as_people_write_them(tier):
    assert lookup("openai", "gpt-5", tier).tier == "tier_2"


def test_unknown_tiers():
    with pytest.raises(
        SettingsError, match=r"tier 'bild' of openai is unknown \(known: free, tier_1, .*did you mean 'build'"
    ):
        lookup("openai", "gpt-5", "bild")
    with pytest.raises(SettingsError, match="start, build, scale"):
        lookup("anthropic", "claude-opus-5", 7)


def test_unknown_providers_have_a_concurrency_and_say_so():
    with pytest.warns(PacelineWarning, match=r"'opnai' \(did you mean 'openai'\?\).*Limiter\(\{'opnai/\*'"):
        published = lookup("opnai", "m")
    assert [str(quota) for quota in published.quotas] == ["8 concurrency"]
    assert published.confidence == "assumed"


def test_every_row_of_every_table_is_sound():
    for provider in known_providers():
        for model in models(provider):
            for tier in tiers(provider):
                published = lookup(provider, model, tier)
                assert published.source
                assert published.as_of.startswith("202")
                assert limits_command._age_days(published, date(2026, 12, 31)) > 0
                assert published.confidence in {"documented", "third_party", "assumed"}
                assert {"requests", "concurrency", "tokens"} & {quota.unit for quota in published.quotas}


def test_a_page_is_imported_when_it_is_asked_for():
    code = "import sys, paceline.providers.registry; print([m for m in sys.modules if m.endswith(('openai', 'anthropic', 'tomllib'))])"
    assert python(code) == "[]\n"


def run(*args):
    return CliRunner().invoke(app, ["limits", *args])


def test_the_command_shows_a_model():
    record = json.loads(run("openai", "gpt-4o", "--tier", "2", "--json").stdout)
    assert record["quotas"] == ["5k requests/min", "450k tokens/min"]
    assert (record["pool"], record["tier"], record["as_of"]) == ("openai/gpt-4o", "tier_2", "2026-09-20")


@pytest.mark.parametrize("provider", known_providers())
def test_a_terminal_of_80_columns_shows_each_row_whole(provider, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # for rich, a terminal
    monkeypatch.setenv("COLUMNS", "80")
    shown = re.sub(r"\x1b\[[\d;]*m", "", run(provider).stdout)
    table, _, notes = shown.partition("\n\n")
    assert max(map(len, table.splitlines())) <= 80
    assert "\u2026" not in table
    assert set(re.findall(r"\[\d+\]", table)) == set(re.findall(r"^\[\d+\]", notes, re.MULTILINE))
    assert [line for line in notes.splitlines() if len(line) > 80 and " " in line.strip()] == []
    assert table.startswith(provider)


def test_the_command_suggests_beside_its_answer():
    result = run("openai", "gpt-5-min", "--json")
    assert "did you mean 'gpt-5-mini'?" in result.stderr
    assert json.loads(result.stdout)["matched"] == "default"


@pytest.mark.parametrize(
    ("arguments", "models"),
    [
        (["gpt-4o-mini"], ["openai/gpt-4o-mini", "azure/gpt-4o-mini"]),  # its maker first
        (["gpt-4o-mini", "--tier", "2"], ["openai/gpt-4o-mini"]),
        (["gpt-oss-20b"], ["groq/openai/gpt-oss-20b"]),
        (["openai/gpt-4o"], ["openai/gpt-4o"]),
        (["openai", "openai/gpt-4o"], ["openai/gpt-4o"]),
        (["together_ai/meta-llama/Llama-3.3-70B"], ["together/meta-llama/Llama-3.3-70B"]),
        (["vertex_ai/gemini-2.5-flash"], ["vertex/gemini-2.5-flash"]),
    ],
)
def test_the_command_finds_what_was_meant(arguments, models):
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    assert [json.loads(line)["model"] for line in result.stdout.splitlines()] == models


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([], 0, "openai/default\ttier_1\t500 requests/min, 500k tokens/min"),
        ([], 0, "anthropic/default\tstart\t1k requests/min, 2M input_tokens/min, 400k output_tokens/min"),
        (["claude", "--tier", "build"], 0, "anthropic/claude-fable-5\tbuild\t2k requests/min"),
        (["ollama"], 2, "no published limits of ollama are known: its rate is measured"),
        (["anthropic", "claude-opus-5-5", "--tier", "1"], 0, "no row for 'claude-opus-5-5' in tier_1: name a tier that has one (start, build, scale)"),
        (["openai", "gpt-4.1"], 0, "no --tier was named, so the lowest is assumed; `paceline check openai/gpt-4.1` asks"),
        (["openai", "gpt-99", "--tier", "2"], 0, "`paceline check openai/gpt-99` asks the provider"),
        (["openai"], 0, "`paceline check MODEL` asks the provider"),
        (["antropic"], 2, "did you mean 'anthropic'?"),
        (["gpt4omini"], 2, "did you mean 'gpt-4o-mini'?"),
        (["openai", "gpt-5-min"], 0, "did you mean 'gpt-5-mini'?"),
        (["openai", "--tier", "bild"], 2, "did you mean 'build'?"),
        (["--tier", "2"], 2, ""),
    ],
)  # fmt: skip
def test_the_command_says(arguments, code, said):
    result = run(*arguments)
    assert (result.exit_code, said in result.output) == (code, True), result.output


def test_the_command_names_no_check_where_nothing_is_assumed():
    assert "paceline check" not in run("openai", "gpt-4o", "--tier", "2").output


@pytest.mark.parametrize(
    ("as_of", "shown"),
    [
        ("2026-09", "2026-09"),
        ("2026-07-25", "2026-07-25"),
        ("2026-07-24", "2026-07-24 (121 days old)"),
        ("2026-05", "2026-05 (up to 205 days old)"),
        ("2025", "2025 (up to 690 days old)"),
    ],
)
def test_an_old_row_is_shown_with_its_age(as_of, shown):
    row = replace(lookup("openai", "gpt-5", 2), as_of=as_of)
    assert limits_command._as_of(row, date(2026, 11, 22)) == shown
