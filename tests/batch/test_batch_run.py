import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import threading

from waits import until

with contextlib.suppress(ImportError):
    import fcntl
    import termios

import pytest
from batch_helpers import (
    GOOD,
    Said,
    call,
    chat,
    chats,
    finish,
    ids_in,
    read_answers,
    run_job,
    wait_for_lines,
    write_lines,
)
from batch_times import KEYS, QUICK

from grids import some
from odd_server import JSON, OddServer
from paceline.batch.check import InputError
from paceline.batch.progress import LineView
from paceline.batch.results import OutputError
from paceline.core.results import PacelineError
from paceline.pacing import durable


def run(source, emulator, **given):
    return run_job(source, **{"base_url": f"{emulator.base_url}/v1", "workers": 50} | given)


@pytest.fixture
def source(tmp_path):
    return write_lines(tmp_path / "in.jsonl", chats(60))


def output_of(source):
    return source.with_name("in.results.jsonl")


def test_answers_everything_once(source, emulator, capsys):
    code, report = run(source, emulator, view=LineView())
    answers = read_answers(output_of(source))
    assert code == 0
    assert sorted(ids_in(output_of(source))) == sorted(f"r{i}" for i in range(60))
    assert all(a["error"] is None and a["response"]["status_code"] == 200 for a in answers)
    assert answers[0]["response"]["body"]["choices"]
    assert answers[0]["response"]["request_id"].startswith("req_")
    assert (report["ok"], report["failed"], report["refused"], report["attempts"]) == (60, 0, 0, 60)
    assert report["output_tokens"] == sum(a["response"]["body"]["usage"]["completion_tokens"] for a in answers)
    said = capsys.readouterr().err
    assert "openai/gpt-5: 60k requests/min, 60M tokens/min (given)" in said
    assert "60 requests: 60 answered, 0 failed" in said
    assert emulator.tally()["answers"]["most"] == 1


@pytest.mark.parametrize("mode", ["sync", "batch"])
@pytest.mark.usefixtures("timing")
def test_ids_that_are_integers_stay_integers(tmp_path, emulator, mode):
    emulator.reset(batches=QUICK)
    ids = [7, "8", 2**70, -1]
    source = write_lines(tmp_path / "in.jsonl", map(chat, ids))
    options = {"environ": KEYS, "mode": mode}
    for sent in (4, 0):
        code, report = run(source, emulator, **options)
        assert (code, report["ok"]) == (0, sent)
        assert {repr(one["custom_id"]) for one in read_answers(output_of(source))} == set(map(repr, ids))
    write_lines(source, map(chat, [7, "7"]))
    with pytest.raises(InputError, match="line 2: custom_id is already in line 1: it must be unique"):
        run(source, emulator, **options)


@pytest.mark.parametrize("end", ["jsonl", "batches.jsonl"])
def test_a_restart_that_cannot_rename_them_says_which(source, emulator, monkeypatch, end):
    """Another program has the file open, on Windows; or the folder is another user's."""
    run(source, emulator)
    source.with_name("in.results.jsonl.batches.jsonl").write_text("")

    def refuse(path, name, replace=durable.replace):
        if path.endswith(end):
            raise PermissionError(errno.EACCES, "open elsewhere")
        replace(path, name)

    monkeypatch.setattr(durable, "replace", refuse)
    with pytest.raises(OutputError, match=rf"in.results\S*{end}: it cannot be renamed: open elsewhere"):
        run(source, emulator, restart=True)


def test_failures_are_recorded_and_tried_again(tmp_path, emulator):
    lines = [chat("good"), chat("bad", n=-1), chat("worse") | {"url": "/v2/chat/completions"}]
    source = write_lines(tmp_path / "in.jsonl", lines)
    code, report = run(source, emulator, max_attempts=1)
    by_id = {a["custom_id"]: a for a in read_answers(output_of(source))}
    assert code == 1
    assert report["ok"] + report["failed"] == 3
    assert by_id["worse"]["response"]["status_code"] == 404
    assert by_id["worse"]["error"]["code"] == "invalid_request_error"
    assert "Invalid URL" in by_id["worse"]["error"]["message"]
    write_lines(source, [chat("good"), chat("bad"), chat("worse")])
    code, report = run(source, emulator)
    assert (code, report["failed"]) == (0, 0)
    assert sorted(ids_in(output_of(source))) == ["bad", "good", "worse"]


def test_deadline_of_an_answer(tmp_path, emulator):
    emulator.reset(latency_s=5.0)
    source = write_lines(tmp_path / "in.jsonl", [chat("a")])
    code, report = run(source, emulator, timeout_s=0.1, max_attempts=1)
    (answer,) = read_answers(output_of(source))
    assert (code, report["failed"]) == (1, 1)
    assert sum(report["errors"].values()) == 1
    assert "no answer within 0.1 s" in answer["error"]["message"]


def test_no_money_stops_the_run(source, emulator, capsys):
    emulator.reset(money_after=40)
    code, report = run(source, emulator, workers=10)
    assert code == 1
    assert report["ok"] == 40
    assert report["failed"] == 0
    assert "stopped: " in (said := capsys.readouterr().err)
    assert "20 requests left: the same command again sends the rest" in said
    emulator.reset(money_after=None)
    code, report = run(source, emulator)
    assert (code, report["ok"], report["skipped"]) == (0, 20, 40)


def test_nothing_is_sent_when_it_cannot_start(tmp_path, source, emulator):
    bad = write_lines(tmp_path / "bad.jsonl", [chat("a"), {"custom_id": "b"}])
    (hard_link := tmp_path / "link").hardlink_to(source)
    attempts = (
        (bad, {}, "line 2: url is missing"),
        (tmp_path / "none.jsonl", {}, "cannot be read: No such file"),
        (source, {"output": str(source)}, "this is the input"),
        (source, {"output": str(hard_link)}, "this is the input"),
        (source, {"output": str(tmp_path / "no" / "out")}, "cannot be written"),
        (source, {"base_url": "http://192.0.2.1"}, "set the environment variable OPENAI_API_KEY"),
        (source, {"base_url": None, "provider": "nobody"}, "--base-url"),
        (source, {"environ": {"OPENAI_API_KEY": "two\nlines"}}, "invalid key in OPENAI_API_KEY"),
    )
    for path, options, words in attempts:
        with pytest.raises(PacelineError, match=words):
            run(path, emulator, **options)
    assert emulator.tally()["admitted"] == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.jsonl", "in.jsonl", "link"]


class AtStart(Said):
    """Does something after the input was checked and before anything is sent."""

    def __init__(self, do):
        super().__init__()
        self._do = do

    def say(self, text):
        super().say(text)
        if text.startswith("state: "):
            self._do()


def test_lines_that_are_added_to_a_checked_input_are_sent_by_the_next_run(source, emulator):
    added = [json.dumps(chat(f"n{i}")).encode() for i in range(4)]

    def write(content):
        with source.open("ab") as file:
            file.write(content)

    view = AtStart(lambda: write(b"\n".join(added)[:-50]))
    code, report = run(source, emulator, view=view)
    assert (code, report["ok"], emulator.tally()["admitted"]) == (0, 60, 60)
    words = "4 lines were added to the input after it was checked: the same command again sends them"
    assert [line for line in view.lines if "were added" in line] == [words]
    write(added[-1][-50:] + b"\n")
    view = AtStart(lambda: None)
    _, report = run(source, emulator, view=view)
    assert (report["ok"], emulator.tally()["admitted"], emulator.tally()["answers"]["most"]) == (4, 64, 1)
    assert not any("were added" in line for line in view.lines)


def exchanged(lines):
    return [lines[1], lines[0], *lines[2:]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (exchanged, "line 1: its custom_id was not 'r1'"),
        (lambda lines: [line.replace(b'"r0"', b'"z"') for line in lines], "line 1: its custom_id was not 'z'"),
        (lambda lines: [lines[0][:40] + b"\n", *lines[1:]], "line 1: not JSON"),
        (lambda lines: lines[:40], "it had a line 60"),
        (lambda lines: [], "it had a line 60"),
    ],
)
def test_an_input_that_was_changed_is_an_error_and_no_answer_has_another_id(source, emulator, change, words, capsys):
    lines = source.read_bytes().splitlines(keepends=True)
    view = AtStart(lambda: source.write_bytes(b"".join(change(lines))))
    code, report = run(source, emulator, view=view, workers=10)
    assert f"stopped: the input has changed since it was checked: {words}" in capsys.readouterr().err
    sent = 40 if change(lines) == lines[:40] else 0
    assert (code, report["ok"], emulator.tally()["admitted"]) == (1 if sent else 2, sent, sent)
    assert [name for name in ids_in(output_of(source)) if int(name[1:]) >= sent] == []


def test_a_run_that_ends_early_says_what_it_waits_for(source):
    lines, said = source.read_bytes().splitlines(keepends=True), threading.Event()

    class View(AtStart):
        def say(self, text):
            super().say(text)
            if text.startswith("stopping"):
                said.set()

    def answer(number, _):
        assert number or said.wait(60)  # the first one is in flight until then
        return 200, JSON, GOOD

    view = View(lambda: source.write_bytes(b"".join(lines[:2])))
    with OddServer(answer) as server:
        code, report = run(source, server, view=view, workers=2)
    assert (code, report["ok"]) == (1, 2)
    why = "the input has changed since it was checked: it had a line 60"
    assert f"stopping: {why}; waiting for 1 request in flight; interrupt to stop at once" in view.lines


def test_json_summary(source, emulator):
    out, err = call(source, "--json", "--quiet", base_url=emulator.base_url)
    report = json.loads(out)
    assert err == ""
    assert set(report) == {
        "requests", "ok", "failed", "errors", "skipped", "refused", "attempts", "seconds", "ideal_share", "wait_p50_s", "cpu_us_per_request",
        "wait_p99_s", "input_tokens", "output_tokens", "pools", "store", "output", "interrupted",
        "usd", "usd_saved", "in_batches", "unpriced",
    }  # fmt: skip
    assert report["ok"] == report["requests"] == 60
    assert report["output"] == str(output_of(source))
    assert report["pools"]["openai/gpt-5"]["counts"]["granted"] == 60
    assert report["store"] is None


def test_stdin_to_stdout(source, emulator, command):
    with source.open() as file:
        out, err = finish(command("-", "-o", "-", base_url=emulator.base_url, stdin=file), 0)
    assert len({json.loads(line)["custom_id"] for line in out.splitlines()}) == 60
    assert "60 answered" in err


@pytest.mark.long("starts a process")
def test_a_pipe_is_checked_before_anything_is_sent(tmp_path, emulator, command):
    lines = json.dumps(chat("a")) + "\n{}\n"
    process = command("-", "-o", tmp_path / "out", base_url=emulator.base_url, stdin=subprocess.PIPE)
    _, err = process.communicate(lines, timeout=120)
    assert process.returncode == 2
    assert "line 2: url is missing" in err
    assert emulator.tally()["admitted"] == 0


def test_usage_errors(source, emulator):
    for arguments, words in (
        ((source, "--json", "-o", "-"), "choose one"),
        ((source, "--workers", "0"), "workers: 0: it must be a whole number"),
        (("-",), "needs an output"),
        ((source, "--limit", "gpt-5=fast"), "is not a quota"),
    ):
        assert words in call(*arguments, code=2, base_url=emulator.base_url)[1]


def all_once(source):
    answers = read_answers(output_of(source))
    assert sorted(ids_in(output_of(source))) == sorted(f"r{i}" for i in range(400))
    assert all(a["error"] is None for a in answers)


@pytest.fixture
def slow(tmp_path, emulator):
    """400 requests, each answered after a tenth of a second."""
    emulator.reset(latency_s=0.1)
    return write_lines(tmp_path / "in.jsonl", chats(400))


@pytest.mark.long("starts several processes")
@pytest.mark.skipif(os.name == "nt", reason="signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", None)])
def test_a_signal_finishes_what_is_in_flight(slow, emulator, number, command):
    heed = lambda: signal.signal(number, signal.SIG_DFL)  # noqa: E731  (the tests may run with it ignored)
    process = command(slow, "--workers", "40", "--json", base_url=emulator.base_url, preexec_fn=heed)
    wait_for_lines(output_of(slow), 50, process)
    process.send_signal(number)
    out, err = finish(process, 130)
    report, tally = json.loads(out), emulator.tally()
    assert report["interrupted"] is True
    assert report["ok"] == len(read_answers(output_of(slow))) == tally["admitted"] < 400
    assert "the same command again sends the rest" in err
    finish(command(slow, base_url=emulator.base_url), 0)
    all_once(slow)
    assert emulator.tally()["answers"]["most"] == 1


@pytest.mark.long("starts a process")
@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_a_closed_terminal_loses_no_answer(slow, emulator, command):
    master, terminal = os.openpty()

    def control():
        os.setsid()
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)

    process = command(
        slow, "--workers", "40", base_url=emulator.base_url, streams={"stdin": terminal, "stdout": terminal, "stderr": terminal},
        preexec_fn=control,
    )  # fmt: skip
    os.close(terminal)
    wait_for_lines(output_of(slow), 50, process)
    os.close(master)  # the kernel sends SIGHUP, and every write to the terminal fails
    assert process.wait(60) == 130
    assert len(read_answers(output_of(slow))) == emulator.tally()["admitted"] < 400


@pytest.mark.long("starts several processes")
@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_a_signal_that_was_ignored_at_the_start_stays_ignored(slow, emulator, command):
    process = command(slow, base_url=emulator.base_url, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    wait_for_lines(output_of(slow), 1, process)
    process.send_signal(signal.SIGHUP)
    finish(process, 0)
    all_once(slow)


INTERRUPTED = """
import sys

class Interrupts:
    module = sys.argv[1]

    def find_spec(self, name, path=None, target=None):
        if name == self.module:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupts())
sys.argv[:] = ["paceline", "run", *sys.argv[2:]]
from paceline.cli import main
main()
"""


OWN = ["paceline.cli.app", "paceline.cli.run", "paceline.batch.job"]
MODULES = [*OWN, "click", "aiohttp", "httpx2", "pydantic", "rich.live"]


@pytest.mark.parametrize("module", some(MODULES, "click", "aiohttp", mark=pytest.mark.long("starts a process")))
def test_an_interrupt_while_modules_are_imported_is_one_line(source, emulator, module):
    line = [sys.executable, "-c", INTERRUPTED, module, source, "--base-url", emulator.base_url]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 130
    (said,) = done.stderr.splitlines()
    assert said.startswith("paceline")
    assert "interrupted" in said
    assert emulator.tally()["admitted"] == 0


@pytest.mark.long("starts several processes")
@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_the_second_signal_stops_at_once(tmp_path, emulator, command):
    emulator.reset(latency_s=60.0)
    source = write_lines(tmp_path / "in.jsonl", [chat("a"), chat("b")])
    process = command(source, base_url=emulator.base_url)
    until(lambda: emulator.tally()["in_flight"] == 2 or process.poll() is not None)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    while "interrupt again to stop at once" not in (said := process.stderr.readline()):
        assert said
    process.send_signal(signal.SIGINT)
    _, err = finish(process, 130)
    assert "2 requests left" in err


def test_refusals_are_said_once_and_not_at_all_in_a_quiet_run(tmp_path):
    refusal = {"error": {"message": "slow down", "code": "rate_limit_exceeded"}}
    source, soon = write_lines(tmp_path / "in.jsonl", chats(3)), {"retry-after": "0.01"}
    for options, times in (((), 1), (("--quiet",), 0)):
        with OddServer(lambda n, _: (429, soon, refusal) if n < 3 else (200, JSON, GOOD)) as server:
            _, said = call(source, "--restart", *options, base_url=server.base_url)
        assert said.count("refused (rate)") == times, said
        assert "429_error" not in said
