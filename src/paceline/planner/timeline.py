"""The virtual time of a simulation, and its random choices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random
from typing import TypeVar

from paceline.core.quota import NS
from paceline.pacing.clock import Timer
from paceline.testing.clock import ManualClock

T = TypeVar("T")


class Timeline:
    """The time of a simulation.

    Args:
        seed: Makes every random choice repeatable.
        start_s: The time at the start, in seconds since the Unix epoch.

    Attributes:
        clock: The clock, which jumps from event to event.
        start_ns: Its time at the start.
        random: The source of all random choices.
    """

    def __init__(self, seed: int, start_s: float) -> None:
        self.clock = ManualClock(start_s)
        self.start_ns = self.clock.now_ns()
        self.random = Random(seed)

    @property
    def now_s(self) -> float:
        """Seconds since the start."""
        return (self.clock.now_ns() - self.start_ns) / NS

    @property
    def epoch_s(self) -> float:
        """Seconds since the Unix epoch."""
        return self.clock.now_ns() / NS

    def after(self, seconds: float, event: Callable[[], None]) -> Timer:
        """Do ``event`` in ``seconds``."""
        return self.clock.call_at(self.clock.now_ns() + round(seconds * NS), event)

    async def sleep(self, seconds: float) -> None:
        """Suspend the task for ``seconds``; as :func:`asyncio.sleep`, with half as many rounds of the event loop."""
        over: asyncio.Future[None] = asyncio.Future()
        timer = self.after(seconds, partial(end, over, None))
        try:
            await over
        finally:
            timer.cancel()


def end(waited_for: asyncio.Future[T], value: T) -> None:
    """Let the task that waits continue with ``value``; it may have left by then."""
    if not waited_for.done():
        waited_for.set_result(value)
