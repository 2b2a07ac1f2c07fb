"""What a store is: something that keeps the books of pools for many processes, behind one operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from paceline.core.results import StoreError
from paceline.shared.messages import Message, Reply

__all__ = ["TIMEOUT_S", "Prefixed", "Store", "StoreError", "misplaced"]

TIMEOUT_S = 1.0
"""How long a store may take to answer before it counts as lost."""


class Store(Protocol):
    """Keeps the books of pools for many processes.

    ``exchange`` may be called from any thread; the library calls it from one of its own, never from an event loop.

    Attributes:
        url: What it is and where, fit to be shown: without a password.
    """

    url: str

    def exchange(self, pool: str, message: Message) -> Reply:
        """Apply ``message`` to the books of ``pool``, as :meth:`paceline.shared.ledger.SharedLedger.apply` does: at once and whole.

        Raises:
            StoreError: It did not happen, or nobody knows whether it did.
        """

    def after_fork(self) -> None:
        """In a forked child, before any call: connections, threads and locks are the parent's; start with new ones."""

    def close(self) -> None:
        """Let go of what is open; a later ``exchange`` opens it again."""


class Prefixed:
    """A store in which this limiter's pools have names of their own, so that two accounts do not share a quota.

    Args:
        store: Where the books are.
        prefix: What comes before the pools' names, and a slash after it; or, given the pool, says what.
    """

    def __init__(self, store: Store, prefix: str | Callable[[str], str]) -> None:
        self.url = store.url
        self._store = store
        self._prefix = prefix
        self._names: dict[str, str] = {}

    def exchange(self, pool: str, message: Message) -> Reply:
        """See :meth:`Store.exchange`."""
        name = self._names.get(pool)
        if name is None:
            prefix = self._prefix if isinstance(self._prefix, str) else self._prefix(pool)
            name = self._names[pool] = f"{prefix}/{pool}"
        return self._store.exchange(name, message)

    def after_fork(self) -> None:
        """See :meth:`Store.after_fork`."""
        self._store.after_fork()

    def close(self) -> None:
        """See :meth:`Store.close`."""
        self._store.close()


def misplaced(option: str) -> str:
    """Where ``option`` of a URL belongs that is none of any store's; empty where that cannot be told."""
    if option in ("lost", "lease_s"):
        return f"write Limiter(..., {option}=...), or {option} in the settings: it is no part of the URL"
    if "timeout" in option:
        return f"a store has {TIMEOUT_S:g} s to answer, and no URL changes that"
    return ""
