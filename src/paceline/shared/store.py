"""The port between pools that processes share and the place that keeps their ledgers."""

from __future__ import annotations

from typing import Protocol

from paceline.shared.messages import Message, Reply


class Store(Protocol):
    """Keeps the shared ledgers of pools for many processes.

    ``exchange`` may be called from any thread; the library calls it from a thread of its own, never from an event loop.

    Attributes:
        url: What the store is and where, for logs and errors: without a password.
    """

    url: str

    def exchange(self, pool: str, message: Message) -> Reply:
        """Apply ``message`` to the ledger of ``pool`` in one step: :meth:`paceline.shared.ledger.SharedLedger.apply`.

        Raises:
            StoreError: The message was not applied, or it is not known whether it was.
        """

    def after_fork(self) -> None:
        """In a forked child, before any call: replace connections, threads and locks, which belong to the parent."""

    def close(self) -> None:
        """Close what is open; a later ``exchange`` opens it again."""
