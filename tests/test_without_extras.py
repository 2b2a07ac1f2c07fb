"""The command line where no extra is installed, and the table of extras: ``src/paceline/cli/commands.py``."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import paceline
from paceline.cli import main
from paceline.cli.commands import COMMANDS, MODULES, help_text, objection
from programs import python

ROOT = Path(__file__).parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]

EACH = """
import contextlib, io, json, runpy, sys
found = []
for arguments in json.load(sys.stdin):
    sys.argv, out, code = ["paceline", *arguments], io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            runpy.run_module("paceline", run_name="__main__")
        except SystemExit as ended:
            code = ended.code
    found.append((code, out.getvalue()))
print(json.dumps(found))
"""


def without_packages(code: str, given: object = None) -> subprocess.CompletedProcess[str]:
    """Run ``code`` by a Python that sees the standard library and paceline, and nothing that pip installs (``-S``)."""
    return subprocess.run(
        [sys.executable, "-S", "-c", code], check=False, input=json.dumps(given), capture_output=True, text=True, timeout=60,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip


def test_help_and_version_work_and_a_command_names_its_extra():
    given = [[], ["--help"], ["--version"], ["rnu"], ["--vers"], *([name, "--help"] for name in COMMANDS)]
    nothing, asked, version, unknown, option, *commands = json.loads(without_packages(EACH, given).stdout)
    assert nothing == asked == [0, help_text()]
    assert version == [0, f"paceline, version {paceline.__version__}\n"]
    assert (unknown[0], "did you mean 'run'?" in unknown[1]) == (2, True)
    assert option[0] == 2
    for (name, (about, extra)), (code, said) in zip(COMMANDS.items(), commands, strict=True):
        assert (code, about in said) == (2, True)
        assert said.startswith(f"paceline: `paceline {name}` (")
        assert said.endswith(f"needs the extra {extra!r}: pip install 'paceline[{extra}]'\n")


def test_what_windows_takes_for_a_terminal_gets_every_character(monkeypatch):
    """Python says so of NUL there, and encodes what goes to it in the encoding of the system."""
    import_module("paceline.cli.app")  # as on this system
    out = io.TextIOWrapper(io.BytesIO(), encoding="cp1252", errors="strict")
    monkeypatch.setattr(out, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "argv", ["paceline", "--version"])
    with pytest.raises(SystemExit):
        main()
    out.write("\u2192")


def test_the_fixture_of_the_emulator_names_its_extra():
    code = """
import sys
sys.modules["uvicorn"] = None
import pytest
from paceline.testing import pytest_plugin
try:
    next(pytest_plugin.paceline_emulator.__wrapped__())
except BaseException as error:
    print(type(error).__name__, error)
"""
    assert python(code) == "Failed the emulator needs the extra 'emulator': pip install 'paceline[emulator]'\n"


def test_with_click_the_help_is_the_same(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["paceline"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, capsys.readouterr().out) == (0, help_text())


def closure(extra: str) -> set[str]:
    """The distributions that an extra names, by way of other extras too."""
    found = set()
    for requirement in EXTRAS[extra]:
        name, extras = re.match(r"([\w.-]+)(?:\[([\w,]+)\])?", requirement).groups()
        if name == "paceline":
            found |= {one for below in extras.split(",") for one in closure(below)}
        else:
            found.add(name.lower())
    return found


def test_the_modules_of_an_extra_are_of_its_packages():
    names = packages_distributions()
    for extra, modules in MODULES.items():
        assert {names[module][0].lower() for module in modules} <= closure(extra), extra


def test_an_extra_that_is_missing_in_part(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydantic", None)
    assert objection("emulate") is None
    assert objection("run").endswith("needs the extra 'cli': pip install 'paceline[cli]'")


def test_the_library_names_the_extra_and_no_package():
    code = """
import json, sys
for line in json.load(sys.stdin):
    try:
        exec(line)
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
"""
    lines = {
        "from paceline.testing import Emulator": "ImportError: the emulator needs the extra 'emulator': ",
        "from paceline.emulator import Emulator": "ImportError: the emulator needs the extra 'emulator': ",
        "from paceline.telemetry import otel": "ImportError: OpenTelemetry needs the extra 'otel': ",
        "import paceline; paceline.run([])": "ImportError: paceline.run needs the extra 'cli': ",
        "paceline.Limiter({}).serve_status()": "ImportError: the status page needs the extra 'gateway': ",
        "paceline.Limiter.load()": "SettingsError: reading settings from files and variables needs the extra 'config': ",
        "paceline.Limiter({}, budget='5 usd/day')": "SettingsError: a budget in US dollars needs the extra 'budget': ",
        "paceline.Limiter({}, store='redis://127.0.0.1')": "StoreError: a store in Redis needs the extra 'redis': ",
    }
    said = without_packages(code, list(lines)).stdout.splitlines()
    for line, begin in zip(said, lines.values(), strict=True):
        assert line.startswith(begin)
        assert re.fullmatch(r"pip install 'paceline\[\w+\]'", line.removeprefix(begin))
