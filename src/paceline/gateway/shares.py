"""The bounds of a process that its client keys share: one alone may use most of each, and never all."""

from __future__ import annotations

from collections import Counter
from typing import Final

PART: Final = 0.75
"""The most that one client key may use of what the others leave of a bound. So a quarter of each bound is there for
the others: of 1 GB, four of the largest bodies."""


def fits(owner: str, own: float, total: float, amount: float, most: float) -> bool:
    """Whether ``owner`` may use more of a bound. The first thing of a key only needs room, and so do clients that need no key.

    Args:
        owner: The identity of a client key; empty: no key is needed.
        own: What it uses.
        total: What all use.
        amount: What it wants in addition.
        most: The bound.
    """
    left = most - (total - own)
    return own + amount <= (left * PART if owner and own else left)


class Shares:
    """What each client key uses of a bound.

    Attributes:
        total: What all of them use.
    """

    __slots__ = ("_of", "total")

    def __init__(self) -> None:
        self.total = 0
        self._of: Counter[str] = Counter()

    def fits(self, owner: str, amount: int, most: float) -> bool:
        """Whether ``owner`` may use so much more, with ``most`` for all."""
        return fits(owner, self._of[owner], self.total, amount, most)

    def use(self, owner: str, amount: int) -> None:
        """``owner`` uses more, or less: a negative ``amount``."""
        self.total += amount
        self._of[owner] += amount
        if not self._of[owner]:
            del self._of[owner]
