"""The clock that the shells share: what time it is, and one timer thread for all who wait."""

from __future__ import annotations

import heapq
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Protocol

from paceline.core.quota import NS

_ANCHOR_NS = time.time_ns() - time.monotonic_ns()


log = logging.getLogger("paceline")


class Timer(Protocol):
    """A callback that will be made once, unless cancelled."""

    def cancel(self) -> None:
        """Do not call any more."""


class Clock(Protocol):
    """Where a limiter gets its time from; tests bring their own."""

    def now_ns(self) -> int:
        """Nanoseconds since the Unix epoch; never goes back."""

    def call_at(self, at_ns: int, callback: Callable[[], None]) -> Timer:
        """Call ``callback`` at ``at_ns`` or soon after, on any thread."""


class _Timer:
    __slots__ = ("at_ns", "callback", "clock")

    def __init__(self, clock: SystemClock, at_ns: int, callback: Callable[[], None]) -> None:
        self.clock = clock
        self.at_ns = at_ns
        self.callback: Callable[[], None] | None = callback

    def __lt__(self, other: _Timer) -> bool:
        return self.at_ns < other.at_ns

    def cancel(self) -> None:
        if self.callback is not None:
            self.callback = None
            self.clock.cancelled += 1


class SystemClock:
    """Monotonic time that started at the wall clock's, and a daemon thread that sleeps until the next timer.

    The thread starts with the first timer, and again in a forked child. It belongs to no event loop, so a
    loop that is closed or blocked keeps nobody waiting but its own tasks.
    """

    def __init__(self) -> None:
        self.cancelled = 0  # timers that lie in the heap until their date, or until half of it is such
        self._heap: list[_Timer] = []
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def now_ns(self) -> int:
        """Nanoseconds since the Unix epoch; never goes back."""
        return time.monotonic_ns() + _ANCHOR_NS

    def call_at(self, at_ns: int, callback: Callable[[], None]) -> Timer:
        """Call ``callback`` on the timer thread; it must be short and must not raise."""
        timer = _Timer(self, at_ns, callback)
        with self._changed:
            if self.cancelled > 100 and self.cancelled > len(self._heap) // 2:
                self._heap = [timer for timer in self._heap if timer.callback is not None]
                heapq.heapify(self._heap)
                self.cancelled = 0
            heapq.heappush(self._heap, timer)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="paceline-timer", daemon=True)
                self._thread.start()
            elif self._heap[0] is timer:
                self._changed.notify()
        return timer

    def _forget(self) -> None:
        self._heap, self._changed, self._thread = [], threading.Condition(), None

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._heap or (wait_ns := self._heap[0].at_ns - self.now_ns()) > 0:
                    self._changed.wait(min(wait_ns / NS, threading.TIMEOUT_MAX) if self._heap else None)
                callback = heapq.heappop(self._heap).callback
            if callback is not None:
                try:
                    callback()
                except Exception:
                    log.exception("a timer failed; the others go on")
                callback = None  # whoever it belonged to may be gone before the next


SYSTEM_CLOCK = SystemClock()
