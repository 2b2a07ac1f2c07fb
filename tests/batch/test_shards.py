"""Shards of a run, and their outputs joined."""

import json
import os
import random
import sys
from pathlib import Path

import pytest
from batch_helpers import OK, chat, chats, failed, finish, ids_in, ok, read_answers, wait_for_lines, write_lines
from click.testing import CliRunner

from paceline.batch.index import Index
from paceline.batch.merge import merge
from paceline.batch.requests import Shard, read_lines
from paceline.batch.results import OutputError, encode_answer
from paceline.cli.app import app
from paceline.core.results import SettingsError

LIMIT = "40 requests/s"


def outputs_of(folder, *contents):
    paths = []
    for number, ids in enumerate(contents):
        paths.append(folder / f"out{number}.jsonl")
        paths[-1].write_bytes(b"".join(one if isinstance(one, bytes) else ok(one) for one in ids))
    return [str(path) for path in paths]


@pytest.fixture
def source(tmp_path):
    return write_lines(tmp_path / "in.jsonl", chats(10))


@pytest.fixture
def target(tmp_path):
    return tmp_path / "all.jsonl"


@pytest.mark.parametrize("seed", range(20))
def test_each_line_is_in_one_shard(tmp_path, seed):
    rng = random.Random(seed)
    path = tmp_path / "in.jsonl"
    path.write_text("".join(rng.choice(["{}\n", "\n", "x\r\n"]) for _ in range(rng.randint(0, 60))) + "end")
    of = rng.randint(1, 70)
    with path.open("rb") as file:
        whole = list(read_lines(file))
        parts = []
        for number in range(1, of + 1):
            file.seek(0)
            parts += read_lines(file, Shard.parse(f"{number}/{of}"))
    assert sorted(parts) == whole


@pytest.mark.parametrize("text", ["0/3", "4/3", "x/3", "3", "1/", "/2", "-1/3", "1/0", "1/2/3", "1 / 2", ""])
def test_what_is_no_shard(text):
    with pytest.raises(SettingsError, match="write I/N, where I is from 1 to N"):
        Shard.parse(text)


@pytest.mark.long("starts several processes")
def test_three_processes_share_a_quota_and_one_is_killed(tmp_path, emulator, command):
    emulator.reset(limits={"*": LIMIT}, latency_s=0.05)
    source = write_lines(tmp_path / "in.jsonl", chats(120))
    store = f"sqlite:{tmp_path / 'quotas.db'}"
    outputs = [tmp_path / f"in.shard-{number}-of-3.results.jsonl" for number in (1, 2, 3)]

    def start(number):
        return command(source, "--shard", f"{number}/3", "--store", store, base_url=emulator.base_url, limit=LIMIT)

    processes = [start(number) for number in (1, 2, 3)]
    wait_for_lines(outputs[1], 10, processes[1])
    processes[1].kill()
    processes[1].communicate()
    processes[1] = start(2)
    for process in processes:
        finish(process, 0)
    assert emulator.tally()["refused"] == {}
    done = CliRunner().invoke(app, ["merge", str(source), *map(str, outputs), "--json"])
    assert done.exit_code == 0, done.output
    assert ids_in(tmp_path / "in.results.jsonl") == [f"r{n}" for n in range(120)]
    finish(command(source, base_url=emulator.base_url), 0)  # the same input without shards: nothing is left
    assert emulator.tally()["admitted"] <= 120 + 40


def test_the_order_is_that_of_the_input(tmp_path, target):
    source = write_lines(tmp_path / "in.jsonl", chats(10)[::-1])
    outputs = outputs_of(tmp_path, ["r9", "r3", "r0"], ["r8", "r1", "r2", "r7"], ["r4", "r6", "r5"])
    merged = merge(str(source), outputs, str(target))
    assert merged.complete
    assert ids_in(target) == [f"r{n}" for n in reversed(range(10))]
    assert not list(tmp_path.glob("*.part"))


def test_an_answer_wins_and_the_first_one_stays(tmp_path, source, target):
    first = ok("r1").replace(b'"request_id": "r"', b'"request_id": "first"')
    outputs = outputs_of(tmp_path, [failed("r0"), first, failed("r2")], ["r0", "r1", "strange"])
    merged = merge(str(source), outputs, str(target))
    assert (merged.answered, merged.failed, merged.missing, merged.twice, merged.unknown) == (2, 1, 7, 1, 1)
    assert merged.examples == ["r3", "r4", "r5", "r6", "r7"]
    assert [one["error"] is None for one in read_answers(target)] == [True, True, False]
    assert b"first" in target.read_bytes()


def test_of_several_failures_the_last_one_that_is_paid_for_stays(tmp_path, source, target):
    """Also of an answer that only its run, which has a schema, did not take."""
    told = {"code": "invalid", "message": "the answer does not match the schema"}
    paid = [encode_answer("r0", {**OK, "body": {"choices": [{"message": {"content": text}}]}}, told) for text in "ab"]
    outputs = outputs_of(tmp_path, [failed("r0"), paid[0]], [paid[1], failed("r0")])
    assert merge(str(source), outputs, str(target)).failed == 1
    assert target.read_bytes() == paid[1]


def test_a_record_is_taken_at_its_word(tmp_path, source, target):
    """Another program does not know the schema of the runs, nor whether they have kept answers that are cut off."""
    cut = {"choices": [{"finish_reason": "length", "message": {"content": "The"}}]}
    kept = encode_answer("r0", {**OK, "body": cut}, None)
    invalid = encode_answer("r1", OK, {"code": "invalid", "message": "the answer does not match the schema"})
    merged = merge(str(source), outputs_of(tmp_path, [kept, invalid]), str(target))
    assert (merged.answered, merged.failed, merged.doubtful) == (1, 1, 0)


def test_what_is_missing_is_told(tmp_path, source):
    for number, ids in enumerate([["r0", "r3", "r6", "r9"], ["r1", "r4"], ["r2", "r5", "r8"]], 1):
        (tmp_path / f"in.shard-{number}-of-3.results.jsonl").write_bytes(b"".join(map(ok, ids)))
    outputs = sorted(map(str, tmp_path.glob("in.shard-*")))
    done = CliRunner().invoke(app, ["merge", str(source), *outputs])
    assert done.exit_code == 1
    assert "10 requests: 9 answered, 0 failed, 1 missing" in done.output
    assert "missing: 'r7'\nstart the shards that have not ended again" in done.output
    assert len(ids_in(tmp_path / "in.results.jsonl")) == 9


def test_a_run_that_goes_on(tmp_path, source, target):
    outputs = outputs_of(tmp_path, ["r0", "r1", ok("r2")[:30]])
    merged = merge(str(source), outputs, str(target))
    assert (merged.answered, merged.torn) == (2, outputs)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda folder, one: ([one, one], "all.jsonl"), "the same file as"),
        (lambda folder, one: ([str(folder / "in.jsonl")], "all.jsonl"), "the same file as"),
        (lambda folder, one: ([one], "out0.jsonl"), "one of the files to be read"),
        (lambda folder, one: ([one], "in.jsonl"), "one of the files to be read"),
        (lambda folder, one: ([one], "there.jsonl"), "it exists; choose another .*, or replace it with --overwrite"),
        (lambda folder, one: ([one], "no/such/folder.jsonl"), "No such file or directory"),
        (lambda folder, one: ([one, str(folder / "none.jsonl")], "all.jsonl"), "No such file or directory"),
        (lambda folder, one: ([one, str(folder / "text")], "all.jsonl"), "line 2: not an answer of paceline run"),
    ],
)
def test_what_cannot_be_merged(tmp_path, source, make, said):
    (tmp_path / "there.jsonl").write_text("mine")
    (tmp_path / "text").write_bytes(ok("r1") + b"hello\n")
    (one,) = outputs_of(tmp_path, ["r0"])
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    outputs, target = make(tmp_path, one)
    with pytest.raises(OutputError, match=said):
        merge(str(source), outputs, str(tmp_path / target))
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_file_is_named_once_whatever_its_names(tmp_path, source):
    """As two names that differ by case are one file on macOS and Windows."""
    (one,), other = outputs_of(tmp_path, ["r0"]), tmp_path / "other"
    other.hardlink_to(one)
    with pytest.raises(OutputError, match="the same file as"):
        merge(str(source), [one, str(other)], str(tmp_path / "all.jsonl"))
    with pytest.raises(OutputError, match="one of the files to be read"):
        merge(str(source), [one], str(other), overwrite=True)


@pytest.mark.skipif(sys.platform == "win32", reason="pipes")
def test_what_is_no_file_is_left_alone(tmp_path, source, target):
    [output], pipe = outputs_of(tmp_path, ["r1"]), tmp_path / "pipe"
    os.mkfifo(pipe)
    for arguments, words in (
        ((str(source), [output], str(pipe)), "it is no regular file"),
        ((str(source), [output], "-"), "the result is a file"),
        ((str(source), [str(pipe)], str(target)), "it is a pipe"),
    ):
        with pytest.raises(OutputError, match=words):
            merge(*arguments, overwrite=True)
    assert pipe.is_fifo()


def test_answers_of_another_input_are_an_error(tmp_path, source, target):
    with pytest.raises(OutputError, match="are they outputs of another input"):
        merge(str(source), outputs_of(tmp_path, ["a", "b"]), str(target))
    assert not target.exists()


def test_the_shards_of_a_table_are_joined_by_a_run(tmp_path):
    (table := tmp_path / "in.csv").write_text('id,text\n1,"a\nb"\n2,c\n')
    outputs = outputs_of(tmp_path, ["1"], ["2"])
    with pytest.raises(OutputError, match="no line is a whole request; to merge the shards of a table"):
        merge(str(table), outputs, str(tmp_path / "merged.jsonl"))
    (joined := tmp_path / "all.jsonl").write_bytes(b"".join(Path(output).read_bytes() for output in outputs))
    options = ["--model", "gpt-5", "--column", "text", "--base-url", "http://127.0.0.1:9", "-o", str(joined)]
    assert "2 answered before" in CliRunner().invoke(app, ["run", str(table), *options]).output


def test_a_full_temporary_folder_is_a_clear_error(tmp_path, target, monkeypatch):
    source, init = write_lines(tmp_path / "in.jsonl", [chat(f"r{n:0200}") for n in range(2_000)]), Index.__init__

    def full(index):
        init(index)
        index._db.execute("PRAGMA max_page_count = 20")

    monkeypatch.setattr(Index, "__init__", full)
    done = CliRunner().invoke(app, ["merge", str(source), *outputs_of(tmp_path, ["r1"]), "-o", str(target)])
    assert done.exit_code == 2
    assert "set TMPDIR to a folder with room" in done.output


def test_an_existing_result_is_replaced_on_demand(tmp_path, source, target):
    target.write_text("old")
    merge(str(source), outputs_of(tmp_path, ["r0"]), str(target), overwrite=True)
    assert ids_in(target) == ["r0"]


def test_lines_of_the_input_that_are_no_requests(tmp_path, target):
    source = tmp_path / "in.jsonl"
    lines = [json.dumps(chat("r0")), "nonsense", json.dumps(chat("r0")), json.dumps(chat("r1"))]
    source.write_text("\n".join(lines))
    merged = merge(str(source), outputs_of(tmp_path, ["r0", "r1"]), str(target))
    assert (merged.requests, merged.answered, merged.bad_lines, merged.complete) == (2, 2, 2, False)
