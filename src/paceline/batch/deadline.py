"""When a run leaves its batches, so that the rest can still be sent one by one before the deadline. No IO."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

SHARE: Final = 0.8
"""The part of the speed under the limits that is relied on: retries and other users take the rest."""


class Deadline:
    """Keeps what is unfinished within what can be sent one by one in the time that is left.

    The speed one by one is certain, and the speed of batches is not. So batches go on while the rest could still be sent, and are
    cancelled when it only just can. Where it cannot from the start, they go on as long as they can be of use.

    Args:
        seconds: The time from now to the deadline.
        need_s: The seconds in which the limits admit so many requests.
        lag_s: How long it takes to cancel batches.
        last_s: What the last answers take, beside the limits.
        clock: The time, in seconds.

    Attributes:
        bet: Whether the deadline can only be kept if the batches end in time.
    """

    def __init__(
        self,
        seconds: float,
        need_s: Callable[[int], float],
        *,
        lag_s: float,
        last_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._need_s, self._lag_s, self._last_s, self._clock = need_s, lag_s, last_s, clock
        self._end_s = clock() + seconds
        self.bet = True

    def needs(self, unfinished: int) -> float:
        """The seconds in which batches can be cancelled and the rest be sent one by one."""
        return self._lag_s + self._last_s + self._need_s(unfinished) / SHARE

    def due(self, unfinished: int) -> bool:
        """Whether to leave the batches now."""
        left_s = self._end_s - self._clock()
        if left_s > self.needs(unfinished):
            self.bet = False
            return False
        return not self.bet or left_s <= self._lag_s + self._last_s
