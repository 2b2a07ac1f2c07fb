"""The file of answers on a disk that is full, shared with other files, or damaged."""

import asyncio
import errno
import json
import os
import re
import signal
import stat
import sys
from contextlib import closing
from pathlib import Path

import pytest
from batch_helpers import Reply, Said, call, chat, chats, failed, finish, ids_in, index_of, ok, send_lines, write_lines
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json

from paceline.batch.merge import merge
from paceline.batch.results import OutputError, ResultsFile, encode_answer, read_body
from paceline.core.quota import parse_quotas
from paceline.testing import run_virtual


@pytest.fixture(autouse=True)
def temporary(tmp_path_factory, monkeypatch):
    """The folder for temporary files."""
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.fixture
def path(tmp_path):
    """An output with the answer of a request, and the line of one that failed."""
    path = tmp_path / "out"
    path.write_bytes(ok("a") + failed("b"))
    return path


def recover(path, names="abc", **options):
    with closing(ResultsFile(str(path))) as results:
        return results.recover(index_of(names), **options)


@pytest.mark.skipif(
    os.name == "nt" or not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files"
)
def test_a_rewritten_output_keeps_its_owner(path):
    os.chown(path, 1234, 2345)
    recover(path)
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 2345)


def test_a_rewrite_touches_no_other_file(path):
    own = path.with_name("out.tmp")
    own.write_text("the user's own")
    recover(path)
    assert own.read_text() == "the user's own"
    assert sorted(path.parent.iterdir()) == [path, own]


def test_the_lock_is_no_other_file(path):
    lock = path.with_name("out.lock")
    lock.write_text("the user's own")
    with pytest.raises(OutputError, match=r"out\.lock: a file of another program"):
        recover(path)
    assert lock.read_text() == "the user's own"
    if os.name != "nt":
        lock.unlink()
        lock.symlink_to(path.with_name("nothing"))
        with pytest.raises(OutputError, match=r"out\.lock: Too many levels of symbolic links"):
            recover(path)
        assert lock.is_symlink()


def test_a_name_that_leads_nowhere_is_refused_in_words(monkeypatch):
    """As Windows' CON, in a program without a console."""

    def leads_nowhere(_path):
        raise OSError(errno.EBADF, "Invalid handle")

    monkeypatch.setattr(os.path, "realpath", leads_nowhere)
    for use in (ResultsFile, lambda name: merge(name, [], "merged")):
        with pytest.raises(OutputError, match=r"^CON\b.*: Invalid handle"):
            use("CON")


def test_a_rewrite_on_a_full_disk_changes_nothing(path, monkeypatch):
    def full(_fd):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = path.read_bytes()
    monkeypatch.setattr(os, "fsync", full)
    words = "out: its lines without an answer cannot be removed: No space left.*unchanged"
    with pytest.raises(OutputError, match=words):
        recover(path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


class Disk:
    """The disk of one file, with room for some bytes; a write that does not fit writes a part, as the system does."""

    def __init__(self, path, room, monkeypatch):
        self.path, self.room, self.write = str(path), room, os.write
        monkeypatch.setattr(os, "write", self)

    def __call__(self, fd, content):
        if not os.path.exists(self.path) or not os.path.samestat(os.fstat(fd), os.stat(self.path)):  # noqa: PTH110, PTH116
            return self.write(fd, content)
        free = self.room - os.fstat(fd).st_size
        if free <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.write(fd, content[:free])


@pytest.fixture
def disk(tmp_path, monkeypatch):
    return Disk(tmp_path / "out", 3 * len(ok("a")) + 20, monkeypatch)


def saved_in(folder):
    return list(folder.glob("paceline-answers-*"))


def test_kept_lines_are_saved_at_once_and_until_the_output_has_them(tmp_path, disk, temporary):
    with closing(ResultsFile(str(tmp_path / "out"))) as results:
        results.open()
        for count, name in enumerate("abcdef"):
            results.append(ok(name))
            assert [name for path in saved_in(temporary) for name in ids_in(path)] == list("abcdef"[3 : count + 1])
        (place,) = saved_in(temporary)
        assert (results.saved(), results.unsaved, len(results.kept)) == (str(place), 0, 3)
        assert (ids_in(tmp_path / "out"), results.why) == (list("abc"), "No space left on device")
        if os.name != "nt":
            assert stat.S_IMODE(place.stat().st_mode) == 0o600
        disk.room += len(ok("d"))
        assert not results.write_kept()
        assert saved_in(temporary) == [place]
        assert ids_in(tmp_path / "out") == list("abcd")
        disk.room *= 2
        assert results.write_kept()
        assert (saved_in(temporary), results.saved(), ids_in(tmp_path / "out")) == ([], "", list("abcdef"))
        disk.room = 0
        results.append(ok("g"))
        assert ids_in(place) == ["g"]


def test_kept_lines_are_saved_in_the_home_folder_or_nowhere(tmp_path, disk, temporary, monkeypatch):
    home = tmp_path / "home"
    monkeypatch.setenv("USERPROFILE" if os.name == "nt" else "HOME", str(home))
    temporary.rmdir()
    disk.room = 0
    with closing(ResultsFile(str(tmp_path / "out"))) as results:
        results.open()
        results.append(ok("a"))
        assert (results.saved(), results.unsaved) == ("", 1)
        home.mkdir()
        results.append(ok("b"))
        (place,) = saved_in(home)
        assert (results.saved(), results.unsaved, ids_in(place)) == (str(place), 0, ["a", "b"])


def left_by_a_kill(path, *lines):
    """What a run has saved that was killed before it could write its output."""
    with closing(ResultsFile(str(path))) as results:
        place = Path(results._places[0])
    place.write_bytes(b"".join(lines))
    return place


def test_the_next_run_adds_what_was_saved_each_answer_once(path, temporary):
    path.write_bytes(ok("a") + failed("b") + ok("c")[:50])
    place = left_by_a_kill(path, ok("a"), failed("c"), ok("d"), ok("z"), ok("e")[:-30])
    with closing(ResultsFile(str(path))) as results:
        assert results.has_lines()
    recovered = recover(path, "abcde")
    assert ids_in(path) == ["a", "d", "z"]
    assert (recovered.added, recovered.answered, recovered.unknown, recovered.torn) == (2, 2, 1, True)
    assert not place.exists()


def test_what_was_saved_and_may_be_paid_is_doubtful(path, temporary):
    left_by_a_kill(path, encode_answer("c", None, {"code": "result_unread", "message": "may be paid"}))
    recovered = recover(path)
    assert (recovered.added, recovered.answered, recovered.doubtful) == (1, 2, 1)
    assert recover(path).doubtful == 1


def test_a_line_that_lacks_only_its_end_is_added(path, temporary):
    left_by_a_kill(path, ok("c")[:-1])
    recover(path)
    assert path.read_bytes().count(b"\n") == len(ids_in(path)) == 2


def test_what_was_saved_for_an_output_that_was_removed_is_put_aside(tmp_path, emulator):
    """The user has begun anew: the prompts may be others."""
    source, path = write_lines(tmp_path / "in.jsonl", [chat("a")]), tmp_path / "out"
    place = left_by_a_kill(path, ok("a"))
    _, err = call(source, "-o", path, base_url=emulator.base_url)
    assert f"the old answers are in {place}.bak" in err
    assert (emulator.tally()["admitted"], ids_in(path), place.exists()) == (1, ["a"], False)


def test_what_was_saved_for_an_output_without_a_line_is_added(tmp_path, emulator):
    source, path = write_lines(tmp_path / "in.jsonl", [chat("a"), chat("b")]), tmp_path / "out"
    path.touch()
    left_by_a_kill(path, ok("a"))
    _, err = call(source, "-o", path, base_url=emulator.base_url)
    assert "1 answer that the earlier run could not write: now in the output" in err
    assert (emulator.tally()["admitted"], ids_in(path)) == (1, ["a", "b"])


def test_what_was_saved_stays_until_the_output_can_take_it(path, temporary, monkeypatch):
    place, before = left_by_a_kill(path, ok("c"), ok("d")), ok("a")
    path.write_bytes(before)
    disk = Disk(path, len(before) + len(ok("c")) + 9, monkeypatch)
    words = rf"out: cannot be written: No space left on device; make room.* are in {re.escape(str(place))}"
    with pytest.raises(OutputError, match=words):
        recover(path, "acd")
    assert (ids_in(path), ids_in(place)) == (["a", "c"], ["c", "d"])
    disk.room *= 9
    assert (recover(path, "acd").answered, ids_in(path), place.exists()) == (3, ["a", "c", "d"], False)


@pytest.mark.skipif(os.name == "nt", reason="the temporary folder is the user's own there")
@pytest.mark.parametrize("kind", ["link", "hard link", "other user", "folder", "pipe"])
def test_a_file_that_another_user_may_have_planted_is_left_alone(path, temporary, kind, monkeypatch):
    place, own = left_by_a_kill(path), path.with_name("planted")
    own.write_bytes(before := ok("c"))
    place.unlink()
    if kind == "link":
        place.symlink_to(own)
    elif kind == "hard link":
        place.hardlink_to(own)
    elif kind == "folder":
        place.mkdir()
    elif kind == "pipe":
        os.mkfifo(place)
    else:
        own.rename(place)
        monkeypatch.setattr(os, "geteuid", lambda: place.stat().st_uid + 1)
    assert recover(path).added == 0
    assert ids_in(path) == ["a"]
    disk = Disk(path, 0, monkeypatch)
    with closing(ResultsFile(str(path))) as results:
        results.open()
        results.append(ok("d"))
        assert results.saved() == str(Path.home() / place.name)
        disk.room = 10**6
        assert results.write_kept()
    if kind in ("link", "hard link"):
        assert own.read_bytes() == place.read_bytes() == before
    assert place.lstat()


def test_a_restart_puts_aside_what_was_saved(path, temporary):
    place = left_by_a_kill(path, ok("c"))
    with closing(ResultsFile(str(path))) as results:
        assert results.set_aside() == f"{path}.bak and {place}.bak"
    assert ids_in(Path(f"{place}.bak")) == ["c"]
    assert recover(path).added == 0


LIMITS = {"workers": 50, "limits": {"*": parse_quotas("20 requests/s")}}


BODY = b'{"choices": [{"message": {"content": "Yes."}}], "usage": {"prompt_tokens": 5}}'


def run_on(path, count, on_request=lambda _number, _clock: None, body=BODY):
    """Send requests in virtual time; `on_request(number, clock)` is called at each one."""
    sent = []

    async def main(clock):
        async def answer(_url, *, headers, data):
            sent.append((headers["x-custom-id"], clock.now_ns() / 1e9))
            on_request(len(sent), clock)
            await asyncio.sleep(0.5)
            return Reply(body)

        lines = [chat(f"r{number}") for number in range(1, count + 1)]
        return await send_lines(lines, results, "http://127.0.0.1:1", said, post=answer, clock=clock, **LIMITS)

    said = Said()
    with closing(ResultsFile(str(path))) as results:
        results.open()
        runner, tally = run_virtual(main)
        return sent, said.lines, runner, tally, list(results.kept)


def test_sending_pauses_while_the_disk_is_full(tmp_path, monkeypatch):
    path = tmp_path / "out"
    disk = Disk(path, 5_000, monkeypatch)
    freed = []

    def free(clock):
        freed.append(clock.now_ns() / 1e9)
        disk.room = 10**9

    def at(number, clock):
        if number == 1:
            asyncio.get_running_loop().call_later(60, free, clock)

    sent, said, runner, tally, kept = run_on(path, 150, at)
    assert (tally.ok, tally.left, kept, runner.stop) == (150, 0, [], None)
    assert sorted(ids_in(path)) == sorted({name for name, _ in sent}) == sorted(f"r{i}" for i in range(1, 151))
    assert len(sent) == 150
    last_before = max(s for _, s in sent if s < freed[0])
    first_after = min(s for _, s in sent if s >= freed[0])
    assert last_before < freed[0] - 55
    assert first_after <= freed[0] + 1.1
    assert len(said) == 2
    assert said[0].startswith(f"cannot write {path}: No space left on device; sending is paused")
    assert said[1].startswith(f"{path} can be written again; it has the ")


def test_a_disk_that_stays_full_ends_the_run(tmp_path, temporary, monkeypatch):
    path = tmp_path / "out"
    Disk(path, 5_000, monkeypatch)
    sent, said, runner, tally, kept = run_on(path, 400)
    assert runner.stop == (1, f"{path} could not be written for 10 minutes: No space left on device")
    assert tally.ok == len(sent) == len(ids_in(path)) + len(kept)
    assert 0 < len(kept) <= 100
    (place,) = saved_in(temporary)
    assert ids_in(place) == [json.loads(line)["custom_id"] for line in kept]
    assert len(said) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="prlimit")
@pytest.mark.long("starts a process")
def test_a_run_with_too_little_room(tmp_path, emulator, command):
    import resource

    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    source, path = write_lines(tmp_path / "in.jsonl", chats(120)), tmp_path / "out"
    environ = {"TMPDIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    process = command(
        source, "-o", path, "--workers", "20", base_url=emulator.base_url, environ=environ,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard)),
    )  # fmt: skip
    while "cannot write" not in (line := process.stderr.readline()):
        assert line, finish(process, 0)
    (place,) = saved_in(tmp_path)
    assert f"File too large; sending is paused, and answers are kept in {place}; free some space" in line
    process.send_signal(signal.SIGINT)
    _, err = finish(process, 130)
    assert f"answers are in {place}; the same command again adds them" in err
    _, err = call(source, "-o", path, base_url=emulator.base_url, environ=environ)
    assert "answers that the earlier run could not write: now in the output" in err
    assert saved_in(tmp_path) == []
    assert sorted(ids_in(path)) == sorted(f"r{i}" for i in range(120))
    assert emulator.tally()["answers"]["most"] == 1
    assert emulator.tally()["admitted"] == 120


@pytest.mark.skipif(os.name == "nt" or not os.path.exists("/dev/full"), reason="no such device")  # noqa: PTH110
def test_a_device_that_fails_ends_the_run(tmp_path, emulator, command):
    source = write_lines(tmp_path / "in.jsonl", chats(60))
    _, err = call(source, "-o", "/dev/full", code=1, base_url=emulator.base_url)
    assert "stopped: /dev/full cannot be written: No space left on device" in err


@pytest.mark.skipif(os.name == "nt", reason="pipes")
@pytest.mark.long("starts a process")
def test_a_closed_pipe_ends_the_run(tmp_path, emulator, command):
    source = write_lines(tmp_path / "in.jsonl", chats(300))
    environ = {"TMPDIR": str(tmp_path)}
    process = command(source, "-o", "-", "--workers", "20", base_url=emulator.base_url, environ=environ)
    assert process.stdout.readline()
    process.stdout.close()
    process.stdout = None
    _, err = finish(process, 1)
    assert "stopped: - cannot be written: Broken pipe" in err
    assert list(tmp_path.glob("paceline-answers-*")) == []


def answer_of(body):
    return {"status_code": 200, "request_id": None, "body": read_body(body)}


def strict(line):
    """Read a line as JSON readers do that keep to the standard."""

    def refuse(name):
        raise ValueError(name)

    value = json.loads(line, parse_constant=refuse)
    value["response"]["body"] = json.loads(json.dumps(value["response"]["body"], ensure_ascii=False).encode("utf-8"))
    assert from_json(line, allow_inf_nan=False) == value
    return value["response"]["body"]


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        ('{"a": [NaN, -Infinity, 0.5, Infinity]}', {"a": ["NaN", "-Infinity", 0.5, "Infinity"]}),
        ('{"a": 1e999, "b": -1E+999, "c": 1e-999}', {"a": "Infinity", "b": "-Infinity", "c": 0.0}),
        ('{"a": 1.5e300}', {"a": 1.5e300}),
        (f'{{"a": 1{"0" * 250}e99, "b": 7}}', {"a": "Infinity", "b": 7}),
        (f'{{"a": {"9" * 400}, "b": {"9" * 30}}}', {"a": "9" * 400, "b": int("9" * 30)}),
        (f'{{"a": {"9" * 9_000}}}', {"a": "9" * 9_000}),
        (r'{"a": "\ud83d\ude00 \ud83d \\ud83d \\\ude00"}', {"a": "\U0001f600 \ufffd \\ud83d \\\ufffd"}),
        (r'{"\udfff": "\u0000\u2028"}', {"\ufffd": "\0\u2028"}),
        ('{"a": ' + "[" * 99 + "]" * 99 + "}", None),
        ('{"a": "' + "[" * 999 + '"}', None),
        ("\ufeff{}", {}),
        (b'{"a": "\xf0\x9f\x98"}', {"a": "\ufffd"}),
    ],
)
def test_what_is_written_is_json(body, kept):
    line = encode_answer("a", answer_of(body if isinstance(body, bytes) else body.encode()), None)
    assert list(json.loads(line)) == ["id", "custom_id", "response", "error"]
    assert json.loads(line)["id"].startswith("batch_req_")
    assert line.isascii()
    assert line.count(b"\n") == 1
    assert strict(line) == (json.loads(body) if kept is None else kept)


@pytest.mark.parametrize("levels", [101, 1_000, 100_000])
def test_what_is_nested_too_deeply_is_not_read(levels):
    with pytest.raises(RecursionError):
        read_body(b"[" * levels + b"]" * levels)


@given(
    st.recursive(
        st.none() | st.floats() | st.integers() | st.text(), lambda v: st.lists(v) | st.dictionaries(st.text(), v)
    )
)
def test_any_value_is_written_as_json(value):
    strict(encode_answer("a", answer_of(json.dumps({"a": value}).encode()), None))


def test_an_answer_with_nan_is_an_answer(tmp_path):
    body = b'{"choices": [{"text": "Yes.", "logprobs": [-Infinity, NaN]}]}'
    _, _, _, tally, _ = run_on(tmp_path / "out", 1, body=body)
    assert tally.ok == 1
    assert strict((tmp_path / "out").read_bytes())["choices"][0]["logprobs"] == ["-Infinity", "NaN"]


FLIPPED = ok("b").replace(b'"error"', b'"errnr"')
MERGED = ok("b")[:-1] + ok("c")
ZEROED = b"\0" * 5_000 + ok("c")


@pytest.mark.parametrize(
    ("damaged", "moved", "kept"),
    [
        ([ok("a"), FLIPPED, ok("c")], FLIPPED, "ac"),
        ([ok("a"), MERGED], MERGED, "a"),
        ([ok("a"), ZEROED], ZEROED, "a"),
        ([ok("a"), FLIPPED, failed("c")], FLIPPED, "a"),
        ([FLIPPED, ok("a"), ok("c")[:-1]], FLIPPED, "ac"),
        ([FLIPPED, ok("a"), ok("c")[:30]], FLIPPED, "a"),
        ([ok("a"), b"\xff\xfe\n", b"no end"], b"\xff\xfe\nno end", "a"),
    ],
)
def test_repair_moves_corrupt_lines_aside(tmp_path, damaged, moved, kept):
    path, older, content = tmp_path / "out", tmp_path / "out.corrupt-1", b"".join(damaged)
    path.write_bytes(content)
    path.chmod(0o640)
    older.write_text("of an earlier repair")
    with pytest.raises(OutputError, match="--repair moves such lines"):
        recover(path)
    assert path.read_bytes() == content
    recovered = recover(path, repair=True)
    aside = tmp_path / "out.corrupt-2"
    assert (recovered.aside, recovered.answered) == (str(aside), len(kept))
    assert (aside.read_bytes(), ids_in(path)) == (moved, list(kept))
    assert recovered.corrupt == 1 + (b"no end" in moved)
    assert older.read_text() == "of an earlier repair"
    if os.name != "nt":
        assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(aside.stat().st_mode) == 0o640
    assert sorted(tmp_path.iterdir()) == [path, older, aside]
    assert recover(path, repair=True).aside == ""


def test_a_repaired_run_sends_only_what_was_lost(tmp_path, emulator, command):
    source, path = write_lines(tmp_path / "in.jsonl", chats(20)), tmp_path / "out"
    call(source, "-o", path, base_url=emulator.base_url)
    path.write_bytes(path.read_bytes().replace(b"\n", b" ", 1))  # two lines are one
    _, err = call(source, "-o", path, code=2, base_url=emulator.base_url)
    assert "line 1: not an answer" in err
    assert "--repair" in err
    _, err = call(source, "-o", path, "--repair", base_url=emulator.base_url)
    assert f"corrupt lines moved to {path}.corrupt-1: 1; their requests are sent again" in err
    assert sorted(ids_in(path)) == sorted(f"r{i}" for i in range(20))
    assert emulator.tally()["admitted"] == 22
