"""When the exchanges of a pool with its store are due, and whether the worker that makes them knows it."""

from __future__ import annotations

from collections.abc import Callable

from paceline.core.capacity import Capacity


class Exchanges:
    """The exchanges of one pool whose quotas a store keeps.

    Args:
        capacity: The quotas.
        running: Whether the worker's thread lives.
        poke: Informs the worker that an exchange is due; returns whether it will be made.

    Attributes:
        due: Whether an exchange is due and the worker is not informed yet.
    """

    __slots__ = ("_capacity", "_poke", "_running", "_told", "due")

    def __init__(self, capacity: Capacity, running: Callable[[], bool], poke: Callable[[], bool]) -> None:
        self._capacity, self._running, self._poke = capacity, running, poke
        self.due = self._told = False

    def plan(self, now_ns: int) -> int | None:
        """When to call this again for the next exchange.

        ``None``: there is nothing to wait for, because the worker is informed of an exchange, or is to be (:attr:`due`).
        """
        self._capacity.exchange_due = False
        if self._told and self._running():
            return None
        at_ns = self._capacity.exchange_ns
        if at_ns > now_ns:
            return at_ns
        self.due = True
        return None

    def tell(self) -> bool:
        """Inform the worker that an exchange is due; whether it will be made."""
        self.due, self._told = False, True
        return self._poke()

    def begin(self) -> None:
        """The worker begins an exchange, or will make none. It is informed again when the next one is due."""
        self._told = False

    @property
    def idle(self) -> bool:
        """Whether no exchange is due, except one that has begun."""
        return not (self.due or self._told)

    def after_fork(self) -> None:
        """Drop the state of the worker of the parent process."""
        self.due = self._told = False
