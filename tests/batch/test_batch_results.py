import json
import math
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from batch_helpers import OK, failed, ids_in, index_of, ok
from hypothesis import given
from hypothesis import strategies as st

from paceline.batch.index import Index
from paceline.batch.journal import BatchJournal
from paceline.batch.results import OutputError, ResultsFile
from paceline.batch.summary import Calls, Quantiles, RunTally, in_time, in_words, since


def recover(path, names):
    index = index_of(names)
    with closing(ResultsFile(str(path))) as results:
        recovered = results.recover(index)
    return recovered, [line for line in range(1, len(names) + 1) if index.is_done(line)]


@pytest.mark.parametrize(
    ("lines", "kept", "counts"),
    [
        ([ok("a"), ok("b")], "ab", (2, 0, 0, False)),
        ([ok("a"), ok("b")[:-20]], "a", (1, 0, 0, True)),
        ([ok("a"), ok("b")[:-1]], "ab", (2, 0, 0, False)),  # only the end of the line is missing
        ([ok("a"), b"\0" * 30], "a", (1, 0, 0, True)),
        ([failed("a"), ok("b"), failed("c")], "b", (1, 2, 0, False)),
        ([failed("a"), ok("b"), ok("c")[:9]], "b", (1, 1, 0, True)),
        ([failed("a"), ok("b")[:-1]], "b", (1, 1, 0, False)),
        ([failed("a"), ok("a"), ok("a")], "a", (1, 1, 0, False)),
        ([ok("z"), ok("a")], "za", (1, 0, 1, False)),
        ([ok("a")[:40]], "", (0, 0, 0, True)),
        ([ok("a"), b'{"id": "bat'], "a", (1, 0, 0, True)),
        ([ok("a"), ok("b")[:50] + b"\0" * 30], "a", (1, 0, 0, True)),
    ],
)
def test_recovers(tmp_path, lines, kept, counts):
    path = tmp_path / "out"
    path.write_bytes(b"".join(lines))
    recovered, done = recover(path, "abc")
    assert ids_in(path) == list(kept)
    assert path.read_bytes()[-1:] in (b"\n", b"")
    assert (recovered.answered, recovered.failed, recovered.unknown, recovered.torn) == counts
    assert done == ["abc".index(name) + 1 for name in kept if name in "abc"]
    assert list(tmp_path.iterdir()) == [path]


DOCUMENT = json.dumps({"id": "batch_req_1", "status": "completed"}).encode()
NO_ID = json.dumps({"custom_id": "\ud800", "response": {"status_code": 200}, "error": None}).encode()


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"my diary\nsecond day\n", 1),
        (b"{", 1),
        (DOCUMENT, 1),
        (DOCUMENT + b"\n", 1),
        (ok("a") + DOCUMENT, 2),
        (ok("a") + b'{"id": 7, "text": "of another tool"}', 2),
        (b"one line of a table,without an end", 1),
        (b'{"prompt": "a"}\n{"prompt": "b"}', 1),
        (b"\x7fELF\x02\x01\x01" + bytes(64), 1),
        (bytes(4096), 1),
        (json.dumps(OK).encode("utf-16"), 1),
        (NO_ID + b"\n", 1),
        (ok("a") + b"\0\0" + ok("b"), 2),
    ],
)
def test_refuses_what_it_did_not_write(tmp_path, content, line):
    path = tmp_path / "out"
    path.write_bytes(content)
    with pytest.raises(OutputError, match=f"line {line}: not an answer.*--restart"):
        recover(path, "a")
    assert path.read_bytes() == content
    with closing(ResultsFile(str(path))) as results:
        assert Path(results.set_aside()).read_bytes() == content


def test_one_writer_at_a_time(tmp_path):
    path = str(tmp_path / "out")
    with closing(ResultsFile(path)):
        code = f"from paceline.batch.results import ResultsFile; ResultsFile({path!r})"
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert "another process is writing it" in other.stderr
    ResultsFile(path).close()
    assert list(tmp_path.iterdir()) == []


KINDS = {"darwin": ["link", "folder", "case"], "win32": ["case"]}  # links need a right there


@pytest.mark.parametrize("kind", KINDS.get(sys.platform, ["link", "folder"]))
def test_two_names_of_one_output_have_one_lock_and_one_journal(tmp_path, kind):
    folder = tmp_path / "folder"
    folder.mkdir()
    (path := folder / "out").write_bytes(ok("a"))
    if kind == "link":
        (other := tmp_path / "link").symlink_to(path)
    elif kind == "folder":
        (tmp_path / "other").symlink_to(folder)
        other = tmp_path / "other" / "out"
    else:
        other = folder / "OUT"
    BatchJournal(str(path)).open()
    with closing(ResultsFile(str(path))) as results:
        with pytest.raises(OutputError, match="another process is writing it"):
            ResultsFile(str(other))
        results.open()
    assert Path(ResultsFile(str(other)).path + ".batches.jsonl").exists()


def test_an_output_or_a_journal_with_a_hard_link_is_refused(tmp_path):
    path, other = tmp_path / "out", tmp_path / "other"
    path.write_bytes(ok("a"))
    other.hardlink_to(path)
    for name in (path, other):
        words = rf"{name.name}: this file has 2 names \(hard links\).*copy the file, and rename"
        with pytest.raises(OutputError, match=words):
            ResultsFile(str(name))
    path.with_name("copy").write_bytes(path.read_bytes())
    path.with_name("copy").replace(path)
    ResultsFile(str(path)).close()
    journal = BatchJournal(str(path))
    Path(journal.path).touch()
    (tmp_path / "backup").hardlink_to(journal.path)
    with pytest.raises(OutputError, match=r"batches\.jsonl: this file has 2 names"):
        journal.open()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["backup", "other", "out", "out.batches.jsonl"]


def test_a_dead_writers_lock_is_no_lock(tmp_path):
    (tmp_path / "out.lock").touch()
    ResultsFile(str(tmp_path / "out")).close()


def test_names_what_cannot_be_written(tmp_path):
    for path, words in ((tmp_path, "directory"), (tmp_path / "no" / "out", "No such file")):
        with pytest.raises(OutputError, match=words):
            ResultsFile(str(path))


def test_old_answers_are_kept_aside(tmp_path):
    names = []
    for number in range(3):
        (tmp_path / "out").write_text(str(number))
        with closing(ResultsFile(str(tmp_path / "out"))) as results:
            names.append(results.set_aside())
            assert results.set_aside() is None
    assert [Path(name).read_text() for name in names] == ["0", "1", "2"]


@given(st.lists(st.integers(1, 500), max_size=60))
def test_marks(lines):
    index = Index()
    assert [index.mark(line) for line in lines] == [line not in lines[:i] for i, line in enumerate(lines)]
    assert [line for line in range(520) if index.is_done(line)] == sorted(set(lines))
    assert sum(map(index.is_done, range(520))) == len(set(lines))


@given(st.lists(st.floats(0.001, 1e6), min_size=1), st.floats(0.01, 1))
def test_quantiles_are_within_five_percent(values, share):
    quantiles = Quantiles()
    for value in values:
        quantiles.add(value)
    exact = sorted(values)[math.ceil(share * len(values)) - 1]
    assert exact / 1.001 - 1e-4 <= quantiles.at(share) <= exact * 1.06 + 1e-4


def test_quantiles_of_nothing():
    assert Quantiles().at(0.99) == 0
    quantiles = Quantiles()
    quantiles.add(0.0)
    assert quantiles.at(0.5) == 0


def quota(spent, **changes):
    amounts = {"limit": 600.0, "burst": 600.0, "spent": spent, "refused": 0.0}
    return {"unit": "requests", "period_s": 60.0} | amounts | changes


def test_what_was_spent_before_is_not_ours():
    def status(spent, remaining, granted, rule):
        first = quota(spent, remaining=remaining, rule=rule)
        return {"a": {"quotas": [first, quota(5.0, period_s=86_400.0, remaining=3.0)], "counts": {"granted": granted}}}

    for rule in ("bucket", "window"):
        start = status(1_000.0, 0.0, 7, rule)
        pool = since(start, status(1_700.0, 50.0, 7, rule))["a"]
        assert pool["counts"] == {}
        assert [(q["spent"], q["used_before"]) for q in pool["quotas"]] == [(700, 600), (0, 597)]
    forgotten = since(start, status(10.0, 590.0, 9, "bucket"))["a"]
    assert (forgotten["quotas"][0]["spent"], forgotten["counts"]) == (0, {"granted": 2})
    assert since({}, start)["a"]["quotas"][0] == start["a"]["quotas"][0] | {"used_before": 0}


def test_summary_in_words():
    tally = RunTally(requests=10, skipped=2, ok=6, failed=1)
    report = tally.report({}, calls=Calls(9, 2), output="out", interrupted=True) | {"seconds": 0.0}
    first, second, third = in_words(report, tally)
    assert first.startswith("10 requests: 6 answered, 1 failed, 2 answered before, 1 not sent, in 0.0 s")
    assert second.startswith("9 attempts, 2 of them refused with a 429")
    assert third.endswith("answers are in out")
    assert [in_time(s) for s in (4.24, 42, 185, 7_800)] == ["4.2 s", "42 s", "3 min 05 s", "2 h 10 min"]
