"""Sums by day, name and process beside a store: not a part of the quotas, and never in their way.

For SQLite in a file of their own (``quotas.db.usage`` beside ``quotas.db``), for Redis in two keys.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from paceline.stores.base import FILE_TIMEOUT_S, Store
from paceline.stores.entries import EntryFile, read_all
from paceline.stores.notes import place_of
from paceline.stores.redis import RedisStore
from paceline.stores.redis_wire import lua

KEEP_DAYS: Final = 400
"""How long a day is kept: a year, and a month in which it is settled."""

DAY_S: Final = 86_400

Row = tuple[int, str, str]
"""The day, counted from 1970 in UTC, the name, and the process that has counted: no other one changes that row."""

Rows = dict[Row, list[float]]
"""Sums, which only grow; the first of them grows with each count."""


def tallies_beside(store: Store | None) -> Tallies:
    """The sums beside ``store``; without a store that has a place for them, in this process alone.

    Nothing is opened before the first use.
    """
    place = place_of(store)
    if isinstance(place, RedisStore):
        return RedisTallies(place)
    return OwnTallies() if place is None else SQLiteTallies(place)


class OwnTallies:
    """Sums in this process, for as long as it lives."""

    def __init__(self) -> None:
        self._rows: Rows = {}
        self._lock = threading.Lock()

    def tell(self, rows: Mapping[Row, Sequence[float]]) -> list[float]:
        """Keep each of ``rows`` that is later than what the place has of it, so that it may be told any number of times.

        Returns:
            The first sum of each that the place had before; 0 if it had none.
        """
        with self._lock:
            had = [self._rows.get(row, (0.0,))[0] for row in rows]
            self._rows |= {
                row: list(sums) for (row, sums), before in zip(rows.items(), had, strict=True) if before < sums[0]
            }
            oldest = max((row[0] for row in self._rows), default=0) - KEEP_DAYS
            self._rows = {row: sums for row, sums in self._rows.items() if row[0] > oldest}
        return had

    def read(self, first: int, last: int) -> Rows:
        """The rows of the days from ``first`` to ``last``, without writing anything."""
        with self._lock:
            return {row: list(sums) for row, sums in self._rows.items() if first <= row[0] <= last}


class RedisTallies:
    """Sums in a hash, and their days in a sorted set."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        key = f"paceline:usage:{{{store.prefix}/}}"  # one slot of a cluster
        self._keys = key, f"{key}:days"

    def tell(self, rows: Mapping[Row, Sequence[float]]) -> list[float]:
        oldest = max(row[0] for row in rows) - KEEP_DAYS
        words = [str(oldest), str(KEEP_DAYS * DAY_S * 1_000)]
        for row, sums in rows.items():
            words += [_key(row), str(row[0]), " ".join(map(repr, sums))]
        return [float(before) for before in self._store.run_script(lua("tallies_tell"), self._keys, *words)]

    def read(self, first: int, last: int) -> Rows:
        found = self._store.run_script(lua("tallies_read"), self._keys, str(first), str(last))
        return {
            _row(field.decode()): [float(number) for number in sums.split()]
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

    def tell(self, rows: Mapping[Row, Sequence[float]]) -> list[float]:
        """See :meth:`OwnTallies.tell`; one transaction, which is applied as a whole or not at all."""
        with closing(_SumFile(str(self._path), KEEP_DAYS * DAY_S, self._timeout_s)) as file:
            return file.tell({_key(row): sums for row, sums in rows.items()})

    def read(self, first: int, last: int) -> Rows:
        found = {_row(key): json.loads(entry) for key, entry, _ in read_all(self._path, self._timeout_s)}
        return {row: sums for row, sums in found.items() if first <= row[0] <= last}


class _SumFile(EntryFile):
    """Sums by key."""

    def tell(self, rows: Mapping[str, Sequence[float]]) -> list[float]:
        had = []
        with self._alone() as db:
            db.execute("BEGIN IMMEDIATE")
        for key, sums in rows.items():
            found = self.look_up([key]).get(key)
            had.append(json.loads(found)[0] if found else 0.0)
            if had[-1] < sums[0]:
                self.write(key, json.dumps(sums).encode())
        with self._alone() as db:
            db.execute("COMMIT")
        return had


Tallies = OwnTallies | RedisTallies | SQLiteTallies
"""Sums; each call is for one thread at a time, and raises :class:`StoreError` if the place cannot be used now."""


def added(before: Sequence[float] | None, amounts: Sequence[float]) -> list[float]:
    """Amounts added to those before, if any."""
    return list(amounts) if before is None else [a + b for a, b in zip(before, amounts, strict=True)]


def _key(row: Row) -> str:
    day, name, who = row
    return f"{day}/{name}\n{who}"


def _row(key: str) -> Row:
    day, _, rest = key.partition("/")
    name, _, who = rest.partition("\n")
    return int(day), sys.intern(name), sys.intern(who)


def today() -> int:
    """The present day, counted from 1970 in UTC."""
    return int(time.time() // DAY_S)
