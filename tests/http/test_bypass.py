"""What cannot be paced is said, loudly."""

import subprocess
import sys
import warnings

import pytest

import paceline

SCRIPT = """
import sys, types, warnings
import paceline
warnings.simplefilter("always")
with warnings.catch_warnings(record=True) as said:
    {before}
    with paceline.instrument(paceline.Limiter()):
        {inside}
    {after}
print([str(w.message)[:40] for w in said if issubclass(w.category, paceline.PacelineWarning)])
"""


def said(**code):
    script = SCRIPT.format(**{"before": "pass", "inside": "pass", "after": "pass", **code})
    return subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.strip()


def test_what_is_imported_before_and_after_is_named_once():
    fake = "sys.modules['boto3'] = types.ModuleType('boto3')"
    assert said(before=fake) == "['paceline does not pace boto3: boto3 (Bed']"
    try_import = "exec('try:\\n import xai_sdk\\nexcept ImportError: pass')"
    assert said(inside=try_import) == "['paceline does not pace xai_sdk: xai_sdk ']"
    assert said(after=try_import) == "[]"


def test_gemini_is_named_only_where_it_takes_aiohttp(monkeypatch):
    from paceline.http import bypass

    monkeypatch.setitem(sys.modules, "google.genai", object())
    monkeypatch.setattr(bypass, "find_spec", lambda name: name)
    with pytest.warns(paceline.PacelineWarning, match="GOOGLE_GENAI_HTTP_CLIENT=httpx2"):
        bypass.BypassWatch().stop()
    monkeypatch.setenv("GOOGLE_GENAI_HTTP_CLIENT", "httpx2")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bypass.BypassWatch().stop()


def test_attach_names_the_way_out():
    class Boto:
        pass

    with pytest.raises(TypeError, match=r"paceline.instrument"):
        paceline.Limiter().attach(Boto())
