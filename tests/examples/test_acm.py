"""The evaluation program: what its file says, what its limiter does about it in virtual time, and whole runs."""

from __future__ import annotations

import sys

import pytest
from example_programs import EXAMPLES, load

import paceline
from paceline.config import load_arguments
from paceline.testing import ManualClock

LIMITS = EXAMPLES / "acm" / "limits.yaml"
program, clients, table = load("acm", "clients", "table")


def limiter_of(clock=None, **given):
    return paceline.Limiter(**load_arguments(LIMITS, {}, clock=clock or ManualClock(), **given))


def quotas(limiter, name):
    return [str(quota) for quota in limiter.limits.resolve(name).quotas]


def test_a_day_stays_a_day_where_the_limits_of_a_minute_are_multiplied():
    limiter = program.limiter_of(program.parse(["--speed", "10"]))
    assert quotas(limiter, "google/gemini-3.8-flash")[:3] == [
        "3k requests/min", "10M tokens/min", "10k requests/day window America/Los_Angeles",
    ]  # fmt: skip


AS_ASKED = """
defaults:
  openai:
    gpt-6.1-sol:   {rpm: 500, tpm: 30000}
    default: {rpm: 500, tpm: 30000}
  anthropic:
    default: {rpm: 50, tpm: 30000}
  google:
    default: {rpm: 60, tpm: 60000, rpd: 1500}
  azure:
    default: {rpm: 60, tpm: 60000}
  groq:
    default: {rpm: 30, tpm: 6000, rpd: 14400, tpd: 500000}
  default:   {rpm: 10, tpm: 10000}
concurrency:
  openai: 10
  anthropic: 5
  google: 10
  azure: 10
  groq: 5
  default: 3
settings:
  acquire_timeout: 300
  token_estimate_buffer: 1.1
  min_request_interval_ms: 50
  update_from_headers: true
"""


class TestTheFileThatWasAskedFor:
    """Its sections and keys, and nothing else."""

    @pytest.fixture
    def limiter(self, tmp_path):
        file = tmp_path / "rate_limits.yaml"
        file.write_text(AS_ASKED)
        return paceline.Limiter.load(file, clock=ManualClock())

    def test_settings(self, limiter):
        resolved = limiter.limits.resolve("openai/gpt-6.1-sol")
        assert (limiter.pacer.settings.acquire_timeout_s, resolved.interval_s, resolved.learns) == (300, 0.05, "up")
        asked = {"model": "gpt-6.1-sol", "input": "The committee asked for three reports, each with numbers. " * 40}
        plain = paceline.Limiter({"openai/gpt-6.1-sol": "9 requests/min"}, estimate_factor=1.0)
        own, other = (one.estimate("openai/gpt-6.1-sol", asked)["input_tokens"] for one in (limiter, plain))
        assert own == pytest.approx(1.1 * other, abs=2)

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("openai/gpt-6.1-sol", ["500 requests/min", "30k tokens/min", "10 concurrency"]),
            ("openai/gpt-6-luna", ["500 requests/min", "30k tokens/min", "10 concurrency"]),
            ("anthropic/claude-opus-4-1", ["50 requests/min", "30k tokens/min", "5 concurrency"]),
            ("google/gemini-3.5-flash-lite",
             ["60 requests/min", "60k tokens/min", "1.5k requests/day window America/Los_Angeles", "10 concurrency"]),
            ("groq/openai/gpt-oss-120b",
             ["30 requests/min", "6k tokens/min", "14.4k requests/day window utc", "14.4k requests/86401s",
              "500k tokens/day window utc", "500k tokens/86401s", "5 concurrency"]),
            ("newcomer/model-1", ["10 requests/min", "10k tokens/min", "3 concurrency"]),
        ],
    )  # fmt: skip
    def test_each_model_its_provider_s_default_or_the_default_of_all(self, limiter, name, expected):
        assert quotas(limiter, name) == expected


def test_the_table_at_the_end():
    status = {
        "pools": {
            "openai/gpt-6.1-sol": {
                "counts": {"settled": 3, "refused_rate": 2, "refused_capacity": 1},
                "wait_s": {"mean": 1.25, "longest": 9.0},
                "estimates": {"input_tokens": {"ratio": 1.0625}, "tokens": {"ratio": 1.5}},
            },
            "openai/in flight": {"counts": {"settled": 3}, "wait_s": {}, "estimates": {}},
        }
    }
    _, row = table.table(status, {"openai/gpt-6.1-sol": 12.0}, {"openai/gpt-6.1-sol": "10 concurrency"}).splitlines()
    assert " ".join(row.split()) == "openai/gpt-6.1-sol 3 2 1.2 s 9.0 s 1.062 12 s 10 concurrency"


# --- the command line ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--documents", "0"], "--documents is 0: it must be from 1 to 10000"),
        (["--speed", "200"], "--speed is 200: it must be from 0.1 to 100"),
        (["--outsider", "1"], "--outsider is 1: it must be from 0 to below 1"),
        (["--enforce", "gpt-4=5 requests/min"], "--enforce gpt-4: write MODEL=LIMITS; models: claude-haiku-5-5, "),
        (["--live", "--speed", "2"], "--live cannot be combined with --speed"),
        (["--live"], "--live needs OPENAI_API_KEY, ANTHROPIC_API_KEY"),
    ],
)
def test_what_cannot_be_meant_is_said(words, said, capsys, monkeypatch):
    for key in clients.KEYS.values():
        monkeypatch.delenv(key, raising=False)
    with pytest.raises(SystemExit):
        program.parse(words)
    assert said in capsys.readouterr().err


def test_without_a_file_the_plan_s_defaults_hold(tmp_path, capsys):
    limiter = program.limiter_of(program.parse(["--limits", str(tmp_path / "limits.yml"), "--speed", "2"]))
    given = limiter.limits.given["openai/gpt-6.1-sol"]
    assert [str(quota) for quota in given] == ["1k requests/min", "300k tokens/min"]
    assert "limits.yml: no such file: the limits are those of defaults.yaml" in capsys.readouterr().err
    limiter = paceline.Limiter.load(program.DEFAULTS)
    metrics = {name: limiter.pacer.pools.scheduler(name).status()["metrics"] for name in ("groq/new", "mistral/new")}
    assert [(each["rpm_limit"], each["tpm_limit"]) for each in metrics.values()] == [(30, 6_000), (10, 10_000)]


def test_a_file_that_cannot_be_meant_ends_the_program(tmp_path, capsys, monkeypatch):
    bad = tmp_path / "limits.yaml"
    bad.write_text("defaults:\n  openai:\n    gpt-6.1-sol: {tmp: 5}\n")
    monkeypatch.setattr(sys, "argv", ["run.py", "--limits", str(bad)])
    assert program.main() == 2
    said = capsys.readouterr().err
    assert "limits.yaml:3: defaults: openai: gpt-6.1-sol: tmp: no such setting; did you mean 'tpm'?" in said


# --- over HTTP: five SDKs, and an emulated provider for each -------------------------------------------------------------


async def test_the_whole_program(capsys):
    """Every component and every provider: nothing refused, and never more in flight than the file says."""
    options = program.parse(["--documents", "12", "--speed", "4"])
    outcome = await program.run(options)
    assert outcome.evaluation.failed == []
    assert outcome.evaluation.answered == 120
    assert set(outcome.tallies) == set(clients.PROVIDERS)
    most = {"openai": 10, "anthropic": 5, "google": 10, "azure": 10, "groq": 5}
    for provider, tally in outcome.tallies.items():
        assert tally["refused_total"] == 0
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
