"""A request whose answer is none is sent again by the next call: what was paid for it stays until there is another answer."""

import csv
import errno
import json
import os
import threading
from collections import Counter
from contextlib import closing, suppress
from itertools import count

import pytest
from batch_helpers import call, chat, errors_in, ids_in, index_of, read_answers, run_job, wait_for_lines, write_lines
from batch_times import KEYS
from click.testing import CliRunner
from crashing import CrashError, Crashing
from test_batch_files import left_by_a_kill
from unkind_batches import OpenAI, Unkind

from odd_server import JSON, OddServer
from paceline.batch.acceptance import Acceptance
from paceline.batch.merge import merge
from paceline.batch.results import OutputError, ResultsFile, encode_answer
from paceline.cli.app import app
from paceline.pacing import durable
from waits import until

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
ROWS = ["a", "b", "c", "d"]
BROKEN = 500, JSON, {"error": {"type": "server_error", "message": "The server had an error"}}
REFUSED = 400, JSON, {"error": {"message": "not now", "code": "invalid_value"}}
FILTERED = 400, JSON, {"error": {"message": "filtered", "code": "content_filter"}}


def body(text, **message):
    choices = [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text, **message}}]
    return {"object": "chat.completion", "choices": choices, "usage": {"prompt_tokens": 9, "completion_tokens": 9}}


FINE, INVALID, DECLINED = body('{"n": 5}'), body("five"), body(None, refusal="I can't help with that.")


def answering(answers):
    """A server that answers the prompts that ``answers`` has."""
    return OddServer(lambda _, request: answers[asked(request)])


def asked(request):
    return request["messages"][0]["content"]


def all_rows(answer):
    return dict.fromkeys(ROWS, (200, JSON, answer) if isinstance(answer, dict) else answer)


def sent(server):
    return Counter(map(asked, server.asked))


class Calls:
    """Calls of one input with a schema, in this process: the first one is answered, and paid, and no answer is in its form."""

    def __init__(self, folder, first=INVALID):
        folder.mkdir(exist_ok=True)
        self.source = write_lines(folder / "in.jsonl", [chat(row, text=row) for row in ROWS])
        self.output = folder / "in.results.jsonl"
        with answering(all_rows(first)) as server:
            assert self.run(server)[0] == 1
        assert ids_in(self.output) == ROWS

    def run(self, server, *, again=(), **options):
        acceptance = Acceptance(SCHEMA, None, frozenset(again))
        given = {"headroom_s": 0.0, "workers": 1, "acceptance": acceptance, **options}
        return run_job(self.source, server.base_url, environ=KEYS, **given)

    def told(self):
        """What the lines of each request say: the name of the error, or the answer."""
        found = {}
        for one in read_answers(self.output):
            found.setdefault(one["custom_id"], []).append(one["error"] and one["error"]["code"])
        return found

    def is_paid(self):
        """Whether each request still has an answer of the model."""
        return {one["custom_id"] for one in read_answers(self.output) if "choices" in one["response"]["body"]} == {
            *ROWS
        }


@pytest.fixture
def table(tmp_path):
    """A command with a table of the answers; and the rows of that table."""
    source, schema, output = tmp_path / "in.csv", tmp_path / "schema.json", tmp_path / "answers.csv"
    source.write_text("id,text\n" + "".join(f"{row},{row}\n" for row in ROWS))
    schema.write_text(json.dumps(SCHEMA))

    def ask(server, code, *options):
        args = (
            source,
            "--model",
            "gpt-5",
            "--column",
            "text",
            "--key",
            "id",
            "--schema",
            schema,
            "-o",
            output,
            *options,
        )
        told, _ = call(*args, "--json", "--max-attempts", "1", base_url=server.base_url, code=code, environ=KEYS)
        with output.open(newline="") as file:
            return json.loads(told), list(csv.DictReader(file))

    return ask


@pytest.mark.parametrize(
    ("second", "code"),
    [(BROKEN, "server_error"), (REFUSED, "invalid_value"), (FILTERED, "blocked")],
)
def test_a_second_call_that_fails(table, tmp_path, second, code):
    with answering(all_rows(INVALID)) as server:
        first = table(server, 1)[1]
    with answering(all_rows(second)) as server:
        told, rows = table(server, 1)
    assert (told["ok"], told["errors"], told["failed"]) == (0, {code: 4}, 4)
    assert rows == first
    assert [row["answer_text"] for row in rows] == ["five"] * 4
    with answering(all_rows(FINE)) as server:
        told, rows = table(server, 0)
        assert sent(server) == dict.fromkeys(ROWS, 1)
    assert (told["ok"], [row["answer"] for row in rows]) == (4, ['{"n": 5}'] * 4)
    assert len(read_answers(tmp_path / "answers.csv.results.jsonl")) == 4


def test_a_budget_that_refuses_the_second_call(table, tmp_path):
    config = tmp_path / "paceline.toml"
    config.write_text('budget = "0.001 usd/day"\n[prices]\n"gpt-5" = { input = 1e3, output = 1e3 }\n')
    with answering(all_rows(INVALID)) as server:
        table(server, 1)
    with answering(all_rows(FINE)) as server:
        told, rows = table(server, 1, "--config", config, "--workers", "1", "--provider", "openai")
        assert sent(server) == {"a": 1}
    assert (told["ok"], told["failed"], told["errors"]) == (1, 3, {"paceline_budget": 3})
    assert [row["answer_text"] for row in rows] == ["", "five", "five", "five"]
    assert [row["error"].split(":")[0] for row in rows] == ["", "invalid", "invalid", "invalid"]


def test_a_second_call_that_is_killed(tmp_path, command):
    calls, held = Calls(tmp_path, DECLINED), threading.Event()
    args = (calls.source, "--again", "declined", "--workers", "1", "--json")

    def answer(_, request):
        if asked(request) == "c":
            held.wait(60)
        return 200, JSON, FINE

    with OddServer(answer) as server:
        process = command(*args, base_url=server.base_url, environ=KEYS)
        wait_for_lines(calls.output, 6, process)
        until(lambda: sent(server)["c"])
        process.kill()
        process.communicate()
        held.set()
    assert calls.told() == {"a": ["declined", None], "b": ["declined", None], "c": ["declined"], "d": ["declined"]}
    merged = tmp_path / "merged.jsonl"
    done = CliRunner().invoke(app, ["merge", str(calls.source), str(calls.output), "-o", str(merged)])
    assert "4 requests: 2 answered, 2 failed, 0 missing" in done.output
    assert errors_in(merged) == {"a": None, "b": None, "c": "declined", "d": "declined"}
    with answering(all_rows(DECLINED)) as server:
        out, err = call(*args, base_url=server.base_url, code=1, environ=KEYS)
        assert sent(server) == {"c": 1, "d": 1}
    assert "4 requests, 2 answered before, 2 sent again because they failed before" in err
    report = json.loads(out)
    assert (report["skipped"], report["ok"], report["errors"]) == (2, 0, {"declined": 2})
    assert calls.told() == {"a": [None], "b": [None], "c": ["declined"], "d": ["declined"]}


class Killed(Crashing):
    """Kills the process also when a file takes the place of the output."""

    STEPS = ((ResultsFile, "append"), (durable, "replace"), (durable, "_sync_folder"))


ANSWERS = {"a": (200, JSON, FINE), "b": BROKEN, "c": (200, JSON, INVALID), "d": (200, JSON, FINE)}


@pytest.mark.parametrize("again", range(3))
def test_a_kill_at_any_step_loses_and_doubles_nothing(tmp_path, monkeypatch, again):
    """Of the second call, and of ``again`` further ones, each at the same step."""
    for at in count():
        calls, crashed = Calls(tmp_path / f"{at}"), False
        with answering(ANSWERS) as server:
            for _ in range(1 + again):
                with monkeypatch.context() as patch, suppress(CrashError):
                    killed = Killed(patch, at)
                    calls.run(server, retry={"max_attempts": 1})
                crashed = crashed or killed.crashed
                assert calls.is_paid()
                assert max(map(len, calls.told().values())) <= 2
        with OddServer(lambda *_: (200, JSON, FINE)) as server:
            merged = merge(str(calls.source), [str(calls.output)], str(tmp_path / f"{at}.jsonl"))
            assert (merged.missing, merged.twice, merged.answered + merged.failed) == (0, 0, 4)
            _, report = calls.run(server)
            assert report["skipped"] + len(sent(server)) + (report["errors"].get("invalid", 0)) == 4
            assert report["skipped"] + report["ok"] + report["failed"] == 4
            assert report["skipped"] == merged.answered
        assert {*map(len, calls.told().values())} == {1}
        assert not [*calls.output.parent.glob(".paceline-*")]
        if not crashed:
            break
    assert at > 4


def test_a_final_error_that_was_sent_again_before_a_kill(tmp_path, monkeypatch):
    """The next call, which names it no more, takes the new answer."""
    calls = Calls(tmp_path / "one", DECLINED)
    with answering(all_rows(FINE)) as server:
        with monkeypatch.context() as patch, suppress(CrashError):
            Killed(patch, 3)
            calls.run(server, again=["declined"])
        assert calls.told() == {"a": ["declined", None], "b": ["declined", None], "c": ["declined"], "d": ["declined"]}
        paid = len(server.asked)
        _, report = calls.run(server)
        assert (report["skipped"], report["errors"], len(server.asked)) == (2, {"declined": 2}, paid)
    assert calls.told() == {"a": [None], "b": [None], "c": ["declined"], "d": ["declined"]}


def test_a_row_that_cannot_be_sent_any_more(table, tmp_path):
    with answering(all_rows(INVALID)) as server:
        table(server, 1)
        source = tmp_path / "in.csv"
        source.write_text(source.read_text().replace("b,b\n", "b,\n"))
        told, rows = table(server, 1)
    assert (told["requests"], told["failed"], told["errors"]) == (4, 4, {"invalid": 3, "invalid_row": 1})
    assert rows[1]["answer_text"] == "five"


def line(name, text=None, code="invalid"):
    response = None if text is None else {"status_code": 200, "request_id": "r", "body": body(text)}
    return encode_answer(name, response, code and {"code": code, "message": "no"})


FIRST, SECOND, ANSWER, UNPAID = line("a", "one"), line("a", "two"), line("a", '{"n": 5}', None), line("a", code="busy")
UNREAD = line("a", code="result_unread")
BLOCKED = encode_answer("a", {"status_code": 400, "body": FILTERED[2]}, {"code": "blocked", "message": "no"})


def test_what_was_saved_elsewhere_by_a_killed_run(tmp_path):
    """Its output was full: an answer that is none is paid for, too."""
    path = tmp_path / "out"
    path.write_bytes(line("b", "one"))
    place = left_by_a_kill(path, FIRST, UNPAID, line("b", "two"))
    with closing(ResultsFile(str(path), Acceptance(SCHEMA))) as results:
        recovered = results.recover(index_of("ab"))
    assert (recovered.failed, recovered.before) == (2, {1: "invalid", 2: "invalid"})
    assert path.read_bytes() == FIRST + line_of(path, 1)
    assert (ids_in(path), b"two" in line_of(path, 1), place.exists()) == (["a", "b"], True, False)


def line_of(path, number):
    return path.read_bytes().splitlines(keepends=True)[number]


@pytest.mark.parametrize(
    ("lines", "stays"),
    [
        ([FIRST, SECOND], SECOND),
        ([FIRST, UNPAID], FIRST),
        ([UNPAID, FIRST], FIRST),
        ([ANSWER, FIRST], ANSWER),
        ([FIRST, ANSWER, SECOND], ANSWER),
        ([FIRST, BLOCKED], FIRST),  # of the prompt
        ([FIRST, UNREAD], UNREAD),
        ([UNREAD, UNPAID], UNREAD),
        ([UNREAD, ANSWER], ANSWER),
    ],
)
def test_which_of_two_lines_counts(tmp_path, lines, stays):
    """For the next call, for the count of an output that another program has shortened, and for a merge of two outputs."""
    outputs, source = [tmp_path / str(number) for number in range(len(lines))], tmp_path / "in.jsonl"
    for output, one in zip(outputs, lines, strict=True):
        output.write_bytes(one)
    merge(str(write_lines(source, [chat("a")])), [*map(str, outputs)], str(tmp_path / "merged"))
    assert (tmp_path / "merged").read_bytes() == stays
    path = tmp_path / "out"
    path.write_bytes(b"".join(lines))
    with closing(ResultsFile(str(path), Acceptance(SCHEMA))) as results:
        error = json.loads(stays)["error"]
        assert results.recount(index_of("a"))[:2] == ((0, {error["code"]: 1}) if error else (1, {}))
        results.recover(index_of("a"))
    assert path.read_bytes() == stays


def test_what_is_sent_again_is_counted_once_after_a_kill(tmp_path):
    path = tmp_path / "out"
    path.write_bytes(b"".join([FIRST, ANSWER, line("b", code="busy"), line("c", "three")]))
    with closing(ResultsFile(str(path), Acceptance(SCHEMA))) as results:
        recovered = results.recover(index_of("abc"))
    assert (recovered.answered, recovered.failed, recovered.before) == (1, 2, {3: "invalid"})


def raising(error):
    def fail(*_):
        raise error

    return fail


def test_two_lines_of_a_request_on_a_full_disk(tmp_path, monkeypatch):
    path = tmp_path / "out"
    path.write_bytes(FIRST + ANSWER)
    monkeypatch.setattr(durable, "replace", raising(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    words = "out: its replaced lines cannot be removed: No space left on device; the file is unchanged: make room in"
    with (
        closing(ResultsFile(str(path), Acceptance(SCHEMA))) as results,
        pytest.raises(OutputError, match=words),
    ):
        results.recover(index_of("a"))
    assert path.read_bytes() == FIRST + ANSWER


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))])
def test_a_call_whose_lines_cannot_be_replaced_at_its_end_has_ended(tmp_path, monkeypatch, error):
    calls = Calls(tmp_path)
    with answering(all_rows(FINE)) as server:
        with monkeypatch.context() as patch:
            patch.setattr(durable, "replace", raising(error))
            code, report = calls.run(server)
        assert (code, report["ok"]) == (0, 4)
        assert calls.told() == {row: ["invalid", None] for row in ROWS}
        assert calls.run(server)[1]["skipped"] == 4
    assert calls.told() == {row: [None] for row in ROWS}


@pytest.mark.usefixtures("timing")
def test_a_second_call_in_batches_that_fails(tmp_path, monkeypatch):
    written, answers = OpenAI.line, []

    def changed(server, custom_id, prompt):
        found = written(server, custom_id, prompt)
        found["response"] |= dict(zip(("status_code", "body"), answers[-1], strict=True))
        return found

    monkeypatch.setattr(OpenAI, "line", changed)
    with OpenAI(Unkind()) as server:
        calls = Calls(tmp_path)
        answers.append(BROKEN[::2])
        report = calls.run(server, mode="batch")[1]
        assert server.batches
    assert (report["ok"], report["errors"]) == (0, {"server_error": 4})
    assert calls.told() == {row: ["invalid"] for row in ROWS}


def test_a_second_result_that_cannot_be_read(tmp_path, timing):
    """It may be paid, too: its request is not sent again by itself."""
    timing(lost_s=0.03)
    with OpenAI(Unkind(gone=404)) as server:
        calls = Calls(tmp_path)
        for _ in range(2):
            report = calls.run(server, mode="batch")[1]
            assert (report["errors"], len(server.batches)) == ({"result_unread": 4}, 1)
            assert calls.told() == {row: ["result_unread"] for row in ROWS}
        server.unkind.gone = None
        calls.run(server, mode="batch", repair=True)
        assert len(server.batches) > 1
