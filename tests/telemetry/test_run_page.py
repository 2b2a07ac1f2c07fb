"""`paceline run --page`: the live page of a run."""

import subprocess
import sys
import time

import httpx2
import pytest
from tests.batch.batch_helpers import chat, write_lines

from paceline.emulator import Emulator


@pytest.fixture
def emulator():
    with Emulator(limits={"*": "100k requests/min"}, latency_s=0.0) as emulator:
        yield emulator


def start(tmp_path, emulator, *options):
    source = write_lines(tmp_path / "in.jsonl", [chat(f"r{n}", max_tokens=5) for n in range(30)])
    command = [sys.executable, "-c", "from paceline.cli import main; main()", "run", str(source), "--quiet"]
    given = ["--base-url", emulator.base_url, "--provider", "openai", "--limit", "*=600 requests/min burst 15"]
    environ = {"OPENAI_API_KEY": "k", "PATH": "", "HOME": str(tmp_path)}
    return subprocess.Popen([*command, *given, *options], env=environ, stderr=subprocess.PIPE, text=True)


@pytest.mark.long("runs for seconds of real time")
def test_it_is_there_while_the_run_lasts(tmp_path, emulator):
    run = start(tmp_path, emulator, "--page", "0")
    line = run.stderr.readline()
    assert line.startswith("paceline run: page at http://127.0.0.1:")
    url, pools = line.split()[-1], {}
    end = time.monotonic() + 60
    while not pools and time.monotonic() < end:
        pools = httpx2.get(url + "status", trust_env=False).json()["pools"]
    assert list(pools) == ["openai/gpt-5"]
    run.communicate(timeout=120)
    assert run.returncode == 0


@pytest.mark.long("starts a process")
def test_a_taken_port_is_an_error_before_anything_is_sent(tmp_path, emulator):
    port = emulator.base_url.rpartition(":")[2]
    run = start(tmp_path, emulator, "--page", port)
    _, errors = run.communicate(timeout=120)
    assert run.returncode == 2
    assert f"--page {port}: the port cannot be used" in errors
    assert emulator.tally()["admitted"] == 0
