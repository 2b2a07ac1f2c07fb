"""How long the beginnings of streams are held before they are judged: what a pool has learned of that."""

from __future__ import annotations

from paceline.core.results import Refusal
from paceline.providers import verdict


class Patience:
    """How long the streams of a pool are held.

    Where they are silent after their first event, each hold costs its whole time and shows nothing. After ``n`` such
    holds the next one shows a refusal with a chance of 1 in ``n + 2`` (the rule of succession), so that it lasts as
    much less. A refusal that comes later is the stream's, and the next stream is held for the whole time again.

    WEAK: streams whose content comes in time count for nothing here, because their holds cost nothing.
    """

    __slots__ = ("_in_vain",)

    def __init__(self) -> None:
        self._in_vain = 0  # holds that ended without a verdict, since the last refusal inside a stream

    @property
    def seconds(self) -> float:
        """For how long the next stream is held at most."""
        return verdict.HELD_S / (1 + self._in_vain)

    def judged(self, beginning: verdict.Beginning, refusal: Refusal | None) -> None:
        """A stream was judged by its ``beginning``, or was not when the hold ended."""
        if refusal is not None:
            self.refused()
        elif beginning.open:
            self._in_vain += 1

    def refused(self) -> None:
        """A stream has a refusal inside of it: the next ones may."""
        self._in_vain = 0
