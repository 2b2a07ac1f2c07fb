"""Clocks for tests: a manual clock, and an event loop in virtual time.

def test_pacing():
    async def main(clock):
        limiter = paceline.Limiter({"jobs": "60 requests/min burst 2"}, clock=clock)
        for _ in range(10):
            async with limiter.acquire("jobs"):
                pass

    run_virtual(main)  # 9 virtual seconds, some real microseconds
"""

from __future__ import annotations

import asyncio
import heapq
import math
import selectors
import threading
import time
from collections.abc import Callable, Coroutine
from contextvars import Context
from itertools import count
from typing import Any, TypeVar, TypeVarTuple

from paceline.core.quota import NS
from paceline.pacing.clock import Timer

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

START_S = 1_800_000_000.0
"""The start of a manual clock, in seconds since the Unix epoch: a morning in 2027."""

CALLBACKS_MAX = 1_000_000
"""The most callbacks of one advance; more are taken for timers that set each other endlessly."""

ENDLESS = f"more than {CALLBACKS_MAX:,} callbacks in one advance: timers that set each other endlessly?"

REAL_LOOK_S = 0.002
REAL_WAIT_S = 1.0
"""The real time that a virtual loop without a timer waits for a socket or a thread."""


class DeadlockError(RuntimeError):
    """No event can occur in this event loop: no timer is set, and no socket or thread is active."""


class _Timer:
    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class ManualClock:
    """A :class:`~paceline.pacing.clock.Clock` that a test advances. Safe to use from several threads.

    Args:
        start_s: The initial time, in seconds since the Unix epoch.
    """

    def __init__(self, start_s: float = START_S) -> None:
        self._now_ns = round(start_s * NS)
        self._timers: list[tuple[int, int, _Timer]] = []
        self._number = count().__next__
        self._lock = threading.RLock()  # a finalizer may set a timer while this thread sets one

    def now_ns(self) -> int:
        """Nanoseconds since the Unix epoch; only :meth:`advance` changes it."""
        return self._now_ns

    def call_at(self, at_ns: int, callback: Callable[[], None]) -> Timer:
        """Call ``callback`` when the clock is advanced to ``at_ns`` or beyond, on the thread that advances it."""
        timer = _Timer(callback)
        with self._lock:
            heapq.heappush(self._timers, (at_ns, self._number(), timer))
        return timer

    @property
    def next_ns(self) -> int | None:
        """The time of the next timer; ``None`` without any."""
        with self._lock:
            while self._timers and self._timers[0][2].callback is None:
                heapq.heappop(self._timers)
            return self._timers[0][0] if self._timers else None

    def advance(self, seconds: float) -> None:
        """Advance by ``seconds``; the timers due meanwhile run in order, each with the clock at its instant.

        Raises:
            ValueError: ``seconds`` is below 0 or not finite.
            RuntimeError: More than a million callbacks were due: timers set each other endlessly.
        """
        if not 0 <= seconds < float("inf"):
            raise ValueError(f"seconds is {seconds!r}: it must be a finite number, 0 or more")
        self.advance_to(self._now_ns + round(seconds * NS))

    def advance_to(self, at_ns: int) -> None:
        """Like :meth:`advance`, to an instant in nanoseconds since the Unix epoch; an earlier instant counts as now."""
        for _ in range(CALLBACKS_MAX):
            callback = self._due(at_ns)
            if callback is None:
                return
            callback()
        raise RuntimeError(ENDLESS)

    def _due(self, at_ns: float) -> Callable[[], None] | None:
        """Remove the next timer up to ``at_ns`` and set the clock to it; without one, set the clock to ``at_ns``, if that is finite."""
        timers = self._timers
        with self._lock:
            while timers and timers[0][0] <= at_ns:
                then_ns, _, timer = heapq.heappop(timers)
                callback = timer.callback
                if callback is not None:  # a cancelled timer does not set the clock
                    if then_ns > self._now_ns:  # one from the past runs now
                        self._now_ns = then_ns
                    return callback
            if self._now_ns < at_ns < math.inf:
                self._now_ns = int(at_ns)
            return None


def run_virtual(
    main: Coroutine[Any, Any, T] | Callable[[ManualClock], Coroutine[Any, Any, T]], clock: ManualClock | None = None
) -> T:
    """Run ``main`` like :func:`asyncio.run`, in an event loop that uses the time of ``clock`` and never sleeps.

    Whenever every task waits, the clock jumps to the next timer, of the loop (``asyncio.sleep``, timeouts) or of the
    clock (a limiter). Sockets and threads stay real: they are polled before each jump, and waited for (at most a second)
    only when no timer is left, so the virtual time may run ahead of them.

    Args:
        main: A coroutine, or a function that takes the clock and returns one.
        clock: The clock; a new one by default.

    Returns:
        The result of the coroutine.

    Raises:
        DeadlockError: No event can occur; the message names the waiting tasks.

    Example:
        async def main(clock):
            limiter = paceline.Limiter({"jobs": "1 requests/min"}, clock=clock)
            for _ in range(3):
                await limiter.acquire("jobs")
            return clock.now_ns()

        paceline.testing.run_virtual(main)  # two minutes, in no time
    """
    clock = clock or ManualClock()
    with asyncio.Runner(loop_factory=lambda: _VirtualLoop(clock)) as runner:
        return runner.run(main(clock) if callable(main) else main)


class _VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop with the time of a manual clock."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._start_ns = clock.now_ns()  # a small number keeps nanoseconds in a float
        self._jumps = _JumpingSelector(clock, self._name_waiters)
        super().__init__(self._jumps)
        self._clock_resolution = 10 / NS  # two virtual years in seconds are a float with steps of 7 ns

    def time(self) -> float:
        """Virtual seconds since the creation of the loop."""
        return (self._clock.now_ns() - self._start_ns) / NS

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """As of any loop; the selector is told that there is something to do."""
        self._jumps.woken = True
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """The same for a timer, which may be the next one."""
        self._jumps.woken = True
        return super().call_at(when, callback, *args, context=context)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ARG002, ASYNC109
        """Join the threads without a timeout, which in virtual seconds would pass at once."""
        await super().shutdown_default_executor()

    def _name_waiters(self) -> str:
        places = []
        for task in asyncio.all_tasks(self):
            frames = task.get_stack(limit=1)
            where = f" at {frames[0].f_code.co_filename}:{frames[0].f_lineno}" if frames else ""
            places.append(f"{task.get_name()}{where}")
        return "; ".join(sorted(places)[:10]) or "none"


class _JumpingSelector(selectors.DefaultSelector):
    """Advances the clock where another selector would sleep.

    Attributes:
        woken: Whether the loop has got a callback or a timer since the last jump.
    """

    def __init__(self, clock: ManualClock, waiters: Callable[[], str]) -> None:
        super().__init__()
        self._clock = clock
        self._waiters = waiters
        self.woken = False

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Poll sockets, then advance by ``timeout`` seconds, or to the clock's next timer if that is earlier.

        Without a ``timeout`` the clock is advanced from timer to timer until one gives the loop something to do.
        """
        clock = self._clock
        events = super().select(0) if self._is_real() else []
        if events or (timeout is not None and timeout <= 0):
            clock.advance_to(clock.now_ns())  # timers that are due already
            return events
        if timeout is not None:
            next_ns = clock.next_ns
            until_ns = clock.now_ns() + math.ceil(timeout * NS)
            clock.advance_to(until_ns if next_ns is None else min(next_ns, until_ns))
            return events
        if self._has_run_timers():
            return events
        until_s = time.monotonic() + REAL_WAIT_S
        while self._is_real() and not events and clock.next_ns is None and time.monotonic() < until_s:
            events = super().select(REAL_LOOK_S)
        if not events and clock.next_ns is None:
            raise DeadlockError(f"deadlock: no timer is set, and these tasks wait: {self._waiters()}")
        return events

    def _has_run_timers(self) -> bool:
        """Run the timers until one gives the loop something to do, and the others of its instant; whether one has."""
        self.woken, until = False, math.inf
        for _ in range(CALLBACKS_MAX):
            callback = self._clock._due(until)  # noqa: SLF001  (of this module)
            if callback is None:
                return until < math.inf
            callback()
            if self.woken or self._is_real():
                until = self._clock.now_ns()  # the other timers of this instant
        raise RuntimeError(ENDLESS)

    def _is_real(self) -> bool:
        """Whether a socket, beside the loop's own pipe, or a thread may become active."""
        return len(self.get_map()) > 1 or threading.active_count() > 1
