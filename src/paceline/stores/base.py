"""What a store is: something that keeps the books of pools for many processes, behind one operation."""

from __future__ import annotations

from typing import Protocol

from paceline.core.message import Message, Reply
from paceline.core.outcomes import StoreError

__all__ = ["TIMEOUT_S", "Store", "StoreError"]

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
        """Apply ``message`` to the books of ``pool``, as :meth:`paceline.core.books.Books.apply` does: at once and whole.

        Raises:
            StoreError: It did not happen, or nobody knows whether it did.
        """

    def after_fork(self) -> None:
        """In a forked child: what was open belongs to the parent."""

    def close(self) -> None:
        """Let go of what is open; a later ``exchange`` opens it again."""
