import http.client
import signal
import subprocess
import sys

import httpx2
import pytest
from click.testing import CliRunner

from grids import some
from lost_signals import losing
from paceline.cli import emulate
from paceline.cli.app import app
from paceline.cli.emulate import command

interrupts = pytest.mark.skipif(sys.platform == "win32", reason="a process without a console cannot be interrupted")

RUN = "from paceline.cli import main; main()"


@pytest.fixture
def emulating():
    """Start the command in a process, which ends with the test."""
    running = []

    def start(*arguments, before=""):
        command = [sys.executable, "-c", before + RUN, "emulate", "--port", "0", *arguments]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.communicate(timeout=60)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rule", "wndow"], "did you mean 'window'?"),
        (["--limit", "gpt-5=5 request/min"], "did you mean 'requests'?"),
        (["--faults", "503"], "write it like '503=0.02'"),
        (["--faults", "504=0.1"], "unknown kind '504'"),
        (["--batches", "turnaround"], "write it like 'turnaround_s=420'"),
        (["--batches", "cancel_s=long"], "'long' is no number"),
        (["--batches", "cancel=5"], "did you mean 'cancel_s'?"),
        (["--latency", "-1"], "latency_s is -1.0: it must be a number from 0 to 1e+06"),
    ],
)
def test_wrong_options_are_explained(arguments, message):
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 2
    assert message in result.output


@interrupts
def test_serves_until_interrupted_and_prints_the_tally(tmp_path, emulating):
    scenario = tmp_path / "scenario.toml"
    scenario.write_text('seed = 5\nheaders = false\n[limits]\n"gpt-5" = "1 requests/min"\n"*" = "9 requests/min"\n')
    process = emulating("--scenario", str(scenario))
    first = process.stdout.readline()
    connection = http.client.HTTPConnection(first.split("http://")[1].split("/")[0], timeout=10)
    statuses = []
    for _ in range(3):
        body = '{"model": "gpt-5", "messages": []}'
        connection.request("POST", "/v1/chat/completions", body, {"authorization": "Bearer any"})
        response = connection.getresponse()
        response.read()
        statuses.append(response.status)
        assert "x-ratelimit-limit-requests" not in response.headers
    connection.close()
    process.send_signal(signal.SIGINT)
    rest = process.communicate(timeout=60)[0]
    assert process.returncode == 0
    assert statuses == [200, 429, 429]
    rows = [line.split() for line in rest.splitlines()]
    assert ["gpt-5", "1", "2", "0", "1", "0.0", "-"] in rows
    assert ["refused:", "2", "rate"] in rows


@interrupts
@pytest.mark.parametrize(
    "name", some(["SIGINT", "SIGTERM"], "SIGTERM", mark=pytest.mark.long("starts a process again"))
)
def test_a_signal_while_it_starts_ends_it(emulating, name):
    process = emulating(before=losing(name))
    assert "refused" in process.communicate(timeout=60)[0]
    assert process.returncode == 0


@pytest.mark.parametrize("words", [["emulate"], ["serve", "--provider", "openai"]])
def test_a_taken_port_is_explained(words):
    with subprocess.Popen(  # holds the port that the second one wants
        [sys.executable, "-c", "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:  # fmt: skip
        port = holder.stdout.readline().strip()
        result = CliRunner().invoke(app, [*words, "--port", port])
        holder.communicate("\n")
    assert result.exit_code == 2
    assert f"paceline {words[0]}: cannot listen on 127.0.0.1:{port}: " in result.output
    assert ": end the program that listens there, or give another --port" in result.output


def test_shipped_scenarios_are_listed_and_wrong_names_explained():
    listed = CliRunner().invoke(command, ["--scenarios"])
    assert listed.exit_code == 0
    assert "other-users" in listed.output
    wrong = CliRunner().invoke(command, ["--scenario", "blnd"])
    assert wrong.exit_code == 2
    assert "did you mean 'blind'?" in wrong.output


def test_a_shipped_scenario_says_what_to_tell_the_limiter():
    lines = list(emulate._greeting("http://127.0.0.1:1", "blind"))
    assert "Groq at http://127.0.0.1" in lines[0]
    assert lines[1].startswith("blind: half of the client's limits")
    assert lines[2] == "limits for your limiter: 1000 requests/min,800k tokens/min"


def test_options_replace_the_settings_of_a_scenario_that_they_name():
    settings = emulate._settings("batches", {"batches": {"cancel_s": 5}, "seed": None}).values()
    assert (settings["batches"]["cancel_s"], settings["batches"]["turnaround_s"]) == (5, 420)


def test_the_batch_apis_have_settings_and_a_line_in_the_tally(paceline_emulator):
    options = "validating_s=0,finalizing_s=0,turnaround_s=0,enqueued_tokens=2M,in_order=true,queue_full=429"
    given = {"batches": command.make_context("emulate", ["--batches", options]).params["batches"]}
    emulator = paceline_emulator(**emulate._settings(None, given).values())
    params = {"model": "claude", "max_tokens": 5, "messages": [{"role": "user", "content": "hello"}]}
    body = {"requests": [{"custom_id": "a", "params": params}]}
    made = httpx2.post(f"{emulator.base_url}/v1/messages/batches", json=body, headers={"x-api-key": "any"})
    assert made.json()["type"] == "message_batch"
    assert "batches: 1 completed; 1 of 1 requests answered" in emulate._table(emulator.tally())
