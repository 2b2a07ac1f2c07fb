"""Joint limits from the configuration."""

from pathlib import Path

import pytest

from paceline import Limiter
from paceline.config import Config
from paceline.config.show import rows
from paceline.core.results import SettingsError
from paceline.testing import ManualClock

FILE = """
[limits]
"openai/*" = "500 requests/min"

[joint_limits]
openai = { rpm = 2500, tpm = 1_000_000 }
"gpt-5, o3" = ["600 requests/min"]
"""


def test_a_file(write):
    limiter = Limiter.load(write(FILE), clock=ManualClock())
    assert limiter.try_acquire("openai/gpt-5", tokens=100)
    assert limiter.try_acquire("openai/gpt-4.1", tokens=10)
    pools = limiter.status()["pools"]
    left = {name: [row["remaining"] for row in pool["quotas"]] for name, pool in pools.items()}
    assert left["joint/openai/*"] == [2_498, 999_890]
    assert left["joint/gpt-5, o3"] == [599]


def test_a_variable_takes_precedence_in_any_spelling(write, monkeypatch):
    monkeypatch.setenv("PACELINE_JOINT_LIMITS__OPENAI", "9 requests/min")
    limiter = Limiter.load(write(FILE), clock=ManualClock())
    quotas = limiter.status()["pools"]["joint/openai/*"]["quotas"]
    assert [row["quota"] for row in quotas] == ["9 requests/min"]


def test_it_is_shown_with_its_source(write):
    shown = {row.name: (row.value, row.source) for row in rows(Config.load(Path(write(FILE))))}
    assert shown["joint_limits: openai/*"] == (["2.5k requests/min", "1M tokens/min"], write(FILE))


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("openai: {rpm: 2500, tmp: 3}", "2: joint_limits: openai: tmp: no such setting; did you mean 'tpm'?"),
        ("'openai/gpt-5, ': 9 requests/min", "2: joint_limits: openai/gpt-5, : its name must be a pattern of pools"),
        ("openai: 10 usd/day", "2: joint_limits: openai: '10 usd/day': money is limited by a budget"),
        ("openai: 10 starts/min", "2: joint_limits: openai: '10 starts/min': its unit must be one of requests"),
        ("openai: 5", "2: joint_limits: openai: 5: write texts"),
        ("openai: 5 rpx", "2: joint_limits: openai: '5 rpx'"),
        (
            "openai: 5 requests/s\n  OpenAI/*: 5 requests/s",
            "3: joint_limits: OpenAI/*: the same as limits.yaml:2: joint_limits: openai",
        ),
        ("5", "1: joint_limits: "),
    ],
)
def test_what_is_wrong_is_named_with_its_line(write, entry, said):
    with pytest.raises(SettingsError) as caught:
        Config.load(Path(write(f"joint_limits:\n  {entry}\n", "limits.yaml")))
    assert str(caught.value).startswith(f"limits.yaml:{said}")
