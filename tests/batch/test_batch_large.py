"""An input of which only the first lines are checked before the first request."""

import json
import sqlite3
import subprocess
import sys

import pytest
from batch_helpers import FAST, Said, chat, chats, message, read_answers, run_job, write_lines

from paceline.batch import job as job_module
from paceline.batch.acceptance import Acceptance
from paceline.batch.check import InputError
from paceline.batch.index import Index


@pytest.fixture(autouse=True)
def small_sample(monkeypatch):
    monkeypatch.setattr(job_module, "CHECKED_FIRST_MAX", 0)
    monkeypatch.setattr(job_module, "SAMPLE", 10)


def run(path, emulator, view=None, **given):
    return run_job(path, emulator.base_url, view, **{"workers": 20} | given)


def bad(lines):
    """The same lines with three that cannot be sent: broken, of another kind, and with an id for the second time."""
    lines = [json.dumps(line) for line in lines]
    lines[50], lines[60], lines[70] = "{broken", json.dumps({"custom_id": "x", "body": {}}), lines[3]
    return lines


def test_lines_that_cannot_be_sent_are_reported_and_the_others_sent(tmp_path, emulator):
    """The same command again sends them when they are mended."""
    path, said, lines = tmp_path / "in.jsonl", Said(), chats(100)
    path.write_text("\n".join(bad(lines)))
    code, report = run(path, emulator, said)
    assert (code, report["requests"], report["ok"], report["failed"]) == (1, 100, 97, 3)
    assert report["errors"] == {"bad_line": 3}
    assert report["attempts"] == emulator.tally()["admitted"] == 97
    assert len({answer["custom_id"] for answer in read_answers(tmp_path / "in.results.jsonl")}) == 97
    named = [line.partition(":")[0] for line in said.lines if line.startswith("line ")]
    assert named == ["line 51", "line 61", "line 71"]
    assert "line 71: custom_id is already in line 4: it must be unique; it is not sent" in said.lines
    assert "100 requests: 97 answered, 3 failed (3 bad_line)" in said.lines[-5]
    assert said.lines[1].endswith("requests, each checked when it is sent")
    code, report = run(write_lines(path, lines), emulator)
    assert (code, report["skipped"], report["ok"]) == (0, 97, 3)
    assert emulator.tally()["answers"]["most"] == 1


def test_answers_in_flight_are_recorded_when_the_ids_fit_nowhere(tmp_path, emulator, monkeypatch, capsys):
    path, add = write_lines(tmp_path / "in.jsonl", chats(100)), Index.add
    emulator.reset(latency_s=0.2)

    def fills(self, custom_id, line, **given):
        if line > 50:
            raise sqlite3.OperationalError("database or disk is full")
        return add(self, custom_id, line, **given)

    monkeypatch.setattr(Index, "add", fills)
    code, report = run(path, emulator)
    assert (code, report["ok"], len(read_answers(tmp_path / "in.results.jsonl"))) == (1, 50, 50)
    assert "set TMPDIR to a folder with room (database or disk is full)" in capsys.readouterr().err


def test_answers_in_flight_are_recorded_when_the_run_breaks(tmp_path, emulator, monkeypatch):
    path, error_of = write_lines(tmp_path / "in.jsonl", chats(100)), Acceptance.error_of
    emulator.reset(latency_s=0.2)
    judged = iter([True] * 30 + [False] + [True] * 99)
    monkeypatch.setattr(Acceptance, "error_of", lambda *given: error_of(*given) if next(judged) else 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(path, emulator)
    recorded = len(read_answers(tmp_path / "in.results.jsonl"))
    assert recorded == emulator.tally()["admitted"] - 1 > 30


def test_on_demand_the_whole_input_is_checked_first(tmp_path, emulator):
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join(bad(chats(100))))
    with pytest.raises(InputError, match=r"line 51: (.|\n)*line 71: .*\nnothing has been sent"):
        run(path, emulator, check_first=True)
    assert emulator.tally()["admitted"] == 0


def test_a_mistake_in_the_first_lines_costs_nothing(tmp_path, emulator):
    path = write_lines(tmp_path / "in.jsonl", [{}, *(chat(f"r{i}") for i in range(100))])
    with pytest.raises(InputError, match="nothing has been sent"):
        run(path, emulator)
    assert emulator.tally()["admitted"] == 0


def test_a_provider_that_comes_later(tmp_path, emulator):
    path = write_lines(tmp_path / "in.jsonl", [*(chat(f"r{i}") for i in range(50)), message("m")])
    code, report = run(path, emulator)  # a server on this machine needs no key
    assert (code, report["ok"]) == (0, 51)
    assert sorted(report["pools"]) == ["anthropic/claude-sonnet-4x", "openai/gpt-5"]


def test_a_provider_that_comes_later_and_has_no_key(tmp_path, emulator, monkeypatch):
    monkeypatch.setattr("paceline.providers.registry.is_loopback", lambda _: False)
    path, said = write_lines(tmp_path / "in.jsonl", [*(chat(f"r{i}") for i in range(50)), message("m")]), Said()
    code, report = run(path, emulator, said, environ={"OPENAI_API_KEY": "sk-secret"})
    assert (code, report["ok"], report["errors"]) == (1, 50, {"bad_line": 1})
    assert "line 51: no key for anthropic: set the environment variable ANTHROPIC_API_KEY; it is not sent" in said.lines


def test_a_pool_that_comes_later_has_its_warning(tmp_path, emulator):
    said = Said()
    path = write_lines(tmp_path / "in.jsonl", [*(chat(f"r{i}") for i in range(50)), chat("own", model="ours")])
    code, _ = run(path, emulator, said, limits={})
    assert code == 0
    assert [line for line in said.lines if "no published limits for 127.0.0.1's model 'ours'" in line] != []


MEMORY = """
import re, sys
from pathlib import Path
from paceline.cli import main
sys.argv[1:] = ["run", *sys.argv[1:]]
try:
    main()
finally:
    print(re.search("VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""


@pytest.mark.long("a file of many lines")
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_stays_flat_while_lines_are_checked_and_sent(tmp_path, emulator):
    peaks = []
    for count in (500, 3_000):  # with 8 kB each: 4 and 24 MB
        path = write_lines(tmp_path / f"{count}.jsonl", [chat(f"r{i}", text="word " * 1_600) for i in range(count)])
        line = [sys.executable, "-c", MEMORY, path, "--base-url", emulator.base_url, "--limit", f"*={FAST}", "--quiet"]
        done = subprocess.run([*line, "--workers", "20"], capture_output=True, text=True, check=True)
        assert len(read_answers(tmp_path / f"{count}.results.jsonl")) == count
        peaks.append(int(done.stdout))
    assert peaks[1] - peaks[0] < 8_000
