"""The shipped worlds, and what happens in them at given times."""

import json
import re
from pathlib import Path

import pytest

from paceline.emulator import Emulator, Settings, World
from paceline.emulator.dialects import find
from paceline.emulator.scenario import load, scenarios
from paceline.emulator.settings import SettingsError
from paceline.emulator.world import Admitted, Refused

DOCS = Path(__file__).parents[2] / "docs" / "testing.md"


def world(name, **changes) -> World:
    return World(Settings.of(load(name).settings | changes))


def admitted_in(w: World, seconds: float, *, step_s: float = 0.1, now: float = 0.0) -> int:
    """Requests of 10 tokens that are let in when one comes every ``step_s``."""
    before = w.total.admitted
    for number in range(round(seconds / step_s)):
        answer = w.admit(now + number * step_s, "m", 8, 2)
        if isinstance(answer, Admitted):
            w.finish(now + number * step_s, answer)
    return w.total.admitted - before


@pytest.mark.parametrize("name", scenarios())
def test_every_scenario_can_be_meant_and_admits_something(name):
    scenario = load(name)
    assert scenario.summary
    assert scenario.client_limits
    assert isinstance(world(name).admit(0.0, "any-model", 10, 10), Admitted | Refused)
    assert admitted_in(world(name, faults={}), 60) > 0
    json.dumps(scenario.settings)  # so that a process of its own can be told


def test_the_table_in_the_docs_lists_them_all():
    rows = re.findall(r"^\| `([a-z-]+)` \|", DOCS.read_text().partition("## Choose a scenario")[2], re.MULTILINE)
    assert sorted(rows) == scenarios()


def test_worlds_differ_as_they_say():
    assert admitted_in(world("bucket"), 60, step_s=0.05) == pytest.approx(999, abs=2)
    assert admitted_in(world("quantised"), 60, step_s=0.05) == pytest.approx(550, abs=2)
    assert admitted_in(world("window"), 60, step_s=0.05) == 840  # 17 s of all that come, then one window
    assert admitted_in(world("sliding"), 60, step_s=0.05) == 500
    assert admitted_in(world("other-users"), 60, step_s=0.05) == pytest.approx(833, abs=2)
    hammered = world("failed-count")
    admitted_in(hammered, 60, step_s=0.05)
    assert admitted_in(hammered, 60, step_s=0.05, now=60.0) < 30
    assert admitted_in(world("money-gone"), 60) == 50


def test_limits_change_at_their_times():
    w = world("doubled-then-quartered", limits="60 requests/min", changes=[
        {"at_s": 100, "limits": "30 requests/min"}, {"at_s": 60, "limits": {"*": "120 requests/min"}},
    ])  # fmt: skip
    admitted_in(w, 59.9)
    assert w.levels(59.9, "m")[0].limit == 60
    assert w.levels(60.0, "m")[0].limit == 120
    assert admitted_in(w, 39.9, now=60.0) == pytest.approx(80, abs=3)
    assert admitted_in(w, 60, now=100.0) == pytest.approx(30, abs=3)
    assert w.levels(200.0, "m")[0].limit == 30


def test_changes_hold_for_models_that_come_later():
    w = World(Settings(limits="60 requests/min", changes=[{"at_s": 5, "limits": "7 requests/min"}]), now=1_000.0)
    w.admit(1_006.0, "new", 1)
    assert w.levels(1_006.0, "new")[0].limit == 7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rule = ", "Invalid value"),
        ("client_limits = 5", "summary and client_limits must be strings"),
        ('client_limits = "5 apples/min"', "unknown unit 'apples'"),
        ('dialect = "gorq"', "dialect is 'gorq'; did you mean 'groq'?"),
        ('[limits]\n"*" = "5 requests/0s"', "the period must be above 0"),
    ],
)
def test_a_file_that_cannot_be_meant_is_named(tmp_path, text, message):
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=r"mine\.toml: .*" + re.escape(message)):
        load(str(file))


def test_a_wrong_name_meets_the_nearest_scenario():
    with pytest.raises(SettingsError, match="did you mean 'quantised'"):
        load("quantized")
    with pytest.raises(SettingsError, match="did you mean 'window'"):
        Emulator(scenario="windw")


def test_arguments_beat_the_scenario():
    emulator = Emulator(scenario="quantised", quantum_s=2.0, limits="7 requests/min")
    assert (emulator.settings.rule, emulator.settings.quantum_s) == ("quantised", 2.0)
    assert emulator.settings.limits == "7 requests/min"


def name_of(dialect) -> str:
    return type(dialect).__name__.removeprefix("Emulated").lower()


@pytest.mark.parametrize(
    ("path", "query", "key", "route"),
    [
        ("/v1/chat/completions", b"", "", ("openai", "chat", "")),
        ("/responses", b"", "", ("openai", "responses", "")),
        ("/v1/messages", b"beta=true", "", ("anthropic", "messages", "")),
        ("/openai/v1/chat/completions", b"", "", ("groq", "chat", "")),
        ("/openai/v1/responses", b"", "api-key", ("azure", "responses", "")),
        ("/openai/deployments/my%20own/chat/completions", b"api-version=1", "", ("azure", "chat", "my own")),
        ("/v1beta/models/gemini-2.5-pro:generateContent", b"", "", ("gemini", "generate", "gemini-2.5-pro")),
        ("/v1/models/g:streamGenerateContent", b"alt=sse", "", ("gemini", "stream", "g")),
        ("/v1/models/g:streamGenerateContent", b"", "", ("gemini", "array", "g")),
        ("/v2/chat", b"", "", ("cohere", "chat", "")),
        ("/v1/models/g:countTokens", b"", "", None),
        ("/deployments/x/chat/completions", b"", "", None),
        ("/openai/v1/messages", b"", "", None),
        ("/v1/nothing", b"", "", None),
    ],
)
def test_paths_choose_their_dialect(path, query, key, route):
    found = find(path, query, key == "api-key", "")
    assert route == (None if found is None else (name_of(found.dialect), found.kind, found.model))


def test_a_dialect_can_be_chosen_for_openai_paths_only():
    assert name_of(find("/v1/chat/completions", b"", False, "groq").dialect) == "groq"
    assert name_of(find("/v1/messages", b"", False, "groq").dialect) == "anthropic"
    assert find("/v1/models/g:generateContent", b"key=secret", False, "").key == "secret"
