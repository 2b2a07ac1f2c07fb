"""What the stores have in common."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeVar

from paceline.core.results import StoreError
from paceline.shared.messages import Message, Store, StoreReply, ping, remarks

__all__ = ["FILE_TIMEOUT_S", "TIMEOUT_S", "Prefixed", "Store", "StoreError"]

_T = TypeVar("_T")

TIMEOUT_S = 1.0
"""How long a server may take to answer before it counts as lost."""

FILE_TIMEOUT_S = 5.0
"""How long an exchange waits for a file before it counts as lost: as long as sqlite3 by default. A busy disk takes seconds to make a file."""


class InTurn:
    """A lock for one use of a store after the other.

    A finalizer, or the handler of a signal, that needs the store while its own thread uses it would wait for itself: it gets an error.
    """

    def __init__(self) -> None:
        self._lock, self._in_use = threading.RLock(), False

    def run(self, use: Callable[[], _T]) -> _T:
        """Run ``use`` when the other threads have had their turns."""
        # Written as a context manager of Python, this would never release the lock if the handler of a signal raises
        # as __enter__ returns or __exit__ begins. Python runs no handler while ``with`` takes or releases the lock.
        with self._lock:
            if self._in_use:
                raise StoreError("this thread is using the store already")
            self._in_use = True
            try:
                return use()
            finally:
                self._in_use = False


def make_file(path: str | Path) -> bool:
    """Make a file for this user alone; whether it is new. One that is there is not opened: to close it would end the locks of SQLite."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return False
    return True


class Prefixed:
    """A store that prefixes the names of pools, so that two accounts do not share a quota.

    Args:
        store: Where the ledgers are.
        prefix: The text before the name of a pool and a slash; or a function that returns it for a pool, ``None`` for none.

    Attributes:
        inner: Where the ledgers are.
    """

    def __init__(self, store: Store, prefix: str | Callable[[str], str | None]) -> None:
        self.url = store.url
        self.inner = store

        def name(pool: str) -> str:
            before = prefix if isinstance(prefix, str) else prefix(pool)
            return pool if before is None else f"{before}/{pool}"

        self._name = cache(name)  # once for each pool: a function of the user's own may take long

    def exchange(self, pool: str, message: Message) -> StoreReply:
        return self.inner.exchange(self._name(pool), message)

    def ping(self) -> None:
        ping(self.inner)

    def remarks(self, pool: str) -> list[str]:
        return remarks(self.inner, self._name(pool))

    def after_fork(self) -> None:
        self.inner.after_fork()

    def close(self) -> None:
        self.inner.close()
