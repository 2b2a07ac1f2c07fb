"""Which ids there are, and which lines are done: a private file on disk, and one bit a line in memory."""

from __future__ import annotations

import sqlite3
from typing import Final

BATCH: Final = 10_000
CACHE_KIB: Final = 32_768


class Index:
    """The ids of an input. SQLite's unnamed database is a temporary file that nobody else can open.

    Attributes:
        count: How many ids there are.
        done: How many lines are marked as done.
    """

    def __init__(self) -> None:
        self._db = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode = OFF")
        self._db.execute("PRAGMA synchronous = OFF")
        self._db.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        self._db.execute("CREATE TABLE ids (id TEXT PRIMARY KEY, line INTEGER) WITHOUT ROWID")
        self._db.execute("BEGIN")
        self._new: list[tuple[str, int]] = []
        self._done = bytearray()
        self.count = self.done = 0

    def add(self, custom_id: str, line: int) -> list[tuple[int, int]]:
        """Take the id of ``line``.

        Returns:
            What has turned out to be given twice: ``(line, earlier line)``. Ids are looked at in batches, so a
            twin may be named some lines later, or by :meth:`flush`.
        """
        self._new.append((custom_id, line))
        return self.flush() if len(self._new) >= BATCH else []

    def flush(self) -> list[tuple[int, int]]:
        """Look at what has been added since the last time."""
        new, self._new = self._new, []
        before = self._db.total_changes
        self._db.executemany("INSERT OR IGNORE INTO ids VALUES (?, ?)", new)
        added = self._db.total_changes - before
        self.count += added
        if added == len(new):
            return []
        firsts = ((line, self.line_of(custom_id)) for custom_id, line in new)
        return [(line, first) for line, first in firsts if first is not None and first != line]

    def line_of(self, custom_id: str) -> int | None:
        """The line of ``custom_id``; ``None`` when the input does not have it."""
        row = self._db.execute("SELECT line FROM ids WHERE id = ?", (custom_id,)).fetchone()
        return None if row is None else int(row[0])

    def mark(self, line: int) -> bool:
        """Mark ``line`` as done; whether it was not yet."""
        if self.is_done(line):
            return False
        byte = line >> 3
        if byte >= len(self._done):
            self._done.extend(bytes(byte + 1 - len(self._done)))
        self._done[byte] |= 1 << (line & 7)
        self.done += 1
        return True

    def is_done(self, line: int) -> bool:
        """Whether ``line`` is done."""
        byte = line >> 3
        return byte < len(self._done) and bool(self._done[byte] >> (line & 7) & 1)

    def close(self) -> None:
        """Delete the file."""
        self._db.close()
