"""What cannot be paced is said, loudly."""

import os
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


def test_what_is_imported_before_and_after_is_named_once(tmp_path):
    fake = "sys.modules['xai_sdk'] = types.ModuleType('xai_sdk')"
    assert said(before=fake) == "['paceline does not pace xai_sdk']"
    (tmp_path / "xai_sdk.py").write_text("")
    there = f"sys.path.insert(0, {str(tmp_path)!r}); "
    assert said(inside=f"{there}import xai_sdk; import xai_sdk") == "['paceline does not pace xai_sdk']"
    assert said(after=f"{there}import xai_sdk") == "[]"


def test_what_is_only_looked_for_is_not_named(tmp_path):
    """instructor and ragas look for packages that are not installed, and for some that they do not import."""
    (tmp_path / "xai_sdk.py").write_text("")
    look = "from importlib.util import find_spec; assert find_spec('xai_sdk')"
    missing = "sys.path.pop(0); exec('try:\\n import xai_sdk\\nexcept ImportError: pass')"
    assert said(inside=f"sys.path.insert(0, {str(tmp_path)!r}); {look}; {missing}") == "[]"


def test_an_import_goes_on_where_warnings_are_errors(tmp_path):
    (tmp_path / "xai_sdk.py").write_text("loaded = True")
    script = "import paceline\nwith paceline.instrument(paceline.Limiter()):\n    import xai_sdk\nprint(xai_sdk.loaded)"
    assert run_with(tmp_path, script).strip() == "True"


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


@pytest.mark.parametrize(
    ("version", "client", "warned"),
    [("3.4.1", True, False), ("3.4.1", False, True), ("3.3.9", False, False), ("strange", True, True)],
)
def test_dspy_is_named_from_3_4_on_unless_its_client_is_the_one_that_is_known(
    monkeypatch, tmp_path, version, client, warned
):
    class Installed:
        def locate_file(self, path):
            return tmp_path / path

    if client:
        file = tmp_path / "dspy" / "_vendor" / "lm15" / "transports.py"
        file.parent.mkdir(parents=True)
        file.write_text("")
    monkeypatch.setattr(bypass, "version", lambda _: version)
    monkeypatch.setattr(bypass, "distribution", lambda _: Installed())
    assert bypass._dspy() is warned


DSPY = """
class Answer:
    status, reason, headers = 200, "OK", [("content-type", "application/json")]
    def __init__(self, **head): self.__dict__.update(head)
    def __iter__(self): return iter([b'{"usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}}'])
    def close(self): pass
TransportResponse = AsyncTransportResponse = Answer
class StdlibTransport:
    def stream(self, request): return Answer()
class StdlibAsyncTransport:
    async def _do_stream(self, request): return Answer()
"""
"""dspy's client, as far as it is looked at; the real one: tests/frameworks/dspy."""


def dspy_at(tmp_path, text):
    inside = tmp_path / "dspy" / "_vendor" / "lm15"
    inside.mkdir(parents=True)
    (inside / "transports.py").write_text(text)
    for folder in (inside, inside.parent, inside.parent.parent):
        (folder / "__init__.py").write_text("")
    (tmp_path / "dspy-3.4.1.dist-info").mkdir()
    (tmp_path / "dspy-3.4.1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: dspy\nVersion: 3.4.1\n")


def run_with(tmp_path, script):
    done = subprocess.run(
        [sys.executable, "-W", "error::paceline.PacelineWarning", "-c", script],
        check=False, capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("first", ["import", "instrument"])
def test_dspy_is_paced_without_a_warning_and_restored(tmp_path, first):
    dspy_at(tmp_path, DSPY)
    script = f"""
import importlib, types, paceline
limiter = paceline.Limiter({{"openai/*": "10 requests/min"}})
steps = ["dspy", "instrument"]
if {first!r} == "instrument":
    steps.reverse()
for step in steps:
    if step == "instrument":
        running = paceline.instrument(limiter)
    else:
        importlib.import_module("dspy")
        client = importlib.import_module("dspy._vendor.lm15.transports")
ask = types.SimpleNamespace(method="POST", url="https://api.openai.com/v1/chat/completions", headers=[], body=b'{{"model": "gpt-5"}}')
list(client.StdlibTransport().stream(ask).chunks)
from paceline.integrations import dspy as door
with door.instrument(limiter):  # both: charged once
    list(client.StdlibTransport().stream(ask).chunks)
running.undo()
client.StdlibTransport().stream(ask)
print(limiter.status()["pools"]["openai/gpt-5"]["counts"])
"""
    assert run_with(tmp_path, script).strip() == "{'granted': 2, 'settled': 2}"


@pytest.mark.parametrize("first", ["dspy", "instrument"])
def test_another_dspy_is_named_and_still_works(tmp_path, first):
    dspy_at(tmp_path, "class StdlibTransport: ...")
    script = f"""
import warnings, paceline
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    if {first!r} == "dspy":
        import dspy._vendor.lm15.transports
    with paceline.instrument(paceline.Limiter()):
        import dspy._vendor.lm15.transports
print([str(w.message) for w in said])
"""
    assert run_with(tmp_path, script).count("paceline does not pace dspy: it has another HTTP client than 3.4's") == 1


def test_attach_names_the_way_out():
    class Boto:
        pass

    with pytest.raises(TypeError, match=r"paceline.instrument"):
        paceline.Limiter().attach(Boto())
