"""The JSON schema for editors: it knows what the page documents, and accepts and refuses what the settings do."""

import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from paceline.cli.app import app
from paceline.config import Config
from paceline.config.schema import OVERRIDES, SettingsTable, json_schema
from paceline.core.results import SettingsError

ROOT = Path(__file__).parents[2]
BLOCKS = [
    (page.name, kind, text)
    for page in sorted((ROOT / "docs").glob("*.md"))
    for kind, text in re.findall(r"```(toml|yaml)\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
]
SCHEMA = json_schema()
VALIDATOR = Draft202012Validator(SCHEMA)


def settings_of(kind, text):
    """The settings of a block of the documentation; ``None`` for a block that is another program's file."""
    values = tomllib.loads(text) if kind == "toml" else yaml.safe_load(text)
    values = values.get("tool", {}).get("paceline", values) if isinstance(values, dict) else None
    return values if values and values.keys() <= set(SettingsTable.__annotations__) else None


def test_it_is_a_schema_and_the_command_prints_it():
    Draft202012Validator.check_schema(SCHEMA)
    assert json.loads(CliRunner().invoke(app, ["config", "--schema"]).stdout) == SCHEMA


def test_it_has_each_setting():
    assert set(SCHEMA["properties"]) == set(SettingsTable.__annotations__) - set(OVERRIDES)
    page = (ROOT / "docs" / "config.md").read_text("utf-8").split("| setting |")[1].split("\n\n")[0]
    documented = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) - set(OVERRIDES)
    assert {"provider", "store", "min_interval_s", "breaker"} <= documented <= set(SCHEMA["properties"])


def test_the_examples_of_the_pages_are_valid():
    read = [(page, settings) for page, kind, text in BLOCKS if (settings := settings_of(kind, text))]
    assert len(read) >= 8
    assert {page: error.message for page, settings in read for error in VALIDATOR.iter_errors(settings)} == {}


@pytest.mark.parametrize("settings", [
    {"tier": []}, {"workers": 0}, {"usable": 1.5}, {"usable": 0}, {"learn": "down"}, {"limits": ["500 requests/min"]}, {"limits": {"m": 5}},
    {"limits": {"m": {"rpm": 0}}}, {"retry": {"max_attempts": "many"}}, {"retry": {"attempts": 3}}, {"lanes": {"a": {"weigth": 2}}},
    {"store": 5}, {"breaker": "sometimes"}, {"groups": {"g": {"members": "eu"}}}, {"rpm_override": 5}, {"tiers": 2}, {"starts": {"a": True}},
])  # fmt: skip
def test_it_refuses_what_the_settings_refuse(settings, tmp_path):
    assert not VALIDATOR.is_valid(settings)
    file = tmp_path / "settings.yaml"
    file.write_text(yaml.safe_dump(settings))
    with pytest.raises(SettingsError):
        Config.load(file, environ={})
