"""The JSON schema for editors: it knows what the page documents, and refuses what the settings do.

It accepts the examples of the pages: ``tests/docs/test_commands_and_settings.py``.
"""

import json
import re
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
SCHEMA = json_schema()
VALIDATOR = Draft202012Validator(SCHEMA)


def test_it_is_a_schema_and_the_command_prints_it():
    Draft202012Validator.check_schema(SCHEMA)
    assert json.loads(CliRunner().invoke(app, ["config", "--schema"]).stdout) == SCHEMA


def test_it_has_each_setting():
    assert set(SCHEMA["properties"]) == set(SettingsTable.__annotations__) - set(OVERRIDES)
    page = (ROOT / "docs" / "config.md").read_text("utf-8").split("| setting |")[1].split("\n\n")[0]
    documented = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) - set(OVERRIDES)
    assert {"provider", "store", "min_interval_s", "breaker"} <= documented <= set(SCHEMA["properties"])


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
