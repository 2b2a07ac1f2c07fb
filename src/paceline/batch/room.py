"""How many requests are in flight at most, once this machine has lacked files, memory or threads for more of them."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from typing import Final

from paceline.core.hints import counted
from paceline.pacing.lack import Lack

SPARE: Final = 8
"""How many requests fewer are in flight then: their files are for the resolver, the store and the output."""

PAUSE_S: Final = 1.0
"""How long a request waits that lacked something."""

RISE_S, RISE_MOST_S = 1.0, 60.0
"""The time until one more request may be in flight. It doubles when a request has lacked something that entered under the bound."""


class Room:
    """Bounds the requests in flight: not at all, until one of them has lacked something.

    Args:
        say: Takes a line for the user.

    Attributes:
        most: How many there may be.
        lack: What was lacking last; ``None`` for nothing yet.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.most: float = math.inf
        self.lack: Lack | None = None
        self._say, self._said = say, False
        self._inside = self._entered = 0
        self._newest = self._newest_attempt = -1  # the last entry, and the last attempt, before the bound was lowered
        self._fit = 0  # how many of the attempts in flight had what they need
        self._rise_s, self._risen_s = RISE_S, 0.0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def enter(self) -> int:
        """Wait for room; return the number of the entry."""
        while self._inside >= self.most:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():
                    self._wake()
                raise
        self._inside += 1
        self._entered += 1
        return self._entered

    def leave(self) -> None:
        """Make room for another one, and sometimes for one more."""
        self._inside -= 1
        if self._waiting:
            now_s = asyncio.get_running_loop().time()
            if now_s - self._risen_s >= self._rise_s:
                self.most, self._risen_s = self.most + 1, now_s
                self._wake()
            if self._inside < self.most:
                self._wake()

    def lower(self, lack: Lack, entry: int, attempt: int, last: int, others: int) -> None:
        """Lower the bound to a little less than what is in flight.

        Args:
            lack: What an attempt lacked.
            entry: The number of its entry. One that had entered before the bound was lowered does not show that it is too high.
            attempt: The number of the attempt. Those in flight when another one lacked something may lack the same.
            last: The number of the last attempt of all.
            others: The other attempts in flight.
        """
        if attempt > self._newest_attempt:
            self._newest_attempt, self._fit = last, others
        else:
            self._fit -= 1
        if entry > self._newest:
            self._newest = self._entered
            self._rise_s = RISE_S if self.lack is None else min(2 * self._rise_s, RISE_MOST_S)
        self.most = min(self.most, max(1, self._fit - min(SPARE, self._fit // 4)))
        self.lack, self._risen_s = lack, asyncio.get_running_loop().time()

    async def pause(self) -> None:
        """Wait after a lack; the first time, say what was lacking."""
        await asyncio.sleep(PAUSE_S)
        if self.lack is not None and not self._said:
            self._said = True
            self._say(f"{self.words}{self.lack.remedy}")

    @property
    def words(self) -> str:
        """What was lacking, and the bound; empty for none."""
        return f"{self.lack}: {counted(self.most, 'request')} in flight at most" if self.lack is not None else ""

    def _wake(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
