"""Where the journal of several processes is: the Redis of their quotas, for any machines, or a SQLite file, for the processes of one.

Both keep entries by key, and claims: a key is claimed by the process that pays for its entry, until the entry is there.
"""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Collection
from math import inf
from typing import Any, ClassVar, Final, NamedTuple

from paceline.core.results import SettingsError, StoreError
from paceline.stores import NO_STORE
from paceline.stores.entries import EntryFile
from paceline.stores.redis import explain
from paceline.stores.redis_address import library, read_url

TIMEOUT_S: Final = 5.0
"""How long the place may take for one call; an answer of megabytes takes longer than an exchange with the store."""

CLAIM_S: Final = 6.0
"""How long a claim holds after its last renewal. It is renewed three times in that time."""

KEEP_S: Final = 7 * 86_400.0
"""How long a Redis keeps an entry by default: it takes memory."""

NAME_MAX: Final = 200
"""Characters in a name: it is a part of the name of a file, or of each key."""

SQLITE: Final = "sqlite:"


class Claim(NamedTuple):
    """What came of a claim: the entry, if it is there; otherwise whether the key is claimed by the one who asked."""

    entry: bytes | None
    ours: bool


def open_place(name: str, store_url: str | None, keep_s: float | None = None) -> JournalPlace:
    """The place of the journal ``name``.

    Args:
        name: A name, for a journal where the quotas are: in that Redis, or in a file beside that file. Or ``sqlite:PATH``.
        store_url: The store of the shared quotas.
        keep_s: For how many seconds an entry is kept. By default a Redis keeps it for seven days, and a file has no bound.

    Raises:
        SettingsError: The name cannot be one.
        StoreError: There is no store, or the place cannot be used.
    """
    check_name(name)
    if name.startswith(SQLITE):
        return FilePlace(_path(name), keep_s or inf, TIMEOUT_S)
    if store_url is None or store_url == NO_STORE:
        raise StoreError(f"the journal {name!r} is stored next to the quotas, and no store is set: set PACELINE_STORE")
    if store_url.startswith(SQLITE):
        return FilePlace(f"{_path(store_url)}.{name}.journal", keep_s or inf, TIMEOUT_S)
    return RedisPlace(name, store_url, keep_s or KEEP_S)


def check_name(name: str) -> None:
    """Refuse what cannot be the name of a journal.

    Raises:
        SettingsError: It has none of the forms of :func:`open_place`.
    """
    if not name.startswith(SQLITE) and not re.fullmatch(rf"[\w.@=+-][\w.@=+ -]{{0,{NAME_MAX - 1}}}", name):
        raise SettingsError(
            f"journal is {name[:60]!r}: give a name of 1 to {NAME_MAX} letters, digits and .-_@=+, or 'sqlite:PATH'"
        )


def _path(url: str) -> str:
    return os.path.expanduser(url.removeprefix(SQLITE).removeprefix("//"))  # noqa: PTH111


class FilePlace(EntryFile):
    """Entries and claims by key in a file; each call is for any thread, and raises :class:`StoreError` if the file cannot be used now.

    It counts the time of claims by the wall clock, which all its processes read.
    """

    kind = 2
    TABLES: ClassVar[dict[str, str]] = EntryFile.TABLES | {"claims": "key TEXT PRIMARY KEY, token TEXT, until REAL"}

    def claim(self, key: str, token: str) -> Claim:
        """Claim a key, unless its entry is there, or another one has claimed it. ``token``: who claims."""
        now_s = time.time()
        with self._used() as db:
            if (entry := _entry(db, key)) is not None:
                return Claim(entry, ours=False)
            taken = db.execute(
                "INSERT INTO claims VALUES (?, ?, ?) ON CONFLICT (key) DO UPDATE SET token = excluded.token,"
                " until = excluded.until WHERE token = excluded.token OR until < ?",
                (key, token, now_s + CLAIM_S, now_s),
            )
            return Claim(_entry(db, key), taken.rowcount > 0)  # one may have been written meanwhile

    def renew(self, claims: Collection[tuple[str, str]]) -> None:
        """Hold on to claims, each a key and its token."""
        until_s = time.time() + CLAIM_S
        with self._used() as db, db:
            db.execute("BEGIN IMMEDIATE")
            db.executemany(
                "UPDATE claims SET until = ? WHERE key = ? AND token = ?",
                [(until_s, key, token) for key, token in claims],
            )

    def release(self, key: str, token: str) -> None:
        """Give a claim up, without an entry."""
        with self._used() as db:
            db.execute("DELETE FROM claims WHERE key = ? AND token = ?", (key, token))

    def write(self, key: str, entry: bytes) -> None:
        """Keep an entry; on return it outlives this process. Its claim ends."""
        with self._used() as db, db:
            db.execute("BEGIN IMMEDIATE")
            db.execute("INSERT OR REPLACE INTO entries VALUES (?, ?, ?)", (key, entry, time.time()))
            db.execute("DELETE FROM claims WHERE key = ?", (key,))

    def drop(self, key: str) -> None:
        """Remove an entry."""
        with self._used() as db:
            db.execute("DELETE FROM entries WHERE key = ?", (key,))


def _entry(db: sqlite3.Connection, key: str) -> bytes | None:
    found = db.execute("SELECT entry FROM entries WHERE key = ?", (key,)).fetchone()
    return None if found is None else found[0]


class RedisPlace:
    """Entries in Redis, each with a key of its own that expires: on servers before 7.4, fields of a hash cannot.

    Args:
        name: The name of the journal.
        url: The Redis.
        keep_s: How long an entry is kept.

    Raises:
        StoreError: The URL is invalid, or a cluster does not answer.
    """

    def __init__(self, name: str, url: str, keep_s: float) -> None:
        address = read_url(url)
        self._prefix, self._keep_s, self._url = f"paceline:journal:{address.prefix}/{name}/", round(keep_s), address.url
        self._claims = f"paceline:claims:{address.prefix}/{name}/"
        try:
            self._client = address.client(TIMEOUT_S)
        except library().RedisError as error:  # a cluster is asked for its nodes here
            raise StoreError(f"{self._url}: {explain(error)}") from error

    def claim(self, key: str, token: str) -> Claim:
        """See :meth:`FilePlace.claim`."""
        taken, holder, entry = self._ask(
            # The claim first: an entry that is written meanwhile is seen.
            ("set", self._claims + key, token, None, round(CLAIM_S * 1_000), True),
            ("get", self._claims + key),
            ("get", self._prefix + key),
        )
        return Claim(entry, bool(taken) or holder == token.encode())

    def renew(self, claims: Collection[tuple[str, str]]) -> None:
        """See :meth:`FilePlace.renew`. One that has run out meanwhile may be another's already, and is not taken back."""
        self._ask(*(("pexpire", self._claims + key, round(CLAIM_S * 1_000)) for key, _ in claims))

    def release(self, key: str, token: str) -> None:
        """See :meth:`FilePlace.release`."""
        [holder] = self._ask(("get", self._claims + key))
        if holder == token.encode():
            self._ask(("delete", self._claims + key))

    def write(self, key: str, entry: bytes) -> None:
        """See :meth:`FilePlace.write`. The claim runs out by itself."""
        self._ask(("set", self._prefix + key, entry, self._keep_s))

    def drop(self, key: str) -> None:
        """See :meth:`FilePlace.drop`."""
        self._ask(("delete", self._prefix + key))

    def settle(self) -> None:
        """See :meth:`EntryFile.settle <paceline.stores.entries.EntryFile.settle>`. No other program moves them."""

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _ask(self, *calls: tuple[object, ...]) -> list[Any]:
        """The answers to calls of redis-py, in one round trip."""
        try:
            with self._client.pipeline(transaction=False) as pipe:
                for name, *arguments in calls:
                    getattr(pipe, str(name))(*arguments)
                answers: list[Any] = pipe.execute()
        except Exception as error:
            raise StoreError(f"{self._url}: {explain(error)}") from error
        return answers


JournalPlace = FilePlace | RedisPlace
"""Entries and claims by key."""
