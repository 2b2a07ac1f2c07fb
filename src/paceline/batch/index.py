"""The ids of the input, in a private file on disk, and which lines are done, in one bit of memory per line."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from paceline.batch.acceptance import ANSWER
from paceline.core.results import PacelineError

CACHE_KIB: Final = 32_768


@contextmanager
def explained() -> Iterator[None]:
    """Make a clear error of one of the temporary files of ids."""
    try:
        yield
    except sqlite3.OperationalError as error:
        text = "the ids of the input are kept in a temporary file, which cannot be written: set TMPDIR to a folder with room"
        raise PacelineError(f"{text} ({error})") from None


class Index:
    """The ids of an input."""

    def __init__(self) -> None:
        # SQLite's unnamed database: a temporary file that no other process can open.
        self._db = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        for pragma in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{CACHE_KIB}"):
            self._db.execute(f"PRAGMA {pragma}")
        self._db.execute("CREATE TABLE ids (id TEXT PRIMARY KEY, line INTEGER) WITHOUT ROWID")
        self._db.execute("CREATE TABLE refused (line INTEGER PRIMARY KEY, id TEXT, why TEXT)")
        self._db.execute("CREATE TABLE records (line INTEGER PRIMARY KEY, rank, file, at, size)")
        self._db.execute("BEGIN")
        self._cursor = self._db.cursor()
        self._done, self._numbers = bytearray(), bytearray()

    def add(self, custom_id: str, line: int, *, number: bool = False) -> int | None:
        """Add the id of ``line``, a ``number`` in the input; return the earlier line that has the same id, if there is one."""
        if number:
            _set(self._numbers, line)
        if self._cursor.execute("INSERT OR IGNORE INTO ids VALUES (?, ?)", (custom_id, line)).rowcount:
            return None
        return self.line_of(custom_id)

    def refuse(self, custom_id: str, line: int, why: str, *, number: bool = False) -> None:
        """Add the id of a line that cannot be sent."""
        self.add(custom_id, line, number=number)
        self._cursor.execute("INSERT INTO refused VALUES (?, ?, ?)", (line, custom_id, why))

    def refused(self) -> Iterator[tuple[int, str | int, str]]:
        """The lines that cannot be sent, in their order: each with its id as the input has it, and why."""
        for line, custom_id, why in self._db.execute("SELECT line, id, why FROM refused ORDER BY line"):
            yield line, self.shown(line, custom_id), why

    def is_refused(self, line: int) -> bool:
        """Whether ``line`` cannot be sent."""
        return self._cursor.execute("SELECT 1 FROM refused WHERE line = ?", (line,)).fetchone() is not None

    def line_of(self, custom_id: str) -> int | None:
        """The line of ``custom_id``; ``None`` when the input does not have it."""
        row = self._cursor.execute("SELECT line FROM ids WHERE id = ?", (custom_id,)).fetchone()
        return None if row is None else int(row[0])

    def id_of(self, line: int) -> str | None:
        """The id of ``line``; ``None`` when the input does not have it. The first call makes an index of the lines."""
        self._cursor.execute("CREATE INDEX IF NOT EXISTS lines ON ids (line)")
        row = self._cursor.execute("SELECT id FROM ids WHERE line = ?", (line,)).fetchone()
        return None if row is None else str(row[0])

    def shown(self, line: int | None, custom_id: str) -> str | int:
        """The id of ``line`` as the input has it."""
        return int(custom_id) if line is not None and _has(self._numbers, line) else custom_id

    def mark(self, line: int) -> bool:
        """Mark ``line`` as done; return whether it was not done before."""
        if self.is_done(line):
            return False
        _set(self._done, line)
        return True

    def unmark(self) -> None:
        """Mark no line as done, and note no record."""
        self._done = bytearray()
        self._cursor.execute("DELETE FROM records")

    def is_done(self, line: int) -> bool:
        """Whether ``line`` is done."""
        return _has(self._done, line)

    def note(self, line: int, rank: int, file: int, at: int, size: int) -> int:
        """Note where a record of ``line`` is, unless an earlier one has a higher rank, or is an answer; return the rank of that one."""
        row = self._cursor.execute("SELECT rank FROM records WHERE line = ?", (line,)).fetchone()
        if row is None or rank > row[0] or rank == row[0] != ANSWER:
            self._cursor.execute("INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?, ?)", (line, rank, file, at, size))
        return 0 if row is None else int(row[0])

    def noted(self) -> Iterator[tuple[int, int]]:
        """Position and length of the noted records of one file, in their order there."""
        yield from self._db.execute("SELECT at, size FROM records ORDER BY at")

    def records(self) -> Iterator[tuple[Any, ...]]:
        """Id, rank, file, position and length of the record of each line, in the order of the input; ``None`` for no record."""
        yield from self._db.execute(
            "SELECT id, rank, file, at, size FROM ids LEFT JOIN records USING (line) ORDER BY line"
        )

    def close(self) -> None:
        """Delete the temporary file."""
        self._db.close()


def _set(bits: bytearray, line: int) -> None:
    byte = line >> 3
    if byte >= len(bits):
        bits.extend(bytes(byte + 1 - len(bits)))
    bits[byte] |= 1 << (line & 7)


def _has(bits: bytearray, line: int) -> bool:
    byte = line >> 3
    return byte < len(bits) and bool(bits[byte] >> (line & 7) & 1)
