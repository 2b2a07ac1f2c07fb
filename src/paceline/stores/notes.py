"""Short notes beside a store, by key, which are forgotten after a week: not a part of the quotas, and never in their way.

For SQLite in a file of their own (``quotas.db.runs`` beside ``quotas.db``), so that a note never locks the quotas; for Redis in
two keys. Each kind of notes has its own: ``runs`` are the progress of runs, ``outputs`` what answers have shown of the output.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any, Final

from paceline.core.results import StoreError, explaining
from paceline.stores.base import FILE_TIMEOUT_S, Prefixed, Store
from paceline.stores.entries import EntryFile, read_all
from paceline.stores.redis import RedisStore
from paceline.stores.redis_wire import lua
from paceline.stores.sqlite import SQLiteStore

KEEP_S: Final = 7 * 86_400
"""How long a note is kept after its last writing."""

Aged = tuple[float, bytes]
"""The age in seconds, and the content."""


def place_of(store: Store | None) -> RedisStore | Path | None:
    """Where something is kept beside ``store``: its Redis or its file; ``None`` if it is in no place of its own.

    A prefix of its pools is no part of the place.
    """
    if isinstance(store, Prefixed):
        store = store.inner
    if isinstance(store, SQLiteStore):
        return Path(store.url.removeprefix("sqlite:"))
    return store if isinstance(store, RedisStore) else None


def notes_beside(
    store: Store | None, kind: str = "runs", *, in_use: bool = False, timeout_s: float = FILE_TIMEOUT_S
) -> Notes | None:
    """The notes beside ``store``; ``None`` if that is in no place of its own. Nothing is opened before the first use.

    Args:
        store: The store.
        kind: What the notes are about.
        in_use: Whether a Redis keeps the quotas of this process, too, so that its connection stays open.
        timeout_s: How long a file of notes may be locked by other processes.
    """
    place = place_of(store)
    if isinstance(place, RedisStore):
        return RedisNotes(place, kind, in_use=in_use)
    return None if place is None else SQLiteNotes(place, kind, timeout_s)


class RedisNotes:
    """Notes in a hash, and their times, by the clock of the server, in a sorted set: before 7.4 no field of a hash expires.

    No connection stays open between two notes, unless the store is in use: the connections of the quotas are enough for a server.
    """

    def __init__(self, store: RedisStore, kind: str = "runs", *, in_use: bool = False) -> None:
        self._store, self._in_use = store, in_use
        key = f"paceline:{kind}:{{{store.prefix}/}}"  # one slot of a cluster
        self._keys = key, f"{key}:times"

    def write(self, notes: Mapping[str, str]) -> None:
        """Keep notes in place of those before."""
        self._run("notes_write", str(KEEP_S), *chain.from_iterable(notes.items()))

    def read(self) -> list[Aged]:
        """All notes, without writing anything."""
        found = self._run("notes_read", str(KEEP_S))
        return [(age_ms / 1_000, entry) for _, entry, age_ms in found if entry is not None]

    def _run(self, script: str, *arguments: str) -> Any:
        try:
            return self._store.run_script(lua(script), self._keys, *arguments)
        finally:
            if not self._in_use:
                self._store.close()


class SQLiteNotes:
    """Notes in a file beside the store's: it is locked by no process between two notes, and a forked one inherits none.

    Args:
        store: The file of the store.
        kind: What the notes are about.
        timeout_s: How long a call may wait for other processes.
    """

    def __init__(self, store: Path, kind: str = "runs", timeout_s: float = FILE_TIMEOUT_S) -> None:
        self._path, self._timeout_s = store.with_name(f"{store.name}.{kind}"), timeout_s

    def write(self, notes: Mapping[str, str]) -> None:
        with closing(EntryFile(str(self._path), KEEP_S, self._timeout_s)) as file:
            for key, entry in notes.items():
                file.write(key, entry.encode())

    def read(self) -> list[Aged]:
        rows = read_all(self._path, self._timeout_s)
        with explaining(f"sqlite:{self._path}", kind=StoreError, of=TypeError):
            ages = [(time.time() - at, entry) for _, entry, at in rows]
        return [(age_s, entry) for age_s, entry in ages if age_s < KEEP_S]


Notes = RedisNotes | SQLiteNotes
"""Notes by key; each call leaves nothing open, and raises :class:`StoreError` if the place cannot be used now."""
