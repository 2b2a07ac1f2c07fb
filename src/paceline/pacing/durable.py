"""Files that a crash, a kill or a full disk leaves whole: appended to by whole lines, or replaced as a whole."""
# ruff: noqa: PTH105, PTH108, PTH116, PTH118, PTH120, PTH123  (a path is a string)

from __future__ import annotations

import errno
import os
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import BinaryIO, Final

SHARED_MOST_S: Final = 30.0
"""How long a write waits for the writes of others: a busy disk takes seconds for one, and a process may have been stopped in it."""

OPEN_ELSEWHERE_MOST_S: Final = 3.0
"""How long a file that another process has open is tried to be replaced, on Windows: scanners and indexers are done by then."""

_FAR: Final = 2**31 - 2  # Windows locks bytes, and an old runtime cannot lock one behind this


class Appender:
    """The end of a file, to which only whole lines are added where the file can be cut.

    Args:
        file: The path; the file is made where it is missing. Or an open file, which stays open.
        mode: The mode of a new file.
        end: Where an existing file is cut before; not at all when ``None``.
        new: Whether the file must be new.
        shared: Whether other threads and processes append to the file at the same time. What is in the file already may be
            without an end of line.

    Attributes:
        regular: Whether it is a regular file. A pipe or a device cannot be cut: nothing may follow a line that failed.

    Raises:
        OSError: It cannot be opened.
    """

    def __init__(
        self, file: str | int, *, mode: int = 0o600, end: int | None = None, new: bool = False, shared: bool = False
    ) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | (os.O_EXCL if new else 0)
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
        if self._failure is not None:
            self._cut()
        self._start = os.lseek(self._fd, 0, os.SEEK_END) if self.regular else 0
        try:
            written = 0
            while written < len(line):
                written += os.write(self._fd, line[written:])
            if synced:
                self.sync()
        except OSError as error:
            self._failure = error
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


class WriteTurn:
    """A lock between the threads and the processes that write one file, held for the time of one write."""

    def __init__(self, fd: int) -> None:
        self._fd, self._depth = fd, 0
        self._threads = threading.RLock()  # a finalizer may append inside of an append

    def __enter__(self) -> None:
        if not self._threads.acquire(timeout=SHARED_MOST_S):
            raise OSError(errno.EAGAIN, "the lock of another thread does not end")
        try:
            if not self._depth:
                self._lock()
        except OSError:
            self._threads.release()
            raise
        self._depth += 1

    def _lock(self) -> None:
        end_s, wait_s = time.monotonic() + SHARED_MOST_S, 0.0001
        while True:
            try:
                lock(self._fd, _FAR)
            except (BlockingIOError, PermissionError):
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
            with suppress(OSError):
                unlock(self._fd, _FAR)
        self._threads.release()


def lock(fd: int, at: int = 0) -> None:
    """Lock an open file for this process alone; ``at``: the byte that is locked where a lock has bytes, which others cannot read.

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
    """A new file that takes the place of ``path`` at the end of the block, whole and on the disk; not if the block raises.

    It has the mode of the old file and, where permitted, its owner. Without an old file it is like ``like``, or private. A link to
    the old file stays a link.

    Raises:
        OSError: It cannot be written; the old file is unchanged.
    """
    path = os.path.realpath(path)
    folder = os.path.dirname(path)
    name = os.path.join(folder, f".paceline-{os.urandom(8).hex()}")
    file = create(name, like=path if os.path.exists(path) else like)  # noqa: PTH110
    try:
        with file:
            yield file
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


def _ends_whole(path: str) -> bool:
    """Whether the file is empty or ends with a whole line."""
    with open(path, "rb") as file:
        return file.seek(0, os.SEEK_END) == 0 or (file.seek(-1, os.SEEK_END) is not None and file.read(1) == b"\n")
