"""What cannot be paced is said, loudly."""

import subprocess
import sys

import pytest

import paceline
from paceline.http import bypass

SCRIPT = """
import sys, types, warnings
import paceline
warnings.simplefilter("always")
with warnings.catch_warnings(record=True) as said:
    {before}
    with paceline.instrument(paceline.Limiter()):
        {inside}
    {after}
print([str(w.message).partition(":")[0] for w in said if issubclass(w.category, paceline.PacelineWarning)])
"""


def said(**code):
    script = SCRIPT.format(**{"before": "pass", "inside": "pass", "after": "pass", **code})
    return subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.strip()


def test_what_is_imported_before_and_after_is_named_once():
    fake = "sys.modules['boto3'] = types.ModuleType('boto3')"
    assert said(before=fake) == "['paceline does not pace boto3']"
    try_import = "exec('try:\\n import xai_sdk\\nexcept ImportError: pass')"
    assert said(inside=try_import) == "['paceline does not pace xai_sdk']"
    assert said(after=try_import) == "[]"


@pytest.mark.parametrize("first", ["import", "instrument"])
def test_what_can_be_cured_is_cured_as_it_loads_and_restored(first):
    """google-genai decides in one method whether to send through aiohttp: nothing else may send past us."""
    script = f"""
import importlib, paceline
steps = ["google.genai._api_client", "instrument"]
if {first!r} == "instrument":
    steps.reverse()
for step in steps:
    if step == "instrument":
        running = paceline.instrument(paceline.Limiter())
    else:
        api = importlib.import_module(step).BaseApiClient
assert api._use_aiohttp.__wrapped__
running.undo()
assert not hasattr(api._use_aiohttp, "__wrapped__")
"""
    subprocess.run([sys.executable, "-W", "error::paceline.PacelineWarning", "-c", script], check=True, timeout=60)


@pytest.mark.parametrize(("version", "warned"), [("3.4.1", True), ("3.3.9", False), ("strange", True)])
def test_dspy_is_named_from_3_4_on_unless_its_integration_is_loaded(monkeypatch, version, warned):
    monkeypatch.setattr(bypass, "version", lambda _: version)
    assert bypass._dspy() is warned
    monkeypatch.setitem(sys.modules, "paceline.integrations.dspy", object())
    assert bypass._dspy() is False


def test_attach_names_the_way_out():
    class Boto:
        pass

    with pytest.raises(TypeError, match=r"paceline.instrument"):
        paceline.Limiter().attach(Boto())
