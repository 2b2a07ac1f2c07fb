"""Rows that cannot be sent are errors of their own, and the others are answered."""

import csv
import json
import os
import sys

import pytest
from batch_helpers import call, read_answers

import paceline
from paceline.batch import job
from paceline.batch.results import ResultsFile
from paceline.pacing import durable

TEXT = "id,text\n1,One?\n2,\n3,Three?\n1,One again?\n5\n6,Six?\n"
WORDS = ("--model", "gpt-5", "--column", "text", "--key", "id")
WHY = {
    1: "invalid_row: 'text', which is the prompt, has no value",
    3: "invalid_row: 'id', which identifies the rows, is the same as in row 1: name a column whose values differ with --key",
    4: "invalid_row: it has 1 fields, and the table has 2 columns",
}
"""The errors by the place of the row."""


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    path = tmp_path / "rows.csv"
    path.write_text(TEXT)
    return path


@pytest.fixture
def run(source, emulator):
    """Runs the command with a table as its output; returns the summary, what was said, and the rows of the table."""

    def run(*words, code=1, **options):
        output = source.with_name("out.csv")
        words = [source, *WORDS, "-o", output, "--json", *words]
        out, said = call(*words, base_url=emulator.base_url, code=code, **options)
        rows = list(csv.DictReader(output.read_text("utf-8").splitlines())) if output.exists() else []
        return json.loads(out or "{}"), said, rows

    return run


def check_first(monkeypatch, count):
    """The input counts as large: so many rows alone are checked before the first request."""
    monkeypatch.setattr(job, "CHECKED_FIRST_MAX", 0)
    monkeypatch.setattr(job, "SAMPLE", count)


def sent(emulator):
    return emulator.tally()["admitted"]


@pytest.mark.parametrize("large", [False, True])
def test_each_place_counts_the_same(run, source, emulator, monkeypatch, large):
    """Also in an input of which only the first lines are checked before."""
    if large:
        check_first(monkeypatch, 2)
    before = sent(emulator)
    report, said, rows = run()
    assert sent(emulator) == before + 3
    assert (report["requests"], report["ok"], report["failed"], report["errors"]) == (6, 3, 3, {"invalid_row": 3})
    assert {place: row["error"] for place, row in enumerate(rows) if row["error"]} == WHY
    assert [bool(row["answer"]) for row in rows] == [place not in WHY for place in range(6)]
    assert sum(bool(one["error"]) for one in read_answers(source.with_name("out.csv.results.jsonl"))) == 3
    assert "row 2: 'text', which is the prompt, has no value; it is not sent" in said
    assert "rows that cannot be sent (invalid_row): 3; correct them, and the same command again sends them" in said
    assert "sends the failed requests once more" not in said
    assert " line " not in said
    assert "custom_id" not in said


def test_the_same_command_again_sends_what_was_corrected(run, source, emulator):
    run()
    before = sent(emulator)
    report, said, again = run()
    assert sent(emulator) == before
    assert (report["skipped"], report["ok"], report["failed"]) == (3, 0, 3)
    assert "6 requests, 3 answered before, 3 that cannot be sent\n" in said
    mended = TEXT.replace("2,\n", "2,Two?\n").replace("1,One again?", "4,One again?")
    source.write_text(mended.replace("5\n", "5,Five?\n"))
    report, _, rows = run(code=0)
    assert (report["skipped"], report["ok"], report["failed"]) == (3, 3, 0)
    assert sent(emulator) == before + 3
    as_before = [row["answer"] for place, row in enumerate(rows) if place not in WHY]
    assert as_before == [row["answer"] for row in again if row["answer"]]
    assert len(read_answers(source.with_name("out.csv.results.jsonl"))) == 6


def test_a_paid_answer_stays_if_its_row_is_damaged_later(run, source):
    _, _, first = run()
    source.write_text(TEXT.replace("3,Three?", "3,"))
    report, _, rows = run()
    assert (report["skipped"], report["failed"]) == (3, 3)
    assert rows[2]["answer"] == first[2]["answer"]


def test_strict_sends_nothing(run, emulator, monkeypatch):
    before = sent(emulator)
    check_first(monkeypatch, 1)
    _, said, rows = run("--strict", code=2)
    assert (sent(emulator), rows) == (before, [])
    assert said.count("\nrow ") == 2
    assert "row 5: it has 1 fields, and the table has 2 columns\nnothing has been sent" in said


def test_a_shard_has_its_own(run):
    report, _, rows = run("--shard", "2/2")
    assert [row["id"] for row in rows] == ["2", "1", "6"]
    assert (report["requests"], report["ok"], report["failed"]) == (3, 1, 2)


def test_a_row_that_its_limit_never_admits(run, source):
    source.write_text(f"id,text\n1,One?\n2,{'two ' * 5_000}\n")
    report, _, rows = run(limit="4k tokens/min")
    assert (report["ok"], report["errors"]) == (1, {"invalid_row": 1})
    assert rows[1]["error"].startswith("invalid_row: its estimated cost is ")


def test_no_row_can_be_sent(run, source, emulator):
    source.write_text("id,text\n1,\n2,\n")
    before = sent(emulator)
    report, _, rows = run()
    assert (sent(emulator), report["failed"]) == (before, 2)
    assert all(row["error"].startswith("invalid_row: ") for row in rows)


@pytest.mark.skipif(sys.platform == "win32", reason="an open file is not shortened there")
@pytest.mark.parametrize("large", [False, True])
def test_another_program_cuts_off_what_was_recorded(run, source, monkeypatch, large):
    if large:
        check_first(monkeypatch, 2)
    output, settle, done = source.with_name("out.csv.results.jsonl"), ResultsFile.settle, []

    def shortened(results):
        if not done and len(read_answers(output)) == 6:
            done.append(os.truncate(output, 0))
        return settle(results)

    monkeypatch.setattr(durable, "LOOK_S", 0.0)
    monkeypatch.setattr(ResultsFile, "settle", shortened)
    report, said, rows = run()
    assert done
    assert "input has changed" not in said
    assert (report["ok"], report["failed"], report["errors"]) == (0 if large else 3, 3, {"invalid_row": 3})
    assert {place: row["error"] for place, row in enumerate(rows) if place in WHY} == WHY
    assert len(read_answers(output)) == (3 if large else 6)


class TestFromPython:
    @pytest.mark.parametrize("prompt", ["text", "Say {text}", lambda row: f"Say {row['text'].strip()}"])
    def test_an_error_is_that_of_its_row(self, ask, emulator, prompt, tmp_path):
        rows, before = [{"text": "a"}, {"text": None}, {"text": "c"}, {"text": "d"}], sent(emulator)
        first = ask(rows, prompt=prompt, journal=tmp_path / "answers.jsonl")
        assert [bool(row["answer"]) for row in first] == [True, False, True, True]
        assert [(row["error"] or "").partition(":")[0] for row in first] == ["", "invalid_row", "", ""]
        assert ask(first, prompt=prompt, journal=tmp_path / "answers.jsonl") == first
        assert sent(emulator) == before + 3
        with pytest.raises((paceline.PacelineError, AttributeError)):
            ask(rows, prompt=prompt, strict=True)
        assert sent(emulator) == before + 3

    def test_a_function_that_raises_for_each_row_is_wrong(self, ask):
        with pytest.raises(KeyError, match="txt"):
            ask([{"text": "a"}, {"text": "b"}], prompt=lambda row: row["txt"])

    def test_rows_of_one_id_are_all_answered(self, ask, capsys):
        rows = [{"id": 7, "text": "a"}, {"id": 7, "text": "b"}, {"id": None, "text": "c"}]
        assert all(row["answer"] for row in ask(rows, prompt="text", progress=True))
        words = "2 by number and content, because their 'id' is empty or repeated; key= names another column"
        assert words in capsys.readouterr().err

    def test_a_damaged_file(self, ask, tmp_path):
        (tmp_path / "rows.csv").write_text(TEXT)
        answered = ask(tmp_path / "rows.csv", prompt="text", output=tmp_path / "out.csv", key="id")
        assert {n: row["error"].replace("key=", "--key") for n, row in enumerate(answered) if row["error"]} == WHY
        table = list(csv.DictReader((tmp_path / "out.csv").read_text("utf-8").splitlines()))
        assert [row["error"] for row in table] == [row["error"] or "" for row in answered]
