"""The virtual time of a simulation, and its random choices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Generic, TypeVar

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
        over: Outcome[None] = Outcome()
        timer = self.after(seconds, partial(over.set, None))
        try:
            await over.future
        finally:
            timer.cancel()


class Outcome(Generic[T]):
    """What a task waits for, and a later event sets; the task may have left by then.

    Attributes:
        future: To be awaited.
    """

    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def set(self, value: T) -> None:
        """Let the task continue with ``value``."""
        if not self.future.done():
            self.future.set_result(value)

    def fail(self, error: Exception) -> None:
        """Let the task continue with ``error``."""
        if not self.future.done():
            self.future.set_exception(error)
