"""Rows with their answers as a CSV or Parquet file."""

import csv
import json
import math
from unittest.mock import Mock

import pytest
from batch_helpers import call, chat, read_answers

from paceline.batch import cost, tables
from paceline.batch.results import OutputError
from paceline.batch.tables import Table
from paceline.core.results import SettingsError

TEXT = 'id,text\n1,"Why, and\nhow?"\n2,Grüße\n3,三\n'
WORDS = ("--model", "gpt-5", "--column", "text")


def read(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ","))


@pytest.fixture
def run(tmp_path, emulator, monkeypatch):
    """Runs the command over a file with this content; returns what it has said."""

    def run(content, *words, name="in.csv", output="out.csv", code=0):
        source = tmp_path / name
        source.write_bytes(content if isinstance(content, bytes) else content.encode())
        return call(source, "-o", tmp_path / output, *words, base_url=emulator.base_url, code=code)[1]

    monkeypatch.setenv("OPENAI_API_KEY", "key")
    return run


@pytest.mark.parametrize("output", ["out.csv", "out.tsv", "OUT.CSV"])
def test_rows_in_their_order_with_their_answers(run, tmp_path, output):
    said = run(TEXT, *WORDS, output=output)
    rows = read(tmp_path / output)
    assert [row["text"] for row in rows] == ["Why, and\nhow?", "Grüße", "三"]
    assert all(row["answer"] and row["error"] == "" for row in rows)
    assert "a table, 'text' is the prompt of gpt-5" in said
    assert f"3 rows with their answers or errors are in {tmp_path / output}" in said


def test_the_same_command_goes_on(run, tmp_path, emulator):
    run(TEXT, *WORDS)
    first, sent = read(tmp_path / "out.csv"), emulator.tally()["admitted"]
    (tmp_path / "out.csv").unlink()
    nothing = "every id has its answer. If you changed a request, --restart sends all again"
    assert f"nothing is left to send: {nothing}" in run(TEXT, *WORDS)
    said = run(TEXT + "4,more\n", *WORDS)
    assert "4 requests, 3 answered before" in said
    assert "nothing is left" not in said
    assert read(tmp_path / "out.csv")[:3] == first
    assert len(read(tmp_path / "out.csv")) == 4
    assert emulator.tally()["admitted"] == sent + 1
    assert len(read_answers(tmp_path / "out.csv.results.jsonl")) == 4


def test_a_list_in_a_cell_is_json(run, tmp_path):
    run(json.dumps([{"text": "a"}, {"text": "b", "more": [1, {"a": "ü"}]}]), *WORDS, name="in.json")
    rows = read(tmp_path / "out.csv")
    assert all(row["answer"] for row in rows)
    assert [row["more"] for row in rows] == ["", '[1, {"a": "ü"}]']


def test_whole_requests_have_their_ids(run, tmp_path):
    run("".join(json.dumps(chat(f"r{n}")) + "\n" for n in range(3)))
    rows = read(tmp_path / "out.csv")
    assert [row["custom_id"] for row in rows] == ["r0", "r1", "r2"]
    assert all(row["answer"] for row in rows)


def test_a_table_of_something_else_stays(run, tmp_path):
    (tmp_path / "out.csv").write_text("mine\n")
    assert "no run can continue with this file" in run(TEXT, *WORDS, code=2)
    assert "this is the input" in run(TEXT, *WORDS, output="in.csv", code=2)
    (tmp_path / "folder.csv").mkdir()
    assert "it is a folder" in run(TEXT, *WORDS, output="folder.csv", code=2)
    assert (tmp_path / "out.csv").read_text() == "mine\n"


def test_a_column_of_the_input_stays(run, tmp_path, emulator):
    before, content = emulator.tally()["admitted"], "id,text,answer,error\n1,a,gold,b\n"
    assert "have a column 'answer' already" in run(content, *WORDS, code=2)
    assert emulator.tally()["admitted"] == before
    run(content, *WORDS, "--into", "reply")
    (row,) = read(tmp_path / "out.csv")
    assert (row["answer"], row["error"], row["reply_error"]) == ("gold", "b", "")
    assert row["reply"]


@pytest.mark.parametrize(("name", "words"), [("error", ()), ("finish", ("--cut-off", "keep"))])
def test_answers_have_a_column_of_their_own(run, name, words, emulator):
    before = emulator.tally()["admitted"]
    assert f"'{name}' is the name of another new column" in run(TEXT, *WORDS, *words, "--into", name, code=2)
    assert emulator.tally()["admitted"] == before


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (OSError(28, "No space left on device"), 1, " cannot be written: No space left on device; the answers are in "),
        (KeyboardInterrupt(), 130, " is not written yet: run the same command again, which writes it at its end"),
    ],
    ids=repr,
)
def test_a_table_that_cannot_be_written_loses_no_answer(run, tmp_path, monkeypatch, error, code, words):
    def fail(*_):
        raise error

    monkeypatch.setattr(tables, "_csv", fail)
    said = run(TEXT, *WORDS, code=code)
    assert f"out.csv{words}" in said
    assert "nothing has been sent" not in said
    assert not (tmp_path / "out.csv").exists()
    assert len(read_answers(tmp_path / "out.csv.results.jsonl")) == 3


def test_a_second_interrupt_at_the_end_does_not_say_that_nothing_was_sent(run, tmp_path, monkeypatch):
    monkeypatch.setattr(cost, "in_words", Mock(side_effect=KeyboardInterrupt))
    said = run(TEXT, *WORDS, code=130)
    assert said.endswith("paceline run: interrupted; the same command again sends the rest\n")
    assert len(read_answers(tmp_path / "out.csv.results.jsonl")) == 3


@pytest.mark.parametrize("words", [WORDS, (*WORDS, "--key", "of")])
@pytest.mark.parametrize("changed", ["of,text\n1,a\n3,c\n2,b\n", "of,text\n1,a\n2,b\n3,c\n4,d\n"])
def test_an_input_that_changes_meanwhile(run, tmp_path, monkeypatch, words, changed):
    """No row gets the answer of another one."""
    write = Table.write

    def later(table, *given):
        (tmp_path / "in.csv").write_text(changed)
        return write(table, *given)

    monkeypatch.setattr(Table, "write", later)
    added = changed.count("\n") == 5
    said = run("of,text\n1,a\n2,b\n3,c\n", *words, code=0 if added else 1)
    assert added or "row 2 of the input has changed meanwhile; the answers are in " in said
    if added:
        *_, last = errors = [row["error"] for row in read(tmp_path / "out.csv")]
        assert errors == ["", "", "", last]
        assert last == "it was not sent: the run has ended before"


class TestParquet:
    @pytest.fixture
    def parquet(self):
        return pytest.importorskip("pyarrow.parquet")

    def test_rows_keep_their_types(self, parquet, run, tmp_path, monkeypatch):
        monkeypatch.setattr(tables, "CHUNK", 2)
        rows = [{"id": n, "text": "a", "some": [n], "mixed": n if n < 2 else "b", "late": None} for n in range(5)]
        rows[4]["late"] = 1.5
        rows[3]["mixed"] = [1]
        run("".join(json.dumps(row) + "\n" for row in rows), *WORDS, name="in.jsonl", output="out.parquet")
        found = parquet.read_table(tmp_path / "out.parquet").to_pylist()
        assert [row["id"] for row in found] == [0, 1, 2, 3, 4]
        assert [row["some"] for row in found] == [[0], [1], [2], [3], [4]]
        assert [row["mixed"] for row in found] == ["0", "1", "b", "[1]", "b"]
        assert [row["late"] for row in found] == [None] * 4 + [1.5]
        assert all(row["answer"] and row["error"] is None for row in found)

    @pytest.mark.parametrize("value", [10**20, "half a pair \ud83d", ["\ud83d"], {}, {"more": [{}]}], ids=ascii)
    def test_a_value_that_arrow_or_parquet_does_not_have_is_text(self, value, parquet, run, tmp_path, monkeypatch):
        monkeypatch.setattr(tables, "CHUNK", 1)
        rows = [{"id": n, "text": "a", "some": value} for n in range(2)]
        run("".join(json.dumps(row) + "\n" for row in rows), *WORDS, name="in.jsonl", output="out.parquet")
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        found = parquet.read_table(tmp_path / "out.parquet").to_pylist()
        assert [row["some"] for row in found] == [text.replace("\ud83d", "?")] * 2
        assert all(row["answer"] for row in found)

    def test_a_missing_package_is_named_first(self, monkeypatch):
        monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
        with pytest.raises(SettingsError, match="a Parquet file needs pyarrow: pip install pyarrow"):
            Table.at("out.parquet", "answer")


class TestFromPython:
    def test_a_table_and_its_journal(self, ask, tmp_path, emulator):
        rows = [{"prompt": "a", "number": math.nan}, {"prompt": "b", "number": 2}]
        first = ask(rows, output=tmp_path / "out.csv")
        found, sent = read(tmp_path / "out.csv"), emulator.tally()["admitted"]
        assert [row["answer"] for row in found] == [row["answer"] for row in first]
        assert [row["number"] for row in found] == ["", "2"]
        again = ask(first, output=tmp_path / "out.csv")
        assert (read(tmp_path / "out.csv"), emulator.tally()["admitted"]) == (found, sent)
        assert len(again) == 2

    def test_a_journal_of_its_own(self, ask, tmp_path):
        ask([{"prompt": "a"}], output=tmp_path / "out.tsv", journal=tmp_path / "answers.jsonl")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["answers.jsonl", "out.tsv"]

    def test_what_is_no_table(self, ask, tmp_path):
        with pytest.raises(SettingsError, match=r"its name must end with .csv, .tsv or .parquet"):
            ask([{"prompt": "a"}], output=tmp_path / "out.xlsx")
        (tmp_path / "out.csv").write_text("mine")
        with pytest.raises(OutputError, match="no run can continue"):
            ask([{"prompt": "a"}], output=tmp_path / "out.csv")
