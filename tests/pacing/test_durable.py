"""Files that a full disk, a kill or another process leaves whole, on Linux, and on macOS and Windows as far as their calls can be scripted."""

import errno
import os
import stat
import subprocess
import sys
import types
from array import array
from contextlib import nullcontext
from multiprocessing.pool import ThreadPool
from pathlib import Path

import pytest

from paceline.batch.chunks import BatchKind, Chunk
from paceline.batch.journal import BatchJournal
from paceline.batch.merge import merge
from paceline.batch.results import encode_answer
from paceline.gateway.keys import KeyFile
from paceline.pacing import durable
from paceline.pacing.durable import Appender, WatchedFile, replacing
from paceline.pacing.traffic import Entry, TrafficLog

posix = pytest.mark.skipif(sys.platform == "win32", reason="modes, links")


class Disk:
    """A disk with room for some bytes; a write that does not fit writes a part, as the system does."""

    def __init__(self, path, monkeypatch):
        self.path, self.room, self.write = path, 10**9, os.write
        monkeypatch.setattr(os, "write", self)

    def __call__(self, fd, content):
        free = self.room - os.fstat(fd).st_size
        if os.path.samestat(os.fstat(fd), self.path.stat()) and free < len(content):
            if free <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            content = content[:free]
        return self.write(fd, content)


LINE = b'{"pool": "a line"}\n'


@pytest.mark.parametrize("shared", [False, True])
def test_a_write_that_fails_at_any_byte_leaves_whole_lines(tmp_path, monkeypatch, shared):
    path = tmp_path / "lines"
    disk = Disk(path, monkeypatch)
    file = Appender(str(path), shared=shared)
    for room in range(3 * len(LINE)):
        disk.room = path.stat().st_size + room
        for _ in range(room // len(LINE)):
            file.append(LINE)
        before = path.read_bytes()
        with pytest.raises(OSError, match="No space"):
            file.append(LINE)
        assert path.read_bytes() == before
    disk.room = 10**9
    file.append(b"the last\n")
    file.close()
    whole = sum(room // len(LINE) for room in range(3 * len(LINE)))
    assert path.read_bytes() == whole * LINE + b"the last\n"


def test_what_another_has_added_is_not_cut_off(tmp_path, monkeypatch):
    """The kept end of a file is its real end: the user adds lines to an output while its run goes on."""
    path = tmp_path / "lines"
    disk = Disk(path, monkeypatch)
    file = Appender(str(path))
    file.append(LINE)
    with path.open("ab") as other:
        other.write(b"of another\n")
    disk.room = path.stat().st_size + 3
    with pytest.raises(OSError, match="No space"):
        file.append(LINE)
    file.close()
    assert path.read_bytes() == LINE + b"of another\n"


@pytest.mark.parametrize("error", [OSError(errno.EIO, os.strerror(errno.EIO)), KeyboardInterrupt()], ids=repr)
def test_a_sync_that_fails_or_is_interrupted_takes_the_line_back(tmp_path, monkeypatch, error):
    def refuse(_fd):
        raise error

    file = WatchedFile(str(tmp_path / "lines"))
    file.append(LINE, synced=True)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(type(error)):
            file.append(b"never\n", synced=True)
    assert file.settle() is None
    file.append(LINE, synced=True)
    file.close()
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("lines", LINE * 2)]


APPEND = """
import os, sys, time
from paceline.pacing.durable import Appender
write = os.write
if sys.argv[3] == "small":  # a slow disk that takes a part of each write
    os.write = lambda fd, content: time.sleep(0.0001) or write(fd, content[:20])
if sys.argv[3] == "failing":  # and one that fails in the middle of each second line
    count = 0
    def fails(fd, content):
        global count
        count += 1
        if count % 2:
            return write(fd, content)
        write(fd, content[:9])
        raise OSError(28, "No space left on device")
    os.write = fails
file = Appender(sys.argv[1], shared=True)
print("ready", flush=True)
sys.stdin.read()
for number in range(60):
    try:
        file.append(f"{sys.argv[2]} {number} {'x' * 40}\\n".encode())
    except OSError:
        pass
"""


@pytest.mark.long("starts eight processes")
@pytest.mark.parametrize("disk", ["whole", "small", "failing"])
def test_lines_of_eight_processes_stay_whole(tmp_path, disk):
    path = tmp_path / "lines"
    args = [sys.executable, "-c", APPEND, str(path)]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    processes = [subprocess.Popen([*args, str(number), disk], **streams) for number in range(8)]
    for process in processes:
        process.stdout.readline()
    for process in processes:
        process.stdin.close()
        process.stdin = None
    for process in processes:
        process.communicate()
    assert [process.returncode for process in processes] == [0] * 8
    lines = path.read_text().splitlines()
    taken = range(0, 60, 2) if disk == "failing" else range(60)
    assert sorted(lines) == sorted(f"{process} {number} {'x' * 40}" for process in range(8) for number in taken)


def test_lines_of_threads_and_of_two_logs_stay_whole(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, content: write(fd, content[:5]))
    path = tmp_path / "lines"
    files = [Appender(str(path), shared=True) for _ in range(2)]
    with ThreadPool(4) as pool:
        pool.map(lambda n: files[n % 2].append(f"{n} {'x' * 20}\n".encode()), range(80), 1)
    for file in files:
        file.close()
    assert sorted(path.read_text().splitlines()) == sorted(f"{n} {'x' * 20}" for n in range(80))


@posix
def test_an_append_waits_for_another_process_for_a_bounded_time(tmp_path, monkeypatch):
    import fcntl

    monkeypatch.setattr(durable, "SHARED_MOST_S", 0.01)
    path = tmp_path / "lines"
    file = Appender(str(path), shared=True)
    with path.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="the lock of another process does not end"):
            file.append(LINE)
    file.append(LINE)
    file.close()
    assert path.read_bytes() == LINE


@posix
def test_an_interrupted_wait_keeps_no_other_thread_from_its_append(tmp_path, monkeypatch):
    import fcntl

    def interrupted(seconds):
        raise KeyboardInterrupt

    path = tmp_path / "lines"
    file = Appender(str(path), shared=True)
    with path.open("ab") as other, monkeypatch.context() as patch:
        patch.setattr(durable.time, "sleep", interrupted)
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(KeyboardInterrupt):
            file.append(LINE)
    monkeypatch.setattr(durable, "SHARED_MOST_S", 0.1)
    with ThreadPool(1) as pool:
        pool.apply(file.append, [LINE])
    file.close()
    assert path.read_bytes() == LINE


def test_an_append_within_an_append_is_written(tmp_path, monkeypatch):
    """A finalizer ends a request, and logs it, at any place of a program: within an append, too."""
    path, write = tmp_path / "lines", os.write
    file = Appender(str(path), shared=True)

    def finalized(fd, content):
        monkeypatch.setattr(os, "write", write)
        file.append(b"inner\n")
        return write(fd, content)

    monkeypatch.setattr(os, "write", finalized)
    file.append(b"outer\n")
    file.close()
    assert path.read_bytes() == b"inner\nouter\n"


@posix
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664])
def test_keys_keep_their_mode_and_a_link_to_them(tmp_path, mode):
    path, link = tmp_path / "real.json", tmp_path / "keys.json"
    link.symlink_to(path)
    KeyFile(link).add("first")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(mode)
    KeyFile(link).add("second")
    assert (link.is_symlink(), stat.S_IMODE(path.stat().st_mode)) == (True, mode)
    assert [one.name for one in KeyFile(link).all()] == ["first", "second"]
    assert sorted(tmp_path.iterdir()) == [link, path]


def merged(tmp_path):
    source, output, target = (tmp_path / name for name in ("in", "out", "merged"))
    line = '{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m", "messages": [{}]}}\n'
    source.write_text(line)
    output.write_bytes(encode_answer("a", {"status_code": 200, "body": {"object": "x"}}, None))
    output.chmod(0o640)
    merge(str(source), [str(output)], str(target), overwrite=True)
    return stat.S_IMODE(target.stat().st_mode)


@posix
def test_a_merged_result_is_as_private_as_the_old_one_or_the_outputs(tmp_path):
    assert merged(tmp_path) == 0o640
    (tmp_path / "merged").chmod(0o600)
    assert merged(tmp_path) == 0o600


def test_a_block_that_raises_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), replacing(str(path)) as file:
        file.write(bytes(1 // 0))
    assert [one.read_bytes() for one in tmp_path.iterdir()] == [b"old"]


class Windows:
    """The calls of Windows, as far as they differ: files are in text mode unless they are opened otherwise, and locks have bytes."""

    O_BINARY = getattr(os, "O_BINARY", 1 << 28)

    def __init__(self, monkeypatch):
        self.not_here = 0 if hasattr(os, "O_BINARY") else self.O_BINARY
        self.text, self.locks, self.tries, self.busy = set(), {}, 0, 0
        self.open, self.write, self.close, self.replace = os.open, os.write, os.close, os.replace
        msvcrt = types.SimpleNamespace(LK_NBLCK=2, LK_UNLCK=0, locking=self.locking)
        monkeypatch.setitem(sys.modules, "msvcrt", msvcrt)
        monkeypatch.setattr(sys, "platform", "win32")
        monkeypatch.setattr(os, "O_BINARY", self.O_BINARY, raising=False)
        monkeypatch.setattr(os, "open", self.opened)
        monkeypatch.setattr(os, "write", self.written)
        monkeypatch.setattr(os, "close", self.closed)
        monkeypatch.setattr(os, "replace", self.replaced)

    def opened(self, path, flags, mode=0o777):
        fd = self.open(path, flags & ~self.not_here, mode)
        if not flags & self.O_BINARY:
            self.text.add(fd)
        return fd

    def written(self, fd, content):
        self.write(fd, content.replace(b"\n", b"\r\n") if fd in self.text else content)
        return len(content)

    def closed(self, fd):
        self.text.discard(fd)
        self.close(fd)

    def locking(self, fd, mode, count):
        byte = os.fstat(fd).st_ino, os.lseek(fd, 0, os.SEEK_CUR)
        assert count == 1
        if mode == 0:
            assert self.locks.pop(byte) == fd
        elif byte in self.locks:
            raise PermissionError(errno.EACCES, "Permission denied")
        else:
            self.locks[byte] = fd

    def replaced(self, old, new):
        self.tries += 1
        if self.tries <= self.busy:
            raise PermissionError(errno.EACCES, "Access is denied")
        self.replace(old, new)


@pytest.fixture
def windows(monkeypatch):
    return Windows(monkeypatch)


def test_the_journal_and_the_traffic_log_have_no_carriage_returns(tmp_path, windows):
    journal = BatchJournal(str(tmp_path / "out"))
    journal.open()
    kind = BatchKind("openai", "/v1/chat/completions", "m")
    journal.intend(Chunk(kind, array("Q", [1]), custom_ids=["a"], content=[b"{}"]), "account")
    journal.close()
    log = TrafficLog(tmp_path / "log", "traffic_log")
    log.write(Entry(0.0, "pool", "lane"))
    log._file.close()
    for path in (Path(journal.path), tmp_path / "log"):
        assert path.read_bytes().endswith(b"\n")
        assert b"\r" not in path.read_bytes()
    assert windows.locks == {}


def test_a_lock_of_an_append_is_far_from_its_lines(tmp_path, windows):
    file = Appender(str(tmp_path / "lines"), shared=True)
    with file._turn:
        ((_, byte),) = windows.locks
    file.close()
    assert byte == 2**31 - 2


@pytest.mark.parametrize(("busy", "replaced"), [(3, True), (10**9, False)])
def test_a_file_that_is_open_elsewhere_is_replaced_later_or_an_error(tmp_path, windows, monkeypatch, busy, replaced):
    now_s = [0.0]
    clock = types.SimpleNamespace(monotonic=lambda: now_s[0], sleep=lambda s: now_s.__setitem__(0, now_s[0] + s))
    monkeypatch.setattr(durable, "time", clock)
    path = tmp_path / "file"
    path.write_bytes(b"old")
    windows.busy = busy
    said = "Access is denied; another program may have it open: close it there"
    with nullcontext() if replaced else pytest.raises(PermissionError, match=said), replacing(str(path)) as file:
        file.write(b"new")
    assert replaced or 3 < now_s[0] < 10
    assert [one.read_bytes() for one in tmp_path.iterdir()] == [b"new" if replaced else b"old"]


@posix
@pytest.mark.parametrize("refused", [False, True])
def test_a_mac_flushes_the_cache_of_its_disk_where_the_file_system_can(tmp_path, monkeypatch, refused):
    import fcntl

    calls = []

    def full_sync(_fd, command):
        calls.append(command)
        if refused:
            raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", full_sync)
    monkeypatch.setattr(os, "fsync", lambda _fd: calls.append("fsync"))
    file = Appender(str(tmp_path / "lines"))
    file.append(LINE, synced=True)
    file.close()
    assert calls == ([51, "fsync"] if refused else [51])


class Unnumbered:
    """The calls of a file system that gives its files no numbers."""

    def __getattr__(self, name):
        return getattr(os, name)

    def stat(self, path):
        return self.without(Path(path).stat())

    def fstat(self, fd):
        return self.without(os.fstat(fd))

    @staticmethod
    def without(about):
        return os.stat_result([about.st_mode, 0, *about[2:]])


@pytest.fixture(params=["numbered", "unnumbered"])
def watched(request, tmp_path, monkeypatch):
    monkeypatch.setattr(durable, "LOOK_S", 0.0)
    if request.param == "unnumbered":
        monkeypatch.setattr(durable, "os", Unnumbered())
    file = WatchedFile(str(tmp_path / "lines"))
    for number in range(9):
        file.append(b"line %d\n" % number)
    yield file
    file.close()


def written(file, *lines):
    """Append lines, each again after an error; the content then."""
    errors = []
    for line in lines:
        try:
            file.append(line)
        except OSError as error:
            errors.append(error.strerror)
            file.append(line)
    file.settle()
    return errors, Path(file.path).read_bytes()


NINE = b"".join(b"line %d\n" % number for number in range(9))


@posix
def test_a_file_that_is_deleted_or_moved_is_written_again(watched, tmp_path):
    for step in (Path.unlink, lambda path: path.rename(path.with_name("moved"))):
        step(Path(watched.path))
        before = len(list(tmp_path.iterdir()))
        errors, content = written(watched, b"more\n")
        assert (errors, content[: len(NINE)]) == (["another program has deleted or moved it"], NINE)
        assert content.endswith(b"more\n")
        assert (watched.moved, watched.shortened, len(list(tmp_path.iterdir()))) == (False, False, before + 1)
    Path(watched.path).unlink()  # and nothing is written after it
    watched.settle()
    assert Path(watched.path).read_bytes() == NINE + b"more\nmore\n"


@posix
def test_a_file_that_is_put_back_goes_on(watched, tmp_path):
    path = Path(watched.path)
    path.rename(tmp_path / "aside")
    with pytest.raises(OSError, match="deleted or moved"):
        watched.append(b"more\n")
    (tmp_path / "aside").rename(path)
    assert written(watched, b"more\n") == ([], NINE + b"more\n")


@posix
def test_the_file_that_has_the_name_stays_as_it_is(watched, tmp_path):
    (tmp_path / "lines.recovered").write_bytes(b"of an earlier run")
    (tmp_path / "new").write_bytes(b"of another\n")
    (tmp_path / "new").replace(watched.path)
    errors, content = written(watched, b"more\n")
    assert (errors, content) == (["another file has its name now"], NINE + b"more\n")
    assert watched.path == str(tmp_path / "lines.recovered-2")
    assert (tmp_path / "lines").read_bytes() == b"of another\n"
    assert (tmp_path / "lines.recovered").read_bytes() == b"of an earlier run"


@pytest.mark.parametrize("size", [0, 6, 7, 9, len(NINE) - 1])
def test_a_file_that_is_shortened_goes_on_after_its_last_whole_line(watched, monkeypatch, size):
    monkeypatch.setattr(durable, "_CHUNK", 4)
    os.truncate(watched.path, size)
    errors, content = written(watched, b"more\n")
    assert (errors, watched.shortened) == (["another program has shortened or overwritten it"], True)
    assert not watched.moved, "it begins as before, so that it is the same file"
    assert content == NINE[: size // 7 * 7] + b"more\n"


@posix
def test_a_file_that_is_shortened_and_deleted_has_what_is_left(watched):
    os.truncate(watched.path, 20)
    Path(watched.path).unlink()
    assert written(watched, b"more\n")[1] == NINE[:14] + b"more\n"
    assert watched.shortened


def test_what_another_program_has_written_over_it_stays(watched):
    Path(watched.path).write_bytes(b"of another\n" * 99)
    _, content = written(watched, b"more\n")
    assert (content, watched.moved, watched.shortened) == (b"more\n", True, True)


@pytest.mark.parametrize(
    "step", [Path.unlink, lambda path: os.truncate(path, 9), lambda path: path.write_bytes(b"x" * 99)]
)
@posix
def test_a_mirrored_file_loses_nothing(tmp_path, monkeypatch, step):
    monkeypatch.setattr(durable, "LOOK_S", 0.0)
    (tmp_path / "lines").write_bytes(NINE)
    file = WatchedFile(str(tmp_path / "lines"), mirrored=True)
    file.append(b"more\n")
    step(Path(file.path))
    assert written(file, b"last\n")[1] == NINE + b"more\nlast\n"
    assert not file.shortened
    file.close()


@posix
def test_a_file_whose_disk_is_gone_goes_on_without_what_it_had(watched, tmp_path, monkeypatch):
    """As after a mount: the name leads to another file system, and the open file cannot be read any more."""
    (tmp_path / "new").write_bytes(b"line 0\n")
    (tmp_path / "new").replace(watched.path)
    read = os.read

    def broken(fd, count):
        if os.lseek(fd, 0, os.SEEK_CUR) == 10:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return read(fd, min(count, 10))

    with monkeypatch.context() as patch:
        patch.setattr(os, "read", broken)
        with pytest.raises(OSError, match="another file has its name"):
            watched.append(b"more\n")
        watched.append(b"more\n")
    assert Path(watched.path).read_bytes() == b"line 0\nmore\n"
    assert watched.shortened
