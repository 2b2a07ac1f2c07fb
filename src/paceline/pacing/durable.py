"""Files that a crash, a kill or a full disk leaves whole: appended to by whole lines, or replaced as a whole."""
# ruff: noqa: PTH105, PTH108, PTH116, PTH118, PTH120  (a path is a string)

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO


class Appender:
    """The end of a file, to which only whole lines are added where the file can be cut.

    Args:
        file: The path; the file is made where it is missing. Or an open file, which stays open.
        mode: The mode of a new file.
        end: Where an existing file is cut before; not at all when ``None``.
        new: Whether the file must be new.

    Attributes:
        regular: Whether it is a regular file. A pipe or a device cannot be cut: nothing may follow a line that failed.

    Raises:
        OSError: It cannot be opened.
    """

    def __init__(self, file: str | int, *, mode: int = 0o600, end: int | None = None, new: bool = False) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | (os.O_EXCL if new else 0)
        self._fd = file if isinstance(file, int) else os.open(file, flags, mode)
        self._owned = not isinstance(file, int)
        self._start = 0
        self._failure: OSError | None = None
        try:
            self.regular = stat.S_ISREG(os.fstat(self._fd).st_mode)
            if end is not None:
                os.ftruncate(self._fd, end)
        except OSError:
            self.close()
            raise

    def append(self, line: bytes, *, synced: bool = False) -> None:
        """Add a line, or nothing; if ``synced``, it is on the disk at the end.

        Raises:
            OSError: It cannot be written.
        """
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
        os.fsync(self._fd)

    def close(self) -> None:
        """Close the file."""
        if self._owned:
            os.close(self._fd)


@contextmanager
def replacing(path: str) -> Iterator[BinaryIO]:
    """A new file that takes the place of ``path`` at the end of the block, whole and on the disk; not if the block raises.

    It has the mode of the old file and, where permitted, its owner.

    Raises:
        OSError: It cannot be written; the old file is unchanged.
    """
    folder = os.path.dirname(path)
    name = os.path.join(folder, f".paceline-{os.urandom(8).hex()}")
    file = create(name, like=path)
    try:
        with file:
            yield file
            close(file)
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
    _sync_folder(folder)


def create(path: str, *, like: str) -> BinaryIO:
    """A new file with the mode of the file ``like`` and, where permitted, its owner.

    Raises:
        OSError: It cannot be made: ``FileExistsError`` where there is one.
    """
    file = open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600))  # noqa: SIM115
    try:
        if sys.platform != "win32":
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
    os.fsync(file.fileno())
    file.close()


def _sync_folder(folder: str) -> None:
    """Bring the names in ``folder`` to the disk, where the system can."""
    with suppress(OSError):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
