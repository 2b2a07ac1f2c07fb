"""Sums by day and name beside a store, to which many processes add: not a part of the quotas, and never in their way.

For SQLite in a file of their own (``quotas.db.usage`` beside ``quotas.db``), for Redis in two keys.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final, Protocol

from paceline.stores.base import FILE_TIMEOUT_S, Prefixed, Store, StoreError
from paceline.stores.entries import READ_ALL, EntryFile
from paceline.stores.redis import RedisStore
from paceline.stores.sqlite import SQLiteStore, read_only

KEEP_DAYS: Final = 400
"""How long a day is kept: a year, and a month in which it is settled."""

DAY_S: Final = 86_400

_MARK_MS: Final = 3_600_000
"""How long Redis knows that it has applied something: longer than a process tries to send it again."""

_ADD: Final = """
if not redis.call('SET', KEYS[1], '', 'NX', 'PX', ARGV[1]) then return end
for _, old in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', ARGV[2], 'LIMIT', 0, 100)) do
  redis.call('HDEL', KEYS[2], old)
  redis.call('ZREM', KEYS[3], old)
end
for i = 4, #ARGV, 3 do
  local before, sums = string.gmatch(redis.call('HGET', KEYS[2], ARGV[i]) or '', '%S+'), {}
  for amount in string.gmatch(ARGV[i + 2], '%S+') do
    sums[#sums + 1] = string.format('%.15g', (before() or 0) + amount)
  end
  redis.call('HSET', KEYS[2], ARGV[i], table.concat(sums, ' '))
  redis.call('ZADD', KEYS[3], ARGV[i + 1], ARGV[i])
end
redis.call('PEXPIRE', KEYS[2], ARGV[3])
redis.call('PEXPIRE', KEYS[3], ARGV[3])
"""
_READ: Final = """
local found = {}
for _, field in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], ARGV[1], ARGV[2])) do
  found[#found + 1] = {field, redis.call('HGET', KEYS[1], field)}
end
return found
"""

Sums = dict[tuple[int, str], list[float]]
"""Sums by the day, counted from 1970 in UTC, and the name."""


class Tallies(Protocol):
    """Sums; each call is for one thread at a time, and raises :class:`StoreError` if the place cannot be used now."""

    def add(self, news: Mapping[tuple[int, str], Sequence[float]], number: int) -> None:
        """Add ``news`` to the sums. ``number``: counts the calls of this object; the same news again have the same one."""

    def read(self, first: int, last: int) -> Sums:
        """The sums of the days from ``first`` to ``last``, without writing anything."""


def tallies_beside(store: Store | None) -> Tallies:
    """The sums beside ``store``; without a store that has a place for them, in this process alone.

    Nothing is opened before the first use. A prefix of the store's pools is no part of the place.
    """
    if isinstance(store, Prefixed):
        store = store.inner
    if isinstance(store, RedisStore):
        return RedisTallies(store)
    if isinstance(store, SQLiteStore):
        return SQLiteTallies(Path(store.url.removeprefix("sqlite:")))
    return OwnTallies()


class OwnTallies:
    """Sums in this process, for as long as it lives."""

    def __init__(self) -> None:
        self._sums: Sums = {}
        self._lock = threading.Lock()

    def add(self, news: Mapping[tuple[int, str], Sequence[float]], number: int) -> None:  # noqa: ARG002
        """See :meth:`Tallies.add`."""
        with self._lock:
            for where, amounts in news.items():
                self._sums[where] = added(self._sums.get(where), amounts)
            oldest = max((day for day, _ in self._sums), default=0) - KEEP_DAYS
            self._sums = {where: sums for where, sums in self._sums.items() if where[0] > oldest}

    def read(self, first: int, last: int) -> Sums:
        """See :meth:`Tallies.read`."""
        with self._lock:
            return {where: list(sums) for where, sums in self._sums.items() if first <= where[0] <= last}


class RedisTallies:
    """Sums in a hash, and their days in a sorted set."""

    def __init__(self, store: RedisStore) -> None:
        self._store, self._who = store, os.urandom(8).hex()
        self._key = f"paceline:usage:{{{store.prefix}/}}"  # one slot of a cluster

    def add(self, news: Mapping[tuple[int, str], Sequence[float]], number: int) -> None:
        """See :meth:`Tallies.add`."""
        keys = f"{self._key}:{self._who}:{number}", self._key, f"{self._key}:days"
        oldest = max(day for day, _ in news) - KEEP_DAYS
        words = [str(_MARK_MS), str(oldest), str(KEEP_DAYS * DAY_S * 1_000)]
        for (day, name), amounts in news.items():
            words += [f"{day}/{name}", str(day), " ".join(map(repr, amounts))]
        self._store.run_script(_ADD, keys, *words)

    def read(self, first: int, last: int) -> Sums:
        """See :meth:`Tallies.read`."""
        found = self._store.run_script(_READ, (self._key, f"{self._key}:days"), str(first), str(last))
        return {
            _where(field.decode()): [float(number) for number in sums.split()]
            for field, sums in found
            if sums is not None
        }


class SQLiteTallies:
    """Sums in a file beside the store's, which is open while it is used only.

    Args:
        store: The file of the store.
        timeout_s: How long a call may wait for other processes.
    """

    def __init__(self, store: Path, timeout_s: float = FILE_TIMEOUT_S) -> None:
        self._path, self._timeout_s = store.with_name(f"{store.name}.usage"), timeout_s

    def add(self, news: Mapping[tuple[int, str], Sequence[float]], number: int) -> None:  # noqa: ARG002
        """See :meth:`Tallies.add`; one transaction, which is applied as a whole or not at all."""
        with closing(_SumFile(str(self._path), KEEP_DAYS * DAY_S, self._timeout_s)) as file:
            file.add({f"{day}/{name}": amounts for (day, name), amounts in news.items()})

    def read(self, first: int, last: int) -> Sums:
        """See :meth:`Tallies.read`."""
        if not self._path.exists():
            return {}
        try:
            with closing(read_only(self._path, self._timeout_s)) as database:
                rows = database.execute(READ_ALL).fetchall()
        except sqlite3.Error as error:
            raise StoreError(f"sqlite:{self._path}: {error}") from error
        found = {_where(key): json.loads(entry) for key, entry, _ in rows}
        return {where: sums for where, sums in found.items() if first <= where[0] <= last}


class _SumFile(EntryFile):
    """Sums by key."""

    def add(self, news: Mapping[str, Sequence[float]]) -> None:
        """Add to the sums."""
        before = self.look_up
        try:
            self._db.execute("BEGIN IMMEDIATE")
            for key, amounts in news.items():
                found = before([key]).get(key)
                self.write(key, json.dumps(added(json.loads(found) if found else None, amounts)).encode())
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._explained(error) from error


def added(before: Sequence[float] | None, amounts: Sequence[float]) -> list[float]:
    """Amounts added to those before, if any."""
    return list(amounts) if before is None else [a + b for a, b in zip(before, amounts, strict=True)]


def _where(key: str) -> tuple[int, str]:
    day, _, name = key.partition("/")
    return int(day), name


def today() -> int:
    """The present day, counted from 1970 in UTC."""
    return int(time.time() // DAY_S)
