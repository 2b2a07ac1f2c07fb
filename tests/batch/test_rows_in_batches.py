"""`paceline.run` by the Batch APIs: the same frame at half the price, and nothing paid twice after a stop."""

import pytest
from batch_helpers import interrupt_when, read_answers
from batch_times import QUICK

import paceline
from paceline.core.results import SettingsError
from waits import join, started

ROWS = [{"id": n, "text": f"Question {n}?"} for n in range(5)]


@pytest.fixture
def ask(ask, emulator, timing):
    emulator.reset(batches=QUICK)
    return lambda **options: ask(ROWS, **{"prompt": "text"} | options)


@pytest.mark.parametrize(
    "settings", [{"mode": "batch"}, {"mode": "auto", "deadline": "6h"}, {"mode": "auto", "deadline": 21_600}]
)
def test_the_frame_is_the_same(ask, emulator, tmp_path, settings):
    answered = ask(journal=tmp_path / "answers.jsonl", **settings)
    assert [row["id"] for row in answered] == [0, 1, 2, 3, 4]
    assert all(row["answer"] and row["error"] is None for row in answered)
    tally = emulator.tally()
    assert (tally["admitted"], tally["batches"]["paid"]) == (0, 5)
    assert ask(journal=tmp_path / "answers.jsonl", mode="sync") == answered
    assert emulator.tally()["admitted"] == 0


def test_batches_are_found_again_after_an_interrupt(ask, emulator, tmp_path):
    emulator.reset(batches=QUICK | {"turnaround_s": 1_000.0})
    stopper = started(interrupt_when, lambda: emulator.tally()["batches"]["created"])
    with pytest.raises(KeyboardInterrupt):
        ask(output=tmp_path / "out.csv", mode="batch")
    join(stopper)
    emulator.advance(2_000)
    assert all(row["answer"] for row in ask(output=tmp_path / "out.csv", mode="batch"))
    batches = emulator.tally()["batches"]
    assert (batches["paid"], batches["custom_ids"]["most"], batches["unread"]) == (5, 1, 0)
    assert (tmp_path / "out.csv").exists()


def test_embeddings_in_batches(ask, emulator, tmp_path):
    answered = ask(journal=tmp_path / "vectors.jsonl", mode="batch", model="text-embedding-3-small")
    assert [len(row["answer"]) for row in answered] == [1_536] * 5
    assert emulator.tally()["batches"]["paid"] == 5


def test_a_restart_sends_everything_again(ask, emulator, tmp_path):
    journal = tmp_path / "answers.jsonl"
    ask(journal=journal)
    assert all(row["answer"] for row in ask(journal=journal, restart=True))
    assert (emulator.tally()["admitted"], len(read_answers(journal))) == (10, 5)


def test_corrupt_lines_are_moved_aside(ask, emulator, tmp_path):
    journal = tmp_path / "answers.jsonl"
    ask(journal=journal)
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join([*lines[:2], "not an answer\n", *lines[3:]]))
    with pytest.raises(paceline.PacelineError, match="not an answer of paceline run"):
        ask(journal=journal)
    assert all(row["answer"] for row in ask(journal=journal, repair=True))
    assert emulator.tally()["admitted"] == 6


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mode": "batch"}, r'mode="batch" needs journal="FILE" or output="FILE"'),
        ({"mode": "auto", "deadline": "6h"}, r'mode="auto" needs journal='),
        ({"mode": "auto", "journal": "j"}, r'mode="auto" and deadline need each other'),
        ({"deadline": "6h"}, r'mode="auto" and deadline need each other'),
        ({"mode": "auto", "deadline": "soon", "journal": "j"}, "deadline: 'soon': write it like '6h'"),
        ({"mode": "auto", "deadline": -1, "journal": "j"}, "deadline is -1"),
        ({"mode": "half"}, "mode is 'half': it must be one of sync, batch, auto"),
    ],
)
def test_what_does_not_go_together(ask, emulator, settings, words):
    with pytest.raises(SettingsError, match=words):
        ask(**settings)
    assert emulator.tally()["admitted"] == 0


def test_gemini_embeds_nothing_in_batches(ask, tmp_path, monkeypatch):
    monkeypatch.setenv("GEMINI_API_KEY", "k" * 20)
    with pytest.raises(paceline.PacelineError, match="a batch needs a path like"):
        ask(journal=tmp_path / "v.jsonl", mode="batch", model="gemini-embedding-001")
