"""The SDKs for JavaScript (``package.json``) with the gateway's address in place of the provider's."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from gateway_world import TOOL, WHOLE, Gateway, provider, whole

from paceline.emulator import Emulator

HERE = Path(__file__).resolve().parent
HOME = HERE.parents[2] / ".venv-frameworks" / "gateway_js_node"
INSTALL_S, CHECKS_S = 300, 120

PLAIN = ["openai chat", "openai responses", "anthropic messages", "vercel openai responses", "vercel anthropic"]
STREAMED = [
    "openai chat, streamed", "openai responses, streamed", "anthropic messages, streamed",
    "vercel openai responses, streamed", "vercel openai chat, streamed", "vercel anthropic, streamed",
]  # fmt: skip


@pytest.fixture(scope="session")
def node():
    """Install the packages, unless they are there; run checks and return what each said."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.fail(
            "node and npm are missing: install Node.js (https://nodejs.org), or leave this environment out",
            pytrace=False,
        )
    wanted = (HERE / "package.json").read_text()
    stamp, key = HOME / "ready", hashlib.sha256(wanted.encode()).hexdigest()
    if not stamp.exists() or stamp.read_text() != key:
        shutil.rmtree(HOME, ignore_errors=True)
        HOME.mkdir(parents=True)
        (HOME / "package.json").write_text(wanted)
        command = ["npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error"]
        done = subprocess.run(command, cwd=HOME, check=False, capture_output=True, text=True, timeout=INSTALL_S)
        if done.returncode:
            pytest.fail(f"npm cannot install the packages: {done.stderr}", pytrace=False)
        stamp.write_text(key)
    for name in ("checks.mjs", "own.mjs"):
        shutil.copy(HERE / name, HOME)

    def run(root, *names, headers=None, retries=2, text=WHOLE):
        own = {"ROOT": root, "TEXT": text, "TOOL": TOOL["name"], "ARGUMENTS": "".join(TOOL["arguments"])}
        done = subprocess.run(
            [HOME / "node_modules/node/bin/node", "checks.mjs", *names], cwd=HOME, check=False, capture_output=True, text=True,
            timeout=CHECKS_S, env=os.environ | own | {"HEADERS": json.dumps(headers or {}), "RETRIES": str(retries)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return {line["name"]: line for line in map(json.loads, done.stdout.splitlines())}

    return run


@pytest.fixture(autouse=True)
def forget(recorder):
    recorder.asked.clear()
    yield
    recorder.answer = provider


@pytest.fixture
def start(tmp_path, recorder):
    """Start the gateway with limits."""
    running = []

    def start(limits=None):
        running.append(Gateway(tmp_path, recorder.url, limits=limits))
        return running[-1].url

    yield start
    for gateway in running:
        gateway.__exit__()
        assert "Traceback" not in gateway.log


def test_every_call(node, start, recorder):
    direct = node(recorder.url)
    assert len(direct) == 27
    through = node(start())
    assert through == direct
    assert {name: line["error"] for name, line in through.items() if line["error"]} == {}


def test_a_program_under_exec_finds_its_gateway(node):
    """40 at once, where 10 of each model are allowed in any second, and the real key is asked for."""
    limits = ["10 requests/s"]
    with Emulator({"gpt-5": limits, "claude-haiku-4-5": limits}, process=True, valid_key="sk-real") as world:
        mine = {f"{name}_BASE_URL": world.base_url + path for name, path in (("OPENAI", "/v1"), ("ANTHROPIC", ""))}
        mine |= dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY"), "sk-real")
        command = [
            str(Path(sys.executable).with_name("paceline")),
            "exec",
            "--strict",
            "--limit",
            "*=10 requests/s",
            "--",
        ]
        done = subprocess.run(
            [*command, HOME / "node_modules/node/bin/node", "own.mjs"], cwd=HOME, check=False, capture_output=True, text=True,
            timeout=CHECKS_S, env=os.environ | mine,
        )  # fmt: skip
        tally = world.tally()
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["answered"], tally["admitted"], tally["refused_total"]) == (40, 40, 0)
    assert found["key"].startswith("pk-")
    assert "paceline exec: openai/gpt-5: 20 requests, 0 refused" in done.stderr


NARROW = {f"{name}/*": ["50 requests/min burst 1"] for name in ("openai", "anthropic")}
KEPT = {"x-paceline-keepalive": "1"}


def test_comments_do_not_break_a_parser(node, start):
    found = node(start(NARROW), "openai chat", "anthropic messages", *STREAMED, headers=KEPT)
    assert {name: line["error"] for name, line in found.items() if line["error"]} == {}


@pytest.mark.parametrize("refusal", [
    whole({"type": "error", "error": {"type": "invalid_request_error", "message": "too long"}}, status="400 Bad Request"),
    whole(b"<html>", status="502 Bad Gateway", kind="text/html"),
], ids=["JSON", "HTML"])  # fmt: skip
def test_an_error_afterwards_is_an_error(node, start, recorder, refusal):
    recorder.answer = lambda asked: refusal if asked.json.get("stream") else provider(asked)
    uses_up = {name: "anthropic messages" if "anthropic" in name else "openai chat" for name in STREAMED}
    found = node(start(NARROW), *[one for name in STREAMED for one in (uses_up[name], name)], headers=KEPT, retries=0)
    said = "too long" if b"too long" in refusal[0] else "the server answered with status 502"
    assert {name: said in (found[name]["error"] or "") for name in STREAMED} == dict.fromkeys(STREAMED, True), found
    assert len(recorder.asked) == 2 * len(STREAMED)


def test_a_deadline_is_an_error_without_another_attempt(node, start, recorder):
    """Vercel's SDK alone makes another one, after the stated time."""
    root = start({name: ["1 requests/min"] for name in ("openai/*", "anthropic/*")})
    node(root, "openai chat", "anthropic messages")
    recorder.asked.clear()
    found = node(root, *PLAIN, *STREAMED, headers={"x-paceline-timeout": "0.1"}, retries=0)
    for line in found.values():
        assert "no permit within the timeout" in line["error"]
        assert line["status"] == 429
    assert recorder.asked == []
