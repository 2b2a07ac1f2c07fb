"""A store in one SQLite file, for the processes of one machine; what was used today survives a restart.

Exchanges
    Each is one transaction that writes from its start, so that no other process comes between reading a ledger and
    writing it. A killed process loses nothing: what it was granted had been written before. When the machine itself
    fails, the last exchanges may be lost (the file is not forced to the disk at each one), but nothing is damaged.

Time
    The wall clock of the machine, read inside the transaction: processes that read it before they wait for each other
    would see it go back.

Waiting for a lock
    SQLite's own handler sleeps longer each time, so that under load one process can wait for seconds while others
    pass. Here each process tries again after some tenths of a millisecond.
"""

from __future__ import annotations

import json
import os
import random
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from weakref import WeakSet

from paceline.core.quota import NS
from paceline.core.results import StoreFormatError
from paceline.pacing.clock import Clock, elapsed_ns, tell_of_forks
from paceline.pacing.forks import lives
from paceline.shared.ledger import SharedLedger
from paceline.shared.messages import Message, StoreReply
from paceline.shared.peers import Peers
from paceline.stores.base import FILE_TIMEOUT_S, StoreError, make_file

_T = TypeVar("_T")

APPLICATION_ID = int.from_bytes(b"pace")
"""Marks the files of this library."""

FILE_FORMAT, FORMAT = 1, 5
"""Of the file, and of the ledgers in it. A ledger of an older format is read without its processes, which report again."""

KEEP_NS = 90 * 86_400 * NS
"""How long the ledger of an unused pool is kept; some older ones are deleted at each opening."""

SWEEP_MAX = 100

STEP_NS = NS
"""A wall clock that differs by more from the time that has elapsed was set. What must wait waits as long as before, and the
ledger goes on by the new time. It does not follow smaller differences."""

DEMAND_TIMES = 5
"""How many times the timeout an exchange waits for the file while other processes write: it is in demand, and no process hangs."""

REOPEN_S = 3.0
"""How long a connection is used. An open connection reads from its cache, and from a deleted ``-wal`` or ``-shm``: only
a new one finds the file as the other processes find it."""

_CREATE = (
    "CREATE TABLE pools (name TEXT PRIMARY KEY, format INTEGER NOT NULL, revision INTEGER NOT NULL,"
    " seen_ns INTEGER NOT NULL, state TEXT NOT NULL)"
)
_SWEEP = "DELETE FROM pools WHERE name IN (SELECT name FROM pools WHERE seen_ns < ? LIMIT ?)"
_STEP = "UPDATE pools SET seen_ns = seen_ns + ? WHERE seen_ns < ?"  # unless another pool has noticed the step
_READ = "SELECT format, revision, CASE WHEN revision = ? THEN NULL ELSE state END FROM pools WHERE name = ?"
_WRITE = (
    "INSERT INTO pools VALUES (?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE"
    " SET format = excluded.format, revision = excluded.revision, seen_ns = excluded.seen_ns, state = excluded.state"
)
_RESET = "stop the processes that use it and delete it (the store then starts with full quotas)"
ADVICE = {
    sqlite3.SQLITE_READONLY: "it cannot be written: this user needs to read and write the file and its folder",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened: this user needs to read and write the file and its folder",
    sqlite3.SQLITE_FULL: "its disk is full: free some space; nothing was lost",
    sqlite3.SQLITE_IOERR: "its disk fails or is full: check the disk, or give another path",
    sqlite3.SQLITE_NOTADB: "it is no database: give another path, or delete it",
    sqlite3.SQLITE_CORRUPT: f"it is damaged: {_RESET}",
}
"""What is wrong and what to do, by SQLite's primary code."""

_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


class _Open(NamedTuple):
    """A connection, the file that it has open, and since when."""

    connection: sqlite3.Connection
    inode: int
    since_s: float


class SQLiteStore:
    """Keeps shared ledgers in a file that all processes of one machine may use at once. Not for network drives.

    Args:
        path: The file; it and its folder are made when they are missing, for this user alone.
        timeout_s: How long an exchange may wait for other processes, in all.
        clock: For tests; ``None`` for the wall clock. It must count from the same instant in every process.

    Raises:
        StoreError: The path is missing or invalid, or the timeout is not above 0.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, timeout_s: float = FILE_TIMEOUT_S, clock: Clock | None = None
    ) -> None:
        name = os.fspath(path)
        if not name:
            raise StoreError("sqlite: has no path: write 'sqlite:PATH'")
        if not 0 < timeout_s < threading.TIMEOUT_MAX:
            raise StoreError(f"timeout_s of sqlite:{name} is {timeout_s!r}: it must be above 0")
        if "\0" in name:
            raise StoreError(f"the path {name!r} of a SQLite store has a zero byte: give another path")
        try:
            self._path = Path(path).expanduser().absolute()
        except RuntimeError:
            raise StoreError(f"sqlite:{name}: this home folder is unknown: write the whole path") from None
        self.url = f"sqlite:{self._path}"
        self._timeout_s = timeout_s
        self._now_ns = clock.now_ns if clock else time.time_ns
        self._elapsed_ns = clock.now_ns if clock else elapsed_ns
        self._lock = threading.RLock()  # a finalizer in this thread may close the store, whose exchange fails then
        self._pid = os.getpid()
        self._is_resting = False
        self._open: _Open | None = None
        self._to_sweep = False
        # With revision: read again only when others wrote; and with the clock at the last writing.
        self._ledgers: dict[str, tuple[int, SharedLedger, _Clock | None]] = {}
        _STORES.add(self)

    def exchange(self, pool: str, message: Message) -> StoreReply:
        try:
            return self._in_turn(partial(self._exchange, pool, message))
        except UnicodeEncodeError:
            raise StoreError(
                f"{self.url}: the name of pool {pool!r} contains half of a surrogate pair: rename it"
            ) from None

    def ping(self) -> None:
        """See :func:`~paceline.shared.messages.ping`: the right to write is taken and given back."""
        self._in_turn(lambda connection: connection.execute("ROLLBACK"))

    def _in_turn(self, step: Callable[[sqlite3.Connection], _T]) -> _T:
        """Use the file in ``step``, in a transaction that writes and that the step ends."""
        now_s = time.monotonic()
        if not self._lock.acquire(timeout=self._timeout_s):
            raise self._busy()
        try:
            connection = self._connected(now_s)
            self._execute(connection, "BEGIN IMMEDIATE", now_s + self._timeout_s)
            return step(connection)
        except BaseException as error:
            self._disconnect()  # rolls back
            if isinstance(error, sqlite3.Error):
                raise self._explained(error) from error
            raise
        finally:
            self._lock.release()

    def after_fork(self) -> None:
        if self._pid != os.getpid():
            self._pid, self._lock, self._is_resting = os.getpid(), threading.RLock(), False
            if self._open is not None:
                _INHERITED.append(self._open.connection)
            self._open, self._ledgers = None, {}

    def close(self) -> None:
        with self._lock:
            self._disconnect()

    def _exchange(self, pool: str, message: Message, connection: sqlite3.Connection) -> StoreReply:
        wall_ns, elapsed_ns = self._now_ns(), self._elapsed_ns()
        revision, ledger, before = self._ledgers.pop(pool, (0, None, None))  # put back when all is written
        row = connection.execute(_READ, (revision, pool)).fetchone()
        if row is None:
            revision, ledger, before = 0, SharedLedger(), None
        elif ledger is None or row[1] != revision:
            revision, (ledger, before) = row[1], self._load(pool, *row)
        now_ns = _present_ns(before, elapsed_ns, wall_ns)
        step_ns = wall_ns - now_ns
        clock = [_boot(), elapsed_ns, wall_ns]
        if abs(step_ns) > STEP_NS:
            ledger.clock_was_set(step_ns)
            now_ns = wall_ns
            connection.execute(_STEP, (step_ns, now_ns - step_ns // 2))
        elif before is not None and step_ns:
            clock = before  # nothing changes with a clock that goes to and fro
        # All processes of a machine reach the file, or none: one that is overdue has not lost its way to it.
        reply = ledger.apply(now_ns, message, ended=lambda who, was_there: was_there or _has_ended(who, message.who))
        state = ledger.dump() | {"clock": clock}
        connection.execute(_WRITE, (pool, FORMAT, revision + 1, now_ns, _encode(state)))
        if self._to_sweep and before is not None:  # and a step of the clock is known
            connection.execute(_SWEEP, (now_ns - KEEP_NS, SWEEP_MAX))
            self._to_sweep = False
        connection.execute("COMMIT")
        self._ledgers[pool] = revision + 1, ledger, clock
        return reply

    def _load(self, pool: str, form: int, _revision: int, state: str) -> tuple[SharedLedger, _Clock | None]:
        if form > FORMAT:
            raise self._newer()
        try:
            fields = json.loads(state)
            if form < FORMAT:
                fields["peers"] = Peers().dump()
            return SharedLedger.load(fields), fields["clock"]
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise StoreError(f"{self.url}: the ledger of pool {pool!r} cannot be read: {_RESET}") from error

    def _connected(self, now_s: float) -> sqlite3.Connection:
        if self._open is not None:
            try:
                if self._path.stat().st_ino == self._open.inode and now_s - self._open.since_s < REOPEN_S:
                    return self._open.connection
            except OSError:
                pass
            self._disconnect()  # the file was deleted, or put aside, or may be damaged
        try:
            if self._path.is_dir():
                raise StoreError(f"{self.url}: this is a folder: give the path of a file in it")
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            make_file(self._path)
            inode = self._path.stat().st_ino
            if not _may_write(self._path) or not _may_write(self._path.parent):  # SQLite would leave files behind
                raise StoreError(f"{self.url}: {ADVICE[sqlite3.SQLITE_READONLY]}")
        except OSError as error:
            raise StoreError(
                f"{self.url}: it cannot be made ({error.strerror}): give a path where this user may write"
            ) from error
        connection = sqlite3.connect(self._path, timeout=0, isolation_level=None, check_same_thread=False)
        self._open = _Open(connection, inode, time.monotonic())
        self._prepare(connection, now_s + self._timeout_s)
        return connection

    def _prepare(self, connection: sqlite3.Connection, deadline_s: float) -> None:
        """Make the table in a new file; change nothing in a file of another program."""
        self._execute(connection, "BEGIN IMMEDIATE", deadline_s)
        (owner,) = connection.execute("PRAGMA application_id").fetchone()
        (form,) = connection.execute("PRAGMA user_version").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if owner == APPLICATION_ID and form > FILE_FORMAT:
            raise self._newer()
        if owner != APPLICATION_ID and (owner or form or tables):
            raise StoreError(f"{self.url}: this is another program's database: give another path")
        if not tables:
            connection.execute(_CREATE)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {FILE_FORMAT}")
        self._to_sweep = True
        self._execute(connection, "COMMIT", deadline_s)  # before WAL, readers are in its way
        self._execute(connection, "PRAGMA journal_mode = WAL", deadline_s)
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA checkpoint_fullfsync = ON")  # macOS: fsync leaves the log in the cache of the disk

    def _execute(self, connection: sqlite3.Connection, statement: str, deadline_s: float) -> None:
        """Execute a statement that may find the file locked: in great demand, or by a process that hangs."""
        most_s, version = deadline_s + (DEMAND_TIMES - 1) * self._timeout_s, -1
        while True:
            try:
                connection.execute(statement)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                    raise
                before, now_s = version, time.monotonic()
                if version < 0 or now_s >= deadline_s:
                    version = _version(connection)
                if now_s >= deadline_s:
                    if version == before or now_s >= most_s:
                        raise self._busy() from error
                    deadline_s = now_s + self._timeout_s
                time.sleep(random.uniform(0.0001, 0.0005))
            else:
                return

    def _disconnect(self) -> None:
        opened, self._open, self._ledgers = self._open, None, {}
        if opened is not None:
            with suppress(sqlite3.Error):
                opened.connection.close()

    def _busy(self) -> StoreError:
        return StoreError(
            f"{self.url}: locked by another process for longer than the timeout of {self._timeout_s:g} s:"
            " check whether a process that uses it hangs, and keep it off network drives"
        )

    def _newer(self) -> StoreFormatError:
        return StoreFormatError(f"{self.url}: written by a newer paceline: update this one")

    def _explained(self, error: sqlite3.Error) -> StoreError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest of it is detail
        advice = ADVICE.get(code, f"it cannot be used: give another path, or {_RESET}")
        return StoreError(f"{self.url}: {advice} ({error})")

    def rest(self) -> None:
        """Before a fork: close what is open, and let no thread open it before :meth:`wake`."""
        self._is_resting = self._lock.acquire(timeout=self._timeout_s)
        if self._is_resting:
            self._disconnect()

    def wake(self) -> None:
        """After a fork, in the parent."""
        if self._is_resting:
            self._is_resting = False
            self._lock.release()


def _version(connection: sqlite3.Connection) -> int:
    """A number that others' writing changes; -1 if it cannot be read now."""
    with suppress(sqlite3.OperationalError):
        found: int = connection.execute("PRAGMA data_version").fetchone()[0]
        return found
    return -1


_Clock = list[Any]
"""The name of the machine's start, the time since it, and the wall clock, in nanoseconds."""


BOOTS = r"SYSTEM\CurrentControlSet\Control\Session Manager\Memory Management\PrefetchParameters"
"""The key of Windows' registry with the number of the present start."""


@cache
def _boot() -> str:
    """A name of the start of this machine, from which its elapsed time counts; where there is none, it shows when that falls.

    On Windows it names the clock, too: Python 3.13 has another one than 3.12, from which it differs by seconds.
    """
    clock = time.get_clock_info("monotonic").implementation if sys.platform == "win32" else ""
    try:
        if sys.platform == "win32":
            import winreg

            with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, BOOTS) as key:
                return f"{winreg.QueryValueEx(key, 'BootId')[0]} {clock}"
        if sys.platform == "darwin":
            from ctypes import CDLL, byref, c_size_t, create_string_buffer

            name, size = create_string_buffer(64), c_size_t(64)
            CDLL(None).sysctlbyname(b"kern.bootsessionuuid", name, byref(size), None, c_size_t(0))
            return name.value.decode("ascii")
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except (OSError, AttributeError, ValueError):
        return clock


def _has_ended(who: str, other: str) -> bool:
    """Whether the process ``who`` has ended, as far as the machine of the process ``other`` knows."""
    (machine, _, rest), here = who.partition(":"), other.partition(":")[0]
    number = rest.partition(":")[0]
    # WEAK: of containers with one hostname, each with numbers of its own, one that lives may seem to have ended.
    known = sys.platform != "win32" and machine == here and number.isdecimal()
    return known and not lives(int(number))


def _present_ns(before: _Clock | None, elapsed_ns: int, wall_ns: int) -> int:
    """The present by what has elapsed since ``before``; by the wall clock where that is not known."""
    match before:
        case [boot, int() as elapsed_then_ns, int() as then_ns] if boot == _boot() and elapsed_then_ns <= elapsed_ns:
            return then_ns + elapsed_ns - elapsed_then_ns
    return wall_ns


def _may_write(path: Path) -> bool:
    return os.access(path, os.R_OK | os.W_OK, effective_ids=os.access in os.supports_effective_ids)


_STORES: WeakSet[SQLiteStore] = WeakSet()
_INHERITED: list[sqlite3.Connection] = []
"""Connections that a parent process could not close in time: kept, because to close them here would end its locks."""


# SQLite keeps the locks of a process in memory: a forked child would take them for its own.
tell_of_forks(_STORES, before="rest", after_in_parent="wake")
