"""Files that a crash, a kill or a full disk leaves whole: appended to by whole lines, or replaced as a whole."""
# ruff: noqa: PTH103, PTH105, PTH108, PTH110, PTH116, PTH118, PTH120, PTH123  (a path is a string)

from __future__ import annotations

import errno
import os
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from enum import Enum
from itertools import chain, count
from typing import BinaryIO, Final

SHARED_MOST_S: Final = 30.0
"""How long a write waits for the writes of others: a busy disk takes seconds for one, and a process may have been
stopped in it."""

OPEN_ELSEWHERE_MOST_S: Final = 3.0
"""How long a file that another process has open is tried to be replaced, on Windows: scanners and indexers are done by
then."""

LOOK_S: Final = 1.0
"""How often an open file is compared with its name: a kill loses what was written since. A look takes a few
microseconds."""

_MARK, _CHUNK = 64, 2**20  # bytes by which the first and the last line are known again, and that are copied at a time
_FAR: Final = 2**31 - 2  # Windows locks bytes, and an old runtime cannot lock one behind this


class Appender:
    """The end of a file, to which only whole lines are added where the file can be cut.

    Args:
        file: The path; the file is made where it is missing. Or an open file, which stays open.
        mode: The mode of a new file.
        end: Where an existing file is cut before; not at all when ``None``.
        new: Whether the file must be new.
        shared: Whether other threads and processes append to the file at the same time. What is in the file already may
            be without an end of line.

    Attributes:
        regular: Whether it is a regular file. A pipe or a device cannot be cut: nothing may follow a line that failed.

    Raises:
        OSError: It cannot be opened.
    """

    _ACCESS = os.O_WRONLY

    def __init__(
        self, file: str | int, *, mode: int = 0o600, end: int | None = None, new: bool = False, shared: bool = False
    ) -> None:
        flags = self._ACCESS | os.O_APPEND | os.O_CREAT | (os.O_EXCL if new else 0)
        self._fd = file if isinstance(file, int) else open_binary(file, flags, mode)
        self._owned = not isinstance(file, int)
        self._start = 0
        self._failure: OSError | None = None
        self._turn: WriteTurn | None = None
        try:
            self.regular = stat.S_ISREG(os.fstat(self._fd).st_mode)
            if end is not None:
                os.ftruncate(self._fd, end)
            if shared and self.regular:
                self._turn = WriteTurn(self._fd)
                with self._turn:
                    if not isinstance(file, int) and not _ends_whole(file):
                        self._write(b"\n")  # a full disk or a kill has cut the last line
        except OSError:
            self.close()
            raise

    def append(self, line: bytes, *, synced: bool = False) -> None:
        """Add a line, or nothing; if ``synced``, it is on the disk at the end.

        Raises:
            OSError: It cannot be written.
        """
        with self._turn or nullcontext():
            self._write(line, synced=synced)

    def _write(self, line: bytes, *, synced: bool = False) -> None:
        if self._failure is not None:  # the cut after it has failed, too
            self._cut()
        self._start = os.lseek(self._fd, 0, os.SEEK_END) if self.regular else 0
        try:
            written = 0
            while written < len(line):  # a disk that is nearly full takes a part
                written += os.write(self._fd, line[written:])
            if synced:
                self.sync()
        except BaseException as error:  # also an interrupt: what follows the last line would count as another program's
            self._failure = error if isinstance(error, OSError) else OSError(errno.EINTR, os.strerror(errno.EINTR))
            with suppress(OSError):
                self._cut()
            raise

    def _cut(self) -> None:
        """Cut off what a failed write has left."""
        assert self._failure is not None
        if not self.regular:
            raise self._failure
        if self.size() > self._start:
            os.ftruncate(self._fd, self._start)
            os.lseek(self._fd, self._start, os.SEEK_SET)  # standard output has other users
        self._failure = None

    def settle(self) -> Fault | None:
        """See :meth:`WatchedFile.settle`. This file belongs to others, too, and is compared with nothing."""
        return None

    def size(self) -> int:
        """Its bytes."""
        return os.fstat(self._fd).st_size

    def sync(self) -> None:
        """Bring what was written to the disk.

        Raises:
            OSError: That failed.
        """
        _sync(self._fd)

    def close(self) -> None:
        """Close the file."""
        if self._owned:
            os.close(self._fd)


class Fault(Enum):
    """What other programs have done to an open file."""

    GONE = "another program has deleted or moved it"
    TAKEN = "another file has its name now"
    SHORT = "another program has shortened or overwritten it"
    LONG = "another program has written to its end"


class LostFileError(OSError):
    """A file is not at its name any more, or has lost some of its content."""

    def __init__(self, fault: Fault, path: str) -> None:
        super().__init__(errno.EIO, fault.value, path)


def is_same(one: os.stat_result, other: os.stat_result) -> bool:
    """Whether both are of one file; never where files have no numbers."""
    return one.st_ino != 0 and os.path.samestat(one, other)


class Watch:
    """Compares an open file with its name: to write into a file that has lost its name fails nowhere.

    Where files have no numbers (some network and Windows file systems), or a file has another one by its name than by
    its handle from the start, existence and length alone are compared.

    Args:
        path: The name.
        fd: The open file; ``None`` where a library has it open.

    Raises:
        OSError: There is no such file.
    """

    def __init__(self, path: str, fd: int | None = None) -> None:
        self._path, self._fd = path, fd
        there = os.stat(path)
        self._own = there if fd is None else os.fstat(fd)
        self._numbered = is_same(self._own, there)
        self._length, self._due_s = there.st_size, time.monotonic() + LOOK_S

    def is_due(self) -> bool:
        """Whether the last look was :data:`LOOK_S` ago."""
        now_s = time.monotonic()
        if now_s < self._due_s:
            return False
        self._due_s = now_s + LOOK_S
        return True

    def look(self, least: int | None = None) -> Fault | None:
        """What has happened to the file; ``None`` for nothing.

        Args:
            least: How many bytes it has at least; ``None``: as many as at the last look.

        Raises:
            OSError: Its file system does not answer.
        """
        try:
            there = os.stat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            return Fault.GONE
        except PermissionError:  # of its folder: what is open is as good as before
            return None
        own = self._own if self._fd is None else os.fstat(self._fd)
        if self._numbered and not os.path.samestat(own, there):
            return Fault.TAKEN
        size = there.st_size if self._fd is None else own.st_size
        if size < (self._length if least is None else least):
            return Fault.SHORT
        if there.st_size < self._length:  # as of the last look: over a network a length may come late
            return Fault.TAKEN
        self._length = there.st_size
        return None


def recovered_names(path: str) -> Iterator[str]:
    """Where a file goes whose name another file has: to the first of these that is free."""
    return (f"{path}.recovered{f'-{number}' if number > 1 else ''}" for number in count(1))


def take_back(path: str) -> None:
    """Give a file its name again, if it went to the first of the :func:`recovered_names` and the name is free by now.

    Raises:
        OSError: It cannot be renamed.
    """
    if os.path.exists(aside := next(recovered_names(path))) and not os.path.exists(path):
        replace(aside, path)


class WatchedFile(Appender):
    """A file that no other program should write, and that is looked after while it is open.

    Once in :data:`LOOK_S`, and where it is settled, it is compared with its name, its length and its first and last
    line; its length before each append, too. If it was deleted, moved, replaced, shortened or extended, an append fails
    as on a full disk. The next one writes everything again from what is open: at its name, or, if another file has
    that, or another program's lines are in it, at the first of the :func:`recovered_names`.

    Args:
        path: The path; the file is made where it is missing.
        mode: The mode of a new file.
        end: Where an existing file is cut before; not at all when ``None``.
        mirrored: Whether a second file, without a name, has the same content: so a small file loses nothing.

    Attributes:
        path: Where the content is now.
        lost: Whether it is to be written again, and could not be yet.
        shortened: Whether content was lost that cannot be read back.

    Raises:
        OSError: It cannot be opened.
    """

    _ACCESS = os.O_RDWR

    def __init__(self, path: str, *, mode: int = 0o600, end: int | None = None, mirrored: bool = False) -> None:
        self._name, self.path, self.shortened = path, path, False
        self.lost = False
        self._mirror: int | None = None
        super().__init__(path, mode=mode, end=end)
        try:
            self._note()
        except OSError:
            self.close()
            raise
        if mirrored:
            with suppress(OSError), tempfile.TemporaryFile() as mirror:  # without it the file is as safe as another one
                self._mirror = os.dup(mirror.fileno())  # which stays open when the block closes its own
            self._copy_to_mirror(_contents(self._fd))

    @property
    def moved(self) -> bool:
        """Whether the content is at another name, because another file has its own."""
        return self.path != self._name

    def _note(self) -> None:
        """Take the file as it is now for what it is to be."""
        self._watch, self._end = Watch(self.path, self._fd), self.size()
        self._head, self._tail = _read(self._fd, 0, _MARK), b""

    def _look(self) -> Fault | None:
        if (found := self._watch.look(self._end)) is not None:
            return found
        if not self._is_whole():
            return Fault.SHORT
        # After a failed write of our own, what is behind the end is ours.
        return Fault.LONG if self._failure is None and self.size() > self._end else None

    def _is_whole(self) -> bool:
        at_end = _read(self._fd, self._end - len(self._tail), len(self._tail))
        return self.size() >= self._end and at_end == self._tail and self._begins_as_before()

    def _begins_as_before(self) -> bool:
        # In this order, because a file that was cut within its first line, or to nothing, begins so, too.
        return self._head.startswith(_read(self._fd, 0, len(self._head)))

    def settle(self) -> Fault | None:
        """Compare the file with its name and its content now, and write it again if that is needed; return why it was.

        Raises:
            OSError: It is not at its name any more, or has lost something, and cannot be written again.
        """
        fault = self._look()
        if self.lost or fault is not None:
            self._mend()
        return fault

    def _write(self, line: bytes, *, synced: bool = False) -> None:
        if self.lost:
            self._mend()
        elif (self._watch.is_due() or self.size() != self._end) and (fault := self._look()) is not None:
            self.lost = True
            raise LostFileError(fault, self.path)
        super()._write(line, synced=synced)
        self._end, self._tail = self._start + len(line), line[-_MARK:]
        self._head = self._head or _read(self._fd, 0, _MARK)  # of a file that was empty until now
        self._copy_to_mirror(iter([line]))

    def _copy_to_mirror(self, contents: Iterator[bytes]) -> None:
        if self._mirror is not None:
            try:
                os.lseek(self._mirror, 0, os.SEEK_END)
                _write_all(self._mirror, contents)
            except OSError:  # there is no room for it
                os.close(self._mirror)
                self._mirror = None

    def _mend(self) -> None:
        """Write the file again.

        Raises:
            OSError: That has failed, and what is open has all that it had.
        """
        self.lost = True
        if self._failure is not None:
            self._cut()
        fault, names = self._look(), recovered_names(self._name)
        if fault is Fault.SHORT and self._begins_as_before():
            self._complete()
        elif fault is not None:  # or else it was put back
            self.move(chain([self._name], names) if fault is Fault.GONE else names)
        self.lost = False

    def _complete(self) -> None:
        """Go on in a file that was shortened, with all that it had, or after its last whole line."""
        if self._mirror is not None:
            os.ftruncate(self._fd, 0)
            _write_all(self._fd, _contents(self._mirror))
        else:
            _cut_line(self._fd)
            self.shortened = True
        self._note()

    def move(self, names: Iterable[str], *, mode: int | None = None) -> None:
        """Go on in a new file, with all that can be read of this one.

        Args:
            names: The file has the first of these names that no file has.
            mode: The mode of the new file; ``None``: the same.

        Raises:
            OSError: It cannot be made or written.
        """
        fd, path = self._new(names, stat.S_IMODE(os.fstat(self._fd).st_mode) if mode is None else mode)
        try:
            if self._mirror is not None:
                _write_all(fd, _contents(self._mirror))
            elif not self._begins_as_before():  # what is open is another program's by now
                self.shortened = True
            elif not _write_all(fd, _contents(self._fd, self._end)) or not self._is_whole():  # it may change meanwhile
                _cut_line(fd)
                self.shortened = True
            _sync(fd)
        except OSError:
            os.close(fd)
            os.unlink(path)
            raise
        os.close(self._fd)
        self._fd, self.path = fd, path
        self._note()

    def _new(self, names: Iterable[str], mode: int) -> tuple[int, str]:
        """A new file, and its name."""
        for name in names:
            # The program that has deleted the file may have deleted its folder, too.
            os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
            with suppress(FileExistsError):
                fd = open_binary(name, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL, mode)
                if sys.platform != "win32":
                    os.fchmod(fd, mode)  # the umask has taken a part of it
                return fd, name
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self.path)

    def close(self) -> None:
        """Close the file."""
        super().close()
        if self._mirror is not None:
            os.close(self._mirror)


class WriteTurn:
    """A lock between the threads and the processes that write one file, held for the time of one write."""

    def __init__(self, fd: int) -> None:
        self._fd, self._depth = fd, 0
        # The lock of the system is one for the descriptor, which all threads share.
        self._threads = threading.RLock()  # a finalizer may append inside of an append

    def __enter__(self) -> None:
        if not self._threads.acquire(timeout=SHARED_MOST_S):
            raise OSError(errno.EAGAIN, "the lock of another thread does not end")
        try:
            if not self._depth:
                self._lock()
        except BaseException:  # also an interrupt while it waits: the other threads would wait in vain from then on
            self._threads.release()
            raise
        self._depth += 1

    def _lock(self) -> None:
        # Tried again and again, because a lock of the system waits without a bound.
        end_s, wait_s = time.monotonic() + SHARED_MOST_S, 0.0001
        while True:
            try:
                lock(self._fd, _FAR)
            except (BlockingIOError, PermissionError):  # the second one on Windows
                if time.monotonic() > end_s:
                    raise OSError(errno.EAGAIN, "the lock of another process does not end") from None
                time.sleep(wait_s)
                wait_s = min(2 * wait_s, 0.01)
            except OSError:  # no locks on this file system: a line is one call, which is whole where nothing fails
                return
            else:
                return

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            with suppress(OSError):  # no locks on this file system
                unlock(self._fd, _FAR)
        self._threads.release()


def lock(fd: int, at: int = 0) -> None:
    """Lock an open file for this process alone.

    ``at``: the byte that is locked where a lock has bytes, which others cannot read.

    Raises:
        OSError: It cannot be locked; ``BlockingIOError`` or ``PermissionError`` where another process has locked it.
    """
    if sys.platform == "win32":
        import msvcrt

        os.lseek(fd, at, os.SEEK_SET)
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        except OSError as error:
            if error.errno:
                raise
            raise BlockingIOError(errno.EAGAIN, "locked") from None  # wine gives no number
    else:
        import fcntl

        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def unlock(fd: int, at: int = 0) -> None:
    """End a :func:`lock`."""
    if sys.platform == "win32":
        import msvcrt

        os.lseek(fd, at, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)  # type: ignore[attr-defined,unused-ignore]
    else:
        import fcntl

        fcntl.flock(fd, fcntl.LOCK_UN)


def open_binary(path: str, flags: int, mode: int = 0o600) -> int:
    """Open a file without a translation of its ends of lines, which Windows does by default."""
    return os.open(path, flags | getattr(os, "O_BINARY", 0), mode)


@contextmanager
def replacing(path: str, *, like: str = "") -> Iterator[BinaryIO]:
    """A new file that takes the place of ``path`` at the end of the block, whole and on the disk.

    If the block raises, it does not.

    It has the mode of the old file and, where permitted, its owner. Without an old file it is like ``like``, or
    private. A link to the old file stays a link.

    Raises:
        OSError: It cannot be written; the old file is unchanged.
    """
    path = os.path.realpath(path)
    folder = os.path.dirname(path)
    # In the same folder, because a rename is one step only within a file system. By chance, because two processes may
    # replace the same file at once.
    name = os.path.join(folder, f".paceline-{os.urandom(8).hex()}")
    file = create(name, like=path if os.path.exists(path) else like)
    try:
        with file:
            yield file
            # Before the rename, because Windows renames no open file.
            close(file)
        replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
    _sync_folder(folder)


def replace(old: str, new: str) -> None:
    """Rename ``old`` to ``new``, in place of a file of that name.

    Raises:
        OSError: That failed, and nothing has changed.
    """
    end_s, wait_s = time.monotonic() + OPEN_ELSEWHERE_MOST_S, 0.01
    while sys.platform == "win32":
        try:
            os.replace(old, new)
        except PermissionError as error:
            if time.monotonic() > end_s:
                why = f"{error.strerror}; another program may have it open: close it there"
                raise PermissionError(errno.EACCES, why, new) from None
            time.sleep(wait_s)
            wait_s *= 2
        else:
            return
    os.replace(old, new)


def create(path: str, *, like: str = "") -> BinaryIO:
    """A new file with the mode of the file ``like`` and, where permitted, its owner; private if ``like`` is empty.

    Raises:
        OSError: It cannot be made: ``FileExistsError`` where there is one.
    """
    file = open(path, "xb", opener=open_binary)  # noqa: SIM115
    try:
        if like and sys.platform != "win32":
            was = os.stat(like)
            # One by one: without root's rights the group may be given, and the owner not. The mode comes last, because
            # a change of the owner clears bits of it.
            for owner in ((-1, was.st_gid), (was.st_uid, -1)):
                with suppress(OSError):
                    os.fchown(file.fileno(), *owner)
            os.fchmod(file.fileno(), stat.S_IMODE(was.st_mode))
    except OSError:
        file.close()
        os.unlink(path)
        raise
    return file


def close(file: BinaryIO) -> None:
    """Bring the content of ``file`` to the disk, and close it."""
    file.flush()
    _sync(file.fileno())
    file.close()


def _sync(fd: int) -> None:
    if sys.platform == "darwin":
        import fcntl

        with suppress(OSError):  # some file systems refuse it
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # fsync leaves the content in the cache of the disk there
            return
    os.fsync(fd)


def _sync_folder(folder: str) -> None:
    """Bring the names in ``folder`` to the disk, where the system can."""
    with suppress(OSError):
        fd = os.open(folder, os.O_RDONLY)
        try:
            _sync(fd)
        finally:
            os.close(fd)


def _read(fd: int, at: int, count: int) -> bytes:
    os.lseek(fd, at, os.SEEK_SET)  # appends go to the end anyway
    return os.read(fd, count)


def _contents(fd: int, end: int | None = None) -> Iterator[bytes]:
    """The content of an open file, in parts; not what is behind ``end``."""
    at = 0
    while content := _read(fd, at, _CHUNK if end is None else min(_CHUNK, end - at)):
        yield content
        at += len(content)


def _write_all(fd: int, contents: Iterator[bytes]) -> bool:
    """Write what is read; return whether it could be read to its end.

    Raises:
        OSError: It cannot be written.
    """
    while True:
        try:
            content = next(contents, b"")
        except OSError:  # its file system is gone
            return False
        if not content:
            return True
        while content:
            content = content[os.write(fd, content) :]


def _cut_line(fd: int) -> None:
    """Cut the file after its last whole line."""
    end = at = os.lseek(fd, 0, os.SEEK_END)
    while at:
        at = max(0, end - _CHUNK)
        if (found := _read(fd, at, end - at).rfind(b"\n")) >= 0:
            at += found + 1
            break
        end = at
    os.ftruncate(fd, at)


def _ends_whole(path: str) -> bool:
    """Whether the file is empty or ends with a whole line."""
    with open(path, "rb") as file:
        return file.seek(0, os.SEEK_END) == 0 or (file.seek(-1, os.SEEK_END) is not None and file.read(1) == b"\n")
