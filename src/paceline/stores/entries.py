"""Entries by key in a SQLite file of their own, for the processes of one machine."""

# ruff: noqa: PTH108, PTH110, PTH116  (a path is a string)

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import ClassVar

from paceline.core.results import StoreError, explaining
from paceline.pacing.durable import Fault, LostFileError, Watch, is_same, recovered_names
from paceline.stores.base import make_file

log = logging.getLogger("paceline")

OURS = 0x7061636C
"""The `application_id` of such a file: `pacl`. SQLite keeps it for programs to recognise their files."""

KINDS = {1: "entries of one program", 2: "a journal that processes share"}
"""What a file is, by its `user_version`."""


class EntryFile:
    """Entries in a file; the processes share memory beside it, as WAL does, so not for network drives.

    SQLite goes on in a file that was deleted or replaced, and no write fails. So the file is compared with its name where it is used. A
    write that finds it lost fails, and the next one copies all that can be read: to a new file at its name, into a file of the same kind
    there if it :attr:`joins` one, or else to the first of :func:`~paceline.pacing.durable.recovered_names`.

    Args:
        path: The file; it and its folder are made when they are missing.
        keep_s: How long an entry is kept; older ones are deleted at the opening.
        timeout_s: How long a call may wait for other processes.

    Attributes:
        kind: Which of :data:`KINDS` it is.
        joins: Whether others make and write this file, too.

    Raises:
        StoreError: The file cannot be used, is another program's, of another kind, or has a newer format; the calls raise it, too.
    """

    kind, joins = 1, True
    TABLES: ClassVar[dict[str, str]] = {"entries": "key TEXT PRIMARY KEY, entry BLOB, at INTEGER"}

    def __init__(self, path: str, keep_s: float, timeout_s: float) -> None:
        self._lock, self._name, self._timeout_s = threading.Lock(), path, timeout_s
        self._lost: Fault | None = None
        self._damaged = False
        self._beside: dict[str, os.stat_result] = {}
        with self._explaining(), ExitStack() as opened:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            self._db = opened.enter_context(closing(self._opened(path)))
            self._db.execute("DELETE FROM entries WHERE at < ?", (time.time() - keep_s,))
            self._path, self._watch = path, Watch(path)
            self._look()
            opened.pop_all()
        with suppress(OSError):
            Path(path).chmod(0o600)

    def _opened(self, path: str) -> sqlite3.Connection:
        """A connection to a file of this kind."""
        make_file(path)  # the files beside it get its mode
        with ExitStack() as opened:
            db = opened.enter_context(
                closing(sqlite3.connect(path, timeout=self._timeout_s, isolation_level=None, check_same_thread=False))
            )
            self._recognise(db, path)
            _use_a_log(db, self._timeout_s)
            # A killed process loses nothing, a machine that crashes a second.
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute("PRAGMA checkpoint_fullfsync = ON")  # as in sqlite.py
            for table, columns in self.TABLES.items():
                db.execute(f"CREATE TABLE IF NOT EXISTS {table} ({columns})")
            opened.pop_all()
        return db

    def _recognise(self, db: sqlite3.Connection, path: str) -> None:
        """Mark a new file as ours; refuse one that is not."""
        db.execute("BEGIN")  # another process may be making it: everything is read at one instant
        (application,), (version,) = (
            db.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")
        )
        (tables,) = db.execute("SELECT count(*) FROM sqlite_master WHERE type = 'table'").fetchone()
        db.execute("COMMIT")
        if application != OURS and tables:
            raise StoreError(f"sqlite:{path}: the file belongs to another program: name a file of its own")
        if version > max(KINDS):
            raise StoreError(f"sqlite:{path}: a newer paceline has written it, in format {version}: update paceline")
        if version not in (0, self.kind):
            raise StoreError(
                f"sqlite:{path}: the file has {KINDS[version]}, and not {KINDS[self.kind]}: name a file of its own"
            )
        if not version:
            db.execute(f"PRAGMA application_id = {OURS}")
            db.execute(f"PRAGMA user_version = {self.kind}")

    def look_up(self, keys: Sequence[str]) -> dict[str, bytes]:
        """The entries that there are."""
        marks = ",".join("?" * len(keys))
        with self._alone() as db:
            return dict(db.execute(f"SELECT key, entry FROM entries WHERE key IN ({marks})", keys).fetchall())  # noqa: S608

    def write(self, key: str, entry: bytes) -> None:
        """Keep an entry; on return it outlives this process."""
        with self._used() as db:
            db.execute("INSERT OR REPLACE INTO entries VALUES (?, ?, ?)", (key, entry, time.time()))

    @contextmanager
    def _alone(self) -> Iterator[sqlite3.Connection]:
        """The connection, for this thread alone."""
        with self._explaining(), self._lock:
            yield self._db

    @contextmanager
    def _used(self) -> Iterator[sqlite3.Connection]:
        """The same, after the file was looked after."""
        with self._alone():
            if self._lost is not None:
                self._mend()
            elif (fault := self._look()) is not None:
                self._lost = fault
                raise LostFileError(fault, self._path)
            yield self._db

    def settle(self) -> None:
        """Compare the file with its name now, and write it again if that is needed.

        Raises:
            StoreError: That cannot be done, or entries are at another name or lost.
        """
        with self._alone():
            if self._lost is not None or self._look() is not None:
                self._mend()
        if self._path != self._name:
            raise StoreError(
                f"sqlite:{self._name}: another program has replaced or shortened this file, which was left as it is: what could be read"
                f" is in {self._path}: move it to {self._name}, and start again"
            )
        if self._damaged:
            raise StoreError(
                f"sqlite:{self._name}: another program has damaged this file, and entries are lost: start again"
            )

    def _look(self) -> Fault | None:
        """What has happened to the file: asked before each use, because it grows only when SQLite copies the log to it."""
        fault = self._watch.look()
        if fault is Fault.SHORT and self._is_sound():  # after a VACUUM
            self._watch, fault = Watch(self._path), None
        if fault is None and (not self._beside or self._watch.is_due()):
            names = [f"{self._path}-{end}" for end in ("wal", "shm")]
            self._beside = {name: os.stat(name) for name in names if os.path.exists(name)}
            if names[0] not in self._beside:  # the next connection would not find what is in the log
                self._db.execute("PRAGMA wal_checkpoint(PASSIVE)")
        return fault

    def _is_sound(self) -> bool:
        """Whether another connection can read everything."""
        with suppress(sqlite3.Error), closing(sqlite3.connect(self._path, timeout=self._timeout_s)) as other:
            return _is_whole(other)
        return False

    def _mend(self) -> None:
        """Write all that can be read again, and go on there."""
        self._lost = self._look()  # it may have been put back
        if self._lost is None:
            return
        for name, was in self._beside.items():  # another file that gets the name may not have the log of this one
            with suppress(OSError):
                if is_same(os.stat(name), was):
                    os.unlink(name)
        recovered = recovered_names(self._name)
        for path in recovered if self._lost is Fault.SHORT else chain([self._name], recovered):
            with ExitStack() as undo:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                if make_file(path):
                    for end in ("", "-wal", "-shm"):
                        undo.callback(Path(f"{path}{end}").unlink, missing_ok=True)
                elif not self.joins:
                    continue
                try:
                    db = undo.enter_context(closing(self._opened(path)))
                except (StoreError, sqlite3.DatabaseError) as error:
                    if isinstance(error, StoreError) or _is_unreadable(error):  # it is another program's
                        continue
                    raise
                self._copy(db)
                watch = Watch(path)
                undo.pop_all()
            self._db.close()
            log.warning("sqlite:%s: %s; all that could be read is in %s", self._path, self._lost.value, path)
            self._db, self._path, self._watch, self._beside, self._lost = db, path, watch, {}, None
            return

    def _copy(self, into: sqlite3.Connection) -> None:
        """Add all that can be read of the file that is open."""
        self._damaged = self._damaged or not _is_whole(self._db)
        into.execute("BEGIN IMMEDIATE")
        for table in self.TABLES:
            for order in ("ASC", "DESC"):  # a shortened file has its first pages, and the log the last ones
                try:
                    rows = self._db.execute(f"SELECT * FROM {table} ORDER BY rowid {order}")  # noqa: S608
                    whole = (row for row in rows if not (self._damaged and _has_hole(row[1])))
                    into.executemany(f"INSERT OR IGNORE INTO {table} VALUES (?, ?, ?)", whole)  # noqa: S608
                    break
                except sqlite3.DatabaseError as error:
                    if not _is_unreadable(error):
                        raise
        into.execute("COMMIT")

    def close(self) -> None:
        """Close the connection."""
        with suppress(StoreError):
            self.settle()
        self._db.close()

    def _explaining(self) -> AbstractContextManager[None]:
        return explaining(f"sqlite:{self._name}", kind=StoreError, of=(OSError, sqlite3.Error))


def read_only(file: Path, timeout_s: float) -> sqlite3.Connection:
    """A connection to an existing file that writes nothing and needs no right to."""
    # Without a log no process has it open, and SQLite need not create its own files beside it.
    # WEAK: a process that begins to write now changes what is read as unchanging, so this read may fail or miss it.
    how = "mode=ro" if file.with_name(f"{file.name}-wal").exists() else "mode=ro&immutable=1"
    return sqlite3.connect(f"{file.absolute().as_uri()}?{how}", uri=True, timeout=timeout_s)


def read_all(file: Path, timeout_s: float) -> list[tuple[str, bytes, float]]:
    """All entries, each with the time of its writing in seconds since 1970; none of a file that is missing or being made."""
    if not file.exists():
        return []
    explained = explaining(f"sqlite:{file}", kind=StoreError, of=sqlite3.Error)
    with explained, closing(read_only(file, timeout_s)) as db:
        made = db.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,)
        return db.execute("SELECT key, entry, at FROM entries").fetchall() if made else []


def _use_a_log(db: sqlite3.Connection, timeout_s: float) -> None:
    """Switch to WAL. SQLite does not wait by itself here while another process does the same."""
    until_s = time.monotonic() + timeout_s
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= until_s:
                raise
            time.sleep(0.001)
        else:
            return


def _is_unreadable(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _is_whole(db: sqlite3.Connection) -> bool:
    """Whether everything can be read."""
    try:
        db.execute("SELECT 1 FROM entries").fetchone()
        return bool(db.execute("PRAGMA quick_check(1)").fetchone() == ("ok",))
    except sqlite3.DatabaseError as error:
        if _is_unreadable(error) or getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_ERROR:  # it has no tables
            return False
        raise


def _has_hole(entry: bytes | str) -> bool:
    """Whether a part is missing: SQLite reads zeros behind the end of a file. JSON has none, and compressed JSON not as many."""
    return isinstance(entry, bytes) and bytes(16) in entry
