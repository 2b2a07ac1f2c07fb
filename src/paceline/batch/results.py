"""The file of answers: locked for one process, repaired after a crash, and written one line at a time.

A line is an answer in OpenAI's batch format:

    {"id": "batch_req_...", "custom_id": "a", "response": {"status_code": 200, "request_id": ..., "body": {...}}, "error": null}
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import sys
from array import array
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from paceline.batch.index import Index
from paceline.core.results import PacelineError

STDOUT = "-"
_CHUNK = 2**20


class OutputError(PacelineError):
    """The file of answers cannot be used; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """What an earlier run left.

    Attributes:
        answered: Requests with an answer: they are not sent again.
        failed: Requests that failed: their lines are dropped, and they are sent again.
        strangers: Lines for ids that the input does not have; they stay as they are.
        torn: Whether the last line was broken and has been cut.
    """

    answered: int = 0
    failed: int = 0
    strangers: int = 0
    torn: bool = False


def encode_answer(custom_id: str, response: dict[str, Any] | None, error: dict[str, str] | None) -> bytes:
    """One line of output. ASCII only, so that no text can break a line or an encoding."""
    answer = {
        "id": f"batch_req_{secrets.token_hex(12)}", "custom_id": custom_id, "response": response, "error": error,
    }  # fmt: skip
    return json.dumps(answer).encode("ascii") + b"\n"


class Results:
    """The file of answers, as a context manager that holds its lock.

    Args:
        path: The file; ``-`` for standard output. That, and any other file that is no regular one, has no lock and
            no past.

    Raises:
        OutputError: It cannot be written, or another process writes it.
    """

    def __init__(self, path: str) -> None:
        self.path = path if path == STDOUT else os.path.realpath(path)  # two names, one file
        self._file: BinaryIO | None = None
        self._torn = 0  # the error after which nothing more is written
        path = self.path
        self.resumable = path != STDOUT and (os.path.isfile(path) or os.path.isdir(path) or not os.path.exists(path))  # noqa: PTH110, PTH112, PTH113
        self._lock = _Lock(Path(path)) if self.resumable else None

    def recover(self, index: Index) -> Recovered:
        """Mark in ``index`` what has an answer, and leave only answers in the file.

        Raises:
            OutputError: The file holds something else than answers.
        """
        if not self.resumable or not os.path.exists(self.path):  # noqa: PTH110
            return Recovered()
        try:
            return self._recover(index)
        except OSError as error:
            raise OutputError(f"{self.path}: {error.strerror}") from None

    def _recover(self, index: Index) -> Recovered:
        dropped = array("Q")
        answered = failed = strangers = 0
        end, whole = 0, True
        with open(self.path, "rb") as file:  # noqa: PTH123
            for number, raw in enumerate(file, 1):
                found = _read_answer(raw)
                if found is None:
                    if not raw.endswith(b"\n"):  # a crash cut it; nothing can follow
                        whole = False
                        break
                    raise OutputError(
                        f"{self.path}, line {number}: not an answer of paceline run; choose another output with -o,"
                        " or start over with --restart"
                    )
                end += len(raw)
                whole = raw.endswith(b"\n")
                custom_id, ok = found
                line = index.line_of(custom_id)
                if line is None:
                    strangers += 1
                elif ok and index.mark(line):
                    answered += 1
                else:
                    dropped.append(number)
                    failed += not ok
        torn = end < os.path.getsize(self.path)  # noqa: PTH202
        if dropped:
            self._rewrite(dropped, end)
        elif not whole:
            with open(self.path, "r+b") as file:  # noqa: PTH123
                file.truncate(end)
        self._end_line()
        return Recovered(answered, failed, strangers, torn)

    def _rewrite(self, dropped: array[int], end: int) -> None:
        """Leave out the ``dropped`` lines and what follows byte ``end``: in a new file that takes the old one's place."""
        beside = f"{self.path}.tmp"
        with open(self.path, "rb") as old, open(beside, "wb") as new:  # noqa: PTH123
            drops = iter([*dropped, 0])
            drop, at = next(drops), 0
            for number, raw in enumerate(old, 1):
                at += len(raw)
                if at > end:
                    break
                if number == drop:
                    drop = next(drops)
                else:
                    new.write(raw)
            new.flush()
            os.fsync(new.fileno())
        os.replace(beside, self.path)  # noqa: PTH105

    def _end_line(self) -> None:
        with open(self.path, "r+b") as file:  # noqa: PTH123
            if file.seek(0, os.SEEK_END) and file.seek(-1, os.SEEK_END) >= 0 and file.read(1) != b"\n":
                file.write(b"\n")

    def set_aside(self) -> str | None:
        """Give an existing file another name, and return that; ``None`` when there is none."""
        if not self.resumable or not os.path.exists(self.path):  # noqa: PTH110
            return None
        name = next(name for name in _backup_names(self.path) if not os.path.exists(name))  # noqa: PTH110
        os.replace(self.path, name)  # noqa: PTH105
        return name

    def open(self) -> None:
        """Be ready for :meth:`append`.

        Raises:
            OutputError: It cannot be written.
        """
        try:
            self._file = open(1, "wb", closefd=False) if self.path == STDOUT else open(self.path, "ab")  # noqa: SIM115, PTH123
        except OSError as error:
            raise OutputError(f"{self.path}: cannot be written: {error.strerror}") from None

    def append(self, line: bytes) -> None:
        """Write one line, and leave nothing of it in this process.

        Raises:
            OSError: The disk is full, or the reader has gone.
        """
        assert self._file is not None
        if self._torn:
            raise OSError(self._torn, os.strerror(self._torn))
        try:
            self._file.write(line)
            self._file.flush()
        except OSError as error:
            # Half a line may stand there: nothing may follow it, and the next run cuts it off.
            self._torn = error.errno or errno.EIO
            raise

    def close(self) -> None:
        """Close the file and let go of the lock."""
        if self._file is not None:
            try:
                if self.resumable:
                    os.fsync(self._file.fileno())
                self._file.close()
            except OSError:
                self._file = None  # whoever wrote last has been told
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _backup_names(path: str) -> Iterator[str]:
    yield f"{path}.bak"
    for number in range(2, 10_000):
        yield f"{path}.bak{number}"


def _read_answer(raw: bytes) -> tuple[str, bool] | None:
    """The id in a line of output and whether it has an answer; ``None`` for anything else."""
    try:
        value = json.loads(raw)
        custom_id, response, error = value["custom_id"], value["response"], value["error"]
        ok = error is None and response["status_code"] == 200
        return (custom_id, ok) if isinstance(custom_id, str) else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


class _Lock:
    """A file beside the output, locked by the system for as long as this process lives."""

    def __init__(self, output: Path) -> None:
        self._path = f"{output}.lock"
        if output.is_dir():
            raise OutputError(f"{output}: it is a directory; name a file with -o")
        if output.exists() and not os.access(output, os.W_OK):
            raise OutputError(f"{output}: it cannot be written; choose another output with -o")
        while True:
            try:
                self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            except OSError as error:
                raise OutputError(f"{output}: cannot be written: {error.strerror}") from None
            if not _try_lock(self._fd):
                os.close(self._fd)
                raise OutputError(f"{output}: another process is writing it (it holds {self._path})")
            if self._current():
                return
            os.close(self._fd)  # its holder has just removed it: take the next one

    def _current(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._fd), os.stat(self._path))  # noqa: PTH116
        except FileNotFoundError:
            return False

    def release(self) -> None:
        if sys.platform == "win32":  # an open file cannot be removed there
            os.close(self._fd)
        with suppress(OSError):  # a file that stays locks nobody out
            os.unlink(self._path)  # noqa: PTH108
        if sys.platform != "win32":
            os.close(self._fd)


def _try_lock(fd: int) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        else:
            import fcntl

            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
