"""The answers that a job has paid for, by request, so that no other process of the job pays for them again.

Two places: the Redis of the shared quotas, for the actors of any machines, and a SQLite file, for those of one.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Final, Protocol

from paceline.core.results import StoreError
from paceline.stores.redis import explain
from paceline.stores.redis_address import library, read_url

TIMEOUT_S: Final = 5.0
"""How long the place may take for one call; an answer of megabytes takes longer than an exchange with the store."""

SQLITE: Final = "sqlite:"


class Journal(Protocol):
    """Entries by key; each call is for any thread, and raises :class:`StoreError` if the place cannot be used now."""

    def look_up(self, keys: Sequence[str]) -> dict[str, bytes]:
        """The entries that there are."""

    def write(self, key: str, entry: bytes) -> None:
        """Keep an entry; on return it outlives this process."""

    def close(self) -> None:
        """Close the connections."""


def open_journal(name: str, store_url: str, keep_s: float) -> Journal:
    """The journal ``name``.

    Args:
        name: A name, for one in the Redis at ``store_url``, or ``sqlite:PATH``.
        store_url: The store of the shared quotas.
        keep_s: How long an entry is kept.

    Raises:
        StoreError: The name needs a Redis, and the store is none, or cannot be used.
    """
    if name.startswith(SQLITE):
        return SQLiteJournal(name.removeprefix(SQLITE), keep_s)
    if store_url.startswith(("redis", "unix:")):
        return RedisJournal(name, store_url, keep_s)
    kind = store_url.partition(":")[0]
    raise StoreError(
        f"the journal {name!r} would be in the Redis of the store, and the store is {kind}: write 'sqlite:PATH'"
    )


class RedisJournal:
    """Entries in Redis, each with a key of its own that expires: on servers before 7.4, fields of a hash cannot."""

    def __init__(self, name: str, url: str, keep_s: float) -> None:
        address = read_url(url)
        self._prefix, self._keep_s, self._url = f"paceline:journal:{address.prefix}/{name}/", round(keep_s), address.url
        try:
            self._client = address.client(TIMEOUT_S)
        except library().RedisError as error:  # a cluster is asked for its nodes here
            raise StoreError(f"{self._url}: {explain(error)}") from error

    def look_up(self, keys: Sequence[str]) -> dict[str, bytes]:
        """See :meth:`Journal.look_up`."""
        try:
            with self._client.pipeline(transaction=False) as calls:
                for key in keys:
                    calls.get(self._prefix + key)
                found = calls.execute()
        except Exception as error:
            raise StoreError(f"{self._url}: {explain(error)}") from error
        return {key: entry for key, entry in zip(keys, found, strict=True) if entry is not None}

    def write(self, key: str, entry: bytes) -> None:
        """See :meth:`Journal.write`."""
        try:
            self._client.set(self._prefix + key, entry, ex=self._keep_s)
        except Exception as error:
            raise StoreError(f"{self._url}: {explain(error)}") from error

    def close(self) -> None:
        """See :meth:`Journal.close`."""
        self._client.close()


class SQLiteJournal:
    """Entries in a file, for the processes of one machine: they share memory beside it, as WAL does, so not for network drives."""

    def __init__(self, path: str, keep_s: float) -> None:
        self._lock, self._path = threading.Lock(), path
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            with ExitStack() as opened:
                self._db = opened.enter_context(
                    closing(sqlite3.connect(path, timeout=TIMEOUT_S, isolation_level=None, check_same_thread=False))
                )
                self._db.execute("PRAGMA journal_mode = WAL")
                # A killed process loses nothing, a machine that crashes a second.
                self._db.execute("PRAGMA synchronous = NORMAL")
                self._db.execute("CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, entry BLOB, at INTEGER)")
                self._db.execute("DELETE FROM answers WHERE at < ?", (time.time() - keep_s,))
                opened.pop_all()
        except (OSError, sqlite3.Error) as error:
            raise self._explained(error) from error
        with suppress(OSError):
            Path(path).chmod(0o600)

    def look_up(self, keys: Sequence[str]) -> dict[str, bytes]:
        """See :meth:`Journal.look_up`."""
        marks = ",".join("?" * len(keys))
        try:
            with self._lock:
                found = self._db.execute(f"SELECT key, entry FROM answers WHERE key IN ({marks})", keys)  # noqa: S608
                return dict(found.fetchall())
        except sqlite3.Error as error:
            raise self._explained(error) from error

    def write(self, key: str, entry: bytes) -> None:
        """See :meth:`Journal.write`."""
        try:
            with self._lock:
                self._db.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", (key, entry, time.time()))
        except sqlite3.Error as error:
            raise self._explained(error) from error

    def close(self) -> None:
        """See :meth:`Journal.close`."""
        self._db.close()

    def _explained(self, error: Exception) -> StoreError:
        return StoreError(f"the journal sqlite:{self._path}: {getattr(error, 'strerror', None) or error}")
