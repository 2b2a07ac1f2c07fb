"""Entries by key in a SQLite file of their own, for the processes of one machine."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path

from paceline.stores.base import StoreError

OURS = 0x7061636C
"""The `application_id` of such a file: `pacl`. SQLite keeps it for programs to recognise their files."""

KINDS = {1: "entries of one program", 2: "a journal that processes share"}
"""What a file is, by its `user_version`. Files of the first version have neither number, and are of the first kind."""

READ_ALL = "SELECT key, entry, at FROM entries"
"""Each with the time of its writing, in seconds since 1970."""


class EntryFile:
    """Entries in a file; the processes share memory beside it, as WAL does, so not for network drives.

    Args:
        path: The file; it and its folder are made when they are missing.
        keep_s: How long an entry is kept; older ones are deleted at the opening.
        timeout_s: How long a call may wait for other processes.

    Attributes:
        kind: Which of :data:`KINDS` it is.

    Raises:
        StoreError: The file cannot be used, is another program's, of another kind, or has a newer format; the calls raise it, too.
    """

    kind = 1

    def __init__(self, path: str, keep_s: float, timeout_s: float) -> None:
        self._lock, self._path = threading.Lock(), path
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # the files beside it get its mode
            with ExitStack() as opened:
                self._db = opened.enter_context(
                    closing(sqlite3.connect(path, timeout=timeout_s, isolation_level=None, check_same_thread=False))
                )
                self._recognise()
                self._db.execute("PRAGMA journal_mode = WAL")
                # A killed process loses nothing, a machine that crashes a second.
                self._db.execute("PRAGMA synchronous = NORMAL")
                self._db.execute("PRAGMA checkpoint_fullfsync = ON")  # as in sqlite.py
                self._db.execute("CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, entry BLOB, at INTEGER)")
                self._db.execute("DELETE FROM entries WHERE at < ?", (time.time() - keep_s,))
                opened.pop_all()
        except (OSError, sqlite3.Error) as error:
            raise self._explained(error) from error
        with suppress(OSError):
            Path(path).chmod(0o600)

    def _recognise(self) -> None:
        """Mark a new file as ours; refuse one that is not."""
        (application,), (version,) = (
            self._db.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")
        )
        tables = {name for (name,) in self._db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if application != OURS and tables - {"entries"}:
            raise StoreError(f"sqlite:{self._path}: the file belongs to another program: name a file of its own")
        if version > max(KINDS):
            raise StoreError(
                f"sqlite:{self._path}: a newer paceline has written it, in format {version}: update paceline"
            )
        is_kind = version or (1 if tables else self.kind)
        if is_kind != self.kind:
            raise StoreError(
                f"sqlite:{self._path}: the file has {KINDS[is_kind]}, and not {KINDS[self.kind]}: name a file of its own"
            )
        if not version:
            self._db.execute(f"PRAGMA application_id = {OURS}")
            self._db.execute(f"PRAGMA user_version = {self.kind}")

    def look_up(self, keys: Sequence[str]) -> dict[str, bytes]:
        """The entries that there are."""
        marks = ",".join("?" * len(keys))
        try:
            with self._lock:
                found = self._db.execute(f"SELECT key, entry FROM entries WHERE key IN ({marks})", keys)  # noqa: S608
                return dict(found.fetchall())
        except sqlite3.Error as error:
            raise self._explained(error) from error

    def write(self, key: str, entry: bytes) -> None:
        """Keep an entry; on return it outlives this process."""
        try:
            with self._lock:
                self._db.execute("INSERT OR REPLACE INTO entries VALUES (?, ?, ?)", (key, entry, time.time()))
        except sqlite3.Error as error:
            raise self._explained(error) from error

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    def _explained(self, error: Exception) -> StoreError:
        return StoreError(f"sqlite:{self._path}: {getattr(error, 'strerror', None) or error}")
