"""Runs whose output or journal another program deletes, moves, replaces or shortens: no answer is lost at status 0, and few are paid twice."""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from batch_helpers import Said, chats, ids_in, run_job, write_lines
from batch_times import KEYS, QUICK

from paceline.batch import runner, writer
from paceline.batch.journal import BatchJournal
from paceline.batch.results import OutputError, ResultsFile
from paceline.pacing import durable

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="an open file stays there")

ROWS, AFTER = 40, 25


def empty(path):
    os.truncate(path, 0)


def halve(path):
    os.truncate(path, path.stat().st_size // 2)


def replace(path, content=b"of another program\n"):
    new = path.with_name("new")
    new.write_bytes(content)
    new.replace(path)


def edit(path):
    replace(path, path.read_bytes())


def overwrite(path):
    path.write_bytes(b"of another program\n" * 9_000)


def extend(path):
    with path.open("ab") as file:
        file.write(b"of another program\n")


def remove_folder(path):
    shutil.rmtree(path.parent)


class Spoiled:
    """A run in the middle of which something is done to one of its files."""

    def __init__(self, emulator, folder, monkeypatch, mode):
        self.emulator, self.mode, self.folder = emulator, mode, folder / "out"
        self.folder.mkdir()
        self.source = write_lines(folder / "in.jsonl", chats(ROWS))
        self.output = self.folder / "out.jsonl"
        self.journal = self.folder / "out.jsonl.batches.jsonl"
        self.recovered = self.output.with_name("out.jsonl.recovered")
        emulator.reset(batches=QUICK)
        monkeypatch.setattr(durable, "LOOK_S", 0.0)
        monkeypatch.setattr(runner, "WRITE_AGAIN_S", 0.01)
        monkeypatch.setattr(writer, "WRITE_AGAIN_S", 0.01)
        self.append, self.settle, self.monkeypatch = ResultsFile.append, ResultsFile.settle, monkeypatch

    def start(self, spoil=lambda: None, after=AFTER):
        """The exit code of a run, and what it has said; ``spoil`` is called before one of its lines is written, or after all of them."""
        count, said = 0, Said()

        def append(results, line):
            nonlocal count
            count += 1
            if count == after:
                spoil()
            self.append(results, line)

        def settle(results):
            nonlocal count
            if after > ROWS and count == ROWS:
                count += 1
                spoil()
            return self.settle(results)

        with self.monkeypatch.context() as patch:
            patch.setattr(ResultsFile, "settle", settle)
            patch.setattr(ResultsFile, "append", append)
            most = 10 if self.mode != "sync" else None
            options = {"mode": self.mode, "batch_lines": most, "workers": 4, "output": str(self.output)}
            code, _ = run_job(self.source, self.emulator.base_url, said, environ=KEYS, **options)
        return code, said.text

    def paid(self):
        tally = self.emulator.tally()
        return tally["batches"]["paid"] if self.mode == "batch" else tally["answered"]

    def rows(self, path):
        ids = ids_in(path)
        assert len(ids) == len(set(ids))
        return len(ids)


@pytest.fixture(params=["sync", "batch"])
def spoiled(request, emulator, tmp_path, monkeypatch, timing):
    return Spoiled(emulator, tmp_path, monkeypatch, request.param)


@pytest.mark.parametrize(("spoil", "after"), [(Path.unlink, 1), (Path.unlink, ROWS + 1), (remove_folder, AFTER)])
def test_an_output_that_is_gone_is_written_again(spoiled, spoil, after):
    code, said = spoiled.start(lambda: spoil(spoiled.output), after)
    assert (code, spoiled.rows(spoiled.output), spoiled.paid()) == (0, ROWS, ROWS)
    if after < ROWS:
        assert f"cannot write {spoiled.output}: another program has deleted or moved it" in said
        assert "free some space" not in said


@pytest.mark.parametrize("spoil", [empty, halve])
def test_what_was_cut_off_is_sent_again_or_read_again(spoiled, spoil):
    code, said = spoiled.start(lambda: spoil(spoiled.output))
    assert (code, spoiled.rows(spoiled.output)) == (0, ROWS)
    words = f"another program has cut (\\d+) answers off {spoiled.output}: their requests are sent again"
    gone = int(re.search(words, said)[1])
    assert gone == AFTER - 1 if spoil is empty else 0 < gone < AFTER - 1
    assert spoiled.paid() == ROWS + (gone if spoiled.mode == "sync" else 0)
    if spoiled.mode == "batch":
        assert f"{ROWS} of {ROWS} answers came in batches" in said
        calls = int(re.search(r"4 batches created in (\d+) calls", said)[1])
        assert calls >= 4 * 6  # each: an upload, a creation, and twice a look at it and its results


@pytest.mark.parametrize("spoil", [edit, overwrite])
def test_the_file_of_another_program_stays_as_it_is(spoiled, spoil, capsys):
    content = []

    def spoils():
        spoil(spoiled.output)
        content.append(spoiled.output.read_bytes())

    code, _ = spoiled.start(spoils)
    gone = AFTER - 1 if spoil is overwrite and spoiled.mode == "sync" else 0
    assert (code, spoiled.rows(spoiled.recovered), spoiled.paid()) == (1, ROWS, ROWS + gone)
    assert [spoiled.output.read_bytes()] == content
    assert f"all answers are in {spoiled.recovered}: move it to {spoiled.output}" in capsys.readouterr().err


def test_answers_beside_an_edited_output_are_added_to_it(spoiled):
    spoiled.start(lambda: edit(spoiled.output))
    code, said = spoiled.start()
    assert (code, spoiled.rows(spoiled.output), spoiled.paid()) == (0, ROWS, ROWS)
    assert not spoiled.recovered.exists()
    assert f"{ROWS - AFTER + 1} answers that the earlier run could not write: now in the output" in said


@pytest.mark.parametrize("spoiled", ["batch"], indirect=True)
@pytest.mark.parametrize("spoil", [Path.unlink, empty, halve])
def test_a_journal_of_batches_is_written_again(spoiled, spoil):
    code, _ = spoiled.start(lambda: spoil(spoiled.journal))
    assert (code, spoiled.rows(spoiled.output), spoiled.paid()) == (0, ROWS, ROWS)
    journal = BatchJournal(str(spoiled.output))
    assert (journal.unfinished, len(journal.known)) == (0, ROWS // 10)


@pytest.mark.parametrize("spoiled", ["batch"], indirect=True)
def test_a_run_goes_on_only_with_its_own_journal(spoiled):
    """Its batches are paid, and known from it alone."""
    code, _ = spoiled.start(lambda: replace(spoiled.journal))
    recovered = spoiled.journal.with_name(f"{spoiled.journal.name}.recovered")
    assert (code, spoiled.journal.read_bytes()) == (1, b"of another program\n")
    with pytest.raises(OutputError, match=f"is in {recovered}: move it to {spoiled.journal}"):
        spoiled.start()
    spoiled.journal.unlink()
    assert spoiled.start()[0] == 0
    assert (spoiled.rows(spoiled.output), spoiled.paid()) == (ROWS, ROWS)
    assert not recovered.exists()


@pytest.mark.parametrize(
    ("spoil", "after", "words"), [(replace, AFTER, "move it to"), (extend, AFTER, "line"), (extend, ROWS + 1, "line")]
)
def test_answers_take_the_name_of_the_output_back_from_another_program(spoiled, spoil, after, words):
    code, _ = spoiled.start(lambda: spoil(spoiled.output), after)
    assert (code, spoiled.rows(spoiled.recovered), spoiled.paid()) == (1, ROWS, ROWS)
    with pytest.raises(OutputError, match=words):
        spoiled.start()
    spoiled.output.unlink()
    assert spoiled.start()[0] == 0
    assert (spoiled.rows(spoiled.output), spoiled.paid()) == (ROWS, ROWS)


def test_what_is_deleted_while_no_answer_comes_is_there_soon(spoiled, monkeypatch):
    """A kill would lose the rest: a batch takes up to a day."""
    monkeypatch.setattr(runner, "LOOK_S", 0.0)
    monkeypatch.setattr(durable, "LOOK_S", 1e9)
    files = [spoiled.output, *([spoiled.journal] if spoiled.mode == "batch" else [])]

    class Waits(Said):
        def say(self, text):
            super().say(text)
            if "the answers are in" in text:
                back.append([path.exists() for path in files])

    back = []
    monkeypatch.setattr(sys.modules[__name__], "Said", Waits)
    slow = {"latency_s": 0.1} if spoiled.mode == "sync" else {"batches": QUICK | {"turnaround_s": 0.5}}
    spoiled.emulator.reset(**slow)

    def spoil():
        for path in files:
            path.unlink()

    code, said = spoiled.start(spoil, after=15)
    assert (code, spoiled.rows(spoiled.output), spoiled.paid()) == (0, ROWS, ROWS)
    assert back == [[True] * len(files)], said
    spoiled.emulator.reset(latency_s=0.0)
