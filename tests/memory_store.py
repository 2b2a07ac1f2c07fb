"""A store inside one process, where each object is another place: for limiters that share quotas there."""

from __future__ import annotations

from paceline.pacing.clock import SYSTEM_CLOCK, Clock
from paceline.shared.ledger import SharedLedger
from paceline.shared.messages import Message, StoreReply
from paceline.stores.base import InTurn


class MemoryStore:
    """Keeps shared ledgers in this process, for as long as it lives."""

    url = "memory:"

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._ledgers: dict[str, SharedLedger] = {}
        self._in_turn = InTurn()

    def exchange(self, pool: str, message: Message) -> StoreReply:
        return self._in_turn.run(
            lambda: self._ledgers.setdefault(pool, SharedLedger()).apply(self._clock.now_ns(), message)
        )

    def ping(self) -> None:
        """See :func:`~paceline.shared.messages.ping`."""

    def after_fork(self) -> None:
        self._in_turn = InTurn()

    def close(self) -> None:
        """Nothing is open."""
