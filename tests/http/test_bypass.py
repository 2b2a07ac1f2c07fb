"""What cannot be paced is announced."""

import os
import subprocess
import sys
from types import ModuleType

import pytest

import paceline
from grids import some
from paceline.http import bypass, unpaced

AGAIN = pytest.mark.long("starts a process again, in another order")
XAI = "gRPC api.x.ai is not paced, because it is no HTTP request; to pace it, use openai.OpenAI(base_url="


def test_xai_sdk_is_named_if_it_is_imported_already(monkeypatch, caplog):
    """A channel that a client makes later is seen itself."""
    with paceline.instrument(paceline.Limiter()):
        assert unpaced.rows() == []
    monkeypatch.setitem(sys.modules, "xai_sdk", ModuleType("xai_sdk"))
    for _ in range(2):
        with paceline.instrument(paceline.Limiter()):
            pass
    assert [record.getMessage().startswith(XAI) for record in caplog.records] == [True]


GRPC = """
class Channel:
    def __init__(self, target, options=None): self.target = target
"""


@pytest.mark.parametrize("first", some(["import", "instrument"], "import", mark=AGAIN))
def test_what_is_only_looked_for_is_not_imported_and_a_module_is_watched_as_it_loads(tmp_path, first):
    """instructor and ragas look for packages that are not installed, and for some that they do not import."""
    for name in ("grpc", "grpc/aio"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
        (tmp_path / name / "_channel.py").write_text(GRPC)
    script = f"""
import importlib, sys, paceline
from importlib.util import find_spec
limiter = paceline.Limiter({{"jobs": "9 requests/min"}})
steps = ["import", "instrument"]
if {first!r} == "instrument":
    steps.reverse()
for step in steps:
    if step == "instrument":
        running = paceline.instrument(limiter)
        assert find_spec("grpc._channel")
        assert {first!r} == "import" or "grpc._channel" not in sys.modules
    else:
        import grpc._channel, grpc.aio._channel
grpc._channel.Channel("dns:///api.x.ai:443")
grpc.aio._channel.Channel(target="api.x.ai")
grpc._channel.Channel("example.com:443")
grpc._channel.Channel("unix:/tmp/socket")
with limiter.acquire("jobs"):
    grpc._channel.Channel("generativelanguage.googleapis.com")
running.undo()
assert grpc._channel.Channel("api.x.ai").target == "api.x.ai"
for row in limiter.status()["unpaced"]:
    print(row["provider"], row["host"], row["kind"], row["count"])
"""
    assert run_with(tmp_path, script) == "xai api.x.ai gRPC 2\n"


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
    assert bypass.dspy_is_unknown() is warned


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
    return run_both(tmp_path, script)[0]


def run_both(tmp_path, script):
    done = subprocess.run(
        [sys.executable, "-W", "error::paceline.PacelineWarning", "-c", script],
        check=False, capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.parametrize("first", some(["import", "instrument"], "import", mark=AGAIN))
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


@pytest.mark.parametrize("first", some(["dspy", "instrument"], "instrument", mark=AGAIN))
def test_another_dspy_is_named_and_still_works(tmp_path, first):
    dspy_at(tmp_path, "class StdlibTransport: ...")
    script = f"""
import paceline
if {first!r} == "dspy":
    import dspy._vendor.lm15.transports
limiter = paceline.Limiter()
with paceline.instrument(limiter):
    import dspy._vendor.lm15.transports
print([row["kind"] for row in limiter.status()["unpaced"]])
"""
    printed, logged = run_both(tmp_path, script)
    said = "dspy is not paced, because it has another HTTP client than 3.4's; to pace it, use dspy.LM"
    assert (printed.strip(), logged.count(said)) == ("['dspy']", 1)
