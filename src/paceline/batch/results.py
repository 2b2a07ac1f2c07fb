"""The file of answers: locked for one process, repaired after a crash, and written one line at a time.

A line is an answer in OpenAI's batch format:

    {"id": "batch_req_...", "custom_id": "a", "response": {"status_code": 200, "request_id": ..., "body": {...}}, "error": null}
"""
# ruff: noqa: PTH108, PTH110, PTH111, PTH112, PTH113, PTH116, PTH118, PTH120, PTH123, PTH202  (a path is a string: "-" is standard output)

from __future__ import annotations

import codecs
import json
import os
import re
import secrets
import sqlite3
import stat
import sys
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from itertools import count, islice, takewhile
from typing import Any, BinaryIO, Final, cast

from paceline.batch.acceptance import NAMES, UNREAD, UNSTABLE, Acceptance, Recorded
from paceline.batch.index import Index
from paceline.batch.requests import INVALID_ROW
from paceline.core.results import PacelineError, explaining
from paceline.pacing import durable
from paceline.responses.values import decode

STDOUT = "-"

ANY: Final = Acceptance()

DEPTH_MAX: Final = 100
"""Arrays and objects inside one another in an answer; some JSON readers refuse 128."""

_DIGITS_MAX = 308  # of an integer: a longer one is beyond the range of a double
_strict = json.JSONEncoder(allow_nan=False).encode
_SURROGATE = re.compile(rb"(\\\\|\\ud[89ab]..\\ud[c-f]..)|\\ud[89a-f]..")  # the group: a backslash, or a whole pair
# It is in the line of a row that was not sent; a corrected row may have another id.
_INVALID = f'"code": "{INVALID_ROW}"'.encode()
_START = b'{"id": "batch_req_'  # of every line that encode_answer makes


class OutputError(PacelineError):
    """The file of answers cannot be used; the message says why and what to do."""


output_errors = partial(explaining, kind=OutputError)


@dataclass(slots=True)
class Recovered:
    """What an earlier run left in the output.

    Attributes:
        answered: Requests with an answer: they are not sent again.
        failed: Requests that failed, and are sent again.
        dropped: How many of these have lost their lines, because nothing was paid.
        final: Requests that failed and are not sent again, by what is wrong with their answers; their lines stay.
        before: What was wrong with answers that are none, of requests that are sent again, by the input's line. Their lines stay.
        unknown: Lines with ids that the input does not have; they are kept.
        doubtful: The ids whose line has status 200 and no result, or whose result was not read.
        corrupt: Lines that are not answers, and were moved to the file ``aside``; with ``--repair`` the doubtful ones, too.
        torn: Whether the last line was incomplete and has been cut.
        added: Answers that the earlier run could not write here, and had saved elsewhere; they are here now.
        twice: Whether a request has several lines, because a run was killed after it had sent it again.
    """

    answered: int = 0
    failed: int = 0
    dropped: int = 0
    unknown: int = 0
    torn: bool = False
    doubtful: int = 0
    corrupt: int = 0
    aside: str = ""
    added: int = 0
    twice: bool = False
    final: Counter[str] = field(default_factory=Counter)
    before: dict[int, str] = field(default_factory=dict)

    @property
    def lines(self) -> int:
        """How many lines have been read that are answers."""
        return self.answered + self.failed + self.unknown + self.final.total()

    def before_this(self, requests: int) -> Mapping[int, str]:
        """The same for a run of so many requests: if the earlier run had not ended, this one goes on with it, and repeats nothing."""
        if self.answered + self.failed + self.final.total() >= requests:
            return self.before
        return {line: name for line, name in self.before.items() if name not in UNSTABLE}

    def takes(self, index: Index, raw: bytes, custom_id: str, told: Recorded) -> bool:
        """Count a line; whether it belongs into the output: it is paid for, and its request has no answer yet."""
        ok, name, again, _ = told
        line = index.line_of(custom_id)
        if line is None:
            is_kept = ok is not False or _INVALID not in raw
            self.unknown += is_kept
            return is_kept
        fails, is_done = ok is False and again, index.is_done(line)
        is_sent = fails and not is_done and line not in self.before and not index.is_refused(line)
        self.failed += is_sent
        if fails and name not in NAMES:
            self.dropped += is_sent
            return False
        # It is answered; otherwise this line may be an answer in place of a final error, or of an unread result.
        if is_done and not (self.final or self.doubtful):
            return False
        self.twice = self.twice or is_done or line in self.before
        if fails:
            self.before[line] = sys.intern(name)
        elif index.mark(line):
            self.answered += ok is not False
            self.doubtful += ok is None
            self.final.update([name] if ok is False else ())
        return True


def encode_answer(custom_id: str | int, response: dict[str, Any] | None, error: dict[str, Any] | None) -> bytes:
    """One line of output, in JSON that every reader accepts. ASCII only, so that no text can break a line or an encoding.

    Numbers that are not finite become strings, and half a surrogate pair, which is no character, U+FFFD.
    """
    answer = {
        "id": f"batch_req_{secrets.token_hex(12)}", "custom_id": custom_id, "response": response, "error": error,
    }  # fmt: skip
    return encode_json(answer) + b"\n"


def encode_json(value: Any) -> bytes:
    """``value`` in JSON that every reader accepts; see :func:`encode_answer`."""
    try:
        text = _strict(value)
    except ValueError:  # NaN or Infinity
        text = _strict(json.loads(json.dumps(value), parse_constant=str, parse_int=_integer))
    line = text.encode("ascii")
    return _SURROGATE.sub(lambda found: found[1] or rb"\ufffd", line) if rb"\ud" in line else line


def read_body(body: bytes) -> Any:
    """The JSON value of an answer's body; integers beyond the range of a double are strings, invalid UTF-8 is U+FFFD.

    Raises:
        ValueError: It is not JSON.
        RecursionError: It is nested more than ``DEPTH_MAX`` levels deep.
    """
    value = read_json(body)
    if body.count(b"[") + body.count(b"{") > DEPTH_MAX:
        _check_depth(value)
    return value


def _integer(text: str) -> int | str:
    return int(text) if len(text) <= _DIGITS_MAX else text


_decoder = json.JSONDecoder(parse_int=_integer)
codecs.lookup("utf-8-sig")  # loaded now, because the first answer may come when no file is left to load it from


def read_json(body: bytes) -> Any:
    """A JSON value of any depth; otherwise as :func:`read_body`."""
    return _decoder.decode(body.decode("utf-8-sig", "replace"))


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(DEPTH_MAX):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise RecursionError


class ResultsFile:
    """The file of answers, which holds its lock until it is closed.

    Args:
        path: The file; ``-`` for standard output. Standard output, pipes and devices have no lock and cannot be resumed.
        acceptance: Says which of its lines are answers.

    Attributes:
        kept: Lines that the file could not take, in the order of their arrival: its disk is full, for example. They
            are at most the answers of the requests in flight, because nothing is sent while there are any.
        mended: What had happened to the file when it was written again.
        unsaved: How many of the kept lines, the last ones, are in no other file either.
        paid: The requests whose line is no answer, and stays until there is another one: see :attr:`Recovered.before`.
        replaced: Whether there is another one.

    Raises:
        OutputError: It cannot be written, or another process writes it.
    """

    def __init__(self, path: str, acceptance: Acceptance = ANY) -> None:
        with output_errors(f"{path}: cannot be written"):  # Windows' CON has no real path
            self.path = path if path == STDOUT else os.path.realpath(path)  # two names of one file have one lock
        self.acceptance = acceptance
        self.kept: deque[bytes] = deque()
        self.mended, self.unsaved, self._error = "", 0, OSError()
        self.paid: Mapping[int, str] = {}
        self.replaced = False
        self._file: durable.Appender | None = None
        self._watched: durable.WatchedFile | None = None  # the same, if it is a regular one
        path = self.path
        self.resumable = path != STDOUT and (os.path.isfile(path) or os.path.isdir(path) or not os.path.exists(path))
        name = sha256(os.fsencode(path)).hexdigest()[:32] if self.resumable else secrets.token_hex(16)
        self._places = [os.path.join(folder, f"paceline-answers-{name}.jsonl") for folder in _folders()]
        self._saved: dict[str, durable.Appender] = {}
        self._lock = _Lock(path) if self.resumable else None
        if self.resumable and _has_answers(next(durable.recovered_names(path))):
            with suppress(OSError):  # it is found again by the next run
                durable.take_back(path)

    def has_lines(self) -> bool:
        """Whether there is anything of an earlier run."""
        if not self.resumable or not os.path.exists(self.path):
            return False
        return os.path.getsize(self.path) > 0 or any(self._earlier())

    def _earlier(self) -> Iterator[str]:
        """The files to which an earlier run has written because this one could not take it, or was another program's."""
        yield from filter(_has_answers, takewhile(os.path.exists, durable.recovered_names(self.path)))
        yield from filter(_is_own, self._places)

    def recover(self, index: Index, *, repair: bool = False) -> Recovered:
        """Mark the answered requests in ``index``, and leave only what is paid for in the file, one line of each request.

        An incomplete last line is cut if it begins like a record, or is all zeros, as a crashed file system leaves them.

        Args:
            index: Has the ids of the input.
            repair: Move lines that are not answers, and those whose answer is no result, to a new file beside this one.

        Raises:
            OutputError: The file holds lines that are not answers, or cannot be written; it is unchanged.
        """
        recovered = Recovered()
        if self.resumable and os.path.exists(self.path):
            with output_errors(self.path):
                self._recover(recovered, index, repair=repair)
                self._add_saved(recovered, index)
                if recovered.twice:
                    with output_errors(f"{self.path}: its replaced lines cannot be removed", self._unchanged):
                        self._drop_replaced(index)
                    dropped = recovered.dropped
                    recovered = replace(
                        recovered, answered=0, failed=dropped, unknown=0, doubtful=0, final=Counter(), before={}
                    )
                    with open(self.path, "rb") as file:
                        deque(self._judged(file, recovered, index, repair=False), maxlen=0)
        self.paid = recovered.before
        return recovered

    def _judged(
        self, file: BinaryIO, recovered: Recovered, index: Index, *, repair: bool
    ) -> Iterator[tuple[bytes, bool | None]]:
        """Each line, without a last one that is torn, and whether it stays; ``None`` for one that is moved to another file."""
        for number, raw in enumerate(file, 1):
            found = read_answer(raw, self.acceptance)
            if found is None and is_torn(raw, before=recovered.lines):
                return
            if found is None and not repair:
                raise OutputError(self._no_answer(number))
            if found is None or (repair and found[1].ok is None):
                recovered.corrupt += 1
                yield raw, None
            else:
                yield raw, recovered.takes(index, raw, *found)

    def _recover(self, recovered: Recovered, index: Index, *, repair: bool) -> None:
        """Leave only answers in the file; its lines that are none, if ``repair`` says so, are moved to another new file.

        From the first line on that does not stay, the others are copied to a file that takes the place of this one.
        """
        end, raw, copy, aside = 0, b"\n", cast("BinaryIO | None", None), cast("BinaryIO | None", None)
        what = f"{self.path}: its lines without an answer cannot be removed"
        file = open(self.path, "rb")  # noqa: SIM115  (if it cannot be read, that is said without what follows)
        with output_errors(what, self._unchanged), ExitStack() as undo:
            with ExitStack() as replaced, file:
                for number, (raw, stays) in enumerate(self._judged(file, recovered, index, repair=repair)):
                    if not stays and copy is None:
                        copy = replaced.enter_context(durable.replacing(self.path))
                        with open(self.path, "rb") as before:
                            copy.writelines(islice(before, number))
                    if stays is None:
                        aside = aside or self._new_corrupt(undo)
                        aside.write(raw)
                    elif stays and copy is not None:
                        copy.write(raw if raw.endswith(b"\n") else raw + b"\n")
                    end += len(raw)
                recovered.torn = end < os.path.getsize(self.path)
                if aside is not None:
                    durable.close(aside)
                    recovered.aside = aside.name
            undo.pop_all()
        if copy is None and (recovered.torn or not raw.endswith(b"\n")):
            with open(self.path, "r+b") as changed:
                changed.truncate(end)
                changed.seek(end)
                changed.write(b"" if recovered.torn else b"\n")

    @property
    def _unchanged(self) -> str:
        """What to do if no file can take the place of this one, as the end of a sentence."""
        return f"; the file is unchanged: make room in {os.path.dirname(self.path)}, or start over with --restart"

    def _drop_replaced(self, index: Index) -> None:
        """Leave one line of each request, in a file that takes the place of this one."""
        with durable.replacing(self.path) as copy:
            copy.writelines(self._standing(index))

    def _standing(self, index: Index) -> Iterator[bytes]:
        """The lines that count: of several of a request the first answer, or else the last one that is paid for."""
        index.unmark()
        with open(self.place, "rb") as file:
            at = 0
            for number, raw in enumerate(file, 1):
                custom_id, told = read_answer(raw, self.acceptance) or ("", Recorded(None))
                index.note(index.line_of(custom_id) or -number, told.rank, 0, at, len(raw))
                at += len(raw)
            for at, size in index.noted():
                file.seek(at)
                yield file.read(size)

    def _no_answer(self, number: int) -> str:
        """What to do about a line that is not an answer."""
        line = f"{self.path}, line {number}: not an answer of paceline run"
        if _has_answers(aside := next(durable.recovered_names(self.path))):
            return f"{line}; the answers of an earlier run, whose name this file has taken, are in {aside}: move it to {self.path}"
        return (
            f"{line}; choose another output with -o, or start over with --restart; if the file is a damaged output, --repair moves such"
            " lines to another file and sends their requests again"
        )

    def _new_corrupt(self, undo: ExitStack) -> BinaryIO:
        """A new file beside this one, with the first number that is free; ``undo`` removes it."""
        names = (f"{self.path}.corrupt-{number}" for number in count(1))
        file = durable.create(next(name for name in names if not os.path.lexists(name)), like=self.path)
        undo.callback(os.unlink, file.name)
        return undo.enter_context(file)

    def _add_saved(self, recovered: Recovered, index: Index) -> None:
        """Add what an earlier run has saved elsewhere, each answer once, and remove its files.

        Raises:
            OutputError: This file cannot take it.
        """
        for path in list(self._earlier()):
            then = f"; make room: answers of an earlier run are in {path}"
            with (
                output_errors(f"{self.path}: cannot be written", then),
                closing(durable.Appender(self.path)) as out,
                open(path, "rb") as saved,
            ):
                for raw in saved:
                    found, lines = read_answer(raw, self.acceptance), recovered.lines
                    if found is not None and recovered.takes(index, raw, *found):  # a kill may have cut the last line
                        out.append(raw if raw.endswith(b"\n") else raw + b"\n")
                        recovered.added += recovered.lines - lines
                out.sync()
            os.unlink(path)

    def set_aside(self) -> str | None:
        """Rename an existing file, and those with saved lines; return the new names, ``None`` when there is no file.

        Raises:
            OutputError: One cannot be renamed.
        """
        found = (self.path, *self._earlier()) if self.resumable else ()
        return " and ".join([set_aside(path) for path in found if os.path.exists(path)]) or None

    def open(self) -> None:
        """Open the file for :meth:`append`.

        Raises:
            OutputError: It cannot be written.
        """
        with output_errors(f"{self.path}: cannot be written"):
            if self.resumable:
                self._file = self._watched = durable.WatchedFile(self.path, mode=0o666)
            else:
                self._file = durable.Appender(1 if self.path == STDOUT else self.path, mode=0o666)

    def append(self, line: bytes) -> None:
        """Write one line to the operating system, without buffering; keep and save it if a regular file cannot take it.

        Raises:
            OutputError: A pipe or a device has failed; nothing more can be written.
        """
        assert self._file is not None
        self.kept.append(line)
        if len(self.kept) == 1 and self.write_kept():
            return
        if not self._file.regular:
            self.kept.clear()
            raise OutputError(f"{self.path} cannot be written: {self.why}")
        self.unsaved += 1
        self._save()

    def write_kept(self) -> bool:
        """Write the kept lines, as many as fit; return whether none is left."""
        assert self._file is not None
        try:
            while self.kept:
                self._file.append(self.kept[0])
                self.kept.popleft()
            if self._saved:
                self._file.sync()
        except OSError as error:
            self._error = error.with_traceback(None)
        else:
            while self._saved:
                path, file = self._saved.popitem()
                file.close()
                with suppress(OSError):  # the next run finds its answers here
                    os.unlink(path)
        self.unsaved = min(self.unsaved, len(self.kept))
        return not self.kept

    def settle(self) -> bool:
        """Write the kept lines, and the file again if another program has deleted, moved, replaced or shortened it.

        Returns:
            Whether the file has all lines, except those that a program has cut off: see :attr:`shortened`.
        """
        assert self._file is not None
        try:
            if (fault := self._file.settle()) is not None:
                self.mended = fault.value
        except OSError as error:
            self._error = error.with_traceback(None)
            return False
        return self.write_kept()

    def rescue(self) -> None:
        """At the end, write all lines elsewhere if they are in no file that has a name."""
        if self._watched is not None and self._watched.lost:
            for path in self._places:
                with suppress(OSError):
                    self._watched.move(durable.recovered_names(path), mode=0o600)
                    self.write_kept()
                    return

    @property
    def why(self) -> str:
        """Why the file could not take the last line, empty if it could take each, in words."""
        return self._error.strerror or str(self._error)

    @property
    def remedy(self) -> str:
        """What to do about it, as the end of a sentence; empty if the file is written again without help."""
        return "" if isinstance(self._error, durable.LostFileError) else "; free some space"

    @property
    def place(self) -> str:
        """Where the lines are: at another path, if another file has the path of this one by now."""
        return self.path if self._watched is None else self._watched.path

    @property
    def shortened(self) -> bool:
        """Whether another program has cut off lines that could not be read back."""
        return self._watched is not None and self._watched.shortened

    def recount(self, index: Index) -> tuple[int, Counter[str], Counter[str]]:
        """Mark in ``index`` the requests that the file has, and no others.

        Returns:
            How many are answered, the errors of the others by code, and how many of these are final.

        Raises:
            OutputError: It cannot be read.
        """
        answered, errors, final = 0, Counter[str](), Counter[str]()
        with output_errors(f"{self.place}: cannot be read"):
            for raw in self._standing(index):
                found = read_answer(raw, self.acceptance)
                line = index.line_of(found[0]) if found is not None else None
                if found is None or line is None or not index.mark(line):
                    continue
                ok, name, again, _ = found[1]
                if ok:
                    answered += 1
                else:
                    errors[UNREAD if ok is None else name] += 1
                    final[UNREAD if ok is None else name] += not again
        if self._watched is not None:
            self._watched.shortened = False
        return answered, errors, final

    def _save(self) -> None:
        """Write the kept lines that are in no other file to one with room, so that a kill does not lose them."""
        for path in self._places:
            with suppress(OSError):
                while self.unsaved:
                    if path not in self._saved:
                        self._saved[path] = durable.Appender(path, new=True)
                    self._saved[path].append(self.kept[-self.unsaved])
                    self.unsaved -= 1

    def saved(self) -> str:
        """The files that have the kept lines, in words; empty if there are none."""
        return " and ".join(path for path, file in self._saved.items() if file.size())

    def sync(self) -> None:
        """Bring what was written to the disk.

        Raises:
            OSError: That failed.
        """
        assert self._file is not None
        self._file.sync()

    def finish(self, index: Index) -> None:
        """At the end of a run, drop the lines that others have replaced. If that fails, or ends early, the next run does it."""
        if self.replaced and self._file is not None and not self.kept and self.place == self.path:
            with suppress(OSError):
                self._file.sync()  # it may stay as it is
            self._file.close()  # Windows replaces no open file
            self._file = None
            with suppress(OSError, sqlite3.OperationalError, KeyboardInterrupt):
                self._drop_replaced(index)

    def close(self) -> None:
        """Close the file and release the lock."""
        for file in filter(None, (self._file, *self._saved.values())):
            with suppress(OSError):
                if file.regular:
                    file.sync()
            file.close()
        if self._lock is not None:
            self._lock.release()


def set_aside(path: str) -> str:
    """Rename a file to the first name that is free: with ``.bak`` at its end, ``.bak2`` and so on; return the name.

    Raises:
        OutputError: It cannot be renamed.
    """
    names = (f"{path}.bak{number if number > 1 else ''}" for number in count(1))
    aside = next(name for name in names if not os.path.exists(name))
    with output_errors(f"{path}: it cannot be renamed"):
        durable.replace(path, aside)
    return aside


def _folders() -> Iterator[str]:
    """Where answers are saved that their file cannot take. The same in each run: ``tempfile`` passes a full folder over."""
    given = (os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP"))
    yield next(filter(None, given), "/tmp")  # noqa: S108  (files are new, and read only if they are this user's)
    yield os.path.expanduser("~")


def _is_own(path: str) -> bool:
    """Whether ``path`` is a file of this user, and no link: in the folder for all users another one may have made it."""
    with suppress(OSError):
        about = os.lstat(path)
        own = sys.platform == "win32" or about.st_uid == os.geteuid()
        return own and stat.S_ISREG(about.st_mode) and about.st_nlink == 1
    return False


def _has_answers(path: str) -> bool:
    """Whether ``path`` is a file of this user that begins with an answer, and so no file of another program."""
    with suppress(OSError):
        if _is_own(path):
            with open(path, "rb") as file:
                return read_answer(file.readline()) is not None
    return False


def read_answer(raw: bytes, acceptance: Acceptance = ANY) -> tuple[str, Recorded] | None:
    """The id in a line of output, and what the line says; ``None`` for any other line."""
    try:
        value = json.loads(raw.decode("utf-8-sig"))
        _, custom_id, response, error = value["id"], value["custom_id"], value["response"], value["error"]
        if isinstance(custom_id, int):
            custom_id = str(custom_id)
        custom_id.encode()  # half a surrogate pair is in no input
        return custom_id, acceptance.recorded(response, error)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def is_torn(raw: bytes, *, before: int) -> bool:
    """Whether ``raw`` is the last line, and a crash has cut it; ``before`` is the number of answers that precede it."""
    if raw.endswith(b"\n"):
        return False
    if raw.startswith(_START):
        return decode(raw) is None  # else it is a whole document, of another program
    return before > 0 and (_START.startswith(raw) or not raw.strip(b"\0"))


def require_one_name(path: str) -> None:
    """Refuse a file with several names: the lock and the journal are beside one of them.

    Raises:
        OutputError: It has others; nothing is changed, because one of them may be a backup.
    """
    with suppress(OSError):
        if (names := os.stat(path).st_nlink) > 1:
            raise OutputError(
                f"{path}: this file has {names} names (hard links): new answers would also be in the files of the other names,"
                " and a run by another name would send everything twice; copy the file, and rename the copy to this name"
            )


class _Lock:
    """A file beside the output that the operating system keeps locked until this process ends."""

    def __init__(self, output: str) -> None:
        self._path = f"{output}.lock"
        if os.path.isdir(output):
            raise OutputError(f"{output}: it is a directory; name a file with -o")
        if os.path.exists(output) and not os.access(output, os.W_OK):
            raise OutputError(f"{output}: it cannot be written; choose another output with -o")
        require_one_name(output)
        while True:
            with output_errors(f"{output}: cannot be written: {self._path}"):
                self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
            if os.fstat(self._fd).st_size:
                os.close(self._fd)
                raise OutputError(f"{self._path}: a file of another program; choose another output with -o")
            try:
                durable.lock(self._fd)
            except OSError:
                os.close(self._fd)
                raise OutputError(
                    f"{output}: another process is writing it (it holds {self._path}): let that process end, or choose another output with -o"
                ) from None
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(self._fd), os.stat(self._path)):
                    return
            os.close(self._fd)  # its holder has removed this file meanwhile: lock the next one

    def release(self) -> None:
        if sys.platform == "win32":  # an open file cannot be removed there
            os.close(self._fd)
        with suppress(OSError):  # a file without a lock is no obstacle
            os.unlink(self._path)
        if sys.platform != "win32":
            os.close(self._fd)
