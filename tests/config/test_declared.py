"""A setting is declared once: one more line in ``pacing/settings.py`` is found in every door."""

import shutil
import subprocess
import sys
from pathlib import Path

import paceline

ROOT = Path(__file__).parents[2]
LINE = '    patience_s: float = setting(5.0, "How long a test waits.", ("seconds", 0, 9))\n'
FOUND = """
import inspect, os, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.public import with_settings

import paceline
from paceline.cli.app import app
from paceline.config import Config
from paceline.config.schema import json_schema

assert paceline.Limiter(patience_s=3).pacer.settings.patience_s == 3
assert inspect.signature(paceline.Limiter).parameters["patience_s"].default == 5.0
assert "patience_s: How long a test waits." in paceline.Limiter.__doc__
with pytest.raises(paceline.SettingsError, match="patience_s is 10: it must be seconds from 0 to 9"):
    paceline.Limiter(patience_s=10)
file = Path(sys.argv[1], "paceline.toml")
file.write_text("patience_s = 2")
assert paceline.Limiter(**Config.load(file, {}).arguments()).pacer.settings.patience_s == 2
assert Config.load(file, {"PACELINE_PATIENCE_S": "4"}).patience_s == 4
with pytest.raises(paceline.SettingsError, match="PATIENCE_S: '10': it must be seconds from 0 to 9"):
    Config.load(file, {"PACELINE_PATIENCE_S": "10"})
told = "How long a test waits: seconds from 0 to 9."
assert told in " ".join(CliRunner().invoke(app, ["config", "--help"]).output.split())
schema = json_schema()["properties"]["patience_s"]
assert (schema["type"], schema["minimum"], schema["maximum"]) == ("number", 0, 9)
assert "How long a test waits." in schema["description"]
assert "| `patience_s` | 5 | How long a test waits. |" in with_settings(Path("docs/config.md").read_text("utf-8"))
"""


def test_one_line_is_a_setting_in_every_door(tmp_path):
    shutil.copytree(Path(paceline.__file__).parent, tmp_path / "paceline", copy_function=shutil.copyfile)
    file = tmp_path / "paceline" / "pacing" / "settings.py"
    text = file.read_text("utf-8")
    first = "    provider: str | None = setting("
    assert text.count(first) == 1
    file.write_text(text.replace(first, LINE + first), "utf-8")
    done = subprocess.run(
        [sys.executable, "-c", FOUND, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.stderr, done.returncode) == ("", 0)
